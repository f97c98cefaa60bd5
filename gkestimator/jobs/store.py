"""A folder of results: one file for each finished cell of a comparison, written aside and renamed, so that what was
computed is never lost and never half there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gkestimator.core.errors import OutputError
from gkestimator.tables import write_bytes

_NAME = re.compile(r"[0-9a-f]{40}\.json")
_MAX_CELL_BYTES = 64 * 2**20


class Store:
    """Finished cells below ``folder``/cells, by key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cells = folder / "cells"
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise OutputError(f"{self._cells}: cannot be made: {e.strerror or e}") from e

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Those of ``keys`` whose cells are there and whole."""
        there = {e.name.removesuffix(".json") for e in os.scandir(self._cells) if _NAME.fullmatch(e.name)}
        return {key for key in keys if key in there and self.read(key) is not None}

    def read(self, key: str) -> dict[str, Any] | None:
        """The cell ``key``; None where it is not there or not a cell (a foreign or damaged file: computed again)."""
        path = self._cells / f"{key}.json"
        try:
            if path.stat().st_size > _MAX_CELL_BYTES:
                return None
            found = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        whole = isinstance(found, dict) and found.get("key") == key and isinstance(found.get("status"), str)
        return found if whole else None

    def write(self, key: str, cell: Mapping[str, Any]) -> None:
        """Keep ``cell``. Raises OutputError (disk full, no permission); what stood there before stays."""
        text = json.dumps({"key": key, **cell}, sort_keys=True, allow_nan=False)
        write_bytes(self._cells / f"{key}.json", (text + "\n").encode())
