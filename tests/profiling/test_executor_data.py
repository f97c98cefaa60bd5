"""Data for entries: seeded, not zero, of the right kind, quick for large tensors."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import FILLS, Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.executors.base import EntryUnsupportedError
from gkestimator.profiling.executors.data import entry_inputs, entry_values, fill, numpy_dtype, tensor_rng
from gkestimator.profiling.plan import PlanEntry

FLOATS = (DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2)
INTEGERS = tuple(t for t in DType if t.is_integer and t.bits >= 8)
UNSUPPORTED = tuple(t for t in DType if t is DType.STRING or t.bits < 8 or t is DType.FLOAT8E8M0)
MADE = tuple(t for t in DType if t not in UNSUPPORTED)


def tensor(dtype: DType, shape: tuple[int, ...], **words: Any) -> FragmentTensor:
    return FragmentTensor(name="x", dtype=dtype, shape=shape, **words)


def made(t: FragmentTensor, seed: int = 0) -> np.ndarray:
    return fill(t, tensor_rng("Conv-fp32-0", t.name, seed))


@pytest.mark.slow
@given(
    dtype=st.sampled_from(MADE),
    kind=st.sampled_from([f for f in FILLS if f != "value"]),
    shape=st.lists(st.integers(0, 9), max_size=4).map(tuple),
    below=st.integers(2, 2**31 - 1),
    role=st.sampled_from(["input", "weight"]),
    seed=st.integers(0, 5),
)
def test_any_tensor_has_its_shape_and_type_is_finite_and_not_zero(
    dtype: DType, kind: str, shape: tuple[int, ...], below: int, role: str, seed: int
) -> None:
    t = tensor(dtype, shape, fill=kind, role=role, below=below if kind == "index" else None)
    data = made(t, seed)
    assert (data.shape, data.dtype, data.nbytes) == (shape, numpy_dtype(dtype), t.nbytes)
    assert data.flags.c_contiguous
    if dtype.is_floating:
        assert np.isfinite(data.astype(np.float64)).all()
    if data.size and kind != "index":
        assert data.astype(np.complex128).any()
    if kind == "index":
        assert data.astype(np.complex128).real.min(initial=0) >= 0
        if dtype.is_integer:
            assert data.max(initial=0) < below
    assert np.array_equal(
        data.view(np.uint8) if shape else data, made(t, seed).view(np.uint8) if shape else made(t, seed)
    )


def test_each_entry_tensor_and_seed_has_data_of_its_own() -> None:
    t = tensor(DType.FLOAT, (64,))
    drawn = [fill(t, tensor_rng(e, n, s)).tobytes() for e in ("a", "b") for n in ("x", "y") for s in (0, 1)]
    assert len(set(drawn)) == 8


def test_the_data_of_a_seed_never_changes() -> None:
    """Datasets of several machines are merged: an entry means the same data everywhere."""
    assert tensor_rng("Conv-fp32-0", "x", 0).integers(0, 2**32, 3).tolist() == [
        2785189976,
        1460823777,
        738217257,
    ]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_whole_numbers_are_never_divided_by_zero(dtype: DType) -> None:
    assert made(tensor(dtype, (5000,))).min() >= 1


def test_indices_reach_the_whole_table_and_stay_inside() -> None:
    data = made(tensor(DType.INT64, (20_000,), fill="index", below=300))
    assert set(data.tolist()) == set(range(300))
    assert made(tensor(DType.INT64, (9,), fill="index", below=1)).tolist() == [0] * 9


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(512, 4096), (4096, 512), (4096, 4096), (256, 512, 3, 3)])
def test_sums_over_weights_stay_small_in_half_precision(shape: tuple[int, ...]) -> None:
    weight = made(tensor(DType.FLOAT16, shape, role="weight")).astype(np.float32)
    inner = weight.reshape(shape[0], -1)
    x = np.random.default_rng(1).standard_normal(inner.shape[1], dtype=np.float32)
    assert 0.05 < np.abs(inner @ x).std() < 2


def test_values_are_taken_as_they_are() -> None:
    data = made(tensor(DType.INT64, (2, 2), role="constant", fill="value", values=(1, -1, 0, 2**40)))
    assert data.tolist() == [[1, -1], [0, 2**40]]
    assert made(tensor(DType.BOOL, (2,), role="constant", fill="value", values=(True, False))).tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize("dtype", UNSUPPORTED)
def test_a_type_of_which_no_data_can_be_made_is_said(dtype: DType) -> None:
    with pytest.raises(EntryUnsupportedError, match=dtype.value):
        made(tensor(dtype, (4,)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.BFLOAT16])
def test_a_large_tensor_is_made_quickly_and_repeats_a_block_off_the_rows(dtype: DType) -> None:
    started = time.perf_counter()
    data = made(tensor(dtype, (4096, 16384)))  # 256 MiB of float
    assert (
        time.perf_counter() - started < 15
    )  # a second on an idle core; drawing each element takes five times that
    rows = data[:, :8].astype(np.float32)
    assert len(np.unique(rows, axis=0)) == 4096


@pytest.mark.parametrize(("pattern", "drawn"), [("", 1_048_583), ("model:large", 65_537)])
def test_of_a_whole_model_fewer_numbers_are_drawn(pattern: str, drawn: int) -> None:
    w = FragmentTensor(name="w", dtype=DType.FLOAT, shape=(1024, 1200), role="weight")
    x = tensor(DType.FLOAT, (1, 1024))
    node = FragmentNode(op_type="MatMul", domain="", attributes={}, inputs=("x", "w"), outputs=("y",))
    fragment = Fragment(opsets={"": 17}, nodes=(node,), tensors=(x, w), outputs=("y",), pattern=pattern)
    entry = PlanEntry(id="e", fragment=fragment, dtype="fp32", source="test")
    flat = entry_values(entry, 3)(w).reshape(-1)
    assert np.array_equal(flat[drawn:], flat[: flat.size - drawn])
    assert len(np.unique(flat[:drawn])) > 0.9 * drawn
    assert np.array_equal(entry_inputs(entry, 3)["x"], entry_values(entry, 3)(x))
