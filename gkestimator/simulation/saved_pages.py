"""Make an HTML page of a document that was saved: a requirement table, a plan, a simulation, a comparison's results,
or what changed between two models.

Each kind is recognised by what only it holds, read by its own reader (files come from strangers), and shown by the
view of its name in ``gkestimator/reporting/page``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gkestimator.core.errors import DocumentError
from gkestimator.core.records import NamedValues
from gkestimator.documents.checking import load_json
from gkestimator.documents.plan import plan_document, read_plan
from gkestimator.documents.simulation import (
    MAX_SIMULATION_BYTES,
    QUANTILES_PCT,
    read_simulation,
    simulation_document,
)
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.reporting.html import html_page
from gkestimator.simulation.comparing.results import rows_from
from gkestimator.tables import REQUIREMENTS, read_table

_EXPECTED = (
    "expected a requirement table, a plan, a simulation's report, a comparison's results.json or changes"
)


def saved_page(path: Path) -> bytes:
    """Return the page of the document at ``path``. Raises DocumentError or TableError, naming file and field."""
    if path.suffix.lower() in (".csv", ".parquet"):
        return html_page(_table(path))
    keys = _keys(path)
    for marks, view in _VIEWS:
        if marks <= keys:
            return html_page(view(path))
    raise DocumentError(f"{path}: found none of the documents that have a page; {_EXPECTED}")


def _keys(path: Path) -> frozenset[str]:
    """Return the names at the top of a JSON file, and, of a list of rows, ``rows.NAME`` for those of its first row."""
    fields = load_json(path, what="a saved document", limit=MAX_SIMULATION_BYTES)
    keys = fields.names()
    if not fields.has("rows"):
        return keys
    rows = fields.take("rows")
    if isinstance(rows, list) and rows and isinstance(rows[0], dict):
        keys |= {f"rows.{name}" for name in rows[0]}
    return keys


def _page(
    kind: str, title: str, subtitle: str, closing: Sequence[str] = (), **content: object
) -> NamedValues:
    return {"kind": kind, "title": title, "subtitle": subtitle, "closing": list(closing), **content}


def _table(path: Path) -> NamedValues:
    rows = read_table(path, REQUIREMENTS)
    models = list(dict.fromkeys(row.model for row in rows))
    gpus = list(dict.fromkeys(row.gpu for row in rows))
    title = f"{_counted(len(models), 'model')} on {_counted(len(gpus), 'GPU')}"
    catalogue = gpu_catalogue()
    known = set(catalogue.complete_names())
    specs = {gpu: catalogue.spec(gpu) for gpu in gpus if gpu in known}
    shown = []
    for number, row in enumerate(rows):
        spec = specs.get(row.gpu)
        # Unknown where the GPU, its price or the throughput is.
        prices: NamedValues = {"usd_per_million": None, "price_date": None}
        if spec is not None:
            prices["usd_per_million"] = spec.usd_per_million(row.throughput_rps)
            prices["price_date"] = spec.price_date
        shown.append({**REQUIREMENTS.record(row), "id": str(number), **prices})
    subtitle = f"Requirement table {path.name}"
    closing = ("A table holds no kernels: gkest estimate --report shows where the time goes.",)
    return _page("models", title, subtitle, closing, rows=shown, details={}, programs={}, copy_counts=None)


def _plan(path: Path) -> NamedValues:
    plan = plan_document(read_plan(path))
    totals = plan["totals"]
    # A workload of applications alone lists no models of its own.
    models = {replica["model"] for gpu in plan["gpus"] for replica in gpu["replicas"]}
    models.update(load["model"] for load in plan["unserved"])
    title = f"A plan: {_counted(len(models), 'model')} on {_counted(totals['gpus_used'], 'GPU')}"
    return _page("plan", title, f"{path.name}, by policy {plan['policy']}", plan["notes"], plan=plan)


def _simulation(path: Path) -> NamedValues:
    report = simulation_document(read_simulation(path))
    settings = report["settings"]
    title = (
        f"A simulation: {_counted(len(report['models']), 'model')} on {_counted(len(report['gpus']), 'GPU')}"
    )
    subtitle = f"{path.name}: {settings['duration_s']:g} s of {settings['arrivals']} arrivals"
    return _page("simulation", title, subtitle, report["notes"], report=report, quantiles=list(QUANTILES_PCT))


def _comparison(path: Path) -> NamedValues:
    fields = load_json(path, what="a comparison's results", limit=MAX_SIMULATION_BYTES)
    try:
        rows = [asdict(row) for row in rows_from({"rows": fields.take("rows")})]
    except TypeError as e:
        raise DocumentError(f"{path}: rows are not those of a comparison ({e})") from e
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    title = f"A comparison of {_counted(len(policies), 'policy', 'policies')}"
    return _page("comparison", title, f"{path.name}: {_counted(len(rows), 'cell')}", rows=rows)


def _changes(path: Path) -> NamedValues:
    """Return the page of what ``gkest diff`` wrote as JSON."""
    fields = load_json(path, what="what changed", limit=MAX_SIMULATION_BYTES)
    rows = fields.take("rows")
    for number, row in enumerate(rows):
        if not _is_change(row):
            raise DocumentError(f"{path}: rows[{number}] is not what gkest diff --format json writes")
    title = f"What changed: {_counted(len(rows), 'estimate')}"
    subtitle = f"{path.name}, of two {'models' if fields.take('compared') == 'models' else 'tables'}"
    only = {name: _rows_of(fields.take(name)) for name in ("only_before", "only_after")}
    return _page("changes", title, subtitle, rows=rows, **only)


def _is_change(row: Any) -> bool:
    """Return whether ``row`` has the fields of a change that its page reads."""
    if not isinstance(row, dict) or not isinstance(row.get("over"), list):
        return False
    parts = [row.get(name) for name in ("before", "after", "latency_ms", "memory_bytes", "flops")]
    kernels = row.get("kernels") or []
    return isinstance(kernels, list) and all(isinstance(part, dict) for part in (*parts, *kernels))


def _rows_of(rows: Any) -> list[Any]:
    """Return the mappings among ``rows``."""
    if not isinstance(rows, list):
        return []
    return [row for row in rows if isinstance(row, dict)]


def _counted(count: int, word: str, several: str = "") -> str:
    if count == 1:
        return f"1 {word}"
    return f"{count:,} {several or word + 's'}"


View = Callable[[Path], NamedValues]
_VIEWS: tuple[tuple[frozenset[str], View], ...] = (
    (frozenset({"workload", "gpus", "totals"}), _plan),
    (frozenset({"settings", "timeline"}), _simulation),
    (frozenset({"rows.policy", "rows.status"}), _comparison),
    (frozenset({"compared", "rows.before", "rows.after"}), _changes),
    (frozenset({"rows.gpu", "rows.runtime"}), _table),
)
"""What each kind alone holds, and what shows it."""
