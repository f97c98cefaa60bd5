"""Parse strangers' JSON and CSV texts: every reader of the project does so here, so that their bounds stand once."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from typing import IO, Any

from gkestimator.core.files import refuse_constant
from gkestimator.core.limits import allowed, exceeded

# Every such number is a float, too: no reader needs to mind numbers that are not.
_LONGEST_NUMBER = 300
_LONG_NUMBER = re.compile(r"[0-9]{300}")
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str | bytes) -> Any:
    """Return the value that ``text`` is in JSON, in UTF-8 where it is bytes.

    Raises ValueError for anything else: NaN and Infinity, a key that stands twice in one object, numbers of more than
    300 digits, and values nested deeper than the limit ``json_depth``.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_once,
            parse_constant=refuse_constant,
            # A function of ours for each number would double the time: only where there is a long one.
            parse_int=_whole if _LONG_NUMBER.search(text) else None,
        )
    except RecursionError:
        raise ValueError(exceeded("json_depth", f"more than {allowed('json_depth')}")) from None
    _check_depth(value)
    if _HALF_CHARACTER.search(text):
        # Half a character of two codes can stand in no file that we write: UnicodeEncodeError is a ValueError.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{name[:60]!r} stands twice in one object, expected once")
            seen.add(name)
    return mapping


def _whole(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError(f"found a number of {len(text):,} digits, expected at most {_LONGEST_NUMBER}")
    return int(text)


def _check_depth(value: Any) -> None:
    """Raise ValueError where containers lie in each other deeper than allowed: what walks them later recurses."""
    level = [value]
    for _ in range(allowed("json_depth") + 1):
        inner: list[Any] = []
        for container in level:
            if isinstance(container, dict):
                inner += [v for v in container.values() if isinstance(v, dict | list)]
            elif isinstance(container, list):
                inner += [v for v in container if isinstance(v, dict | list)]
        if not inner:
            return
        level = inner
    raise ValueError(exceeded("json_depth", f"more than {allowed('json_depth')}"))


def csv_rows(stream: IO[str], *, separator: str = ",") -> Iterator[list[str]]:
    """Yield the cells of each row of a CSV text, opened with ``newline=""``.

    Raises csv.Error for a wrong quote, a line beyond the limit ``line_characters`` and a cell beyond
    ``cell_characters``.
    """
    usual = csv.field_size_limit()
    reader = csv.reader(_lines(stream), delimiter=separator, strict=True)
    while True:
        # The limit is the process', and rows of several files may be taken in turn.
        csv.field_size_limit(allowed("cell_characters"))
        try:
            cells = next(reader, None)
        finally:
            csv.field_size_limit(usual)
        if cells is None:
            return
        yield cells


def _lines(stream: IO[str]) -> Iterator[str]:
    most = allowed("line_characters")
    for line in iter(lambda: stream.readline(most + 1), ""):
        if len(line) > most:
            raise csv.Error(exceeded("line_characters", f"more than {most:,}"))
        yield line
