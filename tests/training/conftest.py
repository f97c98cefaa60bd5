"""The measured law is a module beside this file; a bundle trained on it serves several test files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gkestimator.training.train_measured import MeasuredReport


@pytest.fixture(scope="session")
def trained_l4(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MeasuredReport]:
    """A bundle of an L4 whose operators take what the law says, and the report of its training."""
    from measured_law import measurements, write_dataset

    from gkestimator.training import train
    from gkestimator.training.train_measured import MeasuredReport

    folder = tmp_path_factory.mktemp("measured")
    dataset = write_dataset(folder / "l4.parquet", measurements(70, counters=True))
    report = train([dataset], folder / "my_l4")
    assert isinstance(report, MeasuredReport)
    return folder / "my_l4", report
