"""A journal on the disk: one JSON object a line, each there for good when it has been added."""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from gkestimator.core.errors import TableError
from gkestimator.core.texts import parse_json
from gkestimator.jobs.disk import held
from gkestimator.tables.files import output_errors


class LineJournal(ABC):
    """Keep the journal at ``path``, locked while the context is open. Lines of earlier runs are taken
    (:meth:`take`) when it is opened; what a killed run left of a line is cut off. Raises UsageError where
    another run holds it, TableError where it is no such journal, OutputError."""

    content: ClassVar[str]
    """What it is a journal of, in words."""
    version: ClassVar[int] = 1
    most_bytes: ClassVar[int] = 512 * 2**20

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: IO[bytes] | None = None
        self._open = contextlib.ExitStack()
        self._new = False

    @abstractmethod
    def take(self, line: dict[str, Any]) -> None:
        """Take one line of an earlier run. Raises ValueError, TypeError or KeyError where it is none of this
        kind."""

    @property
    @abstractmethod
    def begun(self) -> bool:
        """Return whether anything was added, now or earlier; a new file without is removed."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(held(self.path.with_name(self.path.name + ".lock"), self.path))
            with output_errors(self.path):
                # Asked before it is opened, which makes it.
                self._new = not self.path.exists()
                self._stream = stack.enter_context(open(self.path, "a+b"))
            self._read(self._stream)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._new and not self.begun:  # a wrong command leaves nothing behind
            with contextlib.suppress(OSError):
                self.path.unlink()
        # Of a full disk: the line that did not fit was reported, and is not kept.
        with contextlib.suppress(OSError):
            self._open.close()
        self._stream = None

    def append(self, document: Mapping[str, Any]) -> None:
        """Add one line, on the disk when this returns. Raises OutputError."""
        assert self._stream is not None, "the journal is not open"
        line = json.dumps({"v": self.version, **document}, separators=(",", ":"), allow_nan=False) + "\n"
        with output_errors(self.path):
            self._stream.write(line.encode())
            self._stream.flush()
            # A line that was said to be kept must survive the machine, not only the process.
            os.fsync(self._stream.fileno())

    def _read(self, stream: IO[bytes]) -> None:
        size = os.fstat(stream.fileno()).st_size
        if size > self.most_bytes:
            raise TableError(f"{self.path}: found {size:,} bytes, expected at most {self.most_bytes:,}")
        stream.seek(0)
        whole = stream.read()
        complete = whole.rfind(b"\n") + 1
        for number, line in enumerate(whole[:complete].split(b"\n")[:-1], start=1):
            try:
                document = parse_json(line)
                if not isinstance(document, dict) or document.pop("v", None) != self.version:
                    raise ValueError(f"expected an object of version {self.version}")
                self.take(document)
            except (ValueError, TypeError, KeyError, OverflowError) as e:
                raise TableError(f"{self.path}: line {number}: no line of {self.content}: {e}") from e
        # The next line would otherwise be appended to half a line.
        stream.truncate(complete)
