"""Small graphs made by hand are a module beside these tests: `import chains`."""

from __future__ import annotations
