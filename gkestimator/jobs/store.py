"""Folders of results that are never lost and never half there: each is made aside and renamed when it is whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gkestimator.core.errors import OutputError
from gkestimator.core.texts import parse_json
from gkestimator.jobs.disk import sync, sync_folder
from gkestimator.tables import write_bytes

_NAME = re.compile(r"[0-9a-f]{40}\.json")
_MAX_CELL_BYTES = 64 * 2**20
_ASIDE = ".aside-"


class Store:
    """Keep one JSON file for each finished cell of a comparison below ``folder``/cells, by key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cells = folder / "cells"
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise OutputError(f"{self._cells}: cannot be made: {e.strerror or e}") from e

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Return those of ``keys`` whose cells are there and whole."""
        there = {e.name.removesuffix(".json") for e in os.scandir(self._cells) if _NAME.fullmatch(e.name)}
        return {key for key in keys if key in there and self.read(key) is not None}

    def read(self, key: str) -> dict[str, Any] | None:
        """Return the cell ``key``; None where it is not there or not a cell (a foreign or damaged file: computed
        again)."""
        path = self._cells / f"{key}.json"
        try:
            if path.stat().st_size > _MAX_CELL_BYTES:
                return None
            cell = parse_json(path.read_bytes())
        except (OSError, ValueError):
            return None
        whole = isinstance(cell, dict) and cell.get("key") == key and isinstance(cell.get("status"), str)
        return cell if whole else None

    def write(self, key: str, cell: Mapping[str, Any]) -> None:
        """Keep ``cell``. Raises OutputError (disk full, no permission); what stood there before stays."""
        text = json.dumps({"key": key, **cell}, sort_keys=True, allow_nan=False)
        write_bytes(self._cells / f"{key}.json", (text + "\n").encode())


class ChunkStore:
    """Keep one folder of files for each finished chunk of work below ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def making(self, name: str) -> Iterator[Path]:
        """Yield a new empty folder for the chunk ``name``; what was not committed goes when the context ends."""
        folder = self.path / f"{_ASIDE}{name}"
        # A killed run may have left one of the same name.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def commit(self, folder: Path) -> None:
        """Flush a folder that :meth:`making` made and rename it: from here on the chunk counts."""
        # The order matters: files first, then the name that makes them count, then the folder that holds the name.
        sync_folder(folder)
        folder.rename(self.path / folder.name.removeprefix(_ASIDE))
        sync(self.path)

    def unfinished(self) -> dict[str, Path]:
        """Return what killed runs left in the making, by the names of the chunks."""
        return {p.name.removeprefix(_ASIDE): p for p in sorted(self.path.glob(f"{_ASIDE}*"))}

    def clean(self) -> int:
        """Remove what killed runs left in the making; return how many chunks that were."""
        left = self.unfinished()
        for folder in left.values():
            shutil.rmtree(folder, ignore_errors=True)
        return len(left)
