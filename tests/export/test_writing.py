"""Files of an export: all or none."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from gkestimator.core.errors import OutputError, UsageError
from gkestimator.exporting.deployment import ExportFile
from gkestimator.exporting.writing import write_files


def file(path: str, text: str = "new\n") -> ExportFile:
    return ExportFile(path=PurePosixPath(path), text=text)


def everything(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_files_are_written_and_others_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "a.yaml").write_text("old")
    found = write_files(tmp_path, [file("a.yaml"), file("sub/b.yaml", "naïve\n")])
    assert found == (tmp_path / "a.yaml", tmp_path / "sub" / "b.yaml")
    assert everything(tmp_path) == {"mine.txt": "mine", "a.yaml": "new\n", "sub/b.yaml": "naïve\n"}
    assert (tmp_path / "a.yaml").stat().st_mode & 0o444 == 0o444 & ~_umask()


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


@pytest.mark.parametrize("path", ["../x", "/tmp/x", "a/../../x", ".", "a\0b"])
def test_a_path_outside_is_refused(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "out"
    with pytest.raises(OutputError, match="outside"):
        write_files(folder, [file("a.yaml"), file(path)])
    assert not folder.exists()


def test_nothing_is_replaced_when_one_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("old")
    with pytest.raises(OutputError):
        write_files(tmp_path, [file("a.yaml"), file("b" * 300)])
    (tmp_path / "c.yaml").mkdir()
    with pytest.raises(OutputError, match="found a folder"):
        write_files(tmp_path, [file("a.yaml"), file("c.yaml")])
    (tmp_path / "d").write_text("a file")
    with pytest.raises(OutputError):
        write_files(tmp_path, [file("a.yaml"), file("d/e.yaml")])
    assert everything(tmp_path) == {"a.yaml": "old", "d": "a file"}


def test_a_rename_that_fails_gives_old_content_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("old a")
    (tmp_path / "c.yaml").write_text("old c")
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if Path(target).name == "c.yaml" and Path(source).name == "2":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OutputError, match="No space left"):
        write_files(tmp_path, [file("a.yaml"), file("b.yaml"), file("c.yaml")])
    assert everything(tmp_path) == {"a.yaml": "old a", "c.yaml": "old c"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.yaml", "c.yaml"]


def test_a_folder_that_was_made_is_taken_away_again(tmp_path: Path) -> None:
    with pytest.raises(OutputError):
        write_files(tmp_path / "new" / "deeper", [file("b" * 300)])
    assert list(tmp_path.iterdir()) == []


def test_what_is_read_is_not_replaced(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("plan")
    with pytest.raises(UsageError, match="is also read"):
        write_files(tmp_path, [file("plan.json")], read=[plan])
    (tmp_path / "link.json").symlink_to(plan)
    with pytest.raises(UsageError, match="is also read"):
        write_files(tmp_path, [file("link.json")], read=[plan])
    assert plan.read_text() == "plan"


def test_names_that_differ_in_case_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="case does not matter"):
        write_files(tmp_path, [file("a.env"), file("A.env")])
