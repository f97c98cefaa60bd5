"""Compares the speed of two checkouts in paired runs: cold start, warm estimates, placements, simulated requests.

    python benchmarks/paired.py --before OLD/bin/python --after NEW/bin/python [--rounds 16] [--only cold,warm]

Each interpreter has one checkout of gkestimator installed. Every round measures both, one right after the other and in turn
first, on one core with one thread, so that what else runs on the machine hits both alike. The figure is the median over the
rounds of after / before, by processor time (wall time stands beside, and moves with the machine's load). Exit status 1 where
a ratio is beyond ``--bar``. Only the command line and ``gkestimator.estimate`` are used, so that checkouts may differ inside.
"""

from __future__ import annotations

import argparse
import csv
import gc
import io
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _unchanged_calls import call, committed, inside, write_rows

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
SIZES = [1, 4, 8, 16, 32, 64]
GPUS = ["V100", "T4", "A100", "H100"]
MODELS, COUNT, SLO_MS, LOAD = 20, 24, 300.0, 0.8
REQUESTS = 5_000_000
# Rounds of one process, then it is started anew.
FRESH = 2
# Calls of one measurement (1 unless said), so that it takes long beside what else the machine does.
CALLS = {"cold help": 4, "asked again": 5, "new files": 5, "decision gkest": 3, "decision usher": 10}
POLICIES = ("gkest", "usher")
COLD = ["estimate", "resnet50.onnx", "--gpu", "V100", "--batch-size", "1,4,8,16,32,64", "--format", "csv"]
HOT = ("asked again", "new files", *(f"decision {p}" for p in POLICIES), "simulation")
NAMES = ("cold", "cold help", *HOT)


@dataclass(frozen=True)
class Spent:
    """Hold the seconds of one measurement: of the processor and by the clock on the wall."""

    processor: float
    wall: float


def main() -> int:
    """Measure both interpreters in turn and print the ratios; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", help="interpreter of the earlier checkout")
    parser.add_argument("--after", default=sys.executable, help="interpreter of the later one; default: this")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--only", default=",".join(NAMES), help="measurements whose names begin so, by comma")
    parser.add_argument("--bar", type=float, default=1.05, help="largest ratio for exit status 0")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        serve()
        return 0
    if not asked.before:
        parser.error("--before is missing")
    for name in THREADS:
        os.environ[name] = "1"
    if hasattr(os, "sched_setaffinity"):  # Linux alone; elsewhere the threads are limited, the core is not
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    names = [n for n in NAMES if n.startswith(tuple(asked.only.split(",")))]
    with tempfile.TemporaryDirectory() as folder, inside(Path(folder)):
        requests = prepare()
        ratios = [compare(n, asked.before, asked.after, asked.rounds, requests) for n in names]
    return 1 if max(ratios) > asked.bar else 0


def compare(name: str, before: str, after: str, rounds: int, requests: float) -> float:
    """Print the line of one measurement; return its ratio by processor time."""
    pairs: list[tuple[Spent, Spent]] = []
    while len(pairs) < rounds:
        # One process may be some percent faster than its twin for all its life (where its memory lies): take new ones.
        pairs += fresh_pairs(name, before, after, min(FRESH, rounds - len(pairs)))
    ratios = sorted(b.processor / a.processor for a, b in pairs)
    walls = statistics.median(b.wall / a.wall for a, b in pairs)
    seconds = [statistics.median(s.processor for s in side) for side in zip(*pairs, strict=True)]
    ratio = statistics.median(ratios)
    quarter = rounds // 4
    line = f"{name:16s} {seconds[0]:8.4f} s before {seconds[1]:8.4f} s after  ratio {ratio:.3f}"
    line += f" (middle half {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}; wall {walls:.3f})"
    if name == "simulation":
        line += (
            f"; {requests / seconds[0] / 1e6:.2f} to {requests / seconds[1] / 1e6:.2f} M requests a second"
        )
    print(line, flush=True)
    return ratio


def fresh_pairs(name: str, before: str, after: str, rounds: int) -> list[tuple[Spent, Spent]]:
    """Return what both interpreters took in so many rounds, in processes started for them."""
    pairs = []
    with Side(before) as earlier, Side(after) as later:
        for side in (earlier, later):  # warmed up, not counted
            side.measure(name)
        for number in range(rounds):
            first, second = (earlier, later) if number % 2 == 0 else (later, earlier)
            spent = {side: side.measure(name) for side in (first, second)}
            pairs.append((spent[earlier], spent[later]))
    return pairs


class Side:
    """Measure one checkout: fresh processes for cold starts, one that stays for all else."""

    def __init__(self, python: str) -> None:
        """Start the process that stays; ``python`` is the interpreter with the checkout."""
        gkest = shutil.which("gkest", path=str(Path(python).parent))
        if gkest is None:
            sys.exit(f"{python}: found no gkest beside it")
        self._gkest = gkest
        self._process = subprocess.Popen(
            [python, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate("")

    def measure(self, name: str) -> Spent:
        """Return what measurement ``name`` took once."""
        if name.startswith("cold"):
            arguments = COLD if name == "cold" else ["--help"]
            return whole_processes([self._gkest, *arguments], CALLS.get(name, 1))
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{name}: {self._gkest}: the process ended")
        return Spent(*json.loads(line))


def whole_processes(command: Sequence[str], calls: int) -> Spent:
    """Return what so many processes take from their start to their end."""
    before, start = _of_children(), time.perf_counter()
    for _ in range(calls):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Spent(_of_children() - before, time.perf_counter() - start)


def _of_children() -> float:
    """Return the processor seconds of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def serve() -> None:
    """Take names of measurements from stdin, a line each, and answer with the seconds (in the process that stays)."""
    answers = sys.stdout
    actions: Mapping[str, Callable[[], None]] = {
        "asked again": lambda: _estimate(Path("graphs")),
        "new files": lambda: _estimate(Path(f"graphs-{os.getpid()}")),
        **{f"decision {p}": lambda p=p: _decide(p) for p in POLICIES},  # type: ignore[misc]
        "simulation": _simulate,
    }
    number = 0
    for line in sys.stdin:
        name = line.strip()
        spent = Spent(0.0, 0.0)
        for _ in range(CALLS.get(name, 1)):
            number += 1
            if name == "new files":
                _renew(number)
            once = _timed(actions[name])
            spent = Spent(spent.processor + once.processor, spent.wall + once.wall)
        print(json.dumps([spent.processor, spent.wall]), file=answers, flush=True)


def _timed(action: Callable[[], None]) -> Spent:
    gc.collect()
    gc.disable()
    start, used = time.perf_counter(), time.process_time()
    action()
    spent = Spent(time.process_time() - used, time.perf_counter() - start)
    gc.enable()
    return spent


def _estimate(folder: Path) -> None:
    import gkestimator

    gkestimator.estimate(sorted(folder.glob("*.onnx")), gpus=GPUS, batch_sizes=SIZES)


def _renew(number: int) -> None:
    """Write the graphs anew with another comment, so that nothing remembered of the files holds any more."""
    folder = Path(f"graphs-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    comment = f"{number:08d}".encode()
    for path in Path("graphs").glob("*.onnx"):
        # A message of protobuf may be continued by further fields: field 6 of a model is its comment (doc_string).
        (folder / path.name).write_bytes(path.read_bytes() + b"\x32" + bytes([len(comment)]) + comment)


def _decide(policy: str) -> None:
    files = ["table.csv", "--workload", "workload.yaml", "--cluster", "cluster.yaml"]
    _succeed(["schedule", *files, "--policy", policy, "--format", "json"])


def _simulate() -> None:
    duration = Path("duration").read_text()
    _succeed(["simulate", "plan.json", "--table", "table.csv", "--duration-s", duration, "--format", "json"])


def _succeed(arguments: Sequence[str]) -> bytes:
    answer = call(arguments)
    if answer.status:
        sys.exit(f"gkest {' '.join(arguments)}: {answer.errors}")
    return answer.output


def prepare() -> float:
    """Write graphs, table, workload, cluster and plan into the current folder; return the requests that are simulated."""
    _succeed(["demo", "--dir", ".", "--gpu", "V100", "--format", "csv"])
    graphs = Path("graphs")
    graphs.mkdir()
    shutil.copyfile("resnet50.onnx", graphs / "resnet50.onnx")
    for name in ("attention.script", "conv_norm_relu.script", "layer_norm.dynamo", "gelu_tanh.script"):
        shutil.copyfile(committed(f"pattern_exports/{name}.onnx"), graphs / f"{name}.onnx")
    rows, loads = _problem(random.Random(0))
    write_rows(Path("table.csv"), rows)
    Path("workload.yaml").write_text(json.dumps({"models": loads}))
    Path("cluster.yaml").write_text(json.dumps({"gpus": [{"type": rows[0]["gpu"], "count": COUNT}]}))
    files = ["table.csv", "--workload", "workload.yaml", "--cluster", "cluster.yaml"]
    plan = json.loads(_succeed(["schedule", *files, "--policy", "usher", "--format", "json"]))
    plan["schema_version"] = 1  # an earlier checkout reads nothing newer; a later one reads it for ever
    Path("plan.json").write_text(json.dumps(plan))
    Path("duration").write_text(repr(REQUESTS / sum(load["rate_rps"] for load in loads)))
    return float(REQUESTS)


def _problem(rng: random.Random) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    """Return rows and loads of MODELS models, drawn from the published table, that load COUNT GPUs to LOAD."""
    grouped: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(io.StringIO(committed("published/ethz_v100.csv").read_text())):
        grouped.setdefault(row["model"], []).append(row)
    kinds = [n for n, rows in grouped.items() if min(float(r["latency_ms"]) for r in rows) <= SLO_MS / 4]
    rows, loads = [], []
    for number in range(MODELS):
        kind, factor = kinds[number % len(kinds)], rng.uniform(0.5, 2.0)
        name = f"{kind}-{number}"
        own = [r | _slower(r, factor) | {"model": name} for r in grouped[kind]]
        best = max(float(r["throughput_rps"]) for r in own if float(r["latency_ms"]) <= SLO_MS / 2)
        loads.append({"name": name, "rate_rps": LOAD * COUNT / MODELS * best, "slo_ms": SLO_MS})
        rows += own
    return rows, loads


def _slower(row: Mapping[str, str], factor: float) -> dict[str, str]:
    latency, throughput = float(row["latency_ms"]) * factor, float(row["throughput_rps"]) / factor
    return {"latency_ms": repr(latency), "throughput_rps": repr(throughput)}


if __name__ == "__main__":
    sys.exit(main())
