"""Hold ``gkest serve`` beside the simulation of the very requests that it got, and see what it does when things go wrong.

    python benchmarks/serving_truth.py emulated   # three models on emulated T4s: loads 0.5, 1.0, 1.6, 2.2, three seeds
    python benchmarks/serving_truth.py cpu        # three real models under ONNX Runtime on this CPU, two loads
    python benchmarks/serving_truth.py step       # the rate times 3.75, with the controller and without
    python benchmarks/serving_truth.py kill       # a worker killed, then the controller
    python benchmarks/serving_truth.py all        # all of these, one after the other
    python benchmarks/serving_truth.py page       # nothing is run: the page anew

Each writes what came out into docs/accuracy/serving.json, and docs/accuracy/serving.md with its picture from that.
The machine should have nothing else to do: client, router and emulated GPUs share its cores. ``--seconds`` of arrivals
a run (default 20), ``--slower`` how many times slower than a T4 the emulated GPUs are (so that a small machine's router
carries the requests), ``--keep`` a folder for logs, plans and tables.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _serving_load import Sent, drive, lag_ms, poisson
from _serving_page import save_results, write_page
from _serving_plans import (
    AT_SLOWER,
    SEQUENCE,
    Asked,
    cpu_table,
    demo_models,
    emulated_loads,
    emulated_plan,
    emulated_table,
    placed_plan,
    placed_replica,
)
from _serving_runs import Server, gkest, joined, write_log

from gkestimator.documents import ModelLoad
from gkestimator.simulation.measured.against import AgainstReport, ServedBeside, compare_with_log
from gkestimator.simulation.measured.options import AgainstOptions
from gkestimator.simulation.measured.reading import read_serving_log
from gkestimator.simulation.measured.serving import ServingFit, fit_serving
from gkestimator.simulation.measured.serving_report import serving_text, write_network
from gkestimator.tables import REQUIREMENTS, read_table

# The last is more than the GPUs can do: there the share on time is what is to be foretold.
LOADS = (0.5, 1.0, 1.6, 2.2)
SEEDS = (0, 1, 2)
CPU_LOADS = (0.5, 1.0)
STEP = 3.75
TIMEOUT_S = 5.0
_COUNTED_S = 2.0  # of a step's bins
_LEAST_REST_S = 5.0


# Real beside simulated.


def emulated(asked: Asked) -> dict[str, Any]:
    """Serve three loads with three seeds on emulated T4s; the network is fitted to the first run alone."""
    models = demo_models(asked.folder)
    table = emulated_table(asked, models)
    plan = emulated_plan(asked, table)
    rates = {load.name: load.rate_rps for load in emulated_loads(asked)}
    with Server(plan, table, asked.folder / "emulated", "--emulate", "--timeout-s", str(TIMEOUT_S)) as server:
        cells = serve_cells(server, asked, rates, LOADS, asked.seeds)
    return judged(asked, "emulated", plan, table, cells, AgainstOptions(routing="least-load", drop="late"))


def cpu(asked: Asked) -> dict[str, Any]:
    """Serve three real models under ONNX Runtime on one core of this machine, by the table that it measured itself."""
    models = demo_models(asked.folder)
    table, spec, gpu_type = cpu_table(asked, models)
    rows = read_table(table, REQUIREMENTS)
    alone_ms = {r.model: r.latency_ms for r in rows if r.batch_size == 1 and r.latency_ms is not None}
    # At load 1 the models would keep the core busy for three quarters of the time, a third of that each, without
    # batches; any of them is to be answered in ten times what all three take.
    slo_ms = 10 * sum(alone_ms.values())
    loads = [
        ModelLoad(name=name, rate_rps=0.75 * 1e3 / len(alone_ms) / ms, slo_ms=slo_ms)
        for name, ms in alone_ms.items()
    ]
    replicas = []
    for load in loads:
        largest = max(r.batch_size or 1 for r in rows if r.model == load.name)
        replicas.append(placed_replica(rows, load.name, 0, largest, load.rate_rps, slo_ms, "turns-0"))
    plan = placed_plan(gpu_type, [replicas], loads, asked.folder / "cpu-plan.json")
    options = ["--models", models, "--threads", "1", "--gpu-spec", spec, "--timeout-s", str(TIMEOUT_S)]
    rates = {load.name: load.rate_rps for load in loads}
    with Server(plan, table, asked.folder / "cpu", *options) as server:
        cells = serve_cells(server, asked, rates, CPU_LOADS, asked.seeds[:1])
    how = AgainstOptions(routing="least-load", drop="late", interference="none", gpu_specs=(spec,))
    return judged(asked, "cpu", plan, table, cells, how)


def serve_cells(
    server: Server, asked: Asked, rates: dict[str, float], loads: Sequence[float], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Send Poisson arrivals at each load and with each seed; write each log; return where they are and how it went."""
    server.warm(list(rates), axis=SEQUENCE)
    cells = []
    for load in loads:
        for seed in seeds:
            arrivals = poisson({name: load * rate for name, rate in rates.items()}, asked.seconds, seed)
            sent = drive(server.url, arrivals, timeout_s=2 * TIMEOUT_S, axis=SEQUENCE)
            log, share = joined(sent, server.new_rows(len(sent)))
            path = server.log.parent / f"log-{load:g}-{seed}.csv"
            write_log(log, path)
            cell = {"load": load, "seed": seed, "log": str(path), "joined": share, **client_figures(sent)}
            print(f"load {load:g}, seed {seed}: {cell['requests']} requests, {cell['statuses']}", flush=True)
            cells.append(cell)
    return cells


def client_figures(sent: Sequence[Sent]) -> dict[str, Any]:
    """Return what the client says of a run: counts by status, the longest wait, and how late it was itself."""
    late_median, late_high = lag_ms(sent)
    return {
        "requests": len(sent),
        "statuses": dict(Counter(s.status for s in sent)),
        "longest_ms": max(s.total_ms for s in sent),
        "beyond_timeout": sum(s.total_ms > 1e3 * TIMEOUT_S + 250 for s in sent),
        "client_late_ms": [late_median, late_high],
    }


def judged(
    asked: Asked, name: str, plan: Path, table: Path, cells: list[dict[str, Any]], how: AgainstOptions
) -> dict[str, Any]:
    """Fit the network to the first cell and put every cell beside its simulation."""
    fit = fit_serving(cells[0]["log"], [table], plan, gpu_specs=how.gpu_specs)
    network = asked.folder / f"{name}-network.toml"
    write_network(fit.law.network, network)
    print(serving_text(fit))
    results = []
    for cell in cells:
        options = changed(how, network=str(network))
        report = compare_with_log(read_serving_log(cell["log"]), plan, [table], options)
        results.append({**cell, "log": Path(cell["log"]).name, **beside(report)})
        print_cell(results[-1])
    return {
        "seconds": asked.seconds,
        "slower": asked.slower,
        "cores": os.cpu_count(),
        "fit": fit_figures(fit),
        "cells": results,
    }


def changed(options: AgainstOptions, **changes: Any) -> AgainstOptions:
    """Return ``options`` with ``changes``."""
    values = {name: value for name, value in vars(options).items() if not name.startswith("_")}
    return AgainstOptions(**{**values, **changes})


def beside(report: AgainstReport) -> dict[str, Any]:
    """Return the figures of real and simulated, for all requests and for each model, and the curves of latencies."""
    rows = {row.model: row_figures(row) for row in report.models}
    curves = {
        name: {"real": real[::4], "simulated": simulated[::4]} for name, real, simulated in report.quantiles
    }
    return {"all": rows.pop("all"), "models": rows, "curves": curves}


def row_figures(row: ServedBeside) -> dict[str, Any]:
    """Return one row as numbers by name."""
    figures: dict[str, Any] = {"slo_ms": row.slo_ms, "requests": row.requests}
    for measure in ("on_time_pct", "p50_ms", "p99_ms", "throughput_rps", "batch_mean", "refused_pct"):
        figures[measure] = [getattr(row.real, measure), getattr(row.simulated, measure)]
    return figures


def fit_figures(fit: ServingFit) -> dict[str, Any]:
    """Return the fitted law and how far it is off."""
    law = fit.law
    ratios = [s.ratio for s in fit.service for _ in range(s.rows)]
    return {
        "base_ms": law.network.base_ms,
        "bytes_per_s": law.network.bytes_per_s,
        "per_request_ms": law.network.per_request_ms,
        "host_ms": law.network.host_ms,
        "rows": law.rows,
        "mean_ms": law.mean_ms,
        "p90_ms": law.p90_ms,
        "service_ratio": float(np.median(ratios)) if ratios else None,
    }


def print_cell(cell: dict[str, Any]) -> None:
    """Print one cell: on time and the 99th percentile, real and simulated."""
    on_time, p99 = cell["all"]["on_time_pct"], cell["all"]["p99_ms"]
    print(
        f"load {cell['load']:g} seed {cell['seed']}: on time {on_time[0]:.1f} real, {on_time[1]:.1f} simulated; "
        f"p99 {p99[0]:.0f} ms real, {p99[1]:.0f} simulated; {cell['beyond_timeout']} beyond the time-out",
        flush=True,
    )


# A step of the rate.


def step(asked: Asked) -> dict[str, Any]:
    """Serve a rate that is multiplied by 3.75 after a quarter of the time, with the controller and without."""
    models = demo_models(asked.folder)
    table = emulated_table(asked, models)
    base = [replace(load, rate_rps=load.rate_rps / 4) for load in emulated_loads(asked)]
    workload = asked.folder / "step-workload.yaml"
    lines = [f"- {{name: {m.name}, rate_rps: {m.rate_rps:g}, slo_ms: {m.slo_ms:g}}}" for m in base]
    workload.write_text("\n".join(["models:", *lines]) + "\n", encoding="utf-8")
    cluster = asked.folder / "step-cluster.yaml"
    cluster.write_text("gpus:\n- {type: T4, count: 6}\n", encoding="utf-8")
    plan = asked.folder / "step-plan.json"
    # As few GPUs as carry the base rate: a plan that uses all there are has nothing to change.
    options = ["--workload", workload, "--cluster", cluster, "--objective", "cost", "--batching", "late"]
    gkest("schedule", table, *options, "-o", plan)
    seconds = 2 * asked.seconds
    first = seconds / 4
    early = poisson({m.name: m.rate_rps for m in base}, first, 0)
    late = poisson({m.name: STEP * m.rate_rps for m in base}, seconds - first, 1)
    arrivals = [*early, *((first + t, name) for t, name in late)]
    slos = {m.name: m.slo_ms for m in base}
    results: dict[str, Any] = {"seconds": seconds, "step_s": first, "factor": STEP}
    moved = sum(m.rate_rps for m in base) * (STEP - 1) / 8
    control = ["--replan", "usher", "--cluster", cluster, "--replan-option", f"threshold-rps={moved:g}"]
    control += ["--replan-option", "headroom=1.3"]
    for name, more in {"with": control, "without": []}.items():
        folder = asked.folder / f"step-{name}"
        with Server(plan, table, folder, "--emulate", "--timeout-s", str(TIMEOUT_S), *more) as server:
            server.warm(list(slos), count=4)
            sent = drive(server.url, arrivals, timeout_s=2 * TIMEOUT_S)
            server.new_rows(len(sent))
        results[name] = {**step_figures(sent, slos, first, seconds), **client_figures(sent)}
        results[name]["said"] = [line for line in server.said().splitlines() if "plan" in line][:12]
        print(f"{name} the controller: {results[name]['on_time_after_pct']:.1f} % on time after the step, "
              f"back to 99 % after {results[name]['back_s']} s", flush=True)  # fmt: skip
    return results


def step_figures(
    sent: Sequence[Sent], slos: dict[str, float], step_s: float, seconds: float
) -> dict[str, Any]:
    """Return the share on time before and after the step and by bins, and when it was back at 99 %: from then
    on 99 % of all that came were on time."""
    on_time = np.array([s.status == "ok" and s.total_ms <= slos[s.model] for s in sent])
    due = np.array([s.due_s for s in sent])
    bins = np.arange(0.0, seconds, _COUNTED_S)
    shares = []
    for begin in bins:
        here = (due >= begin) & (due < begin + _COUNTED_S)
        shares.append(float(100 * on_time[here].mean()) if here.any() else None)
    back = None
    for begin in np.arange(step_s, seconds - _LEAST_REST_S, 0.5):
        if on_time[due >= begin].mean() >= 0.99:
            back = float(begin - step_s)
            break
    return {
        "on_time_pct": float(100 * on_time.mean()),
        "on_time_before_pct": float(100 * on_time[due < step_s].mean()),
        "on_time_after_pct": float(100 * on_time[due >= step_s].mean()),
        "back_s": back,
        "bins_s": _COUNTED_S,
        "by_bin_pct": shares,
    }


# Processes that die.


def kill(asked: Asked) -> dict[str, Any]:
    """Kill a worker under load, then the controller; every request must be answered, and the plan be served again."""
    models = demo_models(asked.folder)
    table = emulated_table(asked, models)
    plan = emulated_plan(asked, table)
    loads = emulated_loads(asked)
    rates = {load.name: 0.7 * load.rate_rps for load in loads}
    slos = {load.name: load.slo_ms for load in loads}
    seconds = 2 * asked.seconds
    times = {"worker": seconds / 4, "controller": 5 * seconds / 8}
    arrivals = poisson(rates, seconds, 0)
    results: dict[str, Any] = {"seconds": seconds, "killed_s": times}
    options = ["--emulate", "--timeout-s", str(TIMEOUT_S), "--state", asked.folder / "state.json"]
    with Server(plan, table, asked.folder / "kill", *options) as server:
        server.warm(list(rates), count=4)
        begin = time.monotonic() + 4.0
        watched = watch_kills(server, begin, times)
        next(watched)
        sent = drive(server.url, arrivals, timeout_s=2 * TIMEOUT_S, zero_s=begin)
        results["killed"] = next(watched)
        rows = server.new_rows(len(sent))
        results["versions"] = sorted({row["plan_version"] for row in rows if row["plan_version"]})
        results["ready_at_end"] = server.ready()
        results["answered_rows"] = len(rows)
    results |= client_figures(sent)
    results["without_answer"] = sum(s.status == "failed" for s in sent) + len(arrivals) - len(sent)
    for name, at in times.items():
        hurt = [s for s in sent if at - 1 <= s.due_s < at + 10 and not good(s, slos)]
        results[f"hurt_by_{name}"] = len(hurt)
        results[f"{name}_good_again_s"] = max((s.due_s - at for s in hurt), default=0.0)
    results["said"] = [line for line in server.said().splitlines() if line.startswith("gkest:")][:12]
    print({name: value for name, value in results.items() if name != "said"}, flush=True)
    return results


def good(sent: Sent, slos: dict[str, float]) -> bool:
    """Say whether a request was answered in time."""
    return sent.status == "ok" and sent.total_ms <= slos[sent.model]


def watch_kills(server: Server, begin: float, times: dict[str, float]) -> Any:
    """Start a thread that kills the processes when it is time; yield once begun, then what was killed."""
    import threading

    killed: dict[str, Any] = {}

    def run() -> None:
        for name, at in times.items():
            time.sleep(max(0.0, begin + at - time.monotonic()))
            wanted = {"worker": "ray::ServingWorker", "controller": "ray::Controller"}[name]
            numbers = [pid for pid, words in server.descendants().items() if words.startswith(wanted)]
            if not numbers:
                killed[name] = None
                continue
            os.kill(numbers[0], signal.SIGKILL)
            died = time.monotonic()
            while time.monotonic() - died < 30:
                again = [pid for pid, words in server.descendants().items() if words.startswith(wanted)]
                if numbers[0] not in again and len(again) >= len(numbers):
                    break
                time.sleep(0.1)
            killed[name] = {"process_back_s": time.monotonic() - died}

    thread = threading.Thread(target=run)
    thread.start()
    yield None
    thread.join()
    yield killed


MODES = {"emulated": emulated, "cpu": cpu, "step": step, "kill": kill}


def main() -> None:
    """Run what was asked for, keep its figures, write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=[*MODES, "all", "page"])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--slower", type=float, default=AT_SLOWER)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), choices=(1, 2, 3))
    parser.add_argument("--keep", type=Path)
    parser.add_argument(
        "--dry", action="store_true", help="print alone: neither figures nor page are written"
    )
    told = parser.parse_args()
    modes = list(MODES) if told.mode == "all" else [told.mode]
    if told.mode == "page":
        modes = []
    with tempfile.TemporaryDirectory(prefix="gkest-truth-") as scratch:
        for mode in modes:
            folder = Path(told.keep or scratch, mode)
            folder.mkdir(parents=True, exist_ok=True)
            asked = Asked(
                seconds=told.seconds, slower=told.slower, seeds=SEEDS[: told.seeds], folder=folder.resolve()
            )
            print(f"-- {mode}", flush=True)
            result = MODES[mode](asked)
            if not told.dry:
                save_results(mode, result)
    if not told.dry:
        print(f"wrote {write_page()}")


if __name__ == "__main__":
    main()
