"""Members predict in NumPy what the libraries that fitted them predict."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.kernel_models.regressors import Forest
from gkestimator.training import members

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(800, 12)).astype(np.float32)
    # Few distinct values: rows that lie exactly on a threshold are where < and <= part.
    x[:, 3] = rng.integers(0, 5, 800)
    x[:, 4] = np.round(x[:, 4], 1)
    y = np.sin(x[:, 0]) + 0.3 * x[:, 3] + 0.5 * (x[:, 4] > 0.3) * x[:, 1] - 1.5
    return x, y.astype(np.float64), rng.uniform(0.5, 10, 800)


def grid(x: np.ndarray) -> np.ndarray:
    """The training rows and rows between them, some far outside."""
    rng = np.random.default_rng(1)
    return np.concatenate([x, np.round(rng.normal(size=(500, x.shape[1])) * 3, 1).astype(np.float32)])


def test_gradient_boosting_equals_scikit_learn(data: tuple[np.ndarray, ...]) -> None:
    from sklearn.ensemble import GradientBoostingRegressor

    x, y, w = data
    model = GradientBoostingRegressor(
        n_estimators=40, max_depth=6, subsample=0.5, max_features=0.4, random_state=0
    )
    model.fit(x, y, sample_weight=w)
    ours = members.from_gradient_boosting(model).predict(grid(x))[:, 0]
    np.testing.assert_allclose(ours, model.predict(grid(x)), rtol=0, atol=1e-5)


def test_xgboost_equals_xgboost(data: tuple[np.ndarray, ...]) -> None:
    xgboost = pytest.importorskip("xgboost")
    x, y, w = data
    matrix = xgboost.DMatrix(x, y, weight=w)
    booster = xgboost.train({"max_depth": 6, "tree_method": "hist", "nthread": 1}, matrix, num_boost_round=40)
    ours = members.from_xgboost(booster).predict(grid(x))[:, 0]
    np.testing.assert_allclose(ours, booster.predict(xgboost.DMatrix(grid(x))), rtol=0, atol=1e-5)


def test_lightgbm_equals_lightgbm(data: tuple[np.ndarray, ...]) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    x, y, w = data
    options = {"max_depth": 6, "num_leaves": 48, "verbosity": -1, "num_threads": 1}
    booster = lightgbm.train(options, lightgbm.Dataset(x.astype(float), y, weight=w), num_boost_round=40)
    ours = members.from_lightgbm(booster).predict(grid(x))[:, 0]
    np.testing.assert_allclose(ours, booster.predict(grid(x).astype(float)), rtol=0, atol=1e-5)


def test_lasso_equals_scikit_learn(data: tuple[np.ndarray, ...]) -> None:
    from sklearn.linear_model import Lasso
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y, _ = data
    reference = make_pipeline(StandardScaler(), Lasso(alpha=1e-3, max_iter=5000)).fit(x.astype(float), y)
    ours = members.fit_lasso(x, y, np.ones(len(y)), seed=0, estimators=0, loss="squared").predict(grid(x))
    np.testing.assert_allclose(ours, reference.predict(grid(x).astype(float)), rtol=0, atol=1e-2)


def test_kernel_ridge_equals_scikit_learn(data: tuple[np.ndarray, ...]) -> None:
    from sklearn.kernel_ridge import KernelRidge

    x, y, w = data
    ours = members.fit_kernel_ridge(x, y, w, seed=0, estimators=0, loss="squared")
    reference = KernelRidge(alpha=0.05, kernel="rbf", gamma=ours.gamma)
    standard = (x - ours.mean) / ours.scale
    chosen = [int(np.argmin(np.abs(standard - s).sum(axis=1))) for s in ours.support]
    reference.fit(ours.support, y[chosen] - ours.intercept)
    test = grid(x)
    expected = reference.predict((test - ours.mean) / ours.scale) + ours.intercept
    np.testing.assert_allclose(ours.predict(test), expected, rtol=0, atol=1e-5)


def test_a_tree_by_hand_sends_equal_values_left() -> None:
    forest = Forest(
        feature=np.array([[1]]), threshold=np.array([[0.5]], dtype=np.float32), leaf=np.array([[10.0, 20.0]], dtype=np.float32),
        starts=np.array([0]), base=np.array([1.0]),
    )  # fmt: skip
    rows = np.array([[9, 0.5], [9, np.nextafter(np.float32(0.5), np.float32(1))], [9, -5]], dtype=np.float32)
    assert forest.predict(rows)[:, 0].tolist() == [11.0, 21.0, 11.0]


def test_chunks_do_not_change_a_forest(data: tuple[np.ndarray, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from gkestimator.kernel_models.regressors import trees

    x, y, w = data
    forest = members.fit_member("gradient_boosting", x, y, w, seed=0, estimators=10)
    whole = forest.predict(x)
    monkeypatch.setattr(trees, "_CHUNK", 70)
    np.testing.assert_array_equal(forest.predict(x), whole)
