"""Random super-operators are a module beside these tests: `import random_supers`."""

from __future__ import annotations
