"""Control flow: stub until the next commit."""
from __future__ import annotations
from typing import Any
CONTROL: dict[tuple[str, str], Any] = {}
