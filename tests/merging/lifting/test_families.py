"""Families of models: siblings end as one trunk that is cut where they part; outputs are the originals'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("scipy")
import families
import onnx
import pipelines

from gkestimator.merging.editing import tidy

Model = Callable[[], onnx.ModelProto]
MODELS: dict[str, Model] = {
    "resnet": lambda: families.resnet_like(seed=1),
    "resnet with BatchNormalization": lambda: families.resnet_like(seed=1, folded=False),
    "mobilenet": lambda: families.mobilenet_like(seed=1),
    "bert": lambda: families.bert_like(seed=1),
    "bert of batch 2": lambda: families.bert_like(seed=1, batch=2, reshape="literal"),
    "bert with shapes at run time": lambda: families.bert_like(seed=1, reshape="shape"),
    "bert in pieces": lambda: families.bert_like(seed=1, decomposed=True, opset=13),
    "gpt": lambda: families.gpt_like(seed=1),
    "gpt in pieces": lambda: families.gpt_like(seed=1, decomposed=True),
}
HELPERS = ("Concat", "Split", "Shape", "Gather", "Slice", "Reshape", "Unsqueeze", "Mul")


@pytest.mark.parametrize("name", MODELS)
def test_siblings_end_as_one_trunk(name: str, tmp_path: Path) -> None:
    one = MODELS[name]()
    pair = [one, families.sibling(one, last=1)]
    built = pipelines.build(pair, tmp_path)
    dims = [{"batch": 2}, {"batch": 3}]
    assert pipelines.largest_difference(built.model, pair, tmp_path, dims) <= 1e-5
    alone = {op: sum(n.op_type == op for n in one.graph.node) for op in {n.op_type for n in one.graph.node}}
    found = pipelines.counted(tidy(built.model))
    heads = {"MatMul": 1, "Gemm": 1, "Add": 1}  # the layer that was drawn anew, and its bias
    for op in set(alone) - set(HELPERS):
        assert alone[op] <= found[op] <= alone[op] + heads.get(op, 0), op
    assert found["Split"] <= alone.get("Split", 0) + 2


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "bert", "gpt"])
def test_three_models_of_other_batches(name: str, tmp_path: Path) -> None:
    one = MODELS[name]()
    models = [one, families.sibling(one, last=1), families.sibling(one, last=2, seed=5)]
    built = pipelines.build(models, tmp_path)
    dims = [{"batch": 1}, {"batch": 3}, {"batch": 2}]
    assert pipelines.largest_difference(built.model, models, tmp_path, dims) <= 1e-5
    assert len(built.model.nodes) < 0.6 * 3 * len(one.graph.node)


@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_half_precision(name: str, tmp_path: Path) -> None:
    build = {"resnet": families.resnet_like, "bert": families.bert_like}[name]
    one = build(seed=1, dtype=families.FLOAT16)
    pair = [one, families.sibling(one, last=1)]
    built = pipelines.build(pair, tmp_path)
    dims = [{"batch": 1}, {"batch": 3}]
    assert pipelines.largest_difference(built.model, pair, tmp_path, dims) <= 2e-3
    assert len(built.model.nodes) < 1.3 * len(one.graph.node)


def test_weights_that_almost_agree(tmp_path: Path) -> None:
    one = families.bert_like(seed=1)
    pair = [one, families.nudged(one)]
    built = pipelines.build(pair, tmp_path)
    dims = [{"batch": 2}, {"batch": 3}]
    assert pipelines.largest_difference(built.model, pair, tmp_path, dims) <= 1e-4
    assert len(built.model.nodes) < 1.2 * len(one.graph.node)


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "bert", "gpt"])
def test_shifted_blocks_keep_their_results(name: str, tmp_path: Path) -> None:
    one = MODELS[name]()
    pair = [one, families.shifted(one)]
    built = pipelines.build(pair, tmp_path)
    dims = [{"batch": 3}, {"batch": 2}]
    assert pipelines.largest_difference(built.model, pair, tmp_path, dims) <= 1e-5


def test_embeddings_of_other_tables_are_joined_behind_them(tmp_path: Path) -> None:
    """Tables that differ are looked up apart; what follows runs once."""
    one = families.bert_like(seed=1)
    other = onnx.ModelProto()
    other.CopyFrom(one)
    table = next(t for t in other.graph.initializer if list(t.dims) == [100, 32])
    table.CopyFrom(families.stored(table.name, -families.values(table), table.data_type))
    built = pipelines.build([one, other], tmp_path)
    dims = [{"batch": 2}, {"batch": 3}]
    assert pipelines.largest_difference(built.model, [one, other], tmp_path, dims) <= 1e-5
    found = pipelines.counted(tidy(built.model))
    assert found["LayerNormalization"] == sum(n.op_type == "LayerNormalization" for n in one.graph.node)
    joins = [n for n in built.model.nodes if n.op_type == "Concat" and n.name.startswith("merged/")]
    tables = {o for n in built.model.nodes if n.op_type == "Gather" for o in n.outputs}
    assert any(set(n.inputs) <= tables for n in joins)
