"""Trains the default bundle on all public measurements: ``python benchmarks/train_default.py``.

Needs the extra ``train`` and the environment variable GKEST_SHARED, a folder with ``data/neusight``, ``data/deepbench``,
``data/aiconfigurator`` and ``data/vidur``. ``--out`` writes elsewhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from gkestimator.training import train

ROOT = Path(__file__).resolve().parent.parent
FORMATS = ("neusight", "deepbench", "aiconfigurator", "vidur")


def main() -> int:
    """Exit status 0, or 2 without the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "models/default")
    options = parser.parse_args()
    shared = os.environ.get("GKEST_SHARED")
    if not shared or not (Path(shared) / "data").is_dir():
        print("GKEST_SHARED does not name a folder with data/ (the public measurements)", file=sys.stderr)
        return 2
    sources = [Path(shared) / "data" / name for name in FORMATS]
    begun = time.monotonic()

    def tell(text: str, *_: object) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {text}", file=sys.stderr, flush=True)

    report = train(sources, options.out, progress=tell, name="default")
    tell("bundle written")
    print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
