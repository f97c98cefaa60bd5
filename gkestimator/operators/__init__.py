"""Hold every operator: its shapes, its kernels and its traits.

A file in this folder (or in `microsoft/`) holds one family: the shape rule, the lowering rule and the traits of each
of its operators. It registers them when it is loaded, and importing this package loads all files: a new operator needs
no list. Operators of the standard domain that are rare and that onnx's own schemas shape well have no shape rule here.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
