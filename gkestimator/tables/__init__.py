"""Own the tables: the one place of columns, units, null rules and versions.

``Requirement`` / ``REQUIREMENTS`` (one row per model, GPU, runtime, dtype, batch size, dims and SM share),
``KernelRow`` / ``KERNEL_ROWS`` (``--kernels``), ``LlmRequirement`` / ``LLM_TABLE`` (``gkest llm``),
``KernelMeasurement`` / ``KERNEL_DATASET`` (what training reads), ``CoRun`` / ``COLOCATION`` (models measured side by
side) and ``LoggedRequest`` / ``REQUEST_LOG`` (requests that were served).
"""

from gkestimator.tables.colocation import COLOCATION, CoRun
from gkestimator.tables.kernel_dataset import (
    KERNEL_DATASET,
    KINDS,
    QUALITIES,
    KernelMeasurement,
)
from gkestimator.tables.kernel_rows import KERNEL_ROWS, KernelRow
from gkestimator.tables.llm_requirement import LLM_TABLE, LlmRequirement
from gkestimator.tables.reading import TableSource, frame_records, listed, read_table, rows_in, table_label
from gkestimator.tables.request_log import REQUEST_LOG, LoggedRequest
from gkestimator.tables.requirement import REQUIREMENTS, Requirement
from gkestimator.tables.schema import Column, TableSchema
from gkestimator.tables.writing import (
    FORMATS,
    format_of,
    records_dataframe,
    render,
    to_dataframe,
    write_bytes,
    write_table,
)

__all__ = [
    "COLOCATION",
    "FORMATS",
    "KERNEL_DATASET",
    "KERNEL_ROWS",
    "KINDS",
    "LLM_TABLE",
    "QUALITIES",
    "REQUEST_LOG",
    "REQUIREMENTS",
    "CoRun",
    "Column",
    "KernelMeasurement",
    "KernelRow",
    "LlmRequirement",
    "LoggedRequest",
    "Requirement",
    "TableSchema",
    "TableSource",
    "format_of",
    "frame_records",
    "listed",
    "read_table",
    "records_dataframe",
    "render",
    "rows_in",
    "table_label",
    "to_dataframe",
    "write_bytes",
    "write_table",
]
