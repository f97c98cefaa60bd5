"""Random graphs are a module beside these tests: `import random_skeletons`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
