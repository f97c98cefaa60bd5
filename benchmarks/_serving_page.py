"""Write docs/accuracy/serving.md and its picture from what the benchmarks of serving kept in docs/accuracy/serving.json."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs" / "accuracy"
RESULTS = DOCS / "serving.json"
PAGE = DOCS / "serving.md"
PICTURE = DOCS / "serving.png"
Figures = Mapping[str, Any]

_INTRO = """# Is the simulator right?

A plan that is served for real, beside the simulation of the very requests that it got, and Triton's published measurements beside
the simulation of them. Written by `python benchmarks/serving_truth.py` and `python benchmarks/triton_online.py`; how to do the same
with your own server: [Does the plan hold?](../how-to/serving-logs.md)

*Real* is what the client measured over HTTP; *simulated* is `gkest compare --against` with the same arrivals. *On time* is the
share of all requests that were answered within their model's objective (SLO), refused ones counted as not. p99 is the 99th
percentile of the time to the answer, of those answered. Differences are simulated less real.
"""


def save_results(mode: str, results: Figures) -> None:
    """Keep what one benchmark found, beside what others did, with the day."""
    document: dict[str, Any] = {}
    if RESULTS.exists():
        document = json.loads(RESULTS.read_text(encoding="utf-8"))
    document[mode] = {"day": datetime.date.today().isoformat(), **results}
    text = json.dumps(_rounded(document), indent=None, separators=(",", ":"), sort_keys=True)
    RESULTS.write_text(
        text.replace('"cells":', '\n"cells":').replace('},{"all"', '},\n{"all"') + "\n", encoding="utf-8"
    )


def _rounded(value: Any) -> Any:
    """Return a document with numbers of four digits: enough for tables and pictures."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(inner) for inner in value]
    return value


def write_page() -> Path:
    """Write the page, and the picture where there is something to draw; return the page's path."""
    document = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    parts = [_INTRO]
    if any(name in document for name in ("emulated", "cpu")):
        draw(document)
        parts.append(
            "![On time and 99th percentile, real and simulated](serving.png)\n\n"
            "Every dot is a model in one run; on the line real and simulated are equal."
        )
    makers = {"emulated": _emulated, "cpu": _cpu, "step": _step, "kill": _kill, "triton": _triton}
    for name, maker in makers.items():
        if name in document:
            parts.append(maker(document[name]))
    PAGE.write_text("\n".join(parts).rstrip() + "\n", encoding="utf-8")
    return PAGE


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def _number(value: float | None, digits: int = 1) -> str:
    if value is None:
        return "–"
    return f"{value:,.{digits}f}"


def _points(pair: Sequence[float | None]) -> str:
    if pair[0] is None or pair[1] is None:
        return "–"
    return f"{pair[1] - pair[0]:+.1f}"


def _percent(pair: Sequence[float | None]) -> str:
    if not pair[0] or pair[1] is None:
        return "–"
    return f"{100 * (pair[1] / pair[0] - 1):+.0f}"


def _law(fit: Figures) -> str:
    terms = [f"{fit['base_ms']:.3g} ms a transfer"]
    if fit.get("bytes_per_s"):
        terms.append(f"{fit['bytes_per_s'] / 1e9:.3g} GB/s")
    if fit.get("per_request_ms"):
        terms.append(f"{fit['per_request_ms']:.3g} ms for each request sent together")
    if fit.get("host_ms"):
        terms.append(f"{fit['host_ms']:.3g} ms of the host for each request, one at a time")
    words = f"{', '.join(terms)} (residuals {fit['mean_ms']:.3g} ms in the mean, {fit['p90_ms']:.3g} ms at the 90th percentile)"
    if fit.get("service_ratio"):
        words += f"; batches ran {fit['service_ratio']:.3f} times the table's time in the median"
    return words


def _cells(cells: Sequence[Figures]) -> str:
    rows = []
    for cell in cells:
        whole = cell["all"]
        rows.append(
            (
                f"{cell['load']:g}",
                str(cell["seed"]),
                f"{cell['requests']:,}",
                *(_number(v) for v in whole["on_time_pct"]),
                _points(whole["on_time_pct"]),
                *(_number(v, 0) for v in whole["p99_ms"]),
                _percent(whole["p99_ms"]),
                *(_number(v, 2) for v in whole["batch_mean"]),
                _number(whole["refused_pct"][0]),
                str(cell["beyond_timeout"]),
                _number(cell["client_late_ms"][1]),
            )
        )
    header = (
        "load", "seed", "requests", "on time %, real", "simulated", "points", "p99 ms, real", "simulated", "%",
        "batch, real", "simulated", "refused %, real", "beyond the time-out", "client late, p99 ms",
    )  # fmt: skip
    return _table(header, rows)


def _by_model(cells: Sequence[Figures]) -> str:
    """Return the largest and the median difference over models and runs."""
    on_time = [
        pair for cell in cells for row in cell["models"].values() if None not in (pair := row["on_time_pct"])
    ]
    p99 = [pair for cell in cells for row in cell["models"].values() if None not in (pair := row["p99_ms"])]
    points = sorted(abs(b - a) for a, b in on_time)
    shares = sorted(abs(100 * (b / a - 1)) for a, b in p99)
    if not points or not shares:
        return ""
    middle = len(points) // 2
    return (
        f"By model and run: on time differs by {points[middle]:.1f} points in the median and {points[-1]:.1f} at most, "
        f"p99 by {shares[len(shares) // 2]:.0f} % in the median and {shares[-1]:.0f} % at most."
    )


def _emulated(result: Figures) -> str:
    return "\n".join(
        (
            "\n## Emulated T4s",
            "",
            f"`python benchmarks/serving_truth.py emulated`, {result['day']}, {result['cores']} cores. Three models on three "
            f"emulated GPUs: one has a GPU of its own, two take turns on one, two share one at once. Each batch waits for the "
            f"time that a T4 is estimated to take, times {result['slower']:g}, so that this machine's router carries the "
            f"requests; {result['seconds']:g} s of Poisson arrivals a run. The network is fitted to the first run alone: "
            f"{_law(result['fit'])}.",
            "",
            _cells(result["cells"]),
            "",
            _by_model(result["cells"]),
        )
    )


def _cpu(result: Figures) -> str:
    return "\n".join(
        (
            "\n## Real models under ONNX Runtime",
            "",
            f"`python benchmarks/serving_truth.py cpu`, {result['day']}. ResNet-50, MobileNetV2 and MiniLM (weights are random) "
            f"share one core of this CPU in turns; the table was measured on it by `gkest profile`. Router and client have the "
            f"other core{'s' if result['cores'] > 2 else ''}; {result['seconds']:g} s a run. Fitted to the first run: "
            f"{_law(result['fit'])}.",
            "",
            _cells(result["cells"]),
            "",
            _by_model(result["cells"]),
        )
    )


def _step(result: Figures) -> str:
    rows = []
    for name in ("with", "without"):
        one = result[name]
        back = "not at all" if one["back_s"] is None else f"{one['back_s']:g} s"
        rows.append(
            (
                f"{name} the controller",
                _number(one["on_time_before_pct"]),
                _number(one["on_time_after_pct"]),
                back,
                str(one["beyond_timeout"]),
                ", ".join(f"{count:,} {status}" for status, count in one["statuses"].items()),
            )
        )
    header = (
        "",
        "on time % before",
        "after the step",
        "99 % of all that came later are on time after",
        "beyond the time-out",
        "answers",
    )
    return "\n".join(
        (
            "\n## A step of the rate",
            "",
            f"`python benchmarks/serving_truth.py step`, {result['day']}. After {result['step_s']:g} of {result['seconds']:g} s the "
            f"rates are multiplied by {result['factor']:g}. The controller (`--replan usher`) counts what comes and plans again on "
            "six T4s; loading a model takes 0.63 s.",
            "",
            _table(header, rows),
        )
    )


def _kill(result: Figures) -> str:
    rows = []
    for name in ("worker", "controller"):
        killed = result["killed"].get(name) or {}
        rows.append(
            (
                name,
                _number(result["killed_s"][name]),
                _number(killed.get("process_back_s")),
                str(result[f"hurt_by_{name}"]),
                _number(result[f"{name}_good_again_s"]),
            )
        )
    header = (
        "killed",
        "at s",
        "process back after s",
        "requests late or refused within 10 s",
        "the last of them after s",
    )
    return "\n".join(
        (
            "\n## Processes that die",
            "",
            f"`python benchmarks/serving_truth.py kill`, {result['day']}: {result['requests']:,} requests at load 0.7; "
            f"{result['without_answer']} of them without an answer, {result['beyond_timeout']} beyond the time-out. "
            f"At the end the service is {'ready' if result['ready_at_end'] else 'not ready'}; plan versions seen: "
            f"{', '.join(result['versions'])}.",
            "",
            _table(header, rows),
        )
    )


def _triton(result: Figures) -> str:
    parts = [
        "\n## Triton's measured tables",
        "",
        f"`GKEST_SHARED=... python benchmarks/triton_online.py`, {result['day']}. NVIDIA published whole models behind Triton under "
        "dynamic batching, by number of clients that each wait for their answer (closed loop). The rows of the same model, GPU, "
        "backend and precision at fixed batches give the latency curve. " + result["words"],
        "",
        _table(result["header"], result["rows"]),
    ]
    for title, header, rows in result.get("more", ()):
        parts += ["", title, "", _table(header, rows)]
    return "\n".join(parts)


def draw(document: Figures) -> None:
    """Draw real against simulated: the share on time and the 99th percentile, a dot for each model and run."""
    import matplotlib
    from matplotlib.figure import Figure

    from gkestimator.reporting.style import STYLE, saved

    hues = {0.5: "#2a6f97", 1.0: "#59a14f", 1.6: "#e15759", 2.2: "#b07aa1"}
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": "gkestimator"}):
        figure = Figure(figsize=(8.6, 4.0), layout="constrained")
        left, right = figure.subplots(1, 2)
        highest = 0.0
        for name, marker in {"emulated": "o", "cpu": "s"}.items():
            for cell in document.get(name, {}).get("cells", ()):
                label = f"{'emulated T4s' if name == 'emulated' else 'CPU'}, load {cell['load']:g}"
                look = {
                    "color": hues.get(cell["load"], "#7a5195"),
                    "marker": marker,
                    "linestyle": "",
                    "markersize": 4.5,
                }
                look |= {"alpha": 0.75, "markeredgewidth": 0}
                rows = list(cell["models"].values())
                on_time = [r["on_time_pct"] for r in rows if None not in r["on_time_pct"]]
                p99 = [r["p99_ms"] for r in rows if None not in r["p99_ms"]]
                known = left.get_legend_handles_labels()[1]
                left.plot(*zip(*on_time, strict=True), label="_" if label in known else label, **look)
                right.plot(*zip(*p99, strict=True), **look)
                highest = max([highest, *(max(pair) for pair in p99)])
        low = max(
            0.0, 10 * math.floor(min((line.get_xdata().min() for line in left.lines), default=0) / 10 - 0.5)
        )
        left.plot([low, 100], [low, 100], color="#b0b0b0", linewidth=0.8, zorder=0)
        right.plot([0, 1.05 * highest], [0, 1.05 * highest], color="#b0b0b0", linewidth=0.8, zorder=0)
        left.set_xlabel("on time, real (%)")
        left.set_ylabel("on time, simulated (%)")
        right.set_xlabel("99th percentile, real (ms)")
        right.set_ylabel("99th percentile, simulated (ms)")
        left.legend(fontsize=7, loc="upper left")
        PICTURE.write_bytes(saved(figure, "png"))
