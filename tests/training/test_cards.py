"""What a bundle's card says of the libraries that trained it."""

from __future__ import annotations

import pytest

from gkestimator.training.cards import library_versions


def test_xgboost_is_known_under_either_name_of_its_package() -> None:
    xgboost = pytest.importorskip("xgboost")
    assert library_versions()["xgboost"] == xgboost.__version__
