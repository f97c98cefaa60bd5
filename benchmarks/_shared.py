"""Where benchmarks find the public graphs and measurements, and how they fill a graph with zero weights."""

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
        sys.exit("set GKEST_SHARED to the folder that holds models/ and data/ (see docs/benchmarks.md)")
    return Path(given)


def with_zero_weights(source: Path, target: Path) -> Path:
    """A copy of ``source`` whose absent external weights are zeros inside the file (what onnx-tool needs)."""
    import onnx

    model = onnx.load(str(source), load_external_data=False)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            nbytes = _ELEMENT_BYTES[tensor.data_type] * math.prod(tensor.dims)
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = bytes(nbytes)
    onnx.save(model, str(target))
    return target
