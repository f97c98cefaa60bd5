"""Whole models as the fragments of a plan, run by both executors: ``python benchmarks/whole_models_run.py MODELS...``

Plans every ONNX file of the files and folders named (``gkest profile plan --whole`` does the same), runs each fragment
once on the CPU through the torch and the ONNX Runtime executor on equal data, and prints per model: nodes, gigabytes of
weights, whether and how fast each executor prepared and ran it, and the largest difference between their outputs as a
part of the largest number. Exit status 1 where a model was not run by both, or differs by more than ``--tolerance``.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gkestimator.errors import GkestimatorError
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.sweep import PlanRequest
from gkestimator.profiling.sweep.whole import make_whole_plan


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
        outputs = tuple(np.array(v, dtype=np.float64) for v in outputs_of(prepared))
        return Ran(why="", outputs=outputs, prepare_s=ready - begun, call_s=done - ready)
    except GkestimatorError as e:
        return Ran(why=str(e))
    finally:
        prepared.close()
        gc.collect()


def difference(a: tuple[np.ndarray, ...], b: tuple[np.ndarray, ...]) -> tuple[float, str]:
    """The largest difference as a part of the largest finite number of ``a`` (infinite where they cannot be compared),
    and what else to say."""
    if [v.shape for v in a] != [v.shape for v in b]:
        return np.inf, f"shapes {[v.shape for v in a]} and {[v.shape for v in b]}"
    flat_a, flat_b = (np.concatenate([v.reshape(-1) for v in values]) for values in (a, b))
    good = np.isfinite(flat_a)
    if not np.array_equal(good, np.isfinite(flat_b)) or not good.any():
        return np.inf, f"{np.mean(good):.0%} and {np.mean(np.isfinite(flat_b)):.0%} of the outputs are finite"
    largest = float(np.abs(flat_a[good]).max())
    apart = float(np.abs(flat_a - flat_b)[good].max())
    return apart / largest if largest else np.inf, "" if good.all() else f"{np.mean(good):.0%} are finite"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument(
        "--gigabytes", type=float, default=2.5, help="of weights; models with more are not run"
    )
    parser.add_argument("--tolerance", type=float, default=1e-3)
    options = parser.parse_args()
    from gkestimator.profiling.executors.onnxruntime import OnnxruntimeExecutor
    from gkestimator.profiling.executors.torch import TorchExecutor

    planned = make_whole_plan(
        PlanRequest(
            models=options.models, catalogue=False, cpu=True, dtypes=[options.dtype],
            batch_sizes=[options.batch_size], minutes=1e6,
        )
    )  # fmt: skip
    torch, ort = TorchExecutor("cpu"), OnnxruntimeExecutor("cpu")
    bad = 0
    for path, error in planned.failures:
        bad += 1
        print(f"{path}: not planned: {error}")
    row = "{:34} {:>6} {:>6}  {:14} {:14} {:>9}  {}".format
    print(row("model", "nodes", "GB", "torch", "onnxruntime", "apart", ""), flush=True)
    for entry in sorted(planned.plan.entries, key=lambda e: e.fragment.pattern):
        assert entry.model is not None
        weights = sum(t.nbytes for t in entry.fragment.tensors if t.role != "input") / 1e9
        head = (entry.model.name, len(entry.fragment.nodes), f"{weights:.2f}")
        if weights > options.gigabytes:
            print(
                row(*head, "not run", "not run", "", f"more than {options.gigabytes:g} GB of weights"),
                flush=True,
            )
            continue
        one = ran(torch, entry, lambda p: [t.float().numpy() for t in p.outputs()])
        two = ran(ort, entry, lambda p: [v.numpy() for v in p._binding.get_outputs()])
        apart, words = difference(one.outputs, two.outputs) if not (one.why or two.why) else (np.inf, "")
        bad += not apart <= options.tolerance
        print(
            row(*head, one.words, two.words, f"{apart:.1e}" if np.isfinite(apart) else "-", words), flush=True
        )
    print(f"{len(planned.plan.entries)} models, {bad} not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
