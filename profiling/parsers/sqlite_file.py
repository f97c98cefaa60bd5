"""SQLite files from strangers: opened read-only, with a time limit, plain tables only, every value checked."""

from __future__ import annotations

import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias

from gkestimator.core.errors import TableError
from gkestimator.core.files import input_errors
from gkestimator.core.limits import allowed, exceeded, remedy, seconds_for
from gkestimator.profiling.type_names import Fields

Columns: TypeAlias = "Sequence[tuple[str, type]]"

MAX_FILE_BYTES = 32 * 2**30
# The longest value SQLite may hand out: names of kernels are some kilobytes at most.
MAX_TEXT_BYTES = 4 * 2**20
_MAGIC = b"SQLite format 3\0"
_STEPS_BETWEEN_LOOKS = 20_000


class SqliteFile:
    """Read plain tables of one open file. Made by :func:`open_sqlite`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._columns: dict[str, frozenset[str]] = {}
        self._characters = 0
        self._kinds = {
            str(name): (str(kind), str(sql or ""))
            for name, kind, sql in connection.execute("SELECT name, type, sql FROM sqlite_master")
            if kind in ("table", "view")
        }

    def has(self, table: str, *, at_most: int | None = None) -> bool:
        """Return whether ``table`` is there. Raises TableError if it is anything but a plain table, and beyond
        ``at_most`` rows."""
        kind, sql = self._kinds.get(table, (None, ""))
        if kind is None:
            return False
        if kind != "table" or sql.lstrip().upper().startswith("CREATE VIRTUAL"):
            raise TableError(f"{self.path}: {table}: found a view or virtual table, expected a plain table")
        if at_most is not None:
            self.count(table, at_most=at_most)
        return True

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of the table's stored columns (generated ones are none)."""
        if table not in self._columns:
            rows = self._connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
            self._columns[table] = frozenset(str(row[1]) for row in rows)
        return self._columns[table]

    def count(self, table: str, *, at_most: int) -> int:
        """Return how many rows ``table`` has. Raises TableError beyond ``at_most``."""
        # Row by row, and no further: a file whose pages name one another over and over has rows without end.
        some = f"SELECT 1 FROM {_quoted(table)} LIMIT {at_most + 1}"
        (rows,) = self._connection.execute(f"SELECT count(*) FROM ({some})").fetchone()
        if rows > at_most:
            raise TableError(f"{self.path}: {table}: more than {at_most:,} rows, expected at most as many")
        return int(rows)

    def rows(
        self,
        table: str,
        required: Columns,
        optional: Columns = (),
        *,
        where: str = "",
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the values of the columns (name, type) in file order; an absent or NULL ``optional`` one
        gives None. ``where`` is ours, never the file's. Raises TableError for a missing column and for a
        value of another type."""
        there = self.columns(table)
        missing = [name for name, _ in required if name not in there]
        if missing:
            raise TableError(
                f"{self.path}: {table}: lacks column {', '.join(missing)} (schema not supported; found "
                f"{', '.join(sorted(there))})"
            )
        names = [_quoted(name) for name, _ in required]
        names += [_quoted(name) if name in there else "NULL" for name, _ in optional]
        kinds_allowed = [(kind,) for _, kind in required] + [(kind, NoneType) for _, kind in optional]
        cursor = self._connection.execute(f"SELECT {', '.join(names)} FROM {_quoted(table)} {where}")
        for row in cursor:
            for value, kinds in zip(row, kinds_allowed, strict=True):
                if type(value) not in kinds:
                    self._refuse(table, [*required, *optional], row, kinds_allowed)
                if type(value) is str:
                    self._count_text(table, value)
            yield row

    def dictionaries(self, table: str) -> Iterator[Fields]:
        """Yield every row with all its columns by name, values as they are."""
        names = sorted(self.columns(table))
        for row in self._connection.execute(f"SELECT {', '.join(map(_quoted, names))} FROM {_quoted(table)}"):
            for value in row:
                if isinstance(value, str | bytes):
                    self._count_text(table, value)
            yield dict(zip(names, row, strict=True))

    def _count_text(self, table: str, text: str | bytes) -> None:
        self._characters += len(text)
        if self._characters > allowed("report_characters"):
            raise TableError(f"{self.path}: {table}: {exceeded('report_characters', self._characters)}")

    def _refuse(
        self, table: str, columns: Columns, row: tuple[Any, ...], kinds_allowed: Sequence[Any]
    ) -> None:
        for (name, kind), value, kinds in zip(columns, row, kinds_allowed, strict=True):
            if type(value) not in kinds:
                word = {int: "a whole number", float: "a number", str: "text"}[kind]
                raise TableError(f"{self.path}: {table}.{name}: found {str(value)[:60]!r}, expected {word}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def open_sqlite(path: Path, *, limit_s: float | None = None) -> Iterator[SqliteFile]:
    """Open the file for ``limit_s`` seconds of work (None: what the limit ``report_seconds`` allows for its size).

    Nothing is written: no journal is played back, no lock taken. Raises TableError, also from what is done inside, for
    anything that is no whole SQLite file, and at the limit."""
    _check_file(path)
    if limit_s is None:
        limit_s = seconds_for("report_seconds", path.stat().st_size)
    deadline = time.monotonic() + limit_s
    expired = False

    def look() -> int:
        nonlocal expired
        expired = expired or time.monotonic() > deadline
        return int(expired)

    try:
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            connection.set_progress_handler(look, _STEPS_BETWEEN_LOOKS)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT_BYTES)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("PRAGMA temp_store = MEMORY")
            yield SqliteFile(path, connection)
    except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError, OverflowError, ValueError) as e:
        if expired:
            raise TableError(
                f"{path}: reading took more than {limit_s:g} s; given up ({remedy('report_seconds')})"
            ) from e
        raise TableError(f"{path}: cannot be read as SQLite: {e}") from e


def _check_file(path: Path) -> None:
    with input_errors(path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise TableError(f"{path}: not a regular file, expected an SQLite export")
        with path.open("rb") as file:
            head = file.read(100)
    if status.st_size > MAX_FILE_BYTES:
        raise TableError(f"{path}: {status.st_size:,} bytes, expected at most {MAX_FILE_BYTES:,}")
    if len(head) < 100 or not head.startswith(_MAGIC):
        raise TableError(f"{path}: not an SQLite file (nsys export --type sqlite makes one of a .nsys-rep)")
    page = int.from_bytes(head[16:18], "big")
    expected = (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    if status.st_size < expected:
        raise TableError(f"{path}: cut short: {status.st_size:,} bytes, expected {expected:,}")
