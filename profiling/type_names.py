"""Name the long types that most modules of this room say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

Names: TypeAlias = tuple[str, ...]
Paths: TypeAlias = tuple[Path, ...]
Shape: TypeAlias = tuple[int, ...]
Numbers: TypeAlias = tuple[float, ...]
Document: TypeAlias = dict[str, Any]  # an object of JSON in the making
Members: TypeAlias = Mapping[str, Any]  # an object of JSON as it is read
Texts: TypeAlias = dict[str, str]
TextByName: TypeAlias = Mapping[str, str]
NumberByName: TypeAlias = Mapping[str, float]
CountByName: TypeAlias = Mapping[str, int]
