"""The whole model launched as one CUDA graph: what the host pays, and what keeps a model from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import gkestimator
from gkestimator.core.errors import UsageError
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.targets import graph_launch_calls
from gkestimator.estimation.timeline import schedule
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.hardware.runtimes.profiles import load_runtime
from tests.estimation.small_programs import kernels, program

FLOAT = TensorProto.FLOAT


def value(name: str, *shape: int | str, dtype: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(nodes: list[Any], outputs: list[Any], inputs: list[Any] | None = None, weights: Any = ()) -> Any:
    inputs = inputs or [value("x", 1, 64)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def small() -> Any:
    """Many kernels of little work, so that the host sets the pace; no two of them become one under any runtime."""
    nodes = []
    for at in range(0, 40, 2):
        nodes.append(helper.make_node("Softmax", [f"t{at}"], [f"t{at + 1}"]))
        nodes.append(helper.make_node("CumSum", [f"t{at + 1}", "axis"], [f"t{at + 2}"]))
    nodes[0].input[0] = "x"
    nodes[-1].output[0] = "y"
    return model(nodes, [value("y", 1, 64)], weights=[helper.make_tensor("axis", TensorProto.INT64, [], [1])])


def rows(given: Any, **options: Any) -> Any:
    return gkestimator.estimate([given], gpus=["T4"], **{"runtime": "torch", **options}).iloc[0]


@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
def test_the_host_launches_once_and_no_model_gets_slower(runtime: str) -> None:
    before = rows(small(), runtime=runtime)
    after = rows(small(), runtime=runtime, cuda_graph=True)
    launch_ms = load_runtime(runtime).graph_launch_us / 1e3
    assert after.host_ms == pytest.approx(launch_ms)
    assert after.latency_ms == pytest.approx(after.gpu_ms + launch_ms)
    assert after.gpu_ms == before.gpu_ms
    assert before.host_bound and not after.host_bound
    assert after.latency_ms < before.latency_ms
    assert after.latency_low_ms <= after.latency_ms <= after.latency_high_ms
    assert "launched as one CUDA graph" in after.warnings


def test_a_host_that_is_slow_at_calls_is_as_slow_at_the_launch() -> None:
    usual = load_runtime("torch").host_overhead_us
    plain = rows(small(), cuda_graph=True)
    slow = rows(small(), cuda_graph=True, host_overhead_us=3 * usual)
    assert slow.host_ms == pytest.approx(3 * plain.host_ms)
    assert plain.host_low_ms < plain.host_ms < plain.host_high_ms


def test_the_timeline_has_one_launch_of_the_host() -> None:
    table = gkestimator.estimate([small()], gpus=["T4"], cuda_graph=True).timeline
    (launch,) = table[table.lane == "host"].itertuples()
    assert (launch.name, launch.times, launch.duration_us) == ("CUDA graph", 1.0, pytest.approx(2.5))
    assert (table[table.lane == "GPU"].start_us >= 2.5).all()


def test_shares_and_copies_go_on_beside_it() -> None:
    def half(**options: Any) -> Any:
        return rows(small(), cuda_graph=True, sm_shares=[50.0], **options)

    whole = rows(small(), cuda_graph=True)
    assert half().host_ms == whole.host_ms
    assert half().gpu_ms >= whole.gpu_ms
    copied = half(include_copy=True)
    assert copied.copy_ms > 0
    assert copied.latency_ms == pytest.approx(half().latency_ms + copied.copy_ms)


def test_kernels_are_not_bound_by_a_host_that_launched_them_all() -> None:
    def bounds(**options: Any) -> set[str]:
        answer = gkestimator.estimate([small()], gpus=["T4"], runtime="torch", **options)
        return set(answer.kernels.bound_by[1:])

    assert bounds() == {"host"}
    assert "host" not in bounds(cuda_graph=True)


def test_streams_work_side_by_side_behind_one_launch() -> None:
    captured = program(kernels(3)).captured(2.0)
    durations = np.array([5.0, 1.0, 3.0])
    alone = schedule(captured, durations, host_overhead_us=10.0)
    assert (alone.host_us, alone.total_us, alone.busy_us) == (20.0, 29.0, 9.0)
    together = schedule(captured, durations, host_overhead_us=10.0, streams=2)
    assert together.total_us == 25.0


def not_captured(given: Any, **options: Any) -> str:
    plain = rows(given, **options)
    asked = rows(given, cuda_graph=True, **options)
    assert asked.host_ms == plain.host_ms and asked.latency_ms == plain.latency_ms
    said = [text for text in asked.warnings.split("; ") if "CUDA graph" in text]
    assert len(said) == 1 and "launched as one" not in said[0]
    return said[0]


def test_sizes_that_depend_on_data_are_not_captured() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["y"])]
    said = not_captured(model(nodes, [value("y", 2, "n", dtype=TensorProto.INT64)]))
    assert said == "no CUDA graph can hold it (NonZero): launched call by call"


def test_conditions_that_depend_on_data_are_not_captured() -> None:
    def branch(op_type: str) -> Any:
        return helper.make_graph([helper.make_node(op_type, ["x"], ["z"])], op_type, [], [value("z", 1, 64)])

    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=branch("Exp"), else_branch=branch("Sin")),
    ]
    given = model(nodes, [value("y", 1, 64)], [value("x", 1, 64), value("c", dtype=TensorProto.BOOL)])
    assert "(If)" in not_captured(given)


def _loop() -> Any:
    body = helper.make_graph(
        [helper.make_node("Exp", ["a"], ["b"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [value("i", dtype=TensorProto.INT64), value("c", dtype=TensorProto.BOOL), value("a", 1, 64)],
        [value("d", dtype=TensorProto.BOOL), value("b", 1, 64)],
    )
    trips = helper.make_tensor("trips", TensorProto.INT64, [], [5])
    nodes = [helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)]
    return model(nodes, [value("y", 1, 64)], weights=[trips])


def test_a_loop_is_captured_by_a_program_that_unrolls_it_alone() -> None:
    assert "launched as one CUDA graph" in rows(_loop(), cuda_graph=True).warnings
    for runtime in set(RUNTIMES) - {"torch"}:
        assert "(Loop)" in not_captured(_loop(), runtime=runtime)


def test_operators_on_the_cpu_are_not_captured() -> None:
    given = model(
        [helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER")],
        [value("y", 3, dtype=TensorProto.STRING)],
        [value("x", 3, dtype=TensorProto.STRING)],
    )
    assert "(StringNormalizer)" in not_captured(given)


def test_a_runtime_without_them_refuses() -> None:
    request = EstimateRequest(["m.onnx"], ["T4"], cuda_graph=True)
    profile = replace(load_runtime("torch"), graph_launch_us=None)
    with pytest.raises(UsageError, match="cuda_graph: torch captures no CUDA graphs"):
        graph_launch_calls(request, profile)


def test_operators_that_an_engine_cannot_hold_are_named_and_cut_its_graph() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Det", ["e"], ["y"])]
    given = model(nodes, [value("y", 1)], [value("x", 1, 8, 8)])
    words = "no engine of tensorrt holds Det: natively none is built, ONNX Runtime cuts the model there"
    for runtime in ("tensorrt", "onnxruntime_tensorrt"):
        assert words in rows(given, runtime=runtime).warnings
        assert "(Det)" in not_captured(given, runtime=runtime)
    assert "engine" not in rows(given, runtime="onnxruntime").warnings
    assert "launched as one CUDA graph" in rows(given, runtime="onnxruntime", cuda_graph=True).warnings
