"""Models to edit, read from text or protos, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from gkestimator.merging.editing import EditableModel, read_editable


@pytest.fixture
def header() -> str:
    """What text without a header gets: an opset that has a later one to be brought to."""
    return '<ir_version: 8, opset_import: ["": 17]>\n'


@pytest.fixture
def saved(tmp_path: Path, header: str) -> Callable[..., Path]:
    """Return ``saved(text or ModelProto, name)``: the path of the written file; text without a header gets one."""

    def saved_(model: str | onnx.ModelProto, name: str = "m") -> Path:
        if isinstance(model, str):
            if not model.lstrip().startswith("<"):
                model = header + model
            model = onnx.parser.parse_model(model)
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return saved_


@pytest.fixture
def read(saved: Callable[..., Path]) -> Callable[..., EditableModel]:
    """``read(text or ModelProto, name)``: the model as read, with the prefix ``name/``."""

    def read_(model: str | onnx.ModelProto, name: str = "m") -> EditableModel:
        return read_editable(saved(model, name), prefix=f"{name}/", name=name)

    return read_


@pytest.fixture
def run() -> Callable[..., dict[str, np.ndarray]]:
    """``run(path, feeds)``: the outputs in ONNX Runtime by name, graph as it stands."""
    ort = pytest.importorskip("onnxruntime")

    def run_(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))

    return run_
