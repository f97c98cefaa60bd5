"""Fixtures that turn a model (text of onnx.parser, or ModelProto) into a file and read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest

from gkestimator.onnx_io import Model, read_model


@pytest.fixture
def header() -> str:
    """What text without a header gets."""
    return '<ir_version: 10, opset_import: ["": 21]>\n'


@pytest.fixture
def saved(tmp_path: Path, header: str) -> Callable[..., Path]:
    """``saved(text or ModelProto, name)`` writes the model to a file; text without a header gets ``header``."""

    def saved_(model: str | onnx.ModelProto, name: str = "m") -> Path:
        if isinstance(model, str):
            model = onnx.parser.parse_model(model if model.lstrip().startswith("<") else header + model)
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return saved_


@pytest.fixture
def load(saved: Callable[..., Path]) -> Callable[..., Model]:
    """``load(text or ModelProto, name)``: the model as an estimate reads it."""

    def load_(model: str | onnx.ModelProto, name: str = "model") -> Model:
        return read_model(saved(model, name))

    return load_
