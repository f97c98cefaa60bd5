"""Estimate models for programs: files, folders, patterns and models in memory; errors are raised or collected."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.naming import find_models
from gkestimator.core.option_kinds import Word
from gkestimator.core.options import Option, Value, taking
from gkestimator.estimation.request import EstimateRequest, GivenModel, ModelInMemory

if TYPE_CHECKING:
    from gkestimator.library.requirements import Requirements

_Failures = list[tuple[Path, GkestimatorError]]


@dataclass
class LibraryRequest(EstimateRequest):
    """Hold what programs may say of an estimate. Raises UsageError."""

    _: KW_ONLY
    errors: Value[str] = Option(
        "raise",
        Word(("raise", "collect")),
        "Of a model that cannot be estimated: raise its error, or collect it in `.errors`.",
        flag=None,
    )


@taking(LibraryRequest)
def estimate(request: LibraryRequest) -> Requirements:
    """Return the requirement table of models: a pandas DataFrame, one row per model, GPU, batch size and SM share.

    ``models`` are ONNX files, folders (every ``*.onnx`` below), patterns (``models/**/*.onnx``), models in memory
    (``onnx.ModelProto``), or a list of these. One value may stand for a list of one, and NumPy's numbers for Python's.
    Unknown values are missing (NA), never 0. Beside the rows, computed when they are asked for:
    ``.kernels``, ``.timeline``, ``.memory``, ``.plot()``, ``.report(path)``; see :class:`gkestimator.Requirements`.

        >>> needs = gkestimator.estimate("resnet50.onnx", ["V100", "H100"], [1, 8, 64], runtime="onnxruntime")
        >>> needs[["gpu", "batch_size", "latency_ms", "mreq_bytes", "warnings"]]
    """
    from gkestimator.estimation.api import answered
    from gkestimator.library.requirements import requirements_of

    models, failures = _found(request.models)
    if failures and request.errors == "raise":
        raise failures[0][1]
    asked = None
    result = None
    if models:
        result = answered(replace(request, models=models))
        # Details that are asked for later answer the same request, wherever the program is by then.
        asked = replace(request, models=[_absolute(model) for model in models])
        failures += result.failures
        if result.failures and request.errors == "raise":
            raise result.failures[0][1]
    return requirements_of(asked, result, failures)


def _absolute(model: GivenModel) -> GivenModel:
    if isinstance(model, ModelInMemory):
        return model
    return Path(os.path.abspath(model))


def _found(given: Iterable[GivenModel]) -> tuple[tuple[GivenModel, ...], _Failures]:
    """Return the models that are meant, each once, and what means none, with its error."""
    models: dict[GivenModel, None] = {}
    failures: _Failures = []
    for one in given:
        if isinstance(one, ModelInMemory):
            models[one] = None
            continue
        paths, missing = find_models([str(one)])
        models |= dict.fromkeys(paths)
        failures += missing
    return tuple(models), failures
