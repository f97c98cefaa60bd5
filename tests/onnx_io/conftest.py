"""Fixtures that turn a model (text of onnx.parser, or ModelProto) into a file and read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

from gkestimator.onnx_io import Model, read_model

HEADER = '<ir_version: 10, opset_import: ["": 21]>\n'


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Model]:
    """``load(text or ModelProto)`` writes the model to a file and reads it; text without a header gets opset 21."""

    def load_(model: str | onnx.ModelProto, name: str = "model") -> Model:
        if isinstance(model, str):
            model = onnx.parser.parse_model(model if model.lstrip().startswith("<") else HEADER + model)
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        return read_model(path)

    return load_
