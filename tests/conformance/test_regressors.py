"""What every member of the stack must do; iterates the table of members."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gkestimator.core.errors import BundleError
from gkestimator.core.stored import StoredArrays
from gkestimator.kernel_models.regressors import MEMBERS, Stack
from gkestimator.training.fit import FitProblem, fit_stack
from gkestimator.training.members import FITTERS, fit_member
from gkestimator.training.plan import ModelPlan

for library in ("sklearn", "xgboost", "lightgbm"):
    pytest.importorskip(library)


def law(x: np.ndarray) -> np.ndarray:
    return 0.5 * x[:, 0] + np.tanh(x[:, 1]) + 0.1 * x[:, 2] * x[:, 3]


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(900, 8)).astype(np.float32)
    return x, law(x).astype(float), np.ones(900)


def value(fitted: object, x: np.ndarray) -> np.ndarray:
    result = fitted.predict(x)  # type: ignore[attr-defined]
    return result[:, 0] if result.ndim == 2 else result


def test_every_member_has_a_fitter() -> None:
    assert tuple(FITTERS) == MEMBERS


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_learns_repeats_itself_and_stays_finite(name: str, data: tuple[np.ndarray, ...]) -> None:
    x, y, w = data
    first = fit_member(name, x, y, w, seed=3, estimators=60)
    second = fit_member(name, x, y, w, seed=3, estimators=60)
    test = np.random.default_rng(9).normal(size=(400, 8)).astype(np.float32)
    np.testing.assert_array_equal(value(first, test), value(second, test))
    assert np.abs(value(first, test) - law(test)).mean() < 0.5 * np.abs(law(test) - y.mean()).mean()
    far = np.full((2, 8), 1e4, dtype=np.float32)
    assert np.isfinite(value(first, far)).all()
    assert value(first, test[:0]).shape == (0,)


@pytest.fixture(scope="module")
def stack(data: tuple[np.ndarray, ...]) -> Stack:
    x, y, w = data
    rng = np.random.default_rng(1)
    problem = FitProblem(
        x=x, y=y, weight=w, hidden=np.zeros(len(y), dtype=bool), shape=rng.uniform(size=len(y)), names=tuple("abcdefgh"),
        anchor_us=np.ones(len(y)), chip=np.zeros(len(y), dtype=int),
    )  # fmt: skip
    plan = ModelPlan(
        name="t", features="matrix", trains=(("linear", "fp32"),),
        estimators={"gradient_boosting": 40, "xgboost": 40, "lightgbm": 40},
    )  # fmt: skip
    return fit_stack(plan, problem, seed=0).stack


@pytest.mark.slow
def test_the_stack_clips_to_the_trained_range(stack: Stack) -> None:
    far = np.array([[1e6] * 8, [-1e6] * 8], dtype=np.float32)
    predicted = stack.predict(far)
    assert (predicted <= stack.high).all() and (predicted >= stack.low).all()
    assert all(w >= 0 for w in stack.weights.values()) and sum(stack.weights.values()) == pytest.approx(
        1, abs=0.25
    )


@pytest.mark.slow
def test_a_stack_survives_its_arrays(stack: Stack, data: tuple[np.ndarray, ...]) -> None:
    again = Stack.from_arrays(StoredArrays(stack.arrays(), "t.npz"), features=8)
    np.testing.assert_allclose(again.predict(data[0]), stack.predict(data[0]), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weights", lambda a: a[:-1]),
        ("weights", lambda a: -a),
        ("bounds", lambda a: a[::-1] + np.array([1.0, 0.0])),
        ("bounds", lambda a: a * np.nan),
        ("forest.feature", lambda a: a * 0 + 8),
        ("forest.feature", lambda a: a[:, :-1]),
        ("forest.threshold", lambda a: a * np.nan),
        ("forest.threshold", lambda a: a * 0 - np.inf),
        ("forest.leaf", lambda a: a[:, :-1]),
        ("forest.leaf", lambda a: a * np.inf),
        ("forest.starts", lambda a: a + 1),
        ("forest.members", lambda a: a * 0),
        ("forest.base", None),
    ],
)
def test_damaged_arrays_are_refused(stack: Stack, name: str, change: object) -> None:
    arrays = dict(stack.arrays())
    if change is None:
        del arrays[name]
    else:
        with np.errstate(all="ignore"):
            arrays[name] = change(arrays[name])  # type: ignore[operator]
    with pytest.raises(BundleError, match=r"t\.npz") as caught:
        Stack.from_arrays(StoredArrays(arrays, "t.npz"), features=8)
    assert "\n" not in str(caught.value)


def test_regressors_for_unseen_gpus_are_held_inside_the_bulk_of_their_targets(
    data: tuple[np.ndarray, ...],
) -> None:
    x, y, w = data
    outlier = y.copy()
    outlier[0] = 50.0
    problem = FitProblem(
        x=x, y=outlier, weight=w, hidden=np.zeros(len(y), dtype=bool), shape=np.linspace(0, 0.99, len(y)),
        chip=np.arange(len(y)) % 3, names=tuple("abcdefgh"), anchor_us=np.ones(len(y)),
    )  # fmt: skip
    plan = ModelPlan(name="t", features="matrix", trains=(("linear", "fp32"),), members=("lasso",))
    assert fit_stack(plan, problem, seed=0).stack.high == 50
    unseen = fit_stack(replace(plan, scope="unseen", folds="gpu"), problem, seed=0)
    assert unseen.stack.high < np.max(y) and set(unseen.fold.tolist()) == {0, 1, 2}
