"""The interference models by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gkestimator.core.errors import UsageError

if TYPE_CHECKING:  # options of commands read the names: what computes is imported when a model is made
    from gkestimator.hardware.gpus import GpuSpec
    from gkestimator.interference.base import Interference

_HERE = "gkestimator.interference"
# Name -> where its class is, whose `code` is the branch of `laws.slowdown` that it asks for. The one list of the
# names: options and the engine read it, and tests/conformance/test_interference.py runs over all of them.
MODELS: Mapping[str, str] = {
    "none": f"{_HERE}.none:NoInterference",
    "gpulet": f"{_HERE}.gpulet:Gpulet",
    "igniter": f"{_HERE}.igniter:Igniter",
    "contention": f"{_HERE}.contention:Contention",
    "fitted": f"{_HERE}.fitted:FittedLaw",
}


def _class_of(name: str) -> type[Interference]:
    module, _, attribute = MODELS[name].partition(":")
    kind: type[Interference] = getattr(importlib.import_module(module), attribute)
    return kind


def law_code(name: str) -> int:
    """Return what :func:`gkestimator.interference.laws.slowdown` knows the interference model ``name`` by."""
    return _class_of(name).code


def make_interference(
    name: str, coefficients: Path | str | None = None, gpus: Sequence[GpuSpec] = ()
) -> Interference:
    """Return the interference model ``name``, with the coefficients in the file ``coefficients`` (None: those
    of its own) for the GPU types ``gpus`` that replicas run on. Raises UsageError naming what is not known,
    DocumentError or SpecError naming a field of the file."""
    if name not in MODELS:
        raise UsageError(f"interference {name!r} is not known, expected one of {', '.join(MODELS)}")
    path = None if coefficients is None else Path(coefficients)
    return _class_of(name).made(path, gpus)


def interference_between(
    name: str, coefficients: Path | str | None, gpus: Sequence[GpuSpec]
) -> Interference | None:
    """Return what :func:`make_interference` does; None for ``none``, which is refused coefficients
    (UsageError)."""
    if name != "none":
        return make_interference(name, coefficients, gpus)
    if coefficients is not None:
        raise UsageError(f"coefficients {coefficients}: interference none has none")
    return None
