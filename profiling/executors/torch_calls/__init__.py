"""The ATen calls that eager mode makes for ONNX operators, one file a family of operators.

Every builder is registered under its exact key ``(domain, op_type)``, or under a fused pattern's name. Importing this
package registers them all; torch itself is imported when a call is built.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from gkestimator.profiling.executors.torch_calls.registry import (
    CALLS,
    PATTERN_CALLS,
    Call,
    Late,
    Run,
    build_call,
)

__all__ = ["CALLS", "PATTERN_CALLS", "Call", "Late", "Run", "build_call"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
