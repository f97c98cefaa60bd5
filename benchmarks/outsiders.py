"""Put the models of ``export_outsiders.py`` through gkest as a newcomer would, and write what it said as one table.

``python benchmarks/outsiders.py FOLDER --keep OUTPUTS -o docs/appendix/outsiders.md`` runs, for each model and as a
process of its own, ``gkest inspect``, and ``gkest estimate`` with a page for two GPUs, two batch sizes and both runtimes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gkestimator.tables.units import bytes_text, flops_text, number_text

GPUS = ("V100-SXM2-16GB", "H100-SXM")
BATCHES = (1, 8)
RUNTIMES = ("torch", "onnxruntime")
_LIMIT_S = 600


@dataclass(frozen=True)
class Said:
    """Hold what a command said."""

    status: int
    out: str
    err: str
    seconds: float


@dataclass
class Outsider:
    """Hold a model, what is true of it, and what each command said."""

    name: str
    path: Path
    truth: dict[str, Any]
    inspect: Said
    facts: dict[str, Any]
    estimates: dict[str, Said] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    page_bytes: int | None = None

    @property
    def dims(self) -> list[str]:
        """Return the options that number the open dimensions."""
        return [part for name, number in self.truth["dims"].items() for part in ("--dim", f"{name}={number}")]


def gkest(*arguments: str) -> Said:
    """Return what ``gkest`` says to ``arguments``."""
    start = time.perf_counter()
    command = [str(Path(sys.executable).with_name("gkest")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    return Said(done.returncode, done.stdout, done.stderr, time.perf_counter() - start)


def tried(path: Path, keep: Path) -> Outsider:
    """Return what gkest says of the model at ``path``; texts and pages go to ``keep``."""
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    inspect = gkest("inspect", str(path))
    options = [part for name, number in truth["dims"].items() for part in ("--dim", f"{name}={number}")]
    counted = gkest("inspect", str(path), *options, "--format", "json")
    facts = json.loads(counted.out)[0] if counted.status == 0 else {}
    model = Outsider(path.stem, path, truth, inspect, facts)
    texts = [f"$ gkest inspect\n{inspect.out}{inspect.err}"]
    for runtime in RUNTIMES:
        page = keep / f"{path.stem}-{runtime}.html"
        rows = keep / f"{path.stem}-{runtime}.json"
        asked = [
            *options,
            "--gpu",
            ",".join(GPUS),
            "--batch-size",
            ",".join(map(str, BATCHES)),
            "--runtime",
            runtime,
        ]
        said = gkest("estimate", str(path), *asked, "--report", str(page))
        model.estimates[runtime] = said
        texts.append(f"$ gkest estimate --runtime {runtime} {' '.join(options)}\n{said.out}{said.err}")
        gkest("estimate", str(path), *asked, "--format", "json", "-o", str(rows))
        if rows.exists():
            model.rows += json.loads(rows.read_text())["rows"]
        if page.exists():
            model.page_bytes = max(model.page_bytes or 0, page.stat().st_size)
    (keep / f"{path.stem}.txt").write_text("\n".join(texts))
    return model


def _inputs_words(model: Outsider) -> str:
    """Return the inputs as inspect lists them; many of one kind are counted."""
    inputs = model.facts.get("inputs", [])
    words = [f"{name} {shape}" for name, _, shape in inputs[:3]]
    if len(inputs) > 3:
        words.append(f"and {len(inputs) - 3} more")
    return "<br>".join(words)


def _open_words(model: Outsider) -> str:
    names = [dimension["name"] for dimension in model.facts.get("dimensions", [])]
    return ", ".join(names) or "-"


def _batch_words(model: Outsider) -> str:
    """Return what inspect took for the batch, and whether that is so."""
    if not model.facts:
        return "-"
    said = model.facts["batch_dim"] or model.facts["exported_batch"]
    truth = model.truth["batch"]
    words = "none" if said is None else str(said)
    return words if said == truth else f"{words} (is {'none' if truth is None else truth})"


def _ratio(said: float | None, truth: float | None) -> str:
    """Return how far a count is from torch's own, in percent."""
    if said is None or not truth:
        return "-"
    return f"{100 * (said / truth - 1):+.1f} %"


def _statuses(model: Outsider) -> str:
    return " ".join(str(said.status) for said in (model.inspect, *model.estimates.values()))


def _line(model: Outsider) -> list[str]:
    facts = model.facts
    seconds = [model.inspect.seconds, *(said.seconds for said in model.estimates.values())]
    return [
        model.name,
        model.truth["exporter"],
        str(facts.get("opset", "-")),
        f"{facts.get('nodes', 0):,}",
        _inputs_words(model),
        _open_words(model),
        _batch_words(model),
        number_text(facts.get("parameters")),
        _ratio(facts.get("parameters"), model.truth["parameters"]),
        flops_text(facts["flops"]) if facts.get("flops") is not None else "-",
        _ratio(facts.get("flops"), model.truth["flops"]),
        _statuses(model),
        " / ".join(f"{second:.1f}" for second in seconds),
        bytes_text(model.page_bytes) if model.page_bytes else "-",
    ]


HEADS = (
    "model",
    "exporter",
    "opset",
    "nodes",
    "inputs",
    "open",
    "batch",
    "parameters",
    "beside torch",
    "FLOPs",
    "beside torch",
    "exit",
    "seconds",
    "page",
)
ESTIMATE_HEADS = (
    "model",
    "runtime",
    "GPU",
    "dtype",
    "batch",
    "latency (90 %)",
    "memory",
    "known",
    "warnings",
)


def _estimate_lines(model: Outsider) -> list[list[str]]:
    lines = []
    for row in model.rows:
        low, mid, high = (number_text(row[f"latency{part}_ms"]) for part in ("_low", "", "_high"))
        known = "-" if row["coverage_pct"] is None else f"{row['coverage_pct']:.0f} %"
        memory = "-" if row["mreq_bytes"] is None else bytes_text(row["mreq_bytes"])
        cells = [model.name, row["runtime"], row["gpu"], row["dtype"], str(row["batch_size"])]
        lines.append([*cells, f"{mid} ms ({low}–{high})", memory, known, row["warnings"] or ""])
    return lines


def table(heads: tuple[str, ...], lines: list[list[str]]) -> str:
    """Return a table in Markdown."""
    rows = [list(heads), ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def main() -> int:
    """Run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keep", type=Path, required=True, help="folder for what the commands said")
    parser.add_argument("--only", default="", help="models whose names hold this")
    parser.add_argument("-o", type=Path, required=True)
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    models = []
    for path in sorted(options.folder.glob("*.onnx")):
        if options.only in path.stem and path.with_suffix(".truth.json").exists():
            print(path.stem, flush=True)
            models.append(tried(path, options.keep))
    first = table(HEADS, [_line(model) for model in models])
    second = table(ESTIMATE_HEADS, [line for model in models for line in _estimate_lines(model)])
    options.o.write_text(f"{first}\n\n{second}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
