"""Runtimes: the one registry of what the code asks of each framework.

A new runtime is one file here, one entry in :data:`RUNTIMES`, and its figures in ``datasets/runtimes/<name>.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gkestimator.core.errors import UsageError
from gkestimator.core.options import spelled
from gkestimator.hardware.runtimes.onnxruntime import ONNXRUNTIME
from gkestimator.hardware.runtimes.record import RuntimeTraits
from gkestimator.hardware.runtimes.tensorrt import ONNXRUNTIME_TENSORRT, TENSORRT
from gkestimator.hardware.runtimes.torch import TORCH

__all__ = [
    "PROVIDERS",
    "RUNTIMES",
    "RuntimeTraits",
    "checked_layout",
    "executor_of",
    "runtime_traits",
    "runtime_with",
    "runtime_words",
    "served_as",
]

_ENTRIES = (TORCH, ONNXRUNTIME, ONNXRUNTIME_TENSORRT, TENSORRT)
RUNTIMES: Mapping[str, RuntimeTraits] = MappingProxyType({r.name: r for r in _ENTRIES})
"""Every runtime by name, the default one first."""
PROVIDERS = tuple(sorted({r.provider_of[1] for r in _ENTRIES if r.provider_of is not None}))
"""The execution providers that a user may name beside a runtime."""


def runtime_traits(name: str) -> RuntimeTraits:
    """Return the record of the runtime ``name``. Raises UsageError that lists the known ones."""
    traits = RUNTIMES.get(name)
    if traits is None:
        raise UsageError(f"runtime {name!r}: expected one of {', '.join(sorted(RUNTIMES))}")
    return traits


def runtime_with(name: str, provider: str | None) -> str:
    """Return the runtime that ``name`` is with an execution provider; ``name`` itself where that is None or its own.

    Raises UsageError for a provider that the runtime lacks.
    """
    own = runtime_traits(name).provider_of
    named = {own[1]: name} if own is not None else {}
    for traits in RUNTIMES.values():
        if traits.provider_of is not None and traits.provider_of[0] == name:
            named[traits.provider_of[1]] = traits.name
    if provider is None:
        return name
    if provider not in named:
        expected = " or ".join(sorted(named)) or "none"
        raise UsageError(f"{spelled('provider')}: found {provider}, expected {expected} under runtime {name}")
    return named[provider]


def checked_layout(name: str, layout: str) -> str:
    """Return ``layout``. Raises UsageError where a program under the runtime ``name`` has no choice of it."""
    layouts = runtime_traits(name).layouts
    if layout not in layouts:
        expected = ", ".join(layouts)
        reason = "stores images as the file has them"
        if runtime_traits(name).permits:
            reason = "chooses the layout of each kernel itself"
        raise UsageError(f"layout: found {layout}, expected {expected} under {name}, which {reason}")
    return layout


def executor_of(name: str) -> tuple[str, str]:
    """Return the module and class that profile under the runtime ``name``. Raises UsageError where none does, which
    says how to measure instead.
    """
    traits = runtime_traits(name)
    if traits.executor is None:
        raise UsageError(f"runtime {name}: nothing here profiles operators under it; {traits.measured_by}")
    return traits.executor


def served_as(name: str) -> RuntimeTraits:
    """Return the record of the runtime under which servers run a model that was planned for the runtime ``name``: its
    own, or ONNX Runtime's where servers run ONNX files under that instead. A plan may name one that is not known here.
    """
    traits = RUNTIMES.get(name)
    if traits is not None and traits.serving_providers:
        return traits
    return ONNXRUNTIME


def runtime_words() -> str:
    """Return the names for a sentence: ``torch or onnxruntime``."""
    *others, last = RUNTIMES
    if others:
        return f"{', '.join(others)} or {last}"
    return last
