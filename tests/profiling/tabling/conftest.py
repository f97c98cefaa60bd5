"""Raw folders of whole models: what ``tabling_samples.py`` writes, with the tables of a genuine nsys export."""

from pathlib import Path

import pytest


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Where a test puts its raw folder."""
    return tmp_path / "run"
