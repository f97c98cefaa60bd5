"""Which family a launch belongs to, by exact words of its kernel's name.

A name is cut into words at everything that is no letter or digit and where the case changes (``nchwToNhwcKernel``:
nchw, to, nhwc, kernel). Only the function's own name counts, not its template arguments, unless it is one of the
generic ones (``elementwise_kernel<...>``, which its functor names). The first table of families.toml that holds one
of the words decides; a name without any is of the operator's main family.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from gkestimator.core.kernels import Family
from gkestimator.kernel_models.roofline import MATRIX_FAMILIES
from gkestimator.profiling.type_names import Names

# Words of matrix and convolution libraries: which family it is, the operator says (an implicit GEMM is a
# convolution's).
MATRIX = "matrix"

_NAMES = tomllib.loads(Path(__file__).with_name("families.toml").read_text(encoding="utf-8"))
_TABLES: list[tuple[str, frozenset[str]]] = []
for _table in _NAMES["words"]:
    _TABLES.append((_table["family"], frozenset(_table["words"].split())))
_SEQUENCES: list[tuple[str, Names]] = []
for _family, _words in _NAMES["sequences"]:
    _SEQUENCES.append((_family, tuple(_words.split())))
_GENERIC = frozenset({"elementwise", "vectorized", "unrolled"})
_FUNCTORS: tuple[tuple[str, str], ...] = (
    ("copy", Family.COPY),
    ("direct", Family.COPY),
    ("fill", Family.COPY),
    ("gather", Family.GATHER),
)
_SPLIT = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_SIZE = re.compile(r"(?<=[a-z])[0-9]+(x[0-9]+)*\Z")


def kernel_words(name: str) -> Names:
    """Return the words of a kernel's own name, in lower case: return type, namespaces, template arguments and
    parameters left out."""
    return tuple(word.lower() for word in _SPLIT.findall(_own_name(name)))


def _own_name(name: str) -> str:
    """Return ``reduce_kernel`` of ``void at::native::reduce_kernel<512, 1, at::native::ReduceOp<...>>(T3)``."""
    text = name[:4096].replace("(anonymous namespace)", "anonymous").replace("<unnamed>", "anonymous")
    depth = 0
    own = []
    for character in text:
        if character in "<(":
            depth += 1
            if depth == 1 and character == "(":
                break  # the parameters begin
        elif character in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            own.append(character)
    words = "".join(own).split() or [text]
    *spaces, last = words[-1].split("::")
    # cutlass::Kernel, cudnn::ops::kernel: the word that tells stands before
    if last.lower() in ("kernel", "kernel2", "device_kernel", "run"):
        return "_".join([*spaces[-2:], last])
    return last


@lru_cache(maxsize=16384)
def word_family(name: str) -> str | None:
    """Return a family's name, :data:`MATRIX`, or None where no word of ``name`` is known."""
    words = kernel_words(name)
    if set(words) & _GENERIC and "<" in name:
        inner = {w.lower() for w in _SPLIT.findall(name[name.index("<") :][:4096])}
        for word, family in _FUNCTORS:
            if word in inner and not set(words) & {"layer", "index", "gather", "scatter"}:
                return family
    plain = tuple(_SIZE.sub("", word) for word in words)  # data4x4, pool2, transpose4
    for family, sequence in _SEQUENCES:
        starts = range(len(plain) - len(sequence) + 1)
        if any(plain[i : i + len(sequence)] == sequence for i in starts):
            return family
    known = {*words, *plain}
    for family, table in _TABLES:
        if known & table:
            return family
    if "<" in name and "cutlass" in name[:4096].lower():
        return MATRIX
    return None


def family_of(name: str | None, kind: str, rules: Sequence[Family]) -> Family:
    """Return the family of one of several launches of an operator whose rule says that it becomes kernels of
    the families ``rules``, its main one (the longest) first. Copies and memory sets are ``copy``; a matrix
    library's kernel is of the operator's own matrix family, ``linear`` if it has none; an unknown name, or
    none, is of the main family."""
    if kind in ("memcpy", "memset"):
        return Family.COPY
    main = rules[0] if rules else Family.ELEMENTWISE
    named = word_family(name) if name else None
    if named is None:
        return main
    if named == MATRIX:
        products = (f for f in rules if f in MATRIX_FAMILIES or f is Family.DEPTHWISE)
        return next(products, Family.LINEAR)
    return Family(named)
