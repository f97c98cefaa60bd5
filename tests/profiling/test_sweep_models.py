"""From models to fragments: each lowers to kernels that its model launches; what cannot stand alone is counted."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.core.graph import Operator, Tensor
from gkestimator.core.kernels import Family
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.onnx_io import read_model
from gkestimator.onnx_io.fragment_models import fragment_graph, fragment_model
from gkestimator.profiling.sweep.candidates import lowering_options
from gkestimator.profiling.sweep.extraction import NotAFragmentError, fragment_of
from gkestimator.profiling.sweep.from_models import ModelSweep, sweep_models

DATA = Path(__file__).parents[1] / "data"
EXPORTS = sorted([*(DATA / "exporters").glob("*.onnx"), *(DATA / "pattern_exports").glob("*.onnx")])
SHARED = Path(os.environ.get("GKEST_SHARED", ""), "models")
GRAPHS = sorted(SHARED.glob("*/*.onnx")) if os.environ.get("GKEST_SHARED") else []
RUNTIMES = ("torch", "onnxruntime")


def options(runtime: str) -> LoweringOptions:
    return lowering_options(runtime, ["fp32"], gpu_catalogue().spec("A100-SXM4-40GB"))["fp32"]


def swept(paths: list[Path], runtime: str) -> ModelSweep:
    """Each file with the dims that it has."""
    total = ModelSweep()
    for path in paths:
        model = read_model(path)
        dims = {d: 16 for d in model.dims if d != model.batch_dim}
        found = sweep_models([path], options=options(runtime), dims=dims)
        assert not found.failures, found.failures
        for text, call in found.calls.items():
            total.calls.setdefault(text, call)
        total.left_out.update(found.left_out)
        total.kernels.update({(str(path), batch): counts for (_, batch), counts in found.kernels.items()})
    return total


def matched(sweep: ModelSweep) -> tuple[int, int]:
    """How many distinct kernels of each model some fragment stands for, of how many; none that no model launches."""
    stood_for = {replace(k, weight_bytes=0, inputs=1) for call in sweep.calls.values() for k in call.kernels}
    launched = [{replace(k, weight_bytes=0, inputs=1) for k in counts} for counts in sweep.kernels.values()]
    assert stood_for <= set().union(*launched)
    return sum(len(kernels & stood_for) for kernels in launched), sum(map(len, launched))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_fragments_of_exports_lower_to_the_models_kernels(runtime: str) -> None:
    same, of = matched(swept(EXPORTS, runtime))
    print(f"{runtime}: {same} of {of} distinct kernels of {len(EXPORTS)} exports")
    assert same / of >= 0.98


@pytest.mark.shared
@pytest.mark.skipif(not GRAPHS, reason="GKEST_SHARED does not name a folder with models/*/*.onnx")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_fragments_of_public_models_lower_to_the_models_kernels(runtime: str) -> None:
    same, of = matched(swept(GRAPHS, runtime))
    print(f"{runtime}: {same} of {of} distinct kernels of {len(GRAPHS)} models")
    assert same / of >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_fragment_of_the_exports_is_a_model_that_onnxruntime_loads(runtime: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    rng = np.random.default_rng(0)
    refused: Counter[str] = Counter()
    sweep = swept(EXPORTS, runtime)
    for call in sweep.calls.values():
        model = fragment_model(
            call.fragment,
            weights=lambda t: np.zeros(t.nbytes, dtype=np.uint8) + rng.integers(1, 9, dtype=np.uint8),
        )
        try:
            ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        except Exception as e:  # noqa: BLE001  (onnxruntime raises classes of its own making)
            refused[f"{call.fragment.op_type}: {str(e)[:100]}"] += 1
    assert sum(refused.values()) <= 0.03 * len(sweep.calls), refused


def _tensor(name: str, shape: tuple[int, ...], dtype: DType = DType.FLOAT, **more: object) -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape, storage=name, **more)  # type: ignore[arg-type]


def _operator(op_type: str, inputs: tuple, outputs: tuple, **attributes: object) -> Operator:  # type: ignore[type-arg]
    return Operator(
        name="n",
        domain="",
        op_type=op_type,
        version=18,
        attributes=attributes,
        inputs=inputs,
        outputs=outputs,
    )  # type: ignore[arg-type]


def test_indices_stay_below_what_they_index_and_masks_are_truth_values() -> None:
    table, ids = _tensor("t", (50, 8), is_weight=True), _tensor("i", (3,), DType.INT64)
    gather = fragment_of([_operator("Gather", (table, ids), (_tensor("y", (3, 8)),), axis=0)])
    assert [(t.role, t.fill, t.below) for t in gather.tensors] == [
        ("weight", "normal", None),
        ("input", "index", 50),
    ]
    chosen, one, other = _tensor("c", (4,), DType.BOOL), _tensor("a", (4,)), _tensor("b", (4,))
    where = fragment_of([_operator("Where", (chosen, one, other), (_tensor("y", (4,)),))])
    assert where.tensors[0].fill == "mask"
    data, places = _tensor("d", (7, 3, 5)), _tensor("p", (2, 2), DType.INT64)
    nd = fragment_of([_operator("GatherND", (data, places), (_tensor("y", (2, 5)),))])
    assert nd.tensors[1].below == 3  # what suits both axes


def test_constants_that_decide_keep_their_values_and_weights_do_not() -> None:
    shape = _tensor("s", (2,), DType.INT64, is_weight=True, value=np.array([4, -1]))
    reshape = fragment_of([_operator("Reshape", (_tensor("x", (2, 4)), shape), (_tensor("y", (4, 2)),))])
    assert reshape.tensors[1].values == (4, -1)
    bias = _tensor("b", (4,), is_weight=True, value=np.ones(4, dtype=np.float32))
    add = fragment_of([_operator("Add", (_tensor("x", (2, 4)), bias), (_tensor("y", (2, 4)),))])
    assert add.tensors[1].role == "weight" and add.tensors[1].values is None
    lowest = _tensor("v", (), is_weight=True, value=np.array(-np.inf, dtype=np.float32))
    top = fragment_of([_operator("Max", (_tensor("x", (4,)), lowest), (_tensor("y", (4,)),))])
    assert top.tensors[1].values == (-65504.0,)  # JSON has no infinity


def test_what_cannot_stand_alone_says_why() -> None:
    known = _tensor("w", (4,), is_weight=True)
    with pytest.raises(NotAFragmentError, match="no input but constants"):
        fragment_of([_operator("Relu", (known,), (_tensor("y", (4,)),))])
    with pytest.raises(NotAFragmentError, match="tensors as attributes"):
        fragment_of([_operator("Relu", (_tensor("x", (4,)),), (_tensor("y", (4,)),), value=np.zeros(2))])
    with pytest.raises(NotAFragmentError, match="not finite"):
        fragment_of([_operator("Clip", (_tensor("x", (4,)),), (_tensor("y", (4,)),), max=float("inf"))])


def _write(path: Path, nodes: list, inputs: list, outputs: list, **initial: np.ndarray) -> Path:  # type: ignore[type-arg]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        initializer=[numpy_helper.from_array(v, k) for k, v in initial.items()],
    )
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )
    return path


def test_copies_of_eager_mode_become_fragments_with_the_views_before_them(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "m.onnx",
        [
            helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
            helper.make_node("Reshape", ["t", "shape"], ["y"]),
        ],
        [("x", [4, 8, 16])],
        ["y"],
        shape=np.array([4, 128]),
    )
    sweep = sweep_models([path], options=options("torch"))
    (call,) = sweep.calls.values()
    assert call.fragment.pattern == "contiguous_copy"
    assert [n.op_type for n in call.fragment.nodes] == ["Transpose", "Reshape"]
    assert [k.variant for k in call.kernels] == ["contiguous"] and not sweep.left_out
    plain = sweep_models([path], options=options("onnxruntime"))
    assert [c.fragment.op_type for c in plain.calls.values()] == ["Transpose"]


def test_batch_normalisations_that_exporters_folded_in_are_measured_apart(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "m.onnx",
        [helper.make_node("Conv", ["x", "onnx::Conv_1", "onnx::Conv_2"], ["y"])],
        [("x", [2, 8, 16, 16])],
        ["y"],
        **{"onnx::Conv_1": np.ones((4, 8, 3, 3), np.float32), "onnx::Conv_2": np.ones(4, np.float32)},
    )
    sweep = sweep_models([path], options=options("torch"))
    kinds = {c.fragment.op_type: len(c.fragment.tensors) for c in sweep.calls.values()}
    assert kinds == {"Conv": 2, "BatchNormalization": 5} and not sweep.left_out


def test_repeats_batches_and_dims_are_counted(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    path = _write(tmp_path / "m.onnx", nodes, [("x", ["batch", "seq"])], ["y"])
    sweep = sweep_models([path], options=options("onnxruntime"), batch_sizes=(1, 8), dims={"seq": 32})
    assert [sum(c.launches.values()) for c in sweep.calls.values()] == [2, 2]
    assert sorted(c.fragment.tensors[0].shape for c in sweep.calls.values()) == [(1, 32), (8, 32)]
    with pytest.raises(UsageError, match="--dim heads: no model has"):
        sweep_models([path], options=options("torch"), dims={"seq": 32, "heads": 2})


def test_a_bad_file_is_a_failure_and_the_others_go_on(tmp_path: Path) -> None:
    good = _write(tmp_path / "good.onnx", [helper.make_node("Relu", ["x"], ["y"])], [("x", [4])], ["y"])
    bad = tmp_path / "bad.onnx"
    bad.write_text("no model")
    sweep = sweep_models([bad, good, tmp_path / "absent.onnx"], options=options("torch"))
    assert [p.name for p, _ in sweep.failures] == ["bad.onnx", "absent.onnx"]
    assert len(sweep.calls) == 1


def test_host_operators_are_left_out_and_counted() -> None:
    path = next(p for p in EXPORTS if p.name.startswith("sklearn"))
    sweep = sweep_models([path], options=options("onnxruntime"))
    assert not sweep.calls and sweep.left_out["operators that run on the host"] > 0


def test_fragments_keep_the_attention_that_was_fused_as_one_call() -> None:
    path = next(p for p in EXPORTS if p.name.startswith("attention_causal.dynamo"))
    sweep = sweep_models([path], options=options("torch"))
    (call,) = [c for c in sweep.calls.values() if c.kernels[0].family is Family.ATTENTION]
    assert call.fragment.op_type == "Attention"
    assert lower(fragment_graph(call.fragment), options("torch")).steps[0].kernels == call.kernels
    assert onnx.defs.has("Attention", 23, "")
