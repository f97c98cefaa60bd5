"""Traces for other programs: what they say adds up, and their own readers' formats are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from gkestimator.cli import run
from gkestimator.estimation import estimate_rows
from gkestimator.onnx_io.demo import write_resnet50


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_resnet50(tmp_path_factory.mktemp("model"))


def estimated(model: Path, form: str, gpus: tuple[str, ...] = ("V100",), **options: Any) -> tuple[Any, Any]:
    """The rows and the document of one estimate."""
    result = estimate_rows([model], gpus=gpus, forms=(form,), **options)
    return result, json.loads(result.documents[form])


def test_a_chrome_trace_holds_host_and_gpu_side_by_side(model: Path) -> None:
    result, trace = estimated(model, "perfetto", ("V100", "L4"))
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(names) == 2
    for process, row in zip(sorted(names), result.rows, strict=True):
        lanes = [e["args"] for e in events if e["pid"] == process and e["name"] == "thread_sort_index"]
        assert [lane["sort_index"] for lane in lanes] == [0, 1]  # the host above the GPU
        spans = [e for e in events if e["ph"] == "X" and e["pid"] == process]
        # What the format asks of a complete event.
        assert all({"name", "ph", "pid", "tid", "ts", "dur"} <= set(e) and e["dur"] >= 0 for e in spans)
        end_us = max(e["ts"] + e["dur"] for e in spans)
        assert end_us / 1e3 == pytest.approx(row.latency_ms, rel=1e-6)
        assert sum(e["args"]["flops"] for e in spans if e["tid"] > 0) == row.flops
        host = [e for e in spans if e["tid"] == 0]
        ends = [e["ts"] + e["dur"] for e in host]
        assert all(next_["ts"] == pytest.approx(end) for end, next_ in zip(ends, host[1:], strict=False))


def test_node_data_names_the_files_nodes(model: Path) -> None:
    """Folded normalisations run under torch, but are no nodes: their time counts to the convolution."""
    result, data = estimated(model, "model-explorer", kernels=True)
    nodes = {node.name for node in onnx.load(model, load_external_data=False).graph.node}
    assert set(data["results"]) <= nodes
    assert all(set(entry) == {"value"} for entry in data["results"].values())
    total_us = sum(row.duration_us * row.launches for row in result.kernel_rows)
    assert sum(entry["value"] for entry in data["results"].values()) == pytest.approx(total_us, rel=1e-3)
    assert [stop["stop"] for stop in data["gradient"]] == [0.0, 0.3, 1.0]


@pytest.mark.slow
def test_model_explorers_own_adapter_knows_every_node(model: Path) -> None:
    """Its graph of the same file has a node for each of ours, so that the overlay colours all of them."""
    adapter = pytest.importorskip("model_explorer_onnx.main", reason="pip install model-explorer-onnx")
    builder = pytest.importorskip("model_explorer.node_data_builder")
    _, data = estimated(model, "model-explorer")
    (graph,) = adapter.ONNXAdapter().convert(str(model), {})["graphs"]
    assert set(data["results"]) <= {node.id for node in graph.nodes}
    results = {name: builder.NodeDataResult(**entry) for name, entry in data["results"].items()}
    stops = [builder.GradientItem(**stop) for stop in data["gradient"]]
    read = builder.GraphNodeData(results=results, name=data["name"], gradient=stops)
    assert json.loads(read.to_json_string())["results"] == data["results"]


def test_node_data_of_two_gpus_is_refused_in_one_line(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["estimate", str(model), "--gpu", "V100,L4", "--format", "model-explorer"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "one model on one GPU at one batch size" in said.err
