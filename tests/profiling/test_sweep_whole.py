"""Whole models as entries: what goes into their fragments, which are planned, in which order, and what is said."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from whole_model_files import ENCODER, MATRIX, SPLITTER, model_file

from gkestimator.cli import run
from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.fragments import Fragment, FragmentTensor
from gkestimator.core.graph import OperatorGraph, Tensor
from gkestimator.estimation import estimate_rows
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.onnx_io import read_model
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.profiling.plan import ModelPoint, PlanEntry, entry_id, read_plan
from gkestimator.profiling.sweep import Planned, PlanRequest, make_whole_plan
from gkestimator.profiling.sweep.cost import COSTS
from gkestimator.profiling.sweep.extraction import NotAFragmentError
from gkestimator.profiling.sweep.model_fragments import model_fragment, model_patterns
from gkestimator.profiling.sweep.model_prices import model_s

DATA = Path(__file__).parents[1] / "data"
SHARED = Path(os.environ.get("GKEST_SHARED", ""), "models")
GRAPHS = sorted(SHARED.glob("*/*.onnx")) if os.environ.get("GKEST_SHARED") else []
TORCH = LoweringOptions(
    runtime="torch",
    dtype="fp32",
    matmul_precision=Precision.FP32,
    conv_precision=Precision.FP32,
    unfold_batchnorm=False,
)
EMBEDDINGS = {
    "words": (50, 4),
    "positions": (32, 4),
    "types": (2, 4),
    "column": (4, 1),
    "scale": (4,),
    "shift": (4,),
}


def planned(*models: Path, **options: object) -> Planned:
    return make_whole_plan(PlanRequest(models=[str(m) for m in models], catalogue=False, **options))  # type: ignore[arg-type]


def encoder(folder: Path, name: str = "encoder.onnx") -> Path:
    return model_file(folder / name, ENCODER, **EMBEDDINGS, square=(4, 4))


def graph_of(path: Path, batch: int | None = 1, **dims: int) -> OperatorGraph:
    return read_model(path).bind(batch_size=batch, dims=dims)


def inputs_of(fragment: Fragment, dtype: DType) -> list[FragmentTensor]:
    return [t for t in fragment.tensors if t.role == "input" and t.dtype is dtype]


def test_whole_numbers_stay_below_the_table_that_they_reach_and_masks_are_0_or_1(tmp_path: Path) -> None:
    found = inputs_of(model_fragment(graph_of(encoder(tmp_path), 2, S=8), "model:encoder"), DType.INT64)
    given = sorted(t.below for t in found if t.fill == "index" and t.below is not None)
    assert given == [2, 2, 50]
    assert [t.shape for t in found if t.fill == "index"] == [(2, 8)] * 3


def test_positions_that_the_file_makes_are_inputs_with_values_and_are_looked_up_at_every_call(
    tmp_path: Path,
) -> None:
    graph = graph_of(encoder(tmp_path), 1, S=16)
    fragment = model_fragment(graph, "model:encoder")
    assert [t.values for t in fragment.tensors if t.role == "input" and t.values] == [tuple(range(16))]
    assert _kernels(graph) == _kernels(fragment_graph(fragment))


def _kernels(graph: OperatorGraph) -> list[object]:
    return sorted(
        (str(k.family), k.variant, k.flops, k.read_bytes, k.write_bytes)
        for s in lower(graph, TORCH).steps
        for k in s.kernels
    )


def test_the_outputs_are_the_models_and_not_the_last_operators(tmp_path: Path) -> None:
    fragment = model_fragment(graph_of(encoder(tmp_path), S=8), "model:encoder")
    made = {name: node.op_type for node in fragment.nodes for name in node.outputs}
    assert [made[name] for name in fragment.outputs] == ["MatMul", "MatMul"]
    assert fragment.nodes[-1].outputs == (fragment.outputs[0],)
    assert fragment == Fragment.parse(fragment.text(), where="here")


def test_constant_positions_keep_their_values_up_to_4096(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    window (float[N, 9, 3] x) => (float[N, M, 3] y) { y = Gather<axis = 1>(x, near) }"""
    for count, kept in ((4096, True), (4097, False)):
        near = np.arange(count, dtype=np.int64) % 7
        path = model_file(tmp_path / "window.onnx", text, near=near)
        fragment = model_fragment(graph_of(path), "model:w")
        (index,) = (t for t in fragment.tensors if t.dtype is DType.INT64)
        assert index.elements == count
        assert (index.values == tuple(near), index.fill) == (kept, "value" if kept else "index")


@pytest.mark.parametrize("opset", [11, 17])
def test_splits_through_sequences_are_splits_and_do_what_the_file_does(tmp_path: Path, opset: int) -> None:
    torch_executor = pytest.importorskip("gkestimator.profiling.executors.torch")
    pytest.importorskip("torch")
    ort = pytest.importorskip("onnxruntime")
    path = model_file(tmp_path / "splitter.onnx", SPLITTER.replace(": 17", f": {opset}"))
    (entry,) = planned(path, cpu=True).plan.entries
    assert [n.op_type for n in entry.fragment.nodes] == ["Split", "Exp", "Sub"]
    from gkestimator.profiling.executors.data import entry_inputs

    (given,) = entry_inputs(entry, 3).values()
    expected = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": given})
    prepared = torch_executor.TorchExecutor("cpu").prepare(entry, 3)
    try:
        for ours, theirs in zip(prepared.outputs(), expected, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6)
    finally:
        prepared.close()


def test_another_batch_than_the_file_was_exported_at_is_reshaped_to(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from gkestimator.profiling.executors.torch import TorchExecutor

    text = """<ir_version: 8, opset_import: ["" : 17]>
    folded (float[2, 6] x) => (float[2, 3, 2] y) { y0 = Reshape(x, shape)  y = Exp(y0) }"""
    path = model_file(tmp_path / "folded.onnx", text, shape=np.array([2, 3, 2], dtype=np.int64))
    for entry in planned(path, cpu=True, batch_sizes=(2, 5)).plan.entries:
        assert entry.model is not None
        prepared = TorchExecutor("cpu").prepare(entry, 0)
        assert prepared.output_shapes == ((entry.model.batch_size, 3, 2),)
        prepared.close()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("s = SequenceConstruct(x, x) y = ConcatFromSequence<axis = 0>(s)", "sequences"),
        (
            "n = Constant<value_int = 3>() c = Constant<value = bool[1] {1}>() "
            "y = Loop<body = b (int64 i, bool t, float[N, 4] u) => (bool o, float[N, 4] v) { o = Identity(t) v = Exp(u) }>"
            "(n, c, x)",
            "loops that repeat",
        ),
    ],
)
def test_what_cannot_be_one_fragment_is_a_line_and_the_others_are_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, why: str
) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]> odd (float[N, 4] x) => (float[M, 4] y) '
    model_file(tmp_path / "odd.onnx", f"{head} {{ {body} }}")
    model_file(tmp_path / "good.onnx", MATRIX, w=(4, 4))
    (tmp_path / "torn.onnx").write_bytes(b"\xff\x00 no model")
    out = tmp_path / "plan.json"
    code = run(
        ["profile", "plan", "--whole", "--models", str(tmp_path), "--cpu", "--dim", "K=4", "-o", str(out)]
    )
    said = capsys.readouterr().err
    assert code == 1
    errors = [line for line in said.splitlines() if line.startswith("gkest: error:")]
    assert [("odd" in e, "torn" in e) for e in errors] == [(True, False), (False, True)]
    assert f"cannot be measured as a whole: {why}" in errors[0]
    assert [e.model and e.model.name for e in read_plan(out).entries] == ["good"]


def test_one_weight_seen_in_one_shape_is_one_tensor_and_its_parts_stay_apart(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    shared (float[N, 4] x) => (float[N, 4] y)
    { one = Unsqueeze(w, axis) two = Unsqueeze(w, axis) low = Slice(w, a, b) high = Slice(w, b, c)
      p = MatMul(x, one) q = MatMul(p, two) r = MatMul(q, low_t) s = MatMul(r, high_t) y = Squeeze(s, axis) }"""
    text = text.replace(
        "p = MatMul", "low_t = Concat<axis = 0>(low, low) high_t = Concat<axis = 0>(high, high) p = MatMul"
    )
    ends = {name: np.array([n], dtype=np.int64) for name, n in (("axis", 0), ("a", 0), ("b", 2), ("c", 4))}
    graph = graph_of(model_file(tmp_path / "shared.onnx", text, w=(4, 4), **ends), 3)
    fragment = model_fragment(graph, "model:shared")
    weights = [t for t in fragment.tensors if t.role == "weight"]
    assert sorted(t.shape for t in weights) == [(1, 4, 4), (4, 4), (4, 4)]
    assert sum(t.nbytes for t in weights) == sum(graph.weights.values())


def test_operators_of_an_older_opset_are_raised_only_where_nothing_changed(tmp_path: Path) -> None:
    graph = graph_of(model_file(tmp_path / "matrix.onnx", MATRIX, w=(4, 4)), K=4)
    older = replace(graph.operators[0], version=14)
    mixed = replace(graph, operators=(older, *graph.operators[1:]))
    assert model_fragment(mixed, "model:m") == model_fragment(graph, "model:m")
    with pytest.raises(NotAFragmentError, match="MatMul of opset 8 beside operators of opset 17"):
        model_fragment(replace(graph, operators=(replace(older, version=8), *graph.operators[1:])), "model:m")


def test_patterns_are_names_all_different_and_never_too_long() -> None:
    found = model_patterns(["resnet 50", "resnet_50", "timm/resnet50", "ü" * 200, "ö" * 200, "7"])
    assert found[:3] == ("model:resnet_50", "model:resnet_50-2", "model:timm/resnet50")
    assert len(set(found)) == len(found)
    assert max(map(len, found)) == 100


def test_the_row_is_the_estimates(tmp_path: Path) -> None:
    folders = [encoder(tmp_path / folder) for folder in ("a", "b")]
    plan = planned(*folders, gpu="V100", batch_sizes=(1, 8), dims={"S": 8}).plan
    rows = estimate_rows(folders, gpus=["V100"], batch_sizes=[1, 8], dims={"S": 8}, dtype="fp16").rows
    keys = {(r.model, r.batch_size, r.dims, r.gpu) for r in rows}
    points = [(e.model, plan.gpu) for e in plan.entries if e.dtype == "fp16"]
    assert {
        (p.name, p.batch_size, ",".join(f"{k}={v}" for k, v in p.dims.items()), g) for p, g in points if p
    } == keys
    assert len(points) == len(rows) == 4


@pytest.mark.slow
def test_batches_1_8_32_come_first_precisions_alternate_and_equal_graphs_last(tmp_path: Path) -> None:
    one, same = (model_file(tmp_path / n, MATRIX, w=(64, 64)) for n in ("b.onnx", "c.onnx"))
    large = model_file(tmp_path / "a.onnx", MATRIX.replace("[N, K]", "[N, 4096]"), w=(4096, 4096))
    options = {"dims": {"K": 64}, "batch_sizes": (3, 32, 4, 1, 8), "minutes": 100.0}
    found = planned(one, same, large, **options)
    order = [(e.model.name, e.model.batch_size, e.dtype) for e in found.plan.entries if e.model]
    assert [d for _, _, d in order] == ["fp32", "fp16"] * 15
    turns = [(n, b) for n, b, d in order if d == "fp32"]
    assert turns[:3] == [("b", 1), ("b", 8), ("b", 32)]
    assert [{b for n, b in turns[i:j]} for i, j in ((0, 6), (6, 8), (8, 10))] == [{1, 8, 32}, {4}, {3}]
    assert turns[10:] == [("c", b) for b in (1, 8, 32, 4, 3)]
    assert "c (as b)" in "\n".join(found.messages)
    shorter = planned(one, same, large, **{**options, "minutes": (found.plan.estimated_s or 0) / 120})
    assert 0 < len(shorter.plan.entries) < len(order)
    assert shorter.plan.entries == found.plan.entries[: len(shorter.plan.entries)]
    assert (shorter.plan.estimated_s or 0) <= (found.plan.estimated_s or 0) / 2
    assert f"the budget ends before {30 - len(shorter.plan.entries)} entries" in "\n".join(shorter.messages)
    assert planned(one, same, large, **{**options, "entries": 4}).plan.entries == found.plan.entries[:4]


def test_what_a_named_gpu_has_no_memory_for_is_left_out_and_told(tmp_path: Path) -> None:
    text = MATRIX.replace("[N, K]", "[N, 70000]")
    vast = model_file(tmp_path / "vast.onnx", text, w=(70_000, 70_000))  # 19.6 GB in fp32, half of it in fp16
    found = planned(vast, gpu="V100-SXM2-16GB", batch_sizes=(1,), minutes=100.0)
    assert [e.dtype for e in found.plan.entries] == ["fp16"]
    assert not found.failures
    assert any("15.8 GiB of the V100-SXM2-16GB are estimated: vast fp32 batch 1" in m for m in found.messages)
    assert (
        len(planned(vast, batch_sizes=(1,), minutes=100.0).plan.entries) == 2
    )  # nothing is known of the GPU
    with pytest.raises(UsageError, match="left out, for more than the 15.8 GiB"):
        planned(vast, gpu="V100-SXM2-16GB", dtypes=("fp32",))


def test_a_model_in_half_precision_is_planned_in_that_alone() -> None:
    half = DATA / "exporters" / "float16_encoder.onnx"
    (entry,) = planned(half, dims={"tokens": 16}).plan.entries
    assert entry.dtype == "fp16"
    assert not [t for t in entry.fragment.tensors if t.dtype is DType.FLOAT and t.role == "weight"]
    with pytest.raises(
        UsageError, match="float16_encoder is in fp16, which is not among the precisions wanted"
    ):
        planned(half, dims={"tokens": 16}, dtypes=("fp32", "bf16"))


def test_a_cast_that_does_nothing_in_half_precision_stays(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> cast (float[N, 4] x) => (float[N, 4] y) { c = Cast<to = 1>(x) y = Exp(c) }'
    found = planned(model_file(tmp_path / "cast.onnx", text), dtypes=("fp32", "fp16", "bf16")).plan
    for entry in found.entries:
        assert [n.op_type for n in entry.fragment.nodes] == ["Cast", "Exp"]
        assert entry.fragment.nodes[0].attributes["to"] == {"fp32": 1, "fp16": 10, "bf16": 16}[entry.dtype]
    assert [e.dtype for e in found.entries] == ["fp32", "fp16", "bf16"]


def test_the_command_writes_a_plan_that_can_be_read_and_says_what_was_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "models.json"
    model_file(tmp_path / "matrix.onnx", MATRIX, w=(8, 8))
    args = [
        "profile",
        "plan",
        "--whole",
        "--models",
        str(tmp_path),
        "--dim",
        "K=8",
        "--batch-size",
        "1,2",
        "-o",
        str(out),
    ]
    assert run(args) == 0
    plan = read_plan(out)
    assert [(e.model, e.dtype, e.counters) for e in plan.entries] == [
        (ModelPoint(name="matrix", batch_size=b, dims={"K": 8}), d, False)
        for b in (1, 2)
        for d in ("fp32", "fp16")
    ]
    assert all(e.id == entry_id(e.fragment, e.dtype) and e.source == "model:matrix" for e in plan.entries)
    assert all(e.fragment.pattern == "model:matrix" and (e.estimated_s or 0) > 0 for e in plan.entries)
    assert "4 entries of 4" in capsys.readouterr().err
    document = json.loads(out.read_text())
    assert document["gpu"] is None
    assert document["entries"][0]["model"] == {"name": "matrix", "batch_size": 1, "dims": {"K": 8}}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (["--counters", "0.5"], "--counters is of operators"),
        (["--catalogue"], "--catalogue is of operators"),
        (["--dim", "K=8", "--dim", "Q=3"], "--dim Q: no model has a symbolic dimension"),
        (["--dim", "K=8", "--dtype", "int8"], "dtype: found 'int8'"),
        (["--dim", "K=8", "--gpu", "V100", "--dtype", "bf16"], "bf16"),
        (["--dim", "K=8", "--minutes", "0.001"], "minutes: found 0.001"),
        ([], "dimension K has no size"),
        (["--dim", "K=8", "--batch-size", "0"], "0"),
    ],
)
def test_bad_requests_are_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: list[str], expected: str
) -> None:
    path = model_file(tmp_path / "matrix.onnx", MATRIX, w=(8, 8))
    out = tmp_path / "plan.json"
    assert run(["profile", "plan", "--whole", "--models", str(path), "-o", str(out), *extra]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert expected in line
    assert not out.exists()


def test_without_models_there_is_nothing_to_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "plan", "--whole", "-o", str(tmp_path / "plan.json")]) == 2
    assert capsys.readouterr().err == "gkest: error: --whole plans models: name some with --models\n"
    with pytest.raises(UsageError, match="--whole plans models"):
        make_whole_plan(PlanRequest())
    with pytest.raises(UsageError, match="nothing to plan: .*no file matches"):
        make_whole_plan(PlanRequest(models=["/nowhere/*.onnx"], catalogue=False))


def test_a_reason_names_the_batch_sizes_that_it_holds_for(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    fixed (float[3, 4] x) => (float[4, 3] y) { t = Transpose(x) y = MatMul(t, w) }"""
    path = model_file(tmp_path / "fixed.onnx", text, w=(3, 3))
    found = planned(path, cpu=True, batch_sizes=(3, 5, 6))
    assert [e.model.batch_size for e in found.plan.entries if e.model] == [3]
    assert [str(e).rpartition(" (")[2] for _, e in found.failures] == ["batch size 5)", "batch size 6)"]
    assert all(str(e).startswith("fixed: ") and p == path for p, e in found.failures)


def test_seconds_of_a_model_follow_its_repeats() -> None:
    costs = COSTS["torch"]
    alike = {"nbytes": 10**8, "nodes": 100, "launches": 100, "costs": costs}
    short, long = (model_s(s, **alike) for s in (0.01, 0.02))  # type: ignore[arg-type]
    assert long - short == pytest.approx((50 + 8) * 0.01 * (1 + costs.chunk_s / costs.chunk_work_s))
    # 450 calls more in the latency pass, 495 more in the timeline.
    assert model_s(0.01, repeats=500, **alike) > short + 9  # type: ignore[arg-type]


@pytest.mark.shared
@pytest.mark.skipif(not GRAPHS, reason="GKEST_SHARED does not name a folder with models/*/*.onnx")
def test_fragments_of_public_models_do_what_the_files_do() -> None:
    paths = [
        p
        for p in GRAPHS
        if p.stem in ("bert", "gpt2", "xlnet", "bloom_560", "vit_base_patch16_224", "resnet50")
    ]
    found = planned(*paths, cpu=True, batch_sizes=(1,), minutes=1e6)
    assert not found.failures
    assert len(found.plan.entries) == len(paths) > 0
    by_name = {e.model.name: e for e in found.plan.entries if e.model}
    for path in paths:
        entry = by_name.get(path.stem) or by_name[f"{path.parent.name}/{path.stem}"]
        file, ours = (
            [k for s in lower(g, TORCH).steps for k in s.kernels]
            for g in (graph_of(path), fragment_graph(entry.fragment))
        )
        assert (len(ours), sum(k.flops for k in ours)) == (len(file), sum(k.flops for k in file)), path


@pytest.mark.shared
@pytest.mark.skipif(not GRAPHS, reason="GKEST_SHARED does not name a folder with models/*/*.onnx")
def test_both_executors_give_one_answer_for_a_public_model() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    from gkestimator.profiling.executors.onnxruntime import OnnxruntimeExecutor
    from gkestimator.profiling.executors.torch import TorchExecutor

    (entry,) = planned(
        SHARED / "timm" / "mobilenetv3_large_100.onnx", cpu=True, batch_sizes=(2,)
    ).plan.entries
    one, two = (kind("cpu").prepare(_inside(entry), 0) for kind in (TorchExecutor, OnnxruntimeExecutor))
    try:
        for ours, theirs in zip(one.outputs(), two._binding.get_outputs(), strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-4)
    finally:
        one.close()
        two.close()


def _inside(entry: PlanEntry) -> PlanEntry:
    """With the results of all convolutions and matrix products as outputs: of an input little is left at the end."""
    names = [o for n in entry.fragment.nodes if n.op_type in ("Conv", "Gemm") for o in n.outputs]
    return replace(entry, fragment=replace(entry.fragment, outputs=tuple(names)))


def test_graphs_whose_outputs_are_sequences_are_refused(tmp_path: Path) -> None:
    graph = graph_of(model_file(tmp_path / "matrix.onnx", MATRIX, w=(4, 4)), K=4)
    with pytest.raises(NotAFragmentError, match="sequences"):
        model_fragment(replace(graph, outputs=(_sequence(graph.inputs[0]),)), "model:m")


def _sequence(value: object) -> object:
    from gkestimator.core.graph import Sequence

    assert isinstance(value, Tensor)
    return Sequence(name="held", elements_=(value,))
