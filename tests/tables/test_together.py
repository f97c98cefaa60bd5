"""Several files written as one: all of them or none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import pytest

from gkestimator.core.errors import OutputError
from gkestimator.tables.together import write_folder, write_together


def test_new_files_are_ordinary_and_old_ones_keep_their_mode(tmp_path: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"before")
    old.chmod(0o600)

    def made(stream: IO[bytes]) -> None:
        stream.write(b"made")

    write_together({old: b"after", new: made})
    assert (old.read_bytes(), new.read_bytes()) == (b"after", b"made")
    assert old.stat().st_mode & 0o777 == 0o600 and new.stat().st_mode & 0o777 == 0o666 & ~umask
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


def test_a_file_that_cannot_be_written_leaves_all_as_they_were(tmp_path: Path) -> None:
    def full(stream: IO[bytes]) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    (tmp_path / "a").write_bytes(b"before")
    with pytest.raises(OutputError, match="b: cannot be written: No space left"):
        write_together({tmp_path / "a": b"after", tmp_path / "b": full})
    assert os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"before"


def test_a_rename_that_fails_gives_back_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def refused(source: str, target: Path) -> None:
        if target == tmp_path / "c":
            raise PermissionError(13, "Permission denied")
        real(source, target)

    (tmp_path / "a").write_bytes(b"before")
    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(OutputError, match="c: cannot be written: Permission denied"):
        write_together({tmp_path / name: b"after" for name in "abc"})
    assert os.listdir(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"before"


def test_a_folder_of_files_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new" / "report"
    assert write_folder(folder, {"a": b"1", "b": b"2"}) == [folder / "a", folder / "b"]
    (folder / "b").unlink()
    (folder / "b").mkdir()
    with pytest.raises(OutputError):
        write_folder(folder, {"a": b"3", "b": b"4"})
    assert (folder / "a").read_bytes() == b"1"
    monkeypatch.setattr("gkestimator.tables.together.write_aside", lambda *_, **__: _refuse())
    with pytest.raises(OutputError, match="No space left"):
        write_folder(tmp_path / "other", {"a": b"1"})
    assert not (tmp_path / "other").exists()


def _refuse() -> None:
    raise OSError(28, "No space left on device")


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="folder: found a folder"):
        write_together({tmp_path / "a": b"1", tmp_path / "folder": b"2"})
    with pytest.raises(OutputError, match="/dev/null: found no regular file, expected one: 2 files"):
        write_together({tmp_path / "a": b"1", Path("/dev/null"): b"2"})
    write_together({Path("/dev/null"): b"1"})
    assert os.listdir(tmp_path) == ["folder"]
