"""Name the long types that most modules of this room say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Names: TypeAlias = tuple[str, ...]
Paths: TypeAlias = tuple[Path, ...]
Ints: TypeAlias = tuple[int, ...]
Floats: TypeAlias = tuple[float, ...]
Fields: TypeAlias = dict[str, Any]  # of a JSON object, a table's row, a call's keywords
Members: TypeAlias = Mapping[str, Any]  # of a JSON object as it is read
Texts: TypeAlias = dict[str, str]
TextByName: TypeAlias = Mapping[str, str]
NumberByName: TypeAlias = Mapping[str, float]
CountByName: TypeAlias = Mapping[str, int]
