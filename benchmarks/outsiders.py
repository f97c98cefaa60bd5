"""Put the models of ``export_outsiders.py`` through gkest as a newcomer would, and write what it said as one table.

``python benchmarks/outsiders.py FOLDER --keep OUTPUTS -o docs/appendix/outsiders.md`` runs, for each model and as a
process of its own, ``gkest inspect``, and ``gkest estimate`` with a page for two GPUs, two batch sizes and both runtimes.
"""

from __future__ import annotations

import argparse
import json
import operator
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from gkestimator.core.graph import Tensor
from gkestimator.onnx_io import read_model
from gkestimator.tables.units import bytes_text, flops_text, number_text

GPUS = ("V100-SXM2-16GB", "H100-SXM")
BATCHES = (1, 8)
RUNTIMES = ("torch", "onnxruntime")
_LIMIT_S = 600
NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


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
    shapes: str = "-"


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
    model.shapes = shapes_agree(path, truth["dims"])
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
    if truth == "anonymous" and str(said).endswith(".0"):
        return words
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
        model.shapes,
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
    "shapes",
    "seconds",
    "page",
)
ESTIMATE_HEADS = (
    "model",
    "runtime",
    *(f"{gpu.split('-')[0]}, batch {size}: ms" for gpu in GPUS for size in BATCHES),
    f"memory, batch {BATCHES[-1]}",
    "known",
    "notes",
)
TEXT = """# Models as outsiders export them

`benchmarks/export_outsiders.py` writes {count} models with random weights, as people outside this project do: with both exporters of torch,
with the tools of ONNX Runtime, scikit-learn, LightGBM and JAX. `benchmarks/outsiders.py` puts each through `gkest inspect` and, with
`--report`, `gkest estimate` on two GPUs at two batch sizes under both runtimes, each as a process of its own, and writes this page. An
exit status of 0 is expected three times.

*Beside torch*: parameters beside `torch.nn.Module.parameters`, operations beside `torch.utils.flop_counter`, which counts products and
convolutions alone. Parameters are those of the file: an exporter that transposes a tied embedding stores it twice, ones of four bits have
scales, and a BatchNorm's go into its convolution. Detectors choose among boxes, whose number depends on the image: estimates
take the largest, torch's count is that of one image of noise. *Shapes*: the outputs have the shapes that ONNX Runtime's CPU provider gives
them (*at most*: they depend on data, and the estimate takes the largest).

{first}

Latency in ms with its 90 % interval; *known*: part of the GPU's time that lies inside the trained range, the least and the most of the rows.
Notes are those of all rows, in the program's words, without the one that most time lies outside the trained range.

{second}
"""


def _latency(row: dict[str, Any] | None) -> str:
    if row is None or row["latency_ms"] is None:
        return "-"
    low, mid, high = (number_text(row[f"latency{part}_ms"]) for part in ("_low", "", "_high"))
    return f"{mid} ({low}–{high})"


def _estimate_lines(model: Outsider) -> list[list[str]]:
    """Return a line a runtime."""
    lines = []
    for runtime in model.estimates:
        rows = {(row["gpu"], row["batch_size"]): row for row in model.rows if row["runtime"] == runtime}
        latencies = [_latency(rows.get((gpu, size))) for gpu in GPUS for size in BATCHES]
        memory = [row["mreq_bytes"] for row in rows.values() if row["mreq_bytes"] is not None]
        known = [row["coverage_pct"] for row in rows.values() if row["coverage_pct"] is not None]
        notes: dict[str, None] = {}
        for row in rows.values():
            notes |= dict.fromkeys(note for note in (row["warnings"] or "").split("; ") if note)
        shown = [note for note in notes if not note.startswith("most of the time")]
        span = f"{min(known):.0f} to {max(known):.0f} %" if known else "-"
        memory_words = bytes_text(max(memory)) if memory else "-"
        lines.append([model.name, runtime, *latencies, memory_words, span, "<br>".join(shown)])
    return lines


def shapes_agree(path: Path, dims: dict[str, int]) -> str:
    """Return whether the outputs have the shapes that ONNX Runtime's CPU provider gives them, at a batch of one."""
    model = read_model(path)
    bound = model.bind(dims=dims)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {}
    for spec, tensor in zip(session.get_inputs(), bound.inputs, strict=True):
        kind = NUMPY[spec.type]
        random = np.asarray(np.random.default_rng(0).random(tensor.shape))
        feed[spec.name] = np.asarray(random + (kind is np.int64), kind)
    words = "as said"
    for given, value in zip(session.run(None, feed), bound.outputs, strict=True):
        if hasattr(given, "shape") and isinstance(value, Tensor):
            if value.bounded and all(map(operator.le, given.shape, value.shape)):
                words = "at most"
            elif given.shape != value.shape:
                return f"{given.shape}, said {value.shape}"
    return words


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
    options.o.write_text(TEXT.format(count=len(models), first=first, second=second))
    return 0


if __name__ == "__main__":
    sys.exit(main())
