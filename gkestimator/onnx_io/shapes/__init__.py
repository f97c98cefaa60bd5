"""Shape rules, one file per family; importing this package registers them all."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

_FAMILIES = ("elementwise", "layout", "matmul", "conv", "reduce", "sequences", "extended")

for _family in _FAMILIES:
    if _family != "extended" or find_spec(f"{__name__}.{_family}") is not None:
        import_module(f"{__name__}.{_family}")
