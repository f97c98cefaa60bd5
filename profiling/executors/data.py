"""Tensors for an entry: seeded, never all zeros, small enough in value that half precision does not overflow.

Zeros would be faster than real data on a GPU (less switching, less power, higher clocks) and take short cuts in
sparse and index kernels; infinities and NaNs change what ``TopK`` or ``NonMaxSuppression`` do.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from gkestimator.core.dtypes import NUMPY_NAMES, DType
from gkestimator.core.fragments import FragmentTensor
from gkestimator.onnx_io.fragment_models import Weights
from gkestimator.profiling.executors.base import EntryUnsupportedError
from gkestimator.profiling.plan import PlanEntry

_BLOCK = 1_048_583
"""Random elements drawn; larger tensors repeat them. A prime, so that rows and channels of a power of two differ."""
_BLOCK_OF_A_MODEL = 65_537
"""The same of a whole model, whose hundreds of tensors would take longer to draw than the model to measure."""
_SMALL_FLOATS = frozenset({DType.FLOAT8E4M3FN, DType.FLOAT8E5M2, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2FNUZ})
_LARGEST_INTEGER = 100


def numpy_dtype(dtype: DType) -> np.dtype:
    """Return numpy's type of an element, from ml_dtypes where numpy has none. Raises EntryUnsupportedError
    for strings and for types packed two to a byte."""
    if dtype in NUMPY_NAMES:
        return np.dtype(NUMPY_NAMES[dtype])
    if dtype is not DType.BFLOAT16 and dtype not in _SMALL_FLOATS:
        raise EntryUnsupportedError(f"element type {dtype.value}: no data of this type can be made")
    try:
        import ml_dtypes
    except ImportError as e:
        raise EntryUnsupportedError(
            f"element type {dtype.value} needs the package ml-dtypes, which is not installed"
        ) from e
    kind: np.dtype = np.dtype(getattr(ml_dtypes, dtype.value.replace("float8", "float8_")))
    return kind


def tensor_rng(entry_id: str, tensor: str, seed: int) -> np.random.Generator:
    """Return a generator of its own for each tensor, equal on every machine and in whichever order entries run."""
    named = f"{seed}\0{entry_id}\0{tensor}"
    digest = hashlib.sha256(named.encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def fill(tensor: FragmentTensor, rng: np.random.Generator, *, drawn: int = _BLOCK) -> np.ndarray:
    """Return the values of ``tensor`` as its ``fill`` says, in its shape and element type, C order. At most
    ``drawn`` elements are drawn, a larger tensor repeats them.

    Weights of rank 2 and more are scaled by 1/sqrt of the sums they go into, so that half precision holds the sums.
    Whole numbers under ``normal`` or ``positive`` lie in 1..100: nothing is divided by zero. All zeros occurs only
    where nothing else is allowed (``index`` below 1, ``values`` of zeros). Raises EntryUnsupportedError.
    """
    dtype = numpy_dtype(tensor.dtype)
    if tensor.values is not None:
        return np.asarray(tensor.values).astype(dtype).reshape(tensor.shape)
    count = tensor.elements
    draw = _FILLERS[tensor.fill]
    block = draw(tensor, min(count, drawn), rng).astype(dtype, copy=False)
    if count > drawn:
        block = np.resize(block, count)  # repeats
    return np.ascontiguousarray(block).reshape(tensor.shape)


def entry_inputs(entry: PlanEntry, seed: int) -> dict[str, np.ndarray]:
    """Return every tensor of role ``input``, by name."""
    make = entry_values(entry, seed)
    return {t.name: make(t) for t in entry.fragment.tensors if t.role == "input"}


def entry_values(entry: PlanEntry, seed: int) -> Weights:
    """Return what makes the values of the entry's tensors, the same for every executor."""
    drawn = _BLOCK_OF_A_MODEL if entry.fragment.is_model else _BLOCK
    return lambda tensor: fill(tensor, tensor_rng(entry.id, tensor.name, seed), drawn=drawn)


def _normal(tensor: FragmentTensor, count: int, rng: np.random.Generator) -> np.ndarray:
    if tensor.dtype is DType.BOOL:
        return _mask(tensor, count, rng)
    if tensor.dtype.is_integer:
        return rng.integers(1, _LARGEST_INTEGER + 1, count)
    values = rng.standard_normal(count, dtype=np.float32) * np.float32(_scale(tensor))
    if tensor.dtype in _SMALL_FLOATS and count:
        values[0] = 1.0  # eight bits may round every small weight to zero
    if tensor.dtype in (DType.COMPLEX64, DType.COMPLEX128):
        return np.asarray(values + 1j * rng.standard_normal(count, dtype=np.float32))
    return values


def _positive(tensor: FragmentTensor, count: int, rng: np.random.Generator) -> np.ndarray:
    if tensor.dtype is DType.BOOL or tensor.dtype.is_integer:
        return _normal(tensor, count, rng)
    return rng.random(count, dtype=np.float32) + np.float32(0.5)


def _index(tensor: FragmentTensor, count: int, rng: np.random.Generator) -> np.ndarray:
    below = tensor.below or 1
    if tensor.dtype.is_integer:
        below = min(below, int(np.iinfo(NUMPY_NAMES[tensor.dtype]).max) + 1)
    else:
        below = min(below, _LARGEST_INTEGER)  # whole numbers that even eight bits hold
    return rng.integers(0, below, count)


def _mask(tensor: FragmentTensor, count: int, rng: np.random.Generator) -> np.ndarray:
    del tensor
    values = rng.integers(0, 2, count).astype(bool)
    values[:1] = True
    return values


_FILLERS = {"normal": _normal, "positive": _positive, "index": _index, "mask": _mask}


def _scale(tensor: FragmentTensor) -> float:
    if tensor.role != "weight" or len(tensor.shape) < 2 or not tensor.elements:
        return 1.0
    # Convolution weights are (out, in, ...), matrices (k, n) or (n, k): the larger side is at least the sum's length.
    if len(tensor.shape) == 2:
        longest = max(tensor.shape)
    else:
        longest = tensor.elements // tensor.shape[0]
    return 1.0 / math.sqrt(max(1, longest))
