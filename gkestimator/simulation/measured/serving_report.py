"""Write what a server's log tells: as text, and the law as the file that a simulation reads."""

from __future__ import annotations

import json
from pathlib import Path

from gkestimator.core.errors import one_line
from gkestimator.core.escaping import utf8
from gkestimator.reporting.simulated import count_text, note_lines, text_of, written_as
from gkestimator.reporting.text import words
from gkestimator.simulation.measured.serving import ServingFit
from gkestimator.simulation.network import Network
from gkestimator.tables.layout import TextColumn, number_columns, text_table
from gkestimator.tables.units import number_text
from gkestimator.tables.writing import write_bytes


def write_network(network: Network, path: Path) -> None:
    """Write a law to ``path`` as a simulation's ``network`` reads it, wholly or not at all. Raises OutputError."""
    write_bytes(path, utf8(network_text(network)))


def network_text(network: Network) -> str:
    """Return the file of a law that is a line, without its zeros."""
    lines = [
        "# Fitted by gkest evaluate to the log of a server; gkest simulate and gkest compare read it as a network.",
        "schema_version = 1",
        f"source = {json.dumps(one_line(network.source, limit=590), ensure_ascii=False)}",
        f"base_ms = {network.base_ms:.6g}",
    ]
    if network.bytes_per_s is not None:
        lines.append(f"bytes_per_s = {network.bytes_per_s:.6g}")
    if network.per_request_ms:
        lines.append(f"per_request_ms = {network.per_request_ms:.6g}")
    if network.host_ms:
        lines.append(f"host_ms = {network.host_ms:.6g}")
    return "\n".join(lines) + "\n"


def serving_text(fit: ServingFit) -> str:
    """Return the law with its residuals, what each model's requests took, and the service beside the table's."""
    law = fit.law
    network = law.network
    terms = [f"{number_text(network.base_ms)} ms for each transfer"]
    if network.bytes_per_s is not None:
        terms.append(f"{number_text(network.bytes_per_s / 1e9)} GB/s")
    if network.per_request_ms:
        terms.append(f"{number_text(network.per_request_ms)} ms for each request sent together")
    if network.host_ms:
        terms.append(f"{number_text(network.host_ms)} ms of the host for each request, one at a time")
    lines = [
        f"{fit.log}: {fit.requests:,} requests, {fit.answered:,} answered",
        f"beyond queue and service: {', '.join(terms)}",
        f"fitted to {law.rows:,} rows: residuals {number_text(law.mean_ms)} ms in the mean, "
        f"{number_text(law.median_ms)} in the median, {number_text(law.p90_ms)} at the 90th percentile "
        f"(a constant alone: mean {number_text(law.constant_ms)}; no law: {number_text(law.nothing_ms)})",
        "",
    ]
    models = [
        words("model", [row[0] for row in law.by_model], shrink=10),
        TextColumn(heading="rows", cells=[count_text(row[1]) for row in law.by_model]),
        TextColumn(heading="overhead, median ms", cells=[number_text(row[2]) for row in law.by_model]),
        TextColumn(heading="residual, median ms", cells=[f"{row[3]:+.3g}" for row in law.by_model]),
    ]
    lines += text_table(models)
    if fit.service:
        names = words("model", [row.model for row in fit.service], shrink=10)
        figures = [
            *written_as(count_text, batch="batch", rows="requests"),
            *written_as(number_text, measured_ms="ran, median ms", table_ms="table ms"),
            *written_as(_ratio_text, ratio="measured / table"),
        ]
        shown = [(heading, field, text) for heading, field, text in figures]
        lines += ["", *text_table([names, *number_columns(fit.service, shown)])]
    return text_of([*lines, *note_lines(fit.notes)])


def _ratio_text(value: float) -> str:
    return f"{value:.3f}"
