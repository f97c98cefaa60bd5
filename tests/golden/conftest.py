"""The golden set's helpers are modules beside this file; refresh.py and the tests share them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_models import golden_models


@pytest.fixture(scope="session", autouse=True)
def no_user_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No host profile, bundle or GPU of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GKEST_HOME", str(tmp_path_factory.mktemp("gkest-home")))
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The golden models, generated ones written once."""
    return golden_models(tmp_path_factory.mktemp("golden"))
