"""Raw folders of whole models: what ``tabling_samples.py`` writes, with the tables of a genuine nsys export."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Where a test puts its raw folder."""
    return tmp_path / "run"
