"""List the GPUs and runtimes that estimates are made for, as DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas

from gkestimator.core.records import NamedValues
from gkestimator.hardware.gpu_listing import sheet_record
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.hardware.runtimes.profiles import DTYPE_WORDS, load_runtime


def gpus(name: str | None = None, *, gpu_specs: str | Path | Sequence[str | Path] = ()) -> pandas.DataFrame:
    """Return the GPUs that are known, one row each: every figure in base units, which its name ends in.

    ``name``: that GPU alone, by any of its names. ``gpu_specs``: GPU files of your own (TOML) beside those that come
    with the package. Missing (NA): the hardware lacks it, or no source states it. ``can_be_estimated`` is False where a
    figure is unknown that every estimate needs. Raises UsageError for a GPU that is not known, SpecError for a file.
    """
    if isinstance(gpu_specs, str | Path):
        gpu_specs = (gpu_specs,)
    catalogue = gpu_catalogue(tuple(gpu_specs))
    names = catalogue.names() if name is None else [name]
    return _frame([sheet_record(catalogue.sheet(one)[0]) for one in names])


def runtimes() -> pandas.DataFrame:
    """Return the runtimes that are known, one row each.

    ``dtypes`` are the words that an estimate takes, ``host_overhead_us`` is the time that a framework call takes on the
    host, ``host_low_us`` and ``host_high_us`` on the fastest and slowest host known.
    """
    records = []
    for name, traits in RUNTIMES.items():
        profile = load_runtime(name)
        low, high = profile.host_range_us
        record: NamedValues = {
            "runtime": name,
            "dtypes": " ".join(word for word in DTYPE_WORDS if word not in traits.lacking_dtypes),
            "layouts": " ".join(traits.layouts),
            "streams": profile.streams,
            "allocator": profile.allocator,
            "host_overhead_us": profile.host_overhead_us,
            "host_low_us": low,
            "host_high_us": high,
            "copy_bytes_per_s": profile.copy_bytes_per_s,
            "context_fixed_bytes": profile.context_fixed_bytes,
            "note": profile.note,
        }
        records.append(record)
    return _frame(records)


def _frame(records: Sequence[NamedValues]) -> pandas.DataFrame:
    # Numbers stay what they are in the files: whether all of a column are whole is an accident.
    return pandas.DataFrame(list(records)).convert_dtypes(convert_integer=False)
