"""Train the default bundle on all public measurements: ``python benchmarks/train_default.py``.

Needs the extra ``train`` and the environment variable GKEST_SHARED (see docs/benchmarks.md). The bundle is the one that
the accuracy command judged (``python -m benchmarks.accuracy``), out of its cache where that is current; the card's nested
figures are that command's, and are left out, saying so, where they are of another recipe. ``--out`` writes elsewhere.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.accuracy.figures import nested
from benchmarks.accuracy.kernels import shipped_folder
from benchmarks.accuracy.workspace import ROOT, Workspace, shared_folder
from gkestimator.bundles.files import read_arrays, read_json, write_bundle


def main() -> int:
    """Exit status 0, or 2 without the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "models/default")
    parser.add_argument("--cache", type=Path, default=ROOT / ".accuracy")
    options = parser.parse_args()
    shared = shared_folder()
    if shared is None:
        print("GKEST_SHARED does not name a folder with data/ and models/", file=sys.stderr)
        return 2
    space = Workspace(shared, options.cache)
    folder = shipped_folder(space)
    documents = {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}
    figures = nested(space)
    documents["card"]["name"] = "default"
    documents["card"]["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    if figures is not None:
        documents["card"]["nested"] = figures
    write_bundle(
        options.out, documents, {path.stem: read_arrays(path) for path in sorted(folder.glob("*.npz"))}
    )
    size = sum(path.stat().st_size for path in options.out.iterdir())
    space.tell(f"{options.out} written, {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
