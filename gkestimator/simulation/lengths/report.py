"""What the schemes came to, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.simulation.lengths.running import LengthsRun
from gkestimator.simulation.lengths.serving import Served
from gkestimator.tables.layout import TextColumn, printable, text_table
from gkestimator.tables.units import number_text, percent_text

LENGTHS_FORMATS = ("table", "csv", "json")
LENGTHS_SUFFIXES = {".json": "json", ".csv": "csv", ".txt": "table"}


def render_lengths(run: LengthsRun, form: str) -> bytes:
    """``run`` as ``table``, ``csv`` (one row a scheme) or ``json``, UTF-8. Raises UsageError for another."""
    makers = {"table": _text, "csv": _csv, "json": _json}
    if form not in makers:
        raise UsageError(f"format {form!r} is not known, expected one of {', '.join(LENGTHS_FORMATS)}")
    return makers[form](run).encode()


def _row(run: LengthsRun, scheme: str, served: Served) -> dict[str, Any]:
    """What is said of a scheme. ``arrived_rps``: all that came; all is answered, some of it maybe long
    after the end. ``padding``: tokens computed over tokens asked for. ``gpus_mean``: GPU time over the
    time simulated; cost from it. Null: no request was counted, or the price is not known."""
    spec = run.spec
    counted_s = (spec.duration_ms - spec.warmup_ms) / 1e3
    gpus = served.gpu_ms / spec.duration_ms
    price = run.price_per_hour
    return {
        "scheme": scheme,
        "requests": served.requests,
        "arrived_rps": served.requests / counted_s,
        "goodput_rps": served.on_time / counted_s,
        "on_time_pct": 100 * served.on_time / served.requests if served.requests else None,
        "latency_mean_ms": served.mean_ms,
        "latency_p50_ms": served.quantile_ms(0.5),
        "latency_p98_ms": served.quantile_ms(0.98),
        "latency_p99_ms": served.quantile_ms(0.99),
        "padding": served.padded_tokens / served.tokens if served.tokens else None,
        "gpus_mean": gpus,
        "gpus_most": max(w.gpus for w in served.windows),
        "cost_per_hour": None if price is None else price * gpus,
        "replaced": served.replaced,
        "added": served.added,
        "removed": served.removed,
    }


def _json(run: LengthsRun) -> str:
    lengths = run.ladder.lengths
    schemes = []
    for scheme, served in run.served.items():
        own = lengths[-1:] if scheme == "padding" else lengths
        schemes.append(
            _row(run, scheme, served)
            | {
                "runtimes": [
                    {"length": n, "shortest_for": int(a), "served": int(s)}
                    for n, a, s in zip(own, served.asked, served.served, strict=True)
                ],
                "windows": [
                    {
                        "end_s": w.end_ms / 1e3,
                        "requests": w.requests,
                        "on_time": w.on_time,
                        "latency_p98_ms": w.p98_ms,
                        "gpus": w.gpus,
                        "instances": list(w.counts),
                    }
                    for w in served.windows
                ],
            }
        )
    document = {
        "schema_version": 1,
        "model": run.spec.model,
        "gpu": run.spec.gpu,
        "slo_ms": run.spec.slo_ms,
        "seed": run.spec.seed,
        "duration_s": run.spec.duration_ms / 1e3,
        "warmup_s": run.spec.warmup_ms / 1e3,
        "runtimes": [
            {"length": r.length, "latency_ms": r.latency_ms, "capacity": c}
            for r, c in zip(run.ladder.runtimes, run.ladder.capacities, strict=True)
        ],
        "schemes": schemes,
        "notes": list(run.notes),
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _csv(run: LengthsRun) -> str:
    rows = [_row(run, scheme, served) for scheme, served in run.served.items()]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow(["" if v is None else v for v in row.values()])
    return buffer.getvalue()


def _text(run: LengthsRun) -> str:
    spec = run.spec
    ladder = run.ladder
    rows = [_row(run, scheme, served) for scheme, served in run.served.items()]
    lines = [
        f"{spec.model} on {spec.gpus:,} x {spec.gpu} · SLO {spec.slo_ms:g} ms · "
        f"{spec.duration_ms / 1e3:g} s · seed {spec.seed}",
        "",
        *text_table(_columns(rows)),
        "",
        "runtimes: instances at the end and share of the requests served (of those whose shortest it is)",
        "",
        *text_table(_runtime_columns(run)),
        "",
        "latencies ms: " + ", ".join(f"{r.length}: {number_text(r.latency_ms)}" for r in ladder.runtimes),
    ]
    lines += [f"note: {note}" for note in run.notes]
    return "\n".join(printable(line) for line in lines) + "\n"


def _columns(rows: Sequence[dict[str, Any]]) -> list[TextColumn]:
    def column(heading: str, name: str, text: Any) -> TextColumn:
        return TextColumn(heading=heading, cells=[text(r[name]) for r in rows])

    found = [
        TextColumn(heading="scheme", cells=[r["scheme"] for r in rows], right=False),
        column("came/s", "arrived_rps", number_text),
        column("in time %", "on_time_pct", lambda v: number_text(v, digits=4)),
        column("mean ms", "latency_mean_ms", number_text),
        column("p50", "latency_p50_ms", number_text),
        column("p98", "latency_p98_ms", number_text),
        column("p99", "latency_p99_ms", number_text),
        column("padding", "padding", number_text),
        column("GPUs", "gpus_mean", number_text),
    ]
    if any(r["cost_per_hour"] is not None for r in rows):
        found.append(column("USD/h", "cost_per_hour", number_text))
    for heading, name in (("replaced", "replaced"), ("added", "added"), ("removed", "removed")):
        if any(r[name] for r in rows):
            found.append(column(heading, name, lambda v: f"{v:,}"))
    return found


def _runtime_columns(run: LengthsRun) -> list[TextColumn]:
    lengths = run.ladder.lengths
    found = [TextColumn(heading="length", cells=[f"{n:,}" for n in lengths])]
    for scheme, served in run.served.items():
        total = served.requests
        cells = []
        for i in range(len(lengths)):
            at = i - (len(lengths) - len(served.served))  # padding has the longest alone
            if at < 0:
                cells.append("")
                continue
            count = served.windows[-1].counts[at]
            cells.append(f"{count:,}: {_share(served.served[at], total)} ({_share(served.asked[at], total)})")
        found.append(TextColumn(heading=scheme, cells=cells))
    return found


def _share(part: int, total: int) -> str:
    return percent_text(100 * float(part) / total if total else None)


def lengths_words(run: LengthsRun) -> list[str]:
    """What closes a run, on stderr: who did best."""
    rows = [_row(run, scheme, served) for scheme, served in run.served.items()]
    counted = [r for r in rows if r["latency_p98_ms"] is not None]
    if not counted:
        return ["No request was counted."]
    best = min(counted, key=lambda r: r["latency_p98_ms"])
    return [
        f"Lowest 98th percentile: {best['scheme']}, {number_text(best['latency_p98_ms'])} ms "
        f"({number_text(best['on_time_pct'], digits=4)} % within {run.spec.slo_ms:g} ms on "
        f"{number_text(best['gpus_mean'])} GPUs)."
    ]
