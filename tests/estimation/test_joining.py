"""Graphs that no file holds, one after the other, and programs without some of their steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gkestimator.core.kernels import Step
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.recall import ModelSource
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.timeline import LaunchProgram, schedule
from gkestimator.onnx_io import read_model


def saved(path: Path, prefix: str, width: int) -> Path:
    """MatMul, Add and Relu on [batch, width]; ONNX Runtime fuses the first two."""
    nodes = [
        helper.make_node("MatMul", [f"{prefix}x", f"{prefix}w"], [f"{prefix}y"], name=f"{prefix}mm"),
        helper.make_node("Add", [f"{prefix}y", f"{prefix}b"], [f"{prefix}s"], name=f"{prefix}add"),
        helper.make_node("Relu", [f"{prefix}s"], [f"{prefix}z"], name=f"{prefix}relu"),
    ]
    graph = helper.make_graph(
        nodes,
        prefix,
        [helper.make_tensor_value_info(f"{prefix}x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info(f"{prefix}z", TensorProto.FLOAT, None)],
        [
            helper.make_tensor(f"{prefix}w", TensorProto.FLOAT, [width, width], np.ones(width * width)),
            helper.make_tensor(f"{prefix}b", TensorProto.FLOAT, [width], np.ones(width)),
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture
def engine() -> Engine:
    return Engine(EstimateRequest(models=[Path("unused")], gpus=["V100", "H100"], runtime="onnxruntime"))


def test_one_graph_is_estimated_as_its_file(engine: Engine, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.onnx", "a.", 256)
    by_file = list(engine.estimate([engine.lower_model(ModelSource(path, "a"), 4)]))
    by_graph = list(engine.estimate([engine.lower_graphs("a", [read_model(path).bind(batch_size=4)])]))
    assert [e.measures.latency_ms for e in by_graph] == [e.measures.latency_ms for e in by_file]
    assert [e.memory for e in by_graph] == [e.memory for e in by_file]
    assert by_graph[0].lowering.path is None
    assert [e.target.gpu.name for e in by_graph] == ["V100-SXM2-16GB", "H100-SXM"]


@pytest.mark.slow
def test_graphs_run_one_after_the_other(engine: Engine, tmp_path: Path) -> None:
    bound = [
        read_model(saved(tmp_path / f"{p}onnx", p, width)).bind(batch_size=n)
        for p, width, n in (("a.", 256, 4), ("b.", 4096, 1))
    ]
    alone = [next(iter(engine.estimate([engine.lower_graphs(g.name, [g])]))) for g in bound]
    both = next(iter(engine.estimate([engine.lower_graphs("both", bound)])))
    graph = both.lowering.graph
    assert [s.name for s in graph.steps] == ["a.add", "a.relu", "b.add", "b.relu"]
    assert graph.groups == {"a.add": ("a.mm", "a.add"), "b.add": ("b.mm", "b.add")}
    assert both.memory.weights_bytes == sum(e.memory.weights_bytes for e in alone)
    assert both.measures.gpu_ms == pytest.approx(sum(e.measures.gpu_ms for e in alone))
    assert both.measures.flops == sum(e.measures.flops for e in alone)
    # the second model's calls are issued while the first still runs, or not: never later than after its end
    assert both.measures.latency_ms <= sum(e.measures.latency_ms for e in alone)
    assert both.lowering.lowered.batch_size is None


def test_a_program_without_some_of_its_steps_is_the_shorter_program() -> None:
    def program(calls: list[int], launches: list[int]) -> LaunchProgram:
        steps = tuple(
            Step(name=f"s{i}", op_type="X", kernels=(), reads=(), writes=(), host_calls=c)
            for i, c in enumerate(calls)
        )
        return LaunchProgram(
            steps=steps,
            kernel=np.array(launches, dtype=np.intp),
            step=np.array(launches, dtype=np.intp),
            repeat=np.ones(len(launches)),
            calls=np.array(calls, dtype=np.float64),
        )

    whole = program([1, 2, 0, 1], [0, 1, 1, 3])
    kept = whole.only(np.array([True, False, True, True]))
    assert [s.name for s in kept.steps] == ["s0", "s2", "s3"]
    assert (kept.step.tolist(), kept.kernel.tolist(), kept.calls.tolist()) == ([0, 2], [0, 3], [1, 0, 1])
    durations = np.array([3.0, 1.0, 1.0, 7.0])
    again = schedule(program([1, 0, 1], [0, 2]), durations[[0, 3]], host_overhead_us=5.0)
    assert schedule(kept, durations[[0, 3]], host_overhead_us=5.0).end_us.tolist() == again.end_us.tolist()
    assert schedule(whole.only(np.zeros(4, dtype=bool)), durations[:0], host_overhead_us=5.0).total_us == 0
