"""Trains the default bundle on the public data and writes docs/accuracy-heldout.md: ``python benchmarks/heldout.py``.

Needs the extra ``train`` and the environment variable GKEST_SHARED, a folder with ``data/neusight``, ``data/deepbench``,
``data/aiconfigurator`` and ``data/vidur``. ``--out`` and ``--report`` write elsewhere; ``--no-usher`` skips the baseline.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from gkestimator.evaluation.heldout import REQUIRED_PCT, report_text, usher_literal_all
from gkestimator.training import train

ROOT = Path(__file__).resolve().parent.parent
FORMATS = ("neusight", "deepbench", "aiconfigurator", "vidur")


def main() -> int:
    """Exit status 0, or 1 if a family misses its required error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "models/default")
    parser.add_argument("--report", type=Path, default=ROOT / "docs/accuracy-heldout.md")
    parser.add_argument("--no-usher", action="store_true")
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
    baselines = (
        ()
        if options.no_usher
        else usher_literal_all(sources, progress=lambda name: tell(f"USHER literal: {name}"))
    )
    text = report_text(report, baselines)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(text, encoding="utf-8")
    print(text)
    missed = [
        f"{m.name} {m.held_out_pct['neusight/train']} > {REQUIRED_PCT[m.name]}"
        for m in report.models
        if m.name in REQUIRED_PCT and m.held_out_pct["neusight/train"] > REQUIRED_PCT[m.name]
    ]
    if missed:
        print("missed: " + "; ".join(missed), file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
