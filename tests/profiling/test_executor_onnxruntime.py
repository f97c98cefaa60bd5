"""The ONNX Runtime executor: options, what is folded, what is bound, its profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import OutputError
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.onnx_io.fragment_models import fragment_model
from gkestimator.profiling.executors.base import EntryUnsupportedError, ExecutionError
from gkestimator.profiling.executors.data import entry_inputs, entry_values
from gkestimator.profiling.executors.onnxruntime import (
    OnnxruntimeExecutor,
    nodes_on_cpu,
    provider_options,
    run_options,
    runnable_fragment,
    session_options,
)
from gkestimator.profiling.executors.ort_profile import read_profile
from gkestimator.profiling.plan import PlanEntry, entry_id

pytest.importorskip("onnxruntime")


def node(op: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> FragmentNode:
    return FragmentNode(
        op_type=op, domain=domain, attributes=attributes, inputs=tuple(inputs.split()), outputs=tuple(outputs.split())
    )  # fmt: skip


def entry(
    nodes: list[FragmentNode], *tensors: FragmentTensor, dtype: str = "fp32", **words: Any
) -> PlanEntry:
    opsets = {"": 17, "com.microsoft": 1} if any(n.domain for n in nodes) else {"": 17}
    fragment = Fragment(
        opsets=opsets, nodes=tuple(nodes), tensors=tensors, outputs=nodes[-1].outputs, **words
    )
    return PlanEntry(id=entry_id(fragment, dtype), fragment=fragment, dtype=dtype, source="test")


def tensor(name: str, *shape: int, **words: Any) -> FragmentTensor:
    return FragmentTensor(**{"name": name, "dtype": DType.FLOAT, "shape": shape, **words})


@pytest.fixture(scope="module")
def executor() -> OnnxruntimeExecutor:
    return OnnxruntimeExecutor("cpu")


def outputs(prepared: Any) -> list[np.ndarray]:
    return [v.numpy() for v in prepared._binding.get_outputs()]


def test_what_runs_is_the_operator_on_the_entry_s_data(executor: OnnxruntimeExecutor) -> None:
    chosen = entry([node("MatMul", "x w", "y")], tensor("x", 5, 64), tensor("w", 64, 33, role="weight"))
    prepared = executor.prepare(chosen, 4)
    prepared.run()
    x = entry_inputs(chosen, 4)["x"]
    w = entry_values(chosen, 4)(chosen.fragment.tensors[1])
    np.testing.assert_allclose(outputs(prepared)[0], x @ w, rtol=1e-4, atol=1e-5)
    prepared.close()


def test_half_precision_runs_on_the_cpu_with_the_casts_that_it_takes(executor: OnnxruntimeExecutor) -> None:
    half = {"dtype": DType.FLOAT16}
    chosen = entry([node("Erf", "x", "y")], tensor("x", 500, **half), dtype="fp16")
    prepared = executor.prepare(chosen, 0)
    assert outputs(prepared)[0].dtype == np.float16
    assert [k.name for k in prepared.host_kernels(2) or ()] == ["Cast", "Erf", "Cast"]
    prepared.close()


def test_bfloat16_passes_through_as_its_bits(executor: OnnxruntimeExecutor) -> None:
    pytest.importorskip("ml_dtypes")
    brain = {"dtype": DType.BFLOAT16}
    chosen = entry([node("Cast", "x", "y", to=1)], tensor("x", 300, **brain), dtype="bf16")
    prepared = executor.prepare(chosen, 0)
    np.testing.assert_array_equal(outputs(prepared)[0], entry_inputs(chosen, 0)["x"].astype(np.float32))
    prepared.close()
    back = entry([node("Cast", "x", "y", to=16)], tensor("x", 300))
    prepared = executor.prepare(back, 0)  # an output of bfloat16 is bound as well
    assert prepared.output_shapes == ((300,),)
    prepared.close()
    with pytest.raises(EntryUnsupportedError, match="Could not find an implementation"):
        executor.prepare(entry([node("MatMul", "x x", "y")], tensor("x", 8, 8, **brain), dtype="bf16"), 0)


def test_outputs_of_a_known_shape_stay_where_they_were_bound(executor: OnnxruntimeExecutor) -> None:
    prepared = executor.prepare(entry([node("Relu", "x", "y")], tensor("x", 7, 9)), 0)
    at = prepared._binding.get_outputs()[0].data_ptr()
    for _ in range(3):
        prepared.run()
    room = prepared._outputs["y"]
    assert room is not None
    assert prepared._binding.get_outputs()[0].data_ptr() == at == room.value.data_ptr()
    prepared.close()


def test_an_output_whose_size_depends_on_data_runs(executor: OnnxruntimeExecutor) -> None:
    mask = tensor("m", 64, 64, dtype=DType.BOOL, fill="mask")
    prepared = executor.prepare(entry([node("NonZero", "m", "y")], mask), 0)
    count = int(entry_inputs(entry([node("NonZero", "m", "y")], mask), 0)["m"].sum())
    assert prepared.output_shapes == ((2, count),)
    assert [k.name for k in prepared.host_kernels(2) or ()] == ["NonZero"]
    prepared.close()


def test_an_operator_on_weights_alone_is_not_calculated_at_loading(executor: OnnxruntimeExecutor) -> None:
    chosen = entry([node("Exp", "w", "y")], tensor("w", 50, 50, role="weight"))
    prepared = executor.prepare(chosen, 0)
    assert [k.name for k in prepared.host_kernels(2) or ()] == ["Exp"]
    prepared.close()


def test_an_operator_on_constants_alone_is_unsupported() -> None:
    constant = tensor("c", 2, role="constant", fill="value", values=(1.0, 2.0))
    with pytest.raises(EntryUnsupportedError, match="Exp: only constants go in"):
        runnable_fragment(entry([node("Exp", "c", "y")], constant).fragment)


def test_a_fragment_with_inputs_is_left_alone() -> None:
    chosen = entry([node("MatMul", "x w", "y")], tensor("x", 2, 2), tensor("w", 2, 2, role="weight")).fragment
    assert runnable_fragment(chosen) is chosen


@pytest.mark.parametrize("shape", [(0, 7), (3, 0)])
def test_a_tensor_without_elements_is_unsupported(
    executor: OnnxruntimeExecutor, shape: tuple[int, ...]
) -> None:
    with pytest.raises(EntryUnsupportedError, match="tensor x of shape .* has no elements"):
        executor.prepare(entry([node("Relu", "x", "y")], tensor("x", *shape)), 0)


def test_a_closed_entry_cannot_run(executor: OnnxruntimeExecutor) -> None:
    prepared = executor.prepare(entry([node("Relu", "x", "y")], tensor("x", 3)), 0)
    prepared.close()
    with pytest.raises(ExecutionError, match="closed"):
        prepared.run()


def test_a_pattern_is_fused_as_in_a_model(executor: OnnxruntimeExecutor) -> None:
    fused = entry(
        [node("MatMul", "x w", "m"), node("Add", "m b", "s"), node("Erf", "s", "y")],
        tensor("x", 4, 8, 16), tensor("w", 16, 16, role="weight"), tensor("b", 16, role="weight"), pattern="test",
    )  # fmt: skip
    prepared = executor.prepare(fused, 0)
    kernels = prepared.host_kernels(3)
    prepared.close()
    assert kernels is not None
    assert kernels[-1].name == "Erf"
    assert prepared.output_shapes == ((4, 8, 16),)


def test_operators_of_microsoft_s_domain_run(executor: OnnxruntimeExecutor) -> None:
    chosen = entry([node("Gelu", "x", "y", "com.microsoft")], tensor("x", 30, 40))
    prepared = executor.prepare(chosen, 0)
    assert [k.name for k in prepared.host_kernels(2) or ()] == ["Gelu"]
    prepared.close()


def test_a_node_inside_a_loop_counts_in_the_loop(tmp_path: Path) -> None:
    def event(name: str, ts: int, dur: int) -> dict[str, Any]:
        kind = "Session" if name == "model_run" else "Node"
        return {"cat": kind, "name": name if kind == "Session" else f"{name}_0_kernel_time", "ts": ts, "dur": dur,
                "args": {} if kind == "Session" else {"op_name": name}}  # fmt: skip

    calls = []
    for start in (0, 1000, 2000):
        calls += [event("Add", start + 21, 9), event("Add", start + 30, 0), event("Loop", start + 20, 50),
                  event("Relu", start + 70, 5), event("model_run", start + 10, 80)]  # fmt: skip
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(calls))
    kernels = read_profile(path, 2)
    assert [(k.name, k.durations_us) for k in kernels] == [("Loop", (50.0, 50.0)), ("Relu", (5.0, 5.0))]
    with pytest.raises(ExecutionError, match="found 3 calls, expected 4"):
        read_profile(path, 4)
    path.write_text(json.dumps(calls[:-2] + calls[-1:]))
    with pytest.raises(ExecutionError, match="calls ran different nodes"):
        read_profile(path, 2)


@pytest.mark.parametrize("content", ["", "[", '[{"cat": "Node", "na'])
def test_a_profile_cut_short_is_not_the_entry_s_fault(tmp_path: Path, content: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(content)
    with pytest.raises(OutputError, match=r"profile of onnxruntime is cut short .* is the disk full"):
        read_profile(path, 1)


def test_the_profile_leaves_nothing_behind(
    executor: OnnxruntimeExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    prepared = executor.prepare(entry([node("Relu", "x", "y")], tensor("x", 7, 9)), 0)
    assert prepared.host_kernels(2)
    prepared.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16", "bf16"])
def test_options_on_a_gpu_are_those_that_repeat(dtype: str) -> None:
    provider, options = provider_options("cuda:3", dtype)
    assert provider == "CUDAExecutionProvider"
    assert options["use_tf32"] == ("1" if dtype == "tf32" else "0")
    assert options["device_id"] == "3"
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert options["arena_extend_strategy"] == "kSameAsRequested"
    assert options["enable_cuda_graph"] == "0"
    assert all(isinstance(v, str) for v in options.values())
    assert session_options("cuda:3")["session.disable_cpu_ep_fallback"] == "1"
    assert run_options() == {"disable_synchronize_execution_providers": "1"}


def test_on_the_cpu_no_option_of_a_gpu_is_given() -> None:
    assert provider_options("cpu", "tf32") == ("CPUExecutionProvider", {})
    assert "session.disable_cpu_ep_fallback" not in session_options("cpu")


def test_a_whole_model_may_have_nodes_on_the_cpu_and_they_are_counted() -> None:
    import onnxruntime

    assert "session.disable_cpu_ep_fallback" not in session_options("cuda:0", whole=True)
    assert session_options("cpu", whole=True) == session_options("cpu")
    x = tensor("x", 2, 3)
    chosen = entry(
        [node("Relu", "x", "a"), node("Shape", "a", "s"), node("Cast", "s", "y", to=1)], x, pattern="model:m"
    )
    options = onnxruntime.SessionOptions()
    for key, value in session_options("cuda:0", whole=True).items():
        options.add_session_config_entry(key, value)
    model = fragment_model(chosen.fragment)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"  # else the shape is folded
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    if not hasattr(session, "get_provider_graph_assignment_info"):
        pytest.skip("this onnxruntime does not tell")
    assert nodes_on_cpu(session) == 3
    untold = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert nodes_on_cpu(untold) is None


def test_weights_of_a_whole_model_stay_weights() -> None:
    with pytest.raises(EntryUnsupportedError, match="only constants go in"):
        runnable_fragment(
            entry([node("Relu", "w", "y")], tensor("w", 2, role="weight"), pattern="model:m").fragment
        )


def test_a_node_that_would_fall_back_to_the_cpu_is_refused() -> None:
    """The session entry does what the executor relies on, and its message means unsupported."""
    import onnx
    import onnxruntime

    from gkestimator.profiling.executors.faults import judged

    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "g",
        [onnx.helper.make_tensor_value_info("x", 1, [4])], [onnx.helper.make_tensor_value_info("y", 1, [4])],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for key, value in session_options("cuda:0").items():
        options.add_session_config_entry(key, value)
    with pytest.raises(Exception, match="CPU EP") as caught:  # no provider but the implicit one of the CPU
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[], enable_fallback=0)
    assert isinstance(judged(caught.value), EntryUnsupportedError)
