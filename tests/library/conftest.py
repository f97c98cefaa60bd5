"""What tests of the library share: small models, and an estimate of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_nets import net

import gkestimator


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with two models, one in a folder of its own."""
    folder = tmp_path / "models"
    (folder / "inner").mkdir(parents=True)
    (folder / "net.onnx").write_bytes(net().SerializeToString())
    (folder / "inner" / "tanh.onnx").write_bytes(net("y = Tanh (x)").SerializeToString())
    return folder


@pytest.fixture
def needs(models: Path) -> gkestimator.Requirements:
    """An estimate of one model on two GPUs at two batch sizes."""
    return gkestimator.estimate(models / "net.onnx", ["V100", "T4"], [1, 8])
