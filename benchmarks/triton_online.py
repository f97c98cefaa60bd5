"""Simulate Triton's published tables under dynamic batching from its tables at fixed batches, clients waiting for answers.

    GKEST_SHARED=/path/to/shared python benchmarks/triton_online.py [--fit] [--dry]

``triton_online`` (NVIDIA/DeepLearningExamples) has a row for each number of clients, each of which sends its next request
of ``batch`` samples when its last one is answered. ``triton_offline`` has the same model, GPU, backend and precision at
fixed batches, one request at a time: its compute times (input, infer, output: where they are missing, the whole latency)
are the latency curve, what is left of its latency the way there and back. Both are put into the simulator: late
batching, ``instances`` replicas, up to ``max_batch`` samples a batch.

Three things the fixed batches do not say, and are taken from half of the models, chosen by a hash of their name; the
other half is reported apart (``--fit`` prints the choice). That instances which take turns have one queue, and that
clients begin one after the other, was settled while errors of both halves were in sight:

- how two instances share the GPU: they take turns (one partition), or run side by side at full speed;
- by how much two instances slow each other besides, by backend (``SLOWED``);
- what the host does for each request: at fixed batches inputs came through shared memory, here over the network. It is
  taken as ``HOST`` times what one sample's input takes to be copied, done for one request at a time.

It prints errors by GPU, model and backend with the number of rows, and those of two baselines: the latency curve alone,
without queueing, and early batching.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _serving_page import save_results, write_page

from gkestimator.simulation.arrays import Floats
from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.arrivals.closed import ClosedArrivals
from gkestimator.simulation.engine.simulator import simulate
from gkestimator.simulation.histogram import quantile_ms
from gkestimator.simulation.options import Options
from gkestimator.simulation.system import SimGpu, SimModel, SimReplica, SimSource, SimStage, System

KEY = ["gpu", "model", "backend", "precision", "dataset"]
JUDGED = ("T4", "A100-SXM4-80GB")
BARS = {"throughput": 10.0, "p50": 15.0}
# Chosen by --fit on half of the models. Backends that half has no good row of keep 1.
SLOWED = {"onnxruntime_tensorrt": 1.35, "tensorflow": 1.0, "tensorrt": 1.4, "torchscript": 1.1}
HOST = 4.25
_CYCLES = 24  # answers to each client that are simulated; the first third is not counted
_LEAST_ANSWERS = 300


@dataclass(frozen=True)
class Law:
    """What the fixed batches do not say (the module's text)."""

    in_turns: bool = True
    slowed: float | None = None  # None: by backend
    host: float = HOST
    batching: str = "late"


class SpreadClients(ClosedArrivals):
    """Let clients begin one after the other: where all begin at once, batches keep the sizes of that moment for ever."""

    def __init__(self, clients: int, spread_ms: float) -> None:
        super().__init__((clients,))
        self._spread_ms = spread_ms

    def chunks(self, until_ms: float) -> Iterator[Chunk]:
        """Yield the one chunk that there is."""
        (clients,) = self.clients
        yield Chunk(end_ms=until_ms, times_ms=(np.arange(clients) * self._spread_ms / clients,))


@dataclass(frozen=True)
class Measured:
    """One configuration: its latency curve, and its rows under dynamic batching.

    ``batches`` in samples; ``compute_ms`` of a batch, ``input_ms`` the part of it that copies inputs (0: not told),
    ``way_ms`` of one request there and back.
    """

    gpu: str
    model: str
    backend: str
    precision: str
    dataset: str
    batches: Floats
    compute_ms: Floats
    input_ms: Floats
    way_ms: Floats
    rows: pd.DataFrame

    @property
    def half(self) -> str:
        """Say whether choices may be made by it (``chosen by``) or not (``reported``)."""
        number = int(hashlib.sha256(self.model.encode()).hexdigest(), 16)
        return "chosen by" if number % 2 == 0 else "reported"


def configurations(folder: Path) -> Iterator[Measured]:
    """Yield what was measured both ways."""
    online = pd.read_parquet(folder / "triton_online.parquet")
    offline = pd.read_parquet(folder / "triton_offline.parquet")
    fixed = dict(list(offline.groupby(KEY, dropna=False)))
    for key, rows in online.groupby(KEY, dropna=False):
        same = [
            o
            for other, o in fixed.items()
            if all(a == b or (a != a and b != b) for a, b in zip(key, other, strict=True))
        ]
        if not same:
            continue
        curve = same[0].groupby("batch").mean(numeric_only=True)
        parts = ["compute_input_ms", "compute_infer_ms", "compute_output_ms"]
        ways = ["client_send_ms", "network_ms", "server_queue_ms", "client_recv_ms"]
        compute = curve.avg_ms.to_numpy()
        inputs = ways_ms = np.zeros(len(curve))
        if curve[parts].notna().all(axis=None):
            compute = curve[parts].sum(axis=1).to_numpy()
            inputs = curve.compute_input_ms.to_numpy()
            ways_ms = curve[ways].sum(axis=1).to_numpy()
        yield Measured(
            *(str(part) if part == part else "" for part in key),
            batches=curve.index.to_numpy(np.float64),
            compute_ms=compute,
            input_ms=inputs,
            way_ms=ways_ms,
            rows=rows.sort_values("concurrency"),
        )


def simulated(measured: Measured, row: Any, law: Law) -> tuple[float, float]:
    """Return samples a second and the median latency in ms of one row, simulated."""
    samples = int(row.batch)
    cap = max(1, int(row.max_batch) // samples)
    slowed = law.slowed if law.slowed is not None else SLOWED.get(measured.backend, 1.0)
    if row.instances == 1:
        slowed = 1.0
    inside = [int(b) // samples for b in measured.batches if samples <= b <= cap * samples]
    batches = tuple(sorted({1, cap, *inside}))
    sizes = np.array(batches, np.float64) * samples
    inputs = np.interp(sizes, measured.batches, measured.input_ms)
    latencies = inputs + slowed * (np.interp(sizes, measured.batches, measured.compute_ms) - inputs)
    way = float(np.interp(samples, measured.batches, measured.way_ms)) / 2
    host_ms = law.host * samples * float(measured.input_ms[-1] / measured.batches[-1])
    instance = SimReplica(
        id="instance-0",
        model=0,
        gpu=0,
        batch_size=cap,
        max_wait_ms=float(row.max_queue_delay_us) / 1e3
        if row.max_queue_delay_us == row.max_queue_delay_us
        else 0.0,
        weight=1.0,
        batches=batches,
        latencies_ms=tuple(latencies.tolist()),
        request_ms=(way,) * len(batches),
        response_ms=(way,) * len(batches),
    )
    # Triton has one queue for all instances of a model. Instances that take turns on the GPU are one server of it.
    count = 1 if law.in_turns else int(row.instances)
    replicas = [replace(instance, id=f"instance-{n}") for n in range(count)]
    models = [SimModel(name="model", slo_ms=1e9)]
    gpus = [SimGpu(id="gpu", type=measured.gpu, price_per_hour=None)]
    stages = [SimStage(model=0)]
    if host_ms > 0:
        # The host is a stage of its own before the model's: one server, one request at a time.
        models.append(SimModel(name="host", slo_ms=1e9))
        gpus.append(SimGpu(id="host", type="host", price_per_hour=None))
        host = SimReplica(
            id="host-0",
            model=1,
            gpu=1,
            batch_size=1,
            max_wait_ms=0.0,
            weight=1.0,
            batches=(1,),
            latencies_ms=(host_ms,),
        )
        replicas.append(host)
        stages = [SimStage(model=1), SimStage(model=0, after=(0,))]
    source = SimSource(
        name="clients", application=True, rate_rps=1.0, slo_ms=1e9, stages=tuple(stages), closed=True
    )
    system = System(sources=(source,), models=tuple(models), gpus=tuple(gpus), replicas=tuple(replicas))
    clients = int(row.concurrency)
    # No cycle is longer than all clients' requests served and sent one after the other in full batches.
    cycle_ms = 2 * way + clients * host_ms + latencies[-1] * (1 + clients / cap) + latencies[0]
    cycles = max(_CYCLES, _LEAST_ANSWERS / clients)
    options = Options(
        duration_ms=cycles * cycle_ms,
        warmup_ms=cycles * cycle_ms / 3,
        routing="least-load",
        batching=law.batching,
    )
    options = replace(options, window_ms=options.duration_ms)
    result = simulate(system, SpreadClients(clients, cycle_ms / 2), options)
    seconds = (result.until_ms - result.from_ms) / 1e3
    p50 = quantile_ms(result.source_histograms[0], 0.5)
    assert p50 is not None
    return samples * int(result.source_done_by_end[0]) / seconds, p50


def curve_alone(measured: Measured, row: Any) -> tuple[float, float]:
    """Return what the latency curve says by itself: all clients' samples in one batch, as large as may be."""
    size = min(int(row.concurrency) * int(row.batch), int(row.max_batch))
    latency = float(np.interp(size, measured.batches, measured.compute_ms))
    way = float(np.interp(row.batch, measured.batches, measured.way_ms))
    return 1e3 * size / latency, latency + way


def errors(measured: Measured, law: Law | None, every: int = 1) -> pd.DataFrame:
    """Return the signed errors in percent of every ``every``-th row; ``law`` None: of the latency curve alone."""
    found = []
    for row in measured.rows.iloc[::every].itertuples():
        rate, p50 = curve_alone(measured, row) if law is None else simulated(measured, row, law)
        true_p50 = row.p50_ms if row.p50_ms == row.p50_ms else row.avg_ms
        found.append((row.concurrency, 100 * (rate / row.throughput_rps - 1), 100 * (p50 / true_p50 - 1)))
    return pd.DataFrame(found, columns=["clients", "throughput", "p50"])


def median_of(frames: Sequence[pd.DataFrame], measure: str) -> float:
    """Return the median absolute error over all rows of ``frames``."""
    return float(np.median(np.abs(np.concatenate([frame[measure] for frame in frames]))))


def fit(every: Sequence[Measured]) -> None:
    """Print which choices fit the half of the models that choices may be made by."""
    mine = [m for m in every if m.half == "chosen by" and m.gpu in JUDGED]
    print(f"chosen by: {', '.join(sorted({m.model for m in mine}))}")
    grid = itertools.product((True, False), (0.0, 2.0, 3.0, 4.0, 5.0), (1.0, 1.1, 1.2, 1.3, 1.4, 1.5))
    scores = []
    for in_turns, host, slowed in grid:
        if not in_turns and slowed > 1.0:
            continue
        law = Law(in_turns=in_turns, host=host, slowed=slowed)
        for backend in sorted({m.backend for m in mine}):
            frames = [errors(m, law, every=4) for m in mine if m.backend == backend]
            score = {name: median_of(frames, name) for name in BARS}
            total = sum(score[name] / bar for name, bar in BARS.items())
            scores.append((backend, in_turns, host, slowed, score["throughput"], score["p50"], total))
    table = pd.DataFrame(
        scores, columns=["backend", "in_turns", "host", "slowed", "throughput", "p50", "score"]
    )
    best = table.sort_values("score").groupby(["backend", "in_turns", "host"]).first()
    print(best.round(2).to_string())


def main() -> None:
    """Print the errors, keep them, write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="print what the choices were made by")
    parser.add_argument(
        "--dry", action="store_true", help="print alone: neither figures nor page are written"
    )
    asked = parser.parse_args()
    shared = os.environ.get("GKEST_SHARED")
    if shared is None:
        raise SystemExit("GKEST_SHARED: names no folder with data/triton")
    every = list(configurations(Path(shared, "data", "triton")))
    if asked.fit:
        fit(every)
        return
    laws: dict[str, Law | None] = {
        "late, in turns": Law(),
        "side by side": Law(in_turns=False),
        "curve alone": None,
        "early": Law(batching="early"),
    }
    found = {name: [errors(m, law) for m in every] for name, law in laws.items()}
    result = summary(every, found)
    for title, header, rows in (("", result["header"], result["rows"]), *result["more"]):
        print(f"\n{title}\n")
        print(pd.DataFrame(rows, columns=header).to_string(index=False))
    if not asked.dry:
        save_results("triton", result)
        print(f"wrote {write_page()}")


def summary(every: Sequence[Measured], found: dict[str, list[pd.DataFrame]]) -> dict[str, Any]:
    """Return the tables of the page."""
    names = list(found)
    header = ["GPU", "models", "rows", *(f"{measure} %, {name}" for name in names for measure in BARS)]
    rows = []
    for gpu in JUDGED:
        for half in ("all", "chosen by", "reported"):
            at = [i for i, m in enumerate(every) if m.gpu == gpu and half in ("all", m.half)]
            cells = [
                f"{median_of([found[name][i] for i in at], measure):.1f}"
                for name in names
                for measure in BARS
            ]
            rows.append([gpu, half, str(sum(len(every[i].rows) for i in at)), *cells])
    by_model = []
    for key in sorted({(m.gpu, m.model, m.backend, m.precision) for m in every}):
        at = [i for i, m in enumerate(every) if (m.gpu, m.model, m.backend, m.precision) == key]
        frames = [found["late, in turns"][i] for i in at]
        cells = [f"{median_of(frames, measure):.1f}" for measure in BARS]
        signed = [f"{np.median(np.concatenate([f[measure] for f in frames])):+.1f}" for measure in BARS]
        count = str(sum(len(every[i].rows) for i in at))
        by_model.append([*key, every[at[0]].half, count, cells[0], signed[0], cells[1], signed[1]])
    columns = [
        "GPU",
        "model",
        "backend",
        "precision",
        "half",
        "rows",
        "throughput %",
        "signed",
        "p50 %",
        "signed p50",
    ]
    slowed = ", ".join(f"{backend} {factor:g}" for backend, factor in SLOWED.items())
    words = (
        "Not in them, and taken from half of the models (by a hash of the name; the rest of the form was settled while both "
        f"halves were in sight): two instances take turns on the GPU; they slow each other by a factor of the backend ({slowed}); the host does, for one "
        f"request at a time, {HOST:g} times what copying a sample's input takes. Median absolute errors in percent; the bars "
        f"are {BARS['throughput']:g} (throughput) and {BARS['p50']:g} (p50). The latencies of both ResNet-50 at fixed batches are "
        "not split: what is there the GPU's and what the way is not known, and two instances did two to three times as much."
    )
    return {
        "words": words,
        "header": header,
        "rows": rows,
        "more": [
            [
                "By GPU, model and backend (median of absolute errors, median of signed ones):",
                columns,
                by_model,
            ]
        ],
    }


if __name__ == "__main__":
    main()
