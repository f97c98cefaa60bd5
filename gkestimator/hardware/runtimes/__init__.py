"""Runtimes: the one registry of what the code asks of each framework.

A new runtime is one file here, one entry in :data:`RUNTIMES`, and its figures in ``datasets/runtimes/<name>.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gkestimator.core.errors import UsageError
from gkestimator.hardware.runtimes.onnxruntime import ONNXRUNTIME
from gkestimator.hardware.runtimes.record import RuntimeTraits
from gkestimator.hardware.runtimes.tensorrt import ONNXRUNTIME_TENSORRT, TENSORRT
from gkestimator.hardware.runtimes.torch import TORCH

__all__ = [
    "RUNTIMES",
    "RuntimeTraits",
    "checked_layout",
    "runtime_traits",
    "runtime_words",
    "serves_onnx_files",
    "serving_providers",
]

RUNTIMES: Mapping[str, RuntimeTraits] = MappingProxyType({r.name: r for r in (TORCH, ONNXRUNTIME, ONNXRUNTIME_TENSORRT, TENSORRT)})
"""Every runtime by name, the default one first."""


def runtime_traits(name: str) -> RuntimeTraits:
    """Return the record of the runtime ``name``. Raises UsageError that lists the known ones."""
    traits = RUNTIMES.get(name)
    if traits is None:
        raise UsageError(f"runtime {name!r}: expected one of {', '.join(sorted(RUNTIMES))}")
    return traits


def checked_layout(name: str, layout: str) -> str:
    """Return ``layout``. Raises UsageError where the runtime ``name`` stores images as the file has them."""
    layouts = runtime_traits(name).layouts
    if layout not in layouts:
        expected = ", ".join(layouts)
        raise UsageError(
            f"layout: found {layout}, expected {expected} under {name}, which stores images as the file has them"
        )
    return layout


def serves_onnx_files(name: str) -> bool:
    """Return whether servers run ONNX files under the runtime ``name``; a plan may name one that is not known here."""
    traits = RUNTIMES.get(name)
    return traits is not None and bool(traits.serving_providers)


def serving_providers(name: str) -> tuple[str, ...]:
    """Return the execution providers with which a server runs the ONNX files of a plan for the runtime ``name``: its
    own, or ONNX Runtime's where servers run files under that instead.
    """
    if serves_onnx_files(name):
        return RUNTIMES[name].serving_providers
    return ONNXRUNTIME.serving_providers


def runtime_words() -> str:
    """Return the names for a sentence: ``torch or onnxruntime``."""
    *others, last = RUNTIMES
    if others:
        return f"{', '.join(others)} or {last}"
    return last
