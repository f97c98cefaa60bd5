"""List GPU specifications for programs: one record each, in base units, unknown figures null."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gkestimator.core.dtypes import Precision
from gkestimator.core.records import NamedValues
from gkestimator.hardware.gpu_spec import FIGURES, GpuSheet
from gkestimator.tables.csv_text import csv_text

LISTING_FORMATS = ("csv", "json")
# The others name weights that are widened into these: no board has a rate of its own for them.
_PRECISIONS = tuple(p for p in Precision if p not in (Precision.W8A16, Precision.W4A16))
_RATES = ("peak_flops_per_s", "vector_flops_per_s")


def listing(sheets: Sequence[GpuSheet], form: str) -> str:
    """Return ``sheets`` as ``csv`` or ``json``, by name: every figure under its name, which ends in its unit.

    Rates are columns of their own (``peak_flops_per_s_fp16``); null (an empty cell) where the hardware lacks the
    precision or no source states the rate. ``can_be_estimated`` is false where a figure is unknown that every estimate
    needs.
    """
    records = [sheet_record(sheet) for sheet in sheets]
    if form == "json":
        return json.dumps(records, indent=1, allow_nan=False) + "\n"
    return csv_text(records[0] if records else (), (record.values() for record in records))


def sheet_record(sheet: GpuSheet) -> NamedValues:
    """Return one GPU's row of the listing."""
    record: NamedValues = {"gpu": sheet.name, "architecture": sheet.architecture}
    for name in FIGURES:
        value = sheet.values[name]
        if name in _RATES:
            for precision in _PRECISIONS:
                record[f"{name}_{precision.value}"] = value.get(precision.value)
        elif name == "compute_capability":
            record[name] = ".".join(map(str, value))
        elif name in sheet.unknown:
            record[name] = None
        else:
            record[name] = value
    record["can_be_estimated"] = not sheet.missing()
    return record
