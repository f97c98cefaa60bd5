"""Files from strangers: every case one line that names the file and the line, in bounded memory."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gkestimator.core.errors import DocumentError
from gkestimator.simulation.traces import lines
from gkestimator.simulation.traces.lines import Lines


def fields(path: Path) -> list[tuple[int, list[str]]]:
    found = Lines(path)
    width = len(found.header)
    return [
        (int(block.lines[i]), [block.text(i, j) for j in range(width)])
        for block in found.blocks()
        for i in range(len(block.lines))
    ]


def put(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    return path


def test_quotes_blank_lines_byte_order_mark_and_line_ends(tmp_path: Path) -> None:
    path = put(tmp_path, b'\xef\xbb\xbf"a",b\r\n1,"x, y"\r\n\r\n2,"say ""hi"""\r\n\n3,z')
    assert Lines(path).header == ["a", "b"]
    assert fields(path) == [(2, ["1", "x, y"]), (4, ["2", 'say "hi"']), (6, ["3", "z"])]


def test_one_column(tmp_path: Path) -> None:
    assert fields(put(tmp_path, b"a\n1\n\n2\n")) == [(2, ["1"]), (4, ["2"])]
    # A line of blanks is skipped, as it is with more columns.
    assert fields(put(tmp_path, b"a\n1\n  \t\n2\n")) == [(2, ["1"]), (4, ["2"])]


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    assert fields(put(tmp_path, gzip.compress(b"a,b\n1,2\n"))) == [(2, ["1", "2"])]


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.text('abc ,"é', max_size=5)), max_size=200),
    st.integers(1, 300),
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cut_into_blocks_gives_the_same_rows(
    tmp_path: Path, rows: list[tuple[int, str]], size: int
) -> None:
    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if set(text) & set(',"') else text

    path = put(tmp_path, ("n,t\n" + "".join(f"{n},{cell(t)}\n" for n, t in rows)).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_READ", size)
        assert fields(path) == [(i, [str(n), t]) for i, (n, t) in enumerate(rows, 2)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "found nothing in the first line"),
        (b"\n1,2\n", "found nothing in the first line"),
        (b"a,b\n1,2\n3\n", "line 3: found 1 fields, expected 2"),
        (b"a,b\n1,2\n\n3,4,5\n", "line 4: found 3 fields, expected 2"),
        (b"a,b\n1,2,3\n4\n", "line 2: found 3 fields, expected 2"),
        (b"a,b\n1,\x00\n", "line 2: found a NUL byte"),
        ("a,b\n1,2\n".encode("utf-16"), "line 1: found a NUL byte"),
        (b'a,b\n1,"2\n3",4\n', "line 2: found a quote that does not close"),
        (b'a,b\n1,"2"x\n', "line 2: found a quote"),
        (b"a,b\r1,2\r", "line 1: found a carriage return"),
        (b"a,b\n1,2\n1,3\r4,5\n", "line 3: found a carriage return"),
        (b"a,b\n1,2\n" + b"7" * 70_000, "line 3: found more than 65,536 bytes without"),
        (b"a,b\n1," + b"7" * 70_000 + b"\n", "line 2: found more than 65,536 bytes without"),
        (gzip.compress(b"a,b\n1,2\n" * 1000, mtime=0)[:40], "cannot be read"),
        (b"\x1f\x8bno gzip", "cannot be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(DocumentError, match=message) as found:
        fields(put(tmp_path, data))
    assert "t.csv" in str(found.value)
    assert "\n" not in str(found.value)


def test_no_folder_no_pipe_no_missing_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none.csv"):
        with pytest.raises(DocumentError, match=path.name):
            Lines(path)


def test_a_file_that_unpacks_a_thousandfold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_RATIO_FROM", 2**21)
    bomb = put(tmp_path, gzip.compress(b"a,b\n" + b"0,0\n" * 2_000_000))
    with pytest.raises(DocumentError, match="expected at most 200 times that"):
        for _ in Lines(bomb).blocks():
            pass


def test_a_gigabyte_without_a_line_end_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    with path.open("wb") as stream:
        stream.write(b"a,b\n")
        stream.truncate(2**30)  # sparse: NUL bytes
    tracemalloc.start()
    with pytest.raises(DocumentError, match="line 2: found a NUL byte"):
        fields(path)
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()
