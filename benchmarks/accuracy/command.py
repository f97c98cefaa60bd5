"""Run every accuracy experiment, cached, then write the report and its plots.

    GKEST_SHARED=... python -m benchmarks.accuracy [--only shapes,gpu] [--jobs 2] [--report]

Nested bundles and results are kept in ``.accuracy/``, keyed by what they depend on: a second run trains only what
changed. ``--report`` writes docs/accuracy.md and docs/accuracy/ from the results kept. Needs the extras ``train``
and ``plot``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from .sections import SECTION_NAMES, section_jobs
from .workspace import ROOT, Workspace, shared_folder

GROUPS = ("everything", "shapes", "larger", "gpu", "members", "usher", "whole", *SECTION_NAMES)
_SPACE: list[Workspace] = []


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 when an experiment failed, 2 on bad usage."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", default=",".join(GROUPS), help=f"comma-separated parts of {', '.join(GROUPS)}"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes that train at the same time")
    parser.add_argument("--report", action="store_true", help="only write the report, from the results kept")
    parser.add_argument("--no-report", action="store_true", help="run experiments, write no report")
    parser.add_argument("--cache", type=Path, default=ROOT / ".accuracy")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of accuracy.md and accuracy/")
    parser.add_argument(
        "--smoke", type=int, default=0, metavar="ROWS",
        help="rows of each kind and GPU to keep: tries the command out, the figures mean nothing",
    )  # fmt: skip
    parser.add_argument(
        "--judge", type=Path, nargs="?", const=ROOT / "models/default", metavar="BUNDLE",
        help="only print what this bundle (default: the shipped one) says of the whole models; trains nothing",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    chosen = [word.strip() for word in options.only.split(",") if word.strip()]
    unknown = [word for word in chosen if word not in GROUPS]
    if unknown or options.jobs < 1:
        print(f"--only {unknown}: expected some of {', '.join(GROUPS)}; --jobs at least 1", file=sys.stderr)
        return 2
    shared = shared_folder()
    if shared is None:
        print(
            "set GKEST_SHARED to the folder that holds data/ and models/ (see docs/appendix/benchmarks.md)",
            file=sys.stderr,
        )
        return 2
    if options.smoke and options.out == ROOT / "docs":
        options.out = options.cache / f"smoke{options.smoke}"
    space = Workspace(shared, options.cache, smoke=options.smoke)
    if options.judge is not None:
        print("\n".join(judged(space, options.judge)))
        return 0
    failed = [] if options.report else _run(space, chosen, options.jobs)
    for name, error in failed:
        space.tell(f"FAILED {name}: {error}")
    if not options.no_report:
        from .report import write_report

        write_report(space, options.out)
    return 1 if failed else 0


def judged(space: Workspace, bundle: Path) -> list[str]:
    """Tables of whole models by the bundle in a folder."""
    from gkestimator.bundles.bundle import load_bundle

    from . import tables
    from .whole import compare

    cases = compare(space, load_bundle(bundle))
    lines = tables.whole_rows(cases)
    for table in ("ethz", "timm"):
        lines += ["", *tables.whole_by_model([c for c in cases if c.table == table])]
    return [*lines, "", *tables.whole_baselines(cases)]


def jobs_of(space: Workspace, chosen: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of the jobs of the chosen groups: those that train, and those that need what they trained."""
    from .kernels import kernel_jobs

    first = []
    for name in kernel_jobs(space):
        group = name.partition("-")[0]
        group = {"member": "members", "h100": "gpu"}.get(group, group)
        if group in chosen or (name == "everything" and "whole" in chosen):
            first.append(name)
    if "usher" in chosen:
        first.append("usher-targets")
    first += section_jobs(list(chosen))
    second = ["usher-tau"] if "usher" in chosen else []
    if "whole" in chosen:
        second += ["whole", "whole-no-v100-conv"]
    return first, second


def _run(space: Workspace, chosen: Sequence[str], jobs: int) -> list[tuple[str, str]]:
    failed: list[tuple[str, str]] = []
    for names in jobs_of(space, chosen):
        if jobs == 1:
            for name in names:
                try:
                    run_job(space, name)
                except Exception as e:  # noqa: BLE001  # one experiment that fails does not stop the others
                    failed.append((name, f"{type(e).__name__}: {e}"))
            continue
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with ProcessPoolExecutor(
            jobs,
            multiprocessing.get_context("spawn"),
            _begin,
            (space.shared, space.folder, space.smoke, space.begun),
        ) as pool:
            waiting = {pool.submit(_worker, name): name for name in names}
            for done in as_completed(waiting):
                error = done.exception()
                if error is not None:
                    failed.append((waiting[done], f"{type(error).__name__}: {error}"))
                    space.tell(f"FAILED {waiting[done]}: {error}")
    return failed


def _begin(shared: Path, folder: Path, smoke: int, begun: float) -> None:
    space = Workspace(shared, folder.parent if smoke else folder, smoke=smoke)
    space.begun = begun  # the monotonic clock is one for all processes
    _SPACE.append(space)


def _worker(name: str) -> None:
    run_job(_SPACE[0], name)


def run_job(space: Workspace, name: str) -> None:
    """Run one experiment, or find that the cache has it."""
    warnings.filterwarnings("ignore", message="Objective did not converge")  # lasso on raw sizes
    from . import usher, whole
    from .kernels import kernel_jobs

    if name == "usher-targets":
        usher.run_targets(space)
    elif name == "usher-tau":
        usher.run_tau(space)
    elif name in ("whole", "whole-no-v100-conv"):
        whole.run_whole(space, name)
    else:
        jobs = {**kernel_jobs(space), **section_jobs(list(SECTION_NAMES))}
        jobs[name](space)
