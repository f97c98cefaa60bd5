"""Building: kernel datasets of raw folders, and datasets merged, with what is known of where they come from."""

from gkestimator.profiling.building.build import BuildResult, build_dataset
from gkestimator.profiling.building.merging import DatasetMerge, merge_datasets

__all__ = ["BuildResult", "DatasetMerge", "build_dataset", "merge_datasets"]
