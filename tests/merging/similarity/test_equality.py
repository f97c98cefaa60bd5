"""Equal within a tolerance: its edges, NaN, infinities, half precision, chunks and memory orders."""

from __future__ import annotations

import math

import numpy as np
import pytest
from _rectangle_oracle import equal
from _weight_cases import bfloat16

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.merging.editing import Held
from gkestimator.merging.similarity import equal_values
from gkestimator.merging.similarity.equality import equal_cells, equal_everywhere

SPECIAL = [0.0, -0.0, 1.0, 1.0 + 2**-23, 1e-7, -1e-7, 2e-7, 3e38, math.inf, -math.inf, math.nan, 1e-45, 0.1]


@pytest.mark.parametrize("tolerance", [0.0, 1e-45, 1e-7, float(np.float32(1e-7)), 0.5, 1e38])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_cells_by_definition(dtype: str, tolerance: float) -> None:
    with np.errstate(over="ignore"):
        values = np.array(SPECIAL).astype(dtype)
    found = equal_cells(values[:, None], values[None, :], tolerance)
    assert found.tolist() == [[equal(float(x), float(y), tolerance) for y in values] for x in values]


def test_exactly_the_tolerance_apart() -> None:
    one = np.array([0.25], np.float32)
    assert equal_cells(one, one + np.float32(0.125), 0.125).all()
    assert not equal_cells(one, np.nextafter(one + np.float32(0.125), np.float32(1)), 0.125).any()


def test_bfloat16_is_widened() -> None:
    x = bfloat16(np.array([1.0, 1.0, -2.0, math.nan]))
    y = bfloat16(np.array([1.0, 1.0078125, -2.0, math.nan]))
    assert equal_cells(x, y, 0.0).tolist() == [True, False, True, False]
    assert equal_cells(x, y, 0.01).tolist() == [True, True, True, False]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "bf16"])
@pytest.mark.parametrize("shape", [(3, 5), (300, 700), (1, 200_000), (200_000, 1), (2, 70_000, 2)])
@pytest.mark.parametrize("tolerance", [0.0, 1e-7])
def test_one_value_anywhere_makes_all_unequal(dtype: str, shape: tuple[int, ...], tolerance: float) -> None:
    rng = np.random.default_rng(5)
    a = rng.standard_normal(shape).astype("f4" if dtype == "bf16" else dtype)
    a = bfloat16(a) if dtype == "bf16" else a
    b = a.copy()
    assert equal_everywhere(a, b, tolerance)
    assert equal_everywhere(a.T, b.T, tolerance)
    for value in (3.5, math.nan):
        b = a.copy()
        at = tuple(int(rng.integers(0, n)) for n in shape)
        b[at] = bfloat16(np.array([value]))[0] if dtype == "bf16" else value
        assert not equal_everywhere(a, b, tolerance)
        assert not equal_everywhere(b, a, tolerance)
        assert not equal_everywhere(a.T, b.T, tolerance)
        if math.isnan(value):
            assert not equal_everywhere(b, b, tolerance), "NaN equals nothing, not itself"


@pytest.mark.parametrize("tolerance", [1e-7, float(np.float32(1e-7)), 2.0**-24, 1e-3, 1e-29, 1e-31, 1e36])
def test_differences_at_the_tolerance(tolerance: float) -> None:
    """The rough test in float32 decides nothing that the definition does not: differences around the tolerance."""
    rng = np.random.default_rng(6)
    outcomes = set()
    for _ in range(400):
        a = (rng.standard_normal((1, 3)) * rng.choice([0.0, 0.02, 1.0, 30.0]) * max(tolerance, 1e-6)).astype(
            "f4"
        )
        b = (a + rng.choice([-1, 1], a.shape) * np.float64(tolerance)).astype("f4")
        b = np.nextafter(b, rng.choice([-1, 0, 1], b.shape).astype("f4") * np.float32(3e38))
        expected = all(equal(float(x), float(y), tolerance) for x, y in zip(a.flat, b.flat, strict=True))
        assert equal_everywhere(a, b, tolerance) is expected
        outcomes.add(expected)
    assert outcomes == {True, False}


def test_values_at_odd_addresses() -> None:
    a = np.random.default_rng(1).standard_normal((300, 500)).astype("f4")
    odd = np.frombuffer(b"x" + a.tobytes(), "u1", offset=1).view("f4").reshape(a.shape)
    assert not odd.flags.aligned
    assert equal_everywhere(odd, a, 0.0) and equal_everywhere(a, odd, 1e-7)
    changed = a.copy()
    changed[299, 499] += 1
    assert not equal_everywhere(odd, changed, 0.0) and not equal_everywhere(changed, odd, 1e-7)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_infinities_within_a_tolerance(value: float) -> None:
    a = np.full((300, 500), value, "f4")
    assert equal_everywhere(a, a.copy(), 1e-7) is not math.isnan(value)
    b = a.copy()
    b[299, 499] = 1
    assert not equal_everywhere(a, b, 1e-7)


def test_memory_orders_do_not_matter() -> None:
    a = np.random.default_rng(1).standard_normal((300, 500)).astype("f4")
    b = np.asfortranarray(a)
    assert equal_everywhere(a, b, 0.0)
    assert equal_everywhere(b, a, 0.0)
    b = b.copy(order="F")
    b[299, 0] += 1
    assert not equal_everywhere(a, b, 0.0)
    assert equal_everywhere(a[::-1, ::2], a[::-1, ::2].copy(), 0.0)


def test_zeros_of_both_signs_are_equal_in_half_precision() -> None:
    assert equal_everywhere(np.array([0.0, 1.0], "f2"), np.array([-0.0, 1.0], "f2"), 0.0)


@pytest.mark.parametrize(
    ("a", "b", "tolerance", "expected"),
    [
        (np.array([1.0, 2.0], "f4"), np.array([1.0, 2.0 + 1e-6], "f4"), 1e-5, True),
        (np.array([1.0, 2.0], "f4"), np.array([1.0, 2.0 + 1e-6], "f4"), 0.0, False),
        (np.array([1.0, 2.0], "f4"), np.array([1.0, 2.0], "f8"), 1.0, False),
        (np.array([1.0, 2.0], "f4"), np.array([[1.0, 2.0]], "f4"), 1.0, False),
        (np.array(1.0, "f4"), np.array(1.0, "f4"), 0.0, True),
        (np.array([], "f4"), np.array([], "f4"), 0.0, True),
        (np.array([3, 4]), np.array([3, 4]), 0.0, True),
        (np.array([3, 4]), np.array([3, 5]), 1.0, False),
        (np.array([True]), np.array([False]), 1.0, False),
        (np.array([1], "u2"), np.array([2], "u2"), 1.0, False),
    ],
)
def test_constants(a: np.ndarray, b: np.ndarray, tolerance: float, expected: bool) -> None:
    assert equal_values(Held(held=a), Held(held=b), tolerance) is expected


def test_bfloat16_constants_need_their_type() -> None:
    a, b = Held(held=bfloat16(np.array([1.0]))), Held(held=bfloat16(np.array([1.0078125])))
    assert equal_values(a, b, 0.01, dtype=DType.BFLOAT16)
    assert not equal_values(a, b, 0.01)


@pytest.mark.parametrize("tolerance", [-1e-9, math.nan, math.inf])
def test_a_wrong_tolerance_is_named(tolerance: float) -> None:
    one = Held(held=np.ones(1, "f4"))
    with pytest.raises(UsageError, match="tolerance is .*: expected a number from 0"):
        equal_values(one, one, tolerance)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
def test_scalars(dtype: str) -> None:
    """A number of no dimensions, as exporters write the 0.5 of a Gelu."""
    one, same, other = (Held(held=np.array(v, dtype)) for v in (3, 3, 4))
    assert equal_values(one, same, 1e-7)
    assert not equal_values(one, other, 1e-7)
    if dtype != "int64":
        near = Held(held=np.array(3.5, dtype))
        assert equal_values(one, near, 0.5) and not equal_values(one, near, 0.25)
