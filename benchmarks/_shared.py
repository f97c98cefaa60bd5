"""Find the public graphs and measurements for benchmarks, and fill a graph with zero weights."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

_ELEMENT_BYTES = {1: 4, 2: 1, 3: 1, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 16: 2}


def shared_dir() -> Path:
    """The folder of public measurements and graphs; ends the program with one line when it is not there."""
    given = os.environ.get("GKEST_SHARED", "")
    if not given or not Path(given, "models").is_dir():
        sys.exit(
            "set GKEST_SHARED to the folder that holds models/ and data/ (see docs/appendix/benchmarks.md)"
        )
    return Path(given)


def with_zero_weights(source: Path, target: Path) -> Path:
    """A copy of ``source`` whose absent external weights are zeros (what onnx-tool needs).

    Inside the file up to 1 GiB, beyond that in one sparse file of zeros beside it, which every tensor points to.
    """
    import onnx

    model = onnx.load(str(source), load_external_data=False)
    absent = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    sizes = [_ELEMENT_BYTES[t.data_type] * math.prod(t.dims) for t in absent]
    inside = sum(sizes) <= 1 << 30
    if not inside:
        with open(target.with_suffix(".zeros"), "wb") as f:
            f.truncate(max(sizes))
    for tensor, nbytes in zip(absent, sizes, strict=True):
        del tensor.external_data[:]
        if inside:
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = bytes(nbytes)
        else:
            for key, value in (
                ("location", target.with_suffix(".zeros").name),
                ("offset", "0"),
                ("length", str(nbytes)),
            ):
                tensor.external_data.add(key=key, value=value)
    target.write_bytes(model.SerializeToString())
    return target


def exported_models() -> list[Path]:
    """Return the graphs of whole models by several exporters; timm's 88 vision models beside them are for accuracy alone."""
    folders = [shared_dir() / "models" / name for name in ("ethz", "llm", "timm")]
    return sorted(path for folder in folders for path in folder.glob("*.onnx"))
