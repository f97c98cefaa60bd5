"""Hold every operator: its shapes, its kernels and its traits.

A file in this folder (or in `microsoft/`, `shapes/`) registers its operators when it is loaded, and importing this package loads them
all: a new operator needs no list.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
