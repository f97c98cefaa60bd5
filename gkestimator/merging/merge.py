"""From files to one merged file and its report: the steps of a merge, in order."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gkestimator.errors import ModelError, UsageError
from gkestimator.estimation.collection import rare_collection
from gkestimator.merging.assembling import Assembler
from gkestimator.merging.grouping import Grouping, group_models
from gkestimator.merging.matching import Matching, candidates, match_all
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing import Pricer, decide
from gkestimator.merging.report import MergeReport, make_report
from gkestimator.merging.sources import MergeSource, sources_of
from gkestimator.merging.super_operators import can_emit
from gkestimator.onnx_io.editing import (
    EditableModel,
    ValueShape,
    align_opsets,
    check_editable,
    fix_dims,
    graph_of,
    read_editable,
    tidy,
    value_shapes,
    write_editable,
)

__all__ = ["MergeResult", "merge", "merge_sources"]

Progress = Callable[[str, int, int], None]
_STEPS = ("reading", "grouping", "matching", "pricing", "writing", "checking")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """``report``: what was merged and what it should save. ``files``: what was written (the ONNX file, and the file
    of its weights where they are beyond 2 GB)."""

    report: MergeReport
    files: tuple[Path, ...]
