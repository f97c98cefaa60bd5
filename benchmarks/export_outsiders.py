"""Export some thirty models the way people outside this project do, with random weights and what is true of each.

Run by hand where the exporters are installed::

    pip install torch==2.13.0 torchvision==0.28.0 transformers diffusers onnx onnxscript onnxruntime \\
        skl2onnx scikit-learn lightgbm onnxmltools jax flax jax2onnx
    python benchmarks/export_outsiders.py FOLDER [NAME...]

Files that are there are kept. Nothing is downloaded. Beside ``NAME.onnx`` lies ``NAME.truth.json``: which dimension is
the batch, how many parameters torch counts and how many operations ``torch.utils.flop_counter`` counts at ``dims``.
``benchmarks/outsiders.py`` puts the folder through gkest.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import _outsiders_language
import _outsiders_others
import _outsiders_vision
from _outsiders_shared import BUILDERS

__all__ = [
    "_outsiders_language",
    "_outsiders_others",
    "_outsiders_vision",
    "main",
]  # importing them lists their models


def main(folder: Path, names: list[str]) -> int:
    """Write the models ``names``, all without, into ``folder``; a model that cannot be written is named, the others go on."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names or list(BUILDERS):
        path = folder / f"{name}.onnx"
        notes = path.with_suffix(".truth.json")
        if notes.exists():
            continue
        start = time.perf_counter()
        try:
            truth = BUILDERS[name](path)
        except Exception:  # noqa: BLE001  (exporters raise anything)
            traceback.print_exc()
            print(f"{name}: not written", flush=True)
            failed += 1
            continue
        notes.write_text(json.dumps(asdict(truth), indent=1))
        print(f"{name}: {truth.exporter}, {time.perf_counter() - start:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
