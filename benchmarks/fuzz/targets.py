"""Name every fuzzer. A new one is a module of this folder with ``prepare`` and ``case``, and one entry here."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast


class Target(Protocol):
    """Make cases of one kind, as a module of this folder does."""

    def prepare(self, cache: Path) -> None:
        """Write seeds that all cases begin from into ``cache``, and run what loads modules and bundles once."""

    def case(self, rng: random.Random, cache: Path, folder: Path) -> Sequence[str] | Callable[[], int]:
        """Write one case into ``folder`` (the working directory); return the arguments of ``gkest``, or what is run instead.

        A function returns the exit status that it saw (0, 1 or 2), and prints what it found wrong as "Traceback" lines do.
        """


# Name and share of the cases of a whole run.
SHARES: dict[str, float] = {
    "onnx": 8,
    "documents": 4,
    "bundles": 3,
    "merges": 2,
    "reports": 2,
    "http": 1,
}


def target(name: str) -> Target:
    """Return the fuzzer called ``name``."""
    return cast(Target, importlib.import_module(f"benchmarks.fuzz.{name}"))
