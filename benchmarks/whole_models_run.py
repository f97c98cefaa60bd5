"""Run whole models as the fragments of a plan by both executors: ``python benchmarks/whole_models_run.py MODELS...``

Plans every ONNX file of the files and folders named (``gkest profile plan --whole`` does the same) and runs each
fragment on the CPU through the torch and the ONNX Runtime executor, on equal data. Twice: as planned; and with the
result of every call that torch makes as an output, for through many layers of random weights little is left of an
input. Prints per model: nodes, gigabytes of weights, seconds to prepare and to call, the largest difference between the
outputs, how many of the results were compared, and the largest difference among them, each as a part of the distance between
the smallest and the largest number of its tensor. Exit status 1 where a model was not run by both or differs by more
than ``--tolerance``.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.graph import Tensor
from gkestimator.profiling.executors.torch_calls.program import program_of
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.sweep import PlanRequest
from gkestimator.profiling.sweep.whole import make_whole_plan

_AT_ONCE, _RUNS = 500_000_000, 3
"""Bytes of results that are compared in one run, and runs at most: later blocks of a model are as the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What an executor made of a fragment: its outputs, or why there are none."""

    why: str
    outputs: tuple[np.ndarray, ...] = ()
    prepare_s: float = 0.0
    call_s: float = 0.0

    @property
    def words(self) -> str:
        """For the table."""
        return self.why or f"{self.prepare_s:.1f} + {self.call_s:.2f} s"


def ran(executor: Any, entry: PlanEntry, outputs_of: Callable[[Any], Sequence[Any]]) -> Ran:
    """Prepare, run once more, take the outputs, close."""
    begun = time.perf_counter()
    try:
        prepared = executor.prepare(entry, 0)
    except GkestimatorError as e:
        return Ran(why=str(e))
    try:
        ready = time.perf_counter()
        prepared.run()
        prepared.synchronise()
        done = time.perf_counter()
        outputs = tuple(np.array(v) for v in outputs_of(prepared))
        return Ran(why="", outputs=outputs, prepare_s=ready - begun, call_s=done - ready)
    except GkestimatorError as e:
        return Ran(why=str(e))
    finally:
        prepared.close()
        gc.collect()


def difference(names: list[str], a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> tuple[float, str]:
    """The largest difference of any tensor as a part of its own span (infinite where they cannot be compared), and
    what to say of the worst."""
    worst, words = 0.0, ""
    for name, one, two in zip(names, a, b, strict=True):
        if one.shape != two.shape:
            return np.inf, f"{name}: shapes {one.shape} and {two.shape}"
        good = np.isfinite(one)
        if not np.array_equal(good, np.isfinite(two)):
            return np.inf, f"{name}: {np.mean(good):.1%} and {np.mean(np.isfinite(two)):.1%} are finite"
        if not good.any():
            continue
        first, second = one[good].astype(np.float64), two[good].astype(np.float64)
        apart = float(np.abs(first - second).max())
        span = float(np.ptp(first)) or float(np.abs(first).max()) or 1.0
        if apart / span > worst:
            worst, words = apart / span, name
    return worst, words


def every_result(entry: PlanEntry) -> tuple[list[PlanEntry], int]:
    """``entry`` with the results of torch's calls as outputs, some at a time, and how many there are in all."""
    written = {name for node in entry.fragment.nodes for name in node.outputs}
    groups: list[dict[str, None]] = []
    room = 0
    for step in program_of(entry.fragment, entry.dtype).steps:
        for value in step.call.op.outputs:
            if not isinstance(value, Tensor) or value.name not in written:
                continue
            if value.nbytes > room:
                groups.append({})
                room = _AT_ONCE
            groups[-1][value.name] = None
            room -= value.nbytes
    made = [
        replace(entry, fragment=replace(entry.fragment, outputs=tuple(names))) for names in groups[:_RUNS]
    ]
    return made, sum(map(len, groups))


def head_of(entry: PlanEntry, most: float) -> PlanEntry:
    """The first nodes of ``entry``, as many as read at most ``most`` bytes of weights; what the last one makes is the
    output."""
    sizes = {t.name: t.nbytes for t in entry.fragment.tensors if t.role != "input"}
    nodes, used = [], set[str]()
    for node in entry.fragment.nodes:
        if sum(sizes.get(name, 0) for name in used | set(node.inputs)) > most:
            break
        used |= set(node.inputs)
        nodes.append(node)
    tensors = tuple(t for t in entry.fragment.tensors if t.name in used)
    shorter = replace(entry.fragment, nodes=tuple(nodes), tensors=tensors, outputs=nodes[-1].outputs[:1])
    return replace(entry, fragment=shorter)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument(
        "--dim", action="append", default=[], metavar="NAME=NUMBER", help="as of gkest profile plan"
    )
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument(
        "--gigabytes", type=float, default=2.5, help="of weights; models with more are not run"
    )
    parser.add_argument("--tolerance", type=float, default=1e-3)
    options = parser.parse_args()
    from gkestimator.profiling.executors.onnxruntime import OnnxruntimeExecutor
    from gkestimator.profiling.executors.torch import TorchExecutor

    dims = {name: int(number) for name, _, number in (d.rpartition("=") for d in options.dim)}
    planned = make_whole_plan(
        PlanRequest(
            models=options.models, catalogue=False, cpu=True, dtypes=[options.dtype],
            batch_sizes=[options.batch_size], minutes=1e6, dims=dims,
        )
    )  # fmt: skip
    torch, ort = TorchExecutor("cpu"), OnnxruntimeExecutor("cpu")

    def compared(entry: PlanEntry) -> tuple[Ran, Ran, float, str]:
        one = ran(torch, entry, lambda p: [_plain(t) for t in p.outputs()])
        two = ran(ort, entry, lambda p: [v.numpy() for v in p._binding.get_outputs()])
        if one.why or two.why:
            return one, two, np.inf, one.why or two.why
        of = {name: f"{node.op_type} {name}" for node in entry.fragment.nodes for name in node.outputs}
        return one, two, *difference([of[name] for name in entry.fragment.outputs], one.outputs, two.outputs)

    bad = 0
    for path, error in planned.failures:
        bad += 1
        print(f"{path}: not planned: {error}")
    row = "{:30} {:>5} {:>6}  {:14} {:14} {:>8} {:>9} {:>8}  {}".format
    print(
        row("model", "nodes", "GB", "torch", "onnxruntime", "outputs", "results", "apart", "worst"),
        flush=True,
    )
    for entry in sorted(planned.plan.entries, key=lambda e: e.fragment.pattern):
        assert entry.model is not None
        weights = sum(t.nbytes for t in entry.fragment.tensors if t.role != "input") / 1e9
        head = (entry.model.name, len(entry.fragment.nodes), f"{weights:.2f}")
        note = ""
        if weights > options.gigabytes:
            entry = head_of(entry, options.gigabytes * 1e9)
            note = f" (the first {len(entry.fragment.nodes)} nodes)"
        one, two, apart, words = compared(entry)
        count, results, inside, where = 0, 0, np.inf, words
        if np.isfinite(apart):
            inside = 0.0
            parts, results = every_result(entry)
            for part in parts:
                count += len(part.fragment.outputs)
                found = compared(part)
                if found[2] >= inside:
                    inside, where = found[2:]
        bad += not max(apart, inside) <= options.tolerance
        numbers = [f"{x:.1e}" if np.isfinite(x) else "-" for x in (apart, inside)]
        print(
            row(*head, one.words, two.words, numbers[0], f"{count}/{results}", numbers[1], where + note),
            flush=True,
        )
    print(f"{len(planned.plan.entries)} models, {bad} not as they should be")
    return 1 if bad else 0


def _plain(tensor: Any) -> np.ndarray:
    found: np.ndarray = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return found


if __name__ == "__main__":
    sys.exit(main())
