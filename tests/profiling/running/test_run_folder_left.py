"""What a run that could not begin leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gkestimator.core.errors import UsageError
from gkestimator.profiling.running.folder import RawFolder


def test_a_run_that_could_not_begin_leaves_no_folder_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError), RawFolder(tmp_path / "raw"):
        raise UsageError("no such executor")
    assert not (tmp_path / "raw").exists()


@pytest.mark.usefixtures("full_disk")
def test_on_a_full_disk_the_first_error_is_what_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no room"), RawFolder(tmp_path / "raw"):
        raise UsageError("no room")


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    with pytest.raises(UsageError), RawFolder(tmp_path / "raw"):
        raise UsageError("no such executor")
    assert (tmp_path / "raw").is_dir()


def test_what_was_begun_stays(tmp_path: Path) -> None:
    with pytest.raises(UsageError), RawFolder(tmp_path / "raw") as folder:
        (folder.path / "run.json").write_text("{}")
        raise UsageError("later")
    assert (tmp_path / "raw" / "run.json").exists()
