"""Strangers' files: what is refused, in whose words, and that nothing waits."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gkestimator.core.errors import TableError
from gkestimator.core.files import FileWords, check_file, opened, read_bytes, refuse_constant

WORDS = FileWords(
    error=TableError, unreadable="no good", not_regular="no file", too_large="{size} over {limit}"
)


def refusal(path: Path, limit: int = 4) -> str:
    with pytest.raises(TableError) as caught:
        read_bytes(path, WORDS, limit)
    return str(caught.value)


def test_a_file_up_to_the_limit_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "four"
    path.write_bytes(b"1234")
    assert read_bytes(path, WORDS, 4) == b"1234"
    assert check_file(path, WORDS, 4) == 4


def test_a_file_over_the_limit_is_refused_in_the_readers_words(tmp_path: Path) -> None:
    path = tmp_path / "five"
    path.write_bytes(b"12345")
    assert refusal(path) == f"{path}: 5 over 4"
    with pytest.raises(TableError, match="5 over 4"):
        check_file(path, WORDS, 4)


def test_what_is_not_there_and_a_folder_say_the_systems_reason_once(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert refusal(missing) == f"{missing}: no good: No such file or directory"
    assert refusal(tmp_path) == f"{tmp_path}: no good: Is a directory"
    # Python 3.14 says it in other words.
    reason = "(embedded null byte|open: embedded null character in path)"
    prefix = re.escape(f"{tmp_path}/nul\\u0000: no good: ")
    assert re.fullmatch(prefix + reason, refusal(tmp_path / "nul\0"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_that_nobody_writes_to_is_refused_without_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refusal(pipe) == f"{pipe}: no file"


def test_what_fails_while_the_caller_decodes_is_worded_too(tmp_path: Path) -> None:
    path = tmp_path / "latin"
    path.write_bytes(b"\xe9")
    with (
        pytest.raises(TableError, match="no good: byte 0 is not text in UTF-8"),
        opened(path, WORDS) as stream,
    ):
        stream.read().decode()


def test_constants_that_are_no_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="found NaN, expected a finite number"):
        refuse_constant("NaN")
