"""Random graphs are a module beside these tests: `import random_skeletons`."""

from __future__ import annotations
