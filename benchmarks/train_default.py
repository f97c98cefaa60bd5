"""Train the default bundle on all public measurements: ``python benchmarks/train_default.py``.

Needs the extra ``train`` and the environment variable GKEST_SHARED (see docs/appendix/benchmarks.md). The bundle is the one that
the accuracy command judged (``python -m benchmarks.accuracy``), out of its cache where that is current; the card's nested
figures are that command's, and are left out, saying so, where they are of another recipe. ``--out`` writes elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from _bert_cases import RUNTIME, fit_tensorrt_law

from benchmarks.accuracy.figures import nested
from benchmarks.accuracy.kernels import shipped_folder
from benchmarks.accuracy.workspace import ROOT, SEED, TENSORRT_FORMATS, Workspace, shared_folder
from gkestimator.bundles.bundle import load_bundle
from gkestimator.bundles.files import read_arrays, read_json, write_bundle
from gkestimator.bundles.runtime_laws import laws_document
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.training.plan import PLANS, TENSORRT_PLANS
from gkestimator.training.power import FILES, fit_power, read_power

POWER = "power"
"""What ``--only`` calls the powers of repeated kernels, which are no regressor of time."""
RUNTIMES = "runtimes"
"""What it calls the laws of runtimes that compile models, which stand on the regressors of time."""
TENSORRT = "tensorrt"
"""What it calls all regressors of TensorRT's kernels."""
OF_TENSORRT = tuple(plan.name for plan in TENSORRT_PLANS)
Documents = dict[str, dict[str, Any]]
ArrayFiles = dict[str, dict[str, np.ndarray]]


def main() -> int:
    """Exit status 0, or 2 without the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "models/default")
    parser.add_argument("--cache", type=Path, default=ROOT / ".accuracy")
    parser.add_argument("--only", default="", help="comma-separated regressors to fit; the others stay")
    options = parser.parse_args()
    shared = shared_folder()
    if shared is None:
        print("GKEST_SHARED does not name a folder with data/ and models/", file=sys.stderr)
        return 2
    space = Workspace(shared, options.cache)
    if options.only:
        names = options.only.split(",")
        if TENSORRT in names:
            names = [name for name in names if name != TENSORRT] + list(OF_TENSORRT)
        return _refit(space, options.out, names)
    folder = shipped_folder(space)
    documents = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}
    figures = nested(space)
    documents["card"]["name"] = "default"
    documents["card"]["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    if figures is not None:
        documents["card"]["nested"] = figures
    arrays = {path.stem: read_arrays(path) for path in sorted(folder.glob("*.npz"))}
    _refit_times(tensorrt_space(space), OF_TENSORRT, documents, arrays)
    _add_power(space, documents, arrays)
    _add_laws(space, documents, folder)
    write_bundle(options.out, documents, arrays)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    space.tell(f"{options.out} written, {size:,} bytes")
    return 0


def _refit(space: Workspace, out: Path, names: list[str]) -> int:
    """Fit the regressors ``names`` on every row and put them into the bundle in ``out``, which may lack them."""
    known = (*PLANS, POWER, RUNTIMES)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"--only {','.join(unknown)}: expected some of {', '.join(known)}", file=sys.stderr)
        return 2
    documents = {path.stem: read_json(path) for path in sorted(out.glob("*.json"))}
    arrays = {path.stem: read_arrays(path) for path in sorted(out.glob("*.npz"))}
    if POWER in names:
        _add_power(space, documents, arrays)
    timed = [name for name in names if name in PLANS and name not in OF_TENSORRT]
    if timed:
        _refit_times(space, timed, documents, arrays)
    of_tensorrt = [name for name in names if name in OF_TENSORRT]
    if of_tensorrt:
        _refit_times(tensorrt_space(space), of_tensorrt, documents, arrays)
    write_bundle(out, documents, arrays)
    if RUNTIMES in names:
        _add_laws(space, documents, out)
        write_bundle(out, documents, arrays)
    space.tell(f"{out}: {', '.join(names)} fitted again")
    return 0


def _add_power(space: Workspace, documents: Documents, arrays: ArrayFiles) -> None:
    """Fit the powers of repeated kernels on every public row and put them into the bundle."""
    rows = read_power(space.shared / "data" / "aiconfigurator")
    catalogue = gpu_catalogue()
    names = sorted({name for mine in rows.values() for name in mine.gpu.tolist()})
    model = fit_power(rows, {name: catalogue.resolve(name)[0] for name in names}, seed=SEED)
    documents[POWER] = model.document()
    arrays[POWER] = model.arrays()
    documents["card"][POWER] = {
        "rows": {name: len(mine) for name, mine in rows.items()},
        "files": list(FILES),
    }


def _add_laws(space: Workspace, documents: Documents, folder: Path) -> None:
    """Fit the laws of runtimes on whole models, beside the regressors of the bundle in ``folder``."""
    law, said = fit_tensorrt_law(space.shared, space.folder / "bert_graphs", load_bundle(folder))
    documents[RUNTIMES] = laws_document({RUNTIME: law})
    documents["card"][RUNTIMES] = {RUNTIME: said}


def tensorrt_space(space: Workspace) -> Workspace:
    """Return the measurements of TensorRT's kernels, which no other regressor learns from."""
    return Workspace(space.shared, space.folder, formats=TENSORRT_FORMATS)


def _refit_times(space: Workspace, names: Sequence[str], documents: Documents, arrays: ArrayFiles) -> None:
    """Fit the regressors ``names`` on every row and put them into the bundle."""
    plans = tuple(PLANS[name] for name in names)
    folder = space.bundle_folder("refit", np.arange(len(space.rows)), plans)
    space.bundle("refit", np.arange(len(space.rows)), plans)
    fitted = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}
    for document, part in (("stack", "models"), ("card", "models")):
        listed = {entry["name"]: entry for entry in documents[document][part]}
        listed.update({entry["name"]: entry for entry in fitted[document][part]})
        documents[document][part] = [listed[name] for name in PLANS if name in listed]
    sources = {entry["source"]: entry for entry in documents["card"]["trained_on"]}
    sources.update({entry["source"]: entry for entry in fitted["card"]["trained_on"]})
    documents["card"]["trained_on"] = list(sources.values())
    for document in ("ranges", "quantiles"):
        documents[document].update(fitted[document])
    arrays.update({name: read_arrays(folder / f"{name}.npz") for name in names})


if __name__ == "__main__":
    sys.exit(main())
