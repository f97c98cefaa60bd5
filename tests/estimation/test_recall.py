"""What is remembered between calls is bounded, and never answers for another file, option or rule."""

from __future__ import annotations

import os
from pathlib import Path

import onnx.parser
import pytest

from gkestimator.core.kernels import KernelGraph, Step
from gkestimator.estimation import estimate_rows
from gkestimator.estimation.recall import RECALL, Recall, RecalledLowering

TEXT = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 64] x, float[64, 64] w) => (float[N, 64] y) {
      m = MatMul (x, w)
      y = Relu (m)
    }"""


@pytest.fixture(autouse=True)
def empty() -> None:
    RECALL.forget()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(TEXT).SerializeToString())
    return path


def entry(steps: int) -> RecalledLowering:
    step = Step(name="s", op_type="X", kernels=(), reads=(), writes=(), host_calls=0)
    graph = KernelGraph(
        name="m", runtime="torch", dtype="fp32", steps=(step,) * steps, weights={}, inputs={}, outputs={}
    )
    return RecalledLowering(graph=graph, batch_size=1, dims="", dtype="fp32", host_operators=(), warnings=())


def test_asking_again_gives_the_same_rows_without_reading(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"gpus": ["V100", "H100"], "batch_sizes": [1, 8]}
    first = estimate_rows([model], **options)

    def unread(*_: object, **__: object) -> None:
        raise AssertionError("the file was read again")

    monkeypatch.setattr("gkestimator.estimation.recall.read_model", unread)
    assert estimate_rows([model], **options).rows == first.rows
    other = estimate_rows(
        [model], gpus=["T4"], batch_sizes=[8], sm_shares=[50], host_overhead_us=3.0, dtype="auto"
    )
    assert other.rows[0].flops == first.rows[-1].flops
    for changed in (
        {"batch_sizes": [2]},
        {"dtype": "fp16"},
        {"runtime": "onnxruntime"},
        {"attention": "eager"},
    ):
        ((_, error),) = estimate_rows([model], **(options | changed)).failures
        assert "read again" in str(error)


def test_a_changed_file_is_read_again(model: Path) -> None:
    before = estimate_rows([model], gpus=["V100"], batch_sizes=[8]).rows[0]
    size = model.stat().st_size
    model.write_bytes(onnx.parser.parse_model(TEXT.replace("Relu", "Tanh")).SerializeToString())
    assert model.stat().st_size == size
    os.utime(model, ns=(1, 1))
    after = estimate_rows([model], gpus=["V100"], batch_sizes=[8], kernels=True)
    assert [k.op_type for k in after.kernel_rows][-1] == "Tanh"
    assert after.rows[0].flops == before.flops


def test_errors_are_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    assert estimate_rows([path], gpus=["V100"], batch_sizes=[1]).failures
    assert len(RECALL) == 0


def test_the_least_recently_used_make_room() -> None:
    recall = Recall(most_steps=10)
    for name in "abc":
        recall.put(name, entry(4))
    assert recall.get("a") is None and recall.get("b") is not None and recall.get("c") is not None
    recall.get("b")
    recall.put("d", entry(4))
    assert recall.get("c") is None and recall.get("b") is not None
    recall.put("huge", entry(11))
    assert recall.get("huge") is None and len(recall) == 2
