"""Modules beside these tests: `import branches`, `import ways`, `import pipelines`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
