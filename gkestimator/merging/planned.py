"""What a placement put together on one GPU, merged: one file for each distinct set of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gkestimator.documents import PlacedGpu, PlacementPlan, read_plan
from gkestimator.errors import DocumentError, UsageError, one_line
from gkestimator.export.names import dns_labels
from gkestimator.gpus import gpu_catalogue
from gkestimator.merging.merge import MergeResult, merge_sources
from gkestimator.merging.naming import model_names
from gkestimator.merging.options import MOST_MODELS, MergeOptions
from gkestimator.merging.sources import MergeSource
from gkestimator.naming import distinct_names
from gkestimator.outputs import refuse_overwriting
from gkestimator.tables import write_bytes
