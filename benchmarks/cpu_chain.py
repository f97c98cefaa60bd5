"""Run the whole chain of docs/how-to/profiling.md on this machine's CPU and compare what is estimated with what is measured.

Run: ``python benchmarks/cpu_chain.py``.

Plans the operators of a few networks, measures them one by one under ONNX Runtime (and nsys, where it is), builds the
dataset, trains, estimates the whole networks, and then runs them: how far is the sum of single operators from the whole?
Once with every operator of the networks measured, once with those of the tested network left out. A CPU stands in for
the GPU, so what is shown is the chain, not the estimator's accuracy on GPUs.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _shared import with_zero_weights

sys.path.append(str(Path(__file__).parents[1] / "tests" / "golden"))


def networks(folder: Path) -> list[Path]:
    """Networks that run: their weights are zeros."""
    from golden_models import convnext, resnext_stage

    from gkestimator.onnx_io.demo import write_resnet50
    from gkestimator.onnx_io.demo_models import write_mobilenet_v2

    without_weights = folder / "without_weights"
    without_weights.mkdir(parents=True)
    graphs = [convnext(without_weights), resnext_stage(without_weights)]
    whole = [write_resnet50(folder), write_mobilenet_v2(folder)]
    return [*whole, *(with_zero_weights(path, folder / path.name) for path in graphs)]


def run_ms(path: Path, repeats: int = 15) -> float:
    """Median milliseconds of one inference under ONNX Runtime with one thread, as the executor runs operators."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    shapes = {i.name: [d if isinstance(d, int) else 1 for d in i.shape] for i in session.get_inputs()}
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    times = []
    for _ in range(repeats + 3):
        started = time.perf_counter()
        session.run(None, feeds)
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[3:])


def gkest(*arguments: str | Path) -> None:
    """Run one command, its output hidden; ends the program where it fails."""
    from gkestimator.cli import run

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        status = run([str(a) for a in arguments])
    if status:
        raise SystemExit(
            f"gkest {' '.join(str(a) for a in arguments)}: exit status {status}: {said.getvalue()}"
        )


def planned(folder: Path, models: list[Path]) -> Path:
    """A plan of all operators of ``models``."""
    plan = folder / f"plan-{'-'.join(m.stem for m in models)}.json"
    named = [part for path in models for part in ("--models", path)]
    options = ("--cpu", "--no-catalogue", "--minutes", "60", "--batch-size", "1", "--runtime", "onnxruntime")
    gkest("profile", "plan", *options, *named, "-o", plan)
    return plan


def without(dataset: Path, plan: Path, target: Path) -> Path:
    """The dataset without the operators of ``plan``, its GPU files beside it."""
    from gkestimator.profiling.plan import read_plan
    from gkestimator.tables import KERNEL_DATASET, read_table, write_table

    ids = {entry.id for entry in read_plan(plan).entries}
    rows = [row for row in read_table(dataset, KERNEL_DATASET) if row.entry_id not in ids]
    write_table(KERNEL_DATASET, rows, target)
    for toml in dataset.parent.glob(f"{dataset.stem}.*.toml"):
        shutil.copy(toml, target.parent / toml.name.replace(dataset.stem, target.stem, 1))
    return target


def estimate(model: Path, gpu: str, bundles: list[Path]) -> tuple[float, float, float]:
    """Estimated milliseconds of one inference, and the ends of the 90 % interval."""
    import gkestimator

    row = gkestimator.estimate(
        model, gpus=[gpu], batch_sizes=[1], runtime="onnxruntime", bundles=bundles
    ).iloc[0]
    return float(row.latency_ms), float(row.latency_low_ms), float(row.latency_high_ms)


def main() -> None:
    """Print measured and estimated milliseconds of every network."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        models = networks(folder / "models")
        dataset = folder / "all.parquet"
        started = time.perf_counter()
        plan = planned(folder, models)
        gkest("profile", "run", plan, "--executor", "onnxruntime", "--device", "cpu", "-o", folder / "raw")
        minutes = (time.perf_counter() - started) / 60
        gkest("profile", "build", folder / "raw", "-o", dataset)
        gkest("train", dataset, "-o", folder / "full")
        (spec,) = dataset.parent.glob("all.*.toml")
        gpu = spec.stem.removeprefix("all.")
        print(f"{gpu}: plan and run took {minutes:.1f} minutes")
        print(
            f"{'network':14} {'measured ms':>11} {'all operators measured':>26} {'its own left out':>26} {'base':>8}"
        )
        for model in models:
            own = planned(folder, [model])
            rest = without(dataset, own, folder / f"without-{model.stem}.parquet")
            gkest("train", rest, "-o", folder / f"rest-{model.stem}")
            real = run_ms(model)
            texts = []
            for bundle in (folder / "full", folder / f"rest-{model.stem}"):
                ms, low, high = estimate(model, gpu, [bundle])
                texts.append(
                    f"{ms:8.2f} {100 * (ms / real - 1):+6.1f} % {'in' if low <= real <= high else 'out':>4}"
                )
            spec_only = estimate_by_base(model, spec)
            print(
                f"{model.stem:14} {real:11.2f} {texts[0]:>26} {texts[1]:>26} {100 * (spec_only / real - 1):+6.0f} %"
            )


def estimate_by_base(model: Path, spec: Path) -> float:
    """What the package's bundle says of a GPU with this specification, with nothing measured."""
    import gkestimator

    rows = gkestimator.estimate(
        model, gpus=[spec.stem.removeprefix("all.")], batch_sizes=[1], runtime="onnxruntime", gpu_specs=[spec]
    )
    return float(rows.iloc[0].latency_ms)


if __name__ == "__main__":
    main()
