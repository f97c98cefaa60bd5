"""Say which whole models are reported and which may be tuned on: drawn by a hash of the name, before any tuning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

REPORTED_TIMM3090 = 30
"""How many of the graphs of ``timm3090`` are reported; the others are for development."""


def drawn(names: Iterable[str], count: int) -> frozenset[str]:
    """Return the ``count`` names whose SHA-256 comes first: a draw that nobody chose, the same everywhere."""

    def digest(name: str) -> str:
        return hashlib.sha256(name.encode()).hexdigest()

    return frozenset(sorted(names, key=digest)[:count])
