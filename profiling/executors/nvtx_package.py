"""The nvtx package as annotator, and the choice between it and our own client.

NVIDIA's package is what others use; what it records hangs on the tool: 0.2.12 to 0.2.17 give Nsight Systems 2022.4 and
2023.4 nothing, silently, 0.2.11 gives them every range. So a probe decides (``collectors/probing.py``), and says so to
the child in a variable of its environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from gkestimator.profiling.executors.nvtx_ranges import INJECTION_VARIABLE, NvtxError, NvtxRanges
from gkestimator.profiling.type_names import TextByName

ANNOTATOR_VARIABLE = "GKEST_NVTX"
PACKAGE, CLIENT = "package", "client"


class PackageRanges:
    """Make push/pop ranges of one NVTX domain through the nvtx package."""

    def __init__(self, domain: str, environment: TextByName = os.environ) -> None:
        """Raise NvtxError where the package cannot be loaded."""
        try:
            import nvtx
        except ImportError as e:
            raise NvtxError(f"{ANNOTATOR_VARIABLE}={PACKAGE}: {e}") from e
        self._annotate: Any = nvtx.annotate
        self._domain = domain
        self._asked = bool(environment.get(INJECTION_VARIABLE))

    @property
    def active(self) -> bool:
        """Return True where a profiler asks for ranges; whether it gets them, only its capture shows."""
        return self._asked

    @contextmanager
    def range(self, text: str) -> Iterator[None]:
        """Put a push/pop range around the block."""
        with self._annotate(text, domain=self._domain):
            yield


def make_ranges(domain: str, environment: TextByName = os.environ) -> NvtxRanges | PackageRanges:
    """Return the annotator that ``GKEST_NVTX`` names, our own client where it names none. Raises NvtxError."""
    if environment.get(ANNOTATOR_VARIABLE) == PACKAGE:
        return PackageRanges(domain, environment)
    return NvtxRanges(domain, environment)


def nvtx_version() -> str | None:
    """Return the version of the nvtx package; None where it is not installed. Nothing of it is loaded."""
    try:
        return metadata.version("nvtx")
    except metadata.PackageNotFoundError:
        return None
