"""Small graphs made by hand are a module beside these tests: `import chains`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
