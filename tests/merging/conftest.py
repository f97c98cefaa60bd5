"""Model families are a module beside these tests: `import families`."""

from __future__ import annotations
