"""A merged file against its originals in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import families
import numpy as np
import onnx
import pytest


def outputs(path: Path | str, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def same(merged: Path | str, originals: dict[str, str]) -> None:
    """Every output of ``merged`` is that of its original, at another batch for each."""
    asked: dict[str, np.ndarray] = {}
    expected: dict[str, np.ndarray] = {}
    for batch, (name, path) in enumerate(originals.items(), start=1):
        given = families.feeds(onnx.load(path), seed=batch, batch=batch)
        asked |= {f"{name}/{key}": value for key, value in given.items()}
        expected |= {f"{name}/{key}": value for key, value in outputs(path, given).items()}
    found = outputs(merged, asked)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5 * np.abs(value).max())
