"""Modules beside these tests: `import branches`, `import ways`, `import pipelines`."""

from __future__ import annotations
