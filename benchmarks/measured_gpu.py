"""Show what measuring a GPU gives: estimates before, after, and after without the tested models' sizes.

    python benchmarks/measured_gpu.py --operators kernels.parquet --models measured.parquet --onnx my-models/
                                      [--pairs pairs.parquet] [-o report.md]

Reads what ``gkest profile build``, ``table`` and ``pairs`` wrote of one GPU. Trains three bundles with ``gkest train``'s
recipe: on 70 % of the operators' sizes, on all operators, and on all but those of any size that occurs in the tested
models. Prints how far each is from the operators left out and from the whole models, beside the public-data bundle
that has seen none of these files, and what is missing to the bars. Without a GPU; ``--keep DIR`` keeps the bundles.
Needs the extra ``train``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from _measured_models import MeasuredModels, read_models, summaries_with_other_hosts
from _measured_operators import Operators, Split, judged, read_operators, split, without, write_part
from _measured_page import Judged, page
from _measured_pairs import fitted_to_pairs, read_groups

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.tables import CoRun, write_bytes

HELD_OUT = 0.3
ALL = "all operators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A bundle trained on a part of the operators; ``folder`` None: the part holds none, or the package's bundle."""

    title: str
    calls: int
    folder: Path | None
    why_not: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; 1 where a part of it failed, 2 for input that cannot be used."""
    options = _options(arguments)
    with ExitStack() as stack:
        home = os.environ.get("GKEST_HOME")
        stack.callback(_set_home, home)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _set_home(str(scratch / "home"))  # no bundle and no host of this user's
        try:
            _check_outputs(options)
            text, failures = report(options, options.keep or scratch)
            print(text)
            if options.output:
                write_bytes(options.output, (text + "\n").encode())
        except GkestimatorError as e:
            print(f"measured_gpu: {e}", file=sys.stderr)
            return 2
    for failure in failures:
        print(f"measured_gpu: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _check_outputs(options: argparse.Namespace) -> None:
    """Raises UsageError for what cannot be written, before minutes are spent on it."""
    if options.keep is not None and options.keep.exists() and not options.keep.is_dir():
        raise UsageError(f"--keep {options.keep}: found a file, expected a folder")
    if options.output is not None and (options.output.is_dir() or not options.output.parent.is_dir()):
        raise UsageError(f"-o {options.output}: expected a file in a folder that is there")
    if not 0 <= options.seed < 2**32:
        raise UsageError(f"--seed: found {options.seed}, expected 0 to {2**32 - 1}")


def report(options: argparse.Namespace, work: Path) -> tuple[str, list[str]]:
    """The page, and one line for each thing that could not be judged. Raises GkestimatorError for bad input."""
    operators = read_operators(options.operators, options.gpu_specs)
    models = read_models(
        options.models,
        options.onnx,
        operators.specs,
        operators.gpu,
        unfold_batchnorm=options.unfold_batchnorm,
    )
    pairs = None if options.pairs is None else read_groups(options.pairs, models)
    failures: list[str] = []
    parts = split(operators, share=HELD_OUT, seed=options.seed)
    _tell("the sizes that occur in the tested models")
    occurring = models.occurring()
    failures += occurring.failures
    places = {
        "operators of the 70/30 split": parts.train,
        ALL: tuple(range(len(operators.calls))),
        "tested models' sizes removed": without(operators, occurring.sizes),
    }
    before = Trained(title="public data alone (before)", calls=0, folder=None)
    shown = [_judge(operators, models, parts, before, options.host)]
    if shown[0].models is not None and not shown[0].models.compared:
        why = f" ({failures[0]})" if failures else ""
        raise UsageError(f"{models.table}: none of its rows can be estimated{why}")
    everything: Path | None = None
    for number, (title, where) in enumerate(places.items()):
        _tell(f"training: {title}")
        one = _train(operators, title, where, work / f"measured_{number}", seed=options.seed)
        shown.append(_judge(operators, models, parts, one, options.host))
        everything = one.folder if title == ALL else everything
    failures += list(
        dict.fromkeys(str(e) for one in shown if one.models is not None for e in one.models.failures)
    )
    interference: str | None = None
    if options.pairs is not None and pairs is not None:
        try:
            interference = fitted_to_pairs(options.pairs, pairs, models, everything, work)
        except GkestimatorError as e:
            interference = str(e)
            failures.append(interference)
    text = page(
        operators=operators,
        models=models,
        occurring=occurring,
        split=parts,
        shown=shown,
        pairs=None if pairs is None else _groups(pairs),
        interference=interference,
        inputs=[
            (p, _digest(p))
            for p in (*operators.files, models.table, *([options.pairs] if options.pairs else []))
        ],
        seed=options.seed,
    )
    return text, list(dict.fromkeys(failures))


def _judge(
    operators: Operators, models: MeasuredModels, parts: Split, one: Trained, host: Path | None
) -> Judged:
    _tell(f"judging: {one.title}")
    if one.why_not:
        return Judged(title=one.title, calls=one.calls, operators=None, models=None, why_not=one.why_not)
    found = models.judged(one.folder, host)
    return Judged(
        title=one.title,
        calls=one.calls,
        operators=judged(operators, parts.test, load_bundle(one.folder)) if parts.test else None,
        models=found,
        with_hosts=None if host is not None else summaries_with_other_hosts(models, found, one.folder),
    )


def _train(operators: Operators, title: str, places: Sequence[int], folder: Path, *, seed: int) -> Trained:
    from gkestimator.training import train

    files = write_part(operators, places, folder.with_name(f"{folder.name}_operators"))
    if not files:
        return Trained(title=title, calls=0, folder=None, why_not="no operator is left to train on")
    try:
        train(files, folder, seed=seed, gpu_specs=operators.specs)
    except UsageError:
        raise
    except GkestimatorError as e:
        return Trained(title=title, calls=len(places), folder=None, why_not=str(e))
    return Trained(title=title, calls=len(places), folder=folder)


def _groups(runs: Sequence[CoRun]) -> Counter[str]:
    """Groups of which a slowdown was measured, by how they shared the GPU."""
    timed = {run.group: run.sharing or "not said" for run in runs if run.latency_together_ms is not None}
    return Counter(timed.values())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _set_home(value: str | None) -> None:
    if value is None:
        os.environ.pop("GKEST_HOME", None)
    else:
        os.environ["GKEST_HOME"] = value


def _tell(text: str) -> None:
    print(f"measured_gpu: {text}", file=sys.stderr, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operators", type=Path, nargs="+", required=True, metavar="DATASET")
    parser.add_argument(
        "--models", type=Path, required=True, metavar="TABLE", help="requirement table, measured"
    )
    parser.add_argument("--onnx", type=Path, nargs="+", required=True, metavar="FILE|DIR")
    parser.add_argument("--pairs", type=Path, metavar="TABLE", help="co-location table")
    parser.add_argument("--host", type=Path, metavar="FILE", help="host profile, as for gkest evaluate")
    parser.add_argument(
        "--gpu-spec", dest="gpu_specs", type=Path, action="append", default=[], metavar="FILE"
    )
    parser.add_argument(
        "--unfold-batchnorm",
        action="store_true",
        help="the models were not run from these files, which have their BatchNorms folded in",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the split and of training")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the bundles stay")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the report as Markdown")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
