"""Parquet whose end says less than its pages unpack to: the pages' own headers are believed, before memory is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.errors import GkestimatorError, TableError
from gkestimator.tables.parquet_pages import unpacked_bytes
from gkestimator.tables.reading import parquet_records

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    """Return ``path``, with a Parquet file of ``columns`` without statistics, which would say the texts again."""
    parquet.write_table(arrow.table(columns), path, write_statistics=False, store_schema=False, **options)
    return path


def number(value: int, length: int = 0) -> bytes:
    """Return a whole number as Thrift's compact protocol writes it, in ``length`` bytes where it would take fewer."""
    left = 2 * value
    groups = [left & 127]
    while left := left >> 7:
        groups.append(left & 127)
    groups += [0] * (length - len(groups))
    return bytes(group | 128 for group in groups[:-1]) + bytes(groups[-1:])


def lie(path: Path, true: int, said: int, count: int = -1) -> None:
    """Replace ``true`` by ``said`` at the file's end (``count`` times, -1: each time)."""
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    truth = number(true)
    assert truth in content[begin:]
    path.write_bytes(content[:begin] + content[begin:].replace(truth, number(said, len(truth)), count))


@pytest.mark.parametrize("packing", ["gzip", "zstd", "snappy"])
def test_pages_are_believed_before_the_files_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    path = tmp_path / "bomb.parquet"
    written(path, {"model": ["a" * 9_000_000]}, compression=packing, use_dictionary=False)
    lie(path, parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size, 200)
    assert parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 200
    assert path.stat().st_size < 500_000
    monkeypatch.setenv("GKEST_LIMITS", "unpacked_bytes=8e6")
    monkeypatch.setattr(parquet, "ParquetFile", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(TableError, match=r"found 9,000,010 bytes .* \(GKEST_LIMITS=unpacked_bytes=NUMBER"):
        list(parquet_records(path))


def test_rows_are_those_of_the_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "rows.parquet", {"batch_size": [1] * 20_000})
    lie(path, 20_000, 3, count=1)
    assert parquet.read_metadata(path).num_rows == 3
    monkeypatch.setenv("GKEST_LIMITS", "rows=10000")
    with pytest.raises(TableError, match=r"found 20,000 rows, expected at most 10,000"):
        list(parquet_records(path))


def test_a_dictionary_has_no_more_words_than_bytes(tmp_path: Path) -> None:
    path = written(tmp_path / "words.parquet", {"model": ["m"] * 10}, compression="none")
    content = path.read_bytes()
    # DictionaryPageHeader: a struct (7 after 3: 0x4c) whose first field (0x15) says one word.
    at = content.index(b"\x4c\x15" + number(1))
    path.write_bytes(content[: at + 2] + number(60) + content[at + 3 :])
    with pytest.raises(TableError, match="the header of the page at byte 4 is damaged"):
        list(parquet_records(path))


def test_pages_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"batch_size": list(range(1000)), "model": ["m"] * 1000}
    path = written(tmp_path / "pages.parquet", columns, row_group_size=10)
    monkeypatch.setenv("GKEST_LIMITS", "pages=300")
    with pytest.raises(TableError, match=r"found 301 pages, expected at most 300"):
        list(parquet_records(path))
    monkeypatch.setenv("GKEST_LIMITS", "pages=400")
    assert len(list(parquet_records(path))) == 1000


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("packing", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
def test_headers_say_what_the_files_end_says(tmp_path: Path, packing: str, version: str) -> None:
    columns = {"x": [k / 3 for k in range(5000)], "model": [f"m{k % 7}" for k in range(5000)]}
    path = tmp_path / "sound.parquet"
    # Small pages; statistics of them are in their headers, which are counted at the file's end and not here.
    parquet.write_table(
        arrow.table(columns), path, compression=packing, data_page_version=version, data_page_size=1000
    )
    metadata = parquet.read_metadata(path)
    at_end = sum(metadata.row_group(0).column(j).total_uncompressed_size for j in range(2))
    assert 0.9 * at_end < unpacked_bytes(path, metadata) < at_end


def test_no_byte_that_is_wrong_is_a_defect(tmp_path: Path) -> None:
    columns = {"x": [1.5, None], "model": ["m", "n"]}
    sound = written(tmp_path / "sound.parquet", columns).read_bytes()
    path = tmp_path / "damaged.parquet"
    refused = 0
    for at in range(4, len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0xA5]) + sound[at + 1 :])
        try:
            list(parquet_records(path))
        except GkestimatorError as e:
            assert str(e).startswith(str(path))
            refused += 1
    assert refused > len(sound) / 3
