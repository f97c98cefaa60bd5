"""Whole models of recurrent layers, as torch's exporter writes them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gkestimator.estimation import estimate_rows

STEPS, INPUTS, HIDDEN = 120, 256, 512


def weight(graph: onnx.GraphProto, name: str, *dims: int) -> str:
    tensor = graph.initializer.add(name=name, data_type=TensorProto.FLOAT)
    tensor.dims.extend(dims)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="absent.bin")
    return name


def layers(folder: Path, *inputs: int, cell: str = "LSTM", hidden: int = HIDDEN, steps: int = STEPS) -> Path:
    """Write bidirectional layers in a row, the first of them ``inputs[0]`` wide; torch.onnx.export joins the directions
    by Transpose and Reshape between them."""
    rows = {"LSTM": 4, "GRU": 3}[cell] * hidden
    value = helper.make_tensor_value_info
    graph = onnx.GraphProto(name="net")
    graph.input.append(value("x", TensorProto.FLOAT, [steps, "N", inputs[0]]))
    graph.output.append(value("y", TensorProto.FLOAT, None))
    joined = graph.initializer.add(name="joined", data_type=TensorProto.INT64)
    joined.dims.extend([3])
    joined.int64_data.extend([0, 0, -1])
    source = "x"
    for place, width in enumerate(inputs):
        weights = [
            weight(graph, f"w{place}", 2, rows, width),
            weight(graph, f"r{place}", 2, rows, hidden),
            weight(graph, f"b{place}", 2, 2 * rows),
        ]
        attributes: dict[str, object] = {"hidden_size": hidden, "direction": "bidirectional"}
        if cell == "GRU":
            attributes["linear_before_reset"] = 1
        result = "y" if place == len(inputs) - 1 else f"x{place}"
        graph.node.extend(
            [
                helper.make_node(cell, [source, *weights], [f"y{place}"], f"n{place}", **attributes),
                helper.make_node("Transpose", [f"y{place}"], [f"t{place}"], f"t{place}", perm=[0, 2, 1, 3]),
                helper.make_node("Reshape", [f"t{place}", "joined"], [result], f"v{place}"),
            ]
        )
        source = result
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / f"{cell.lower()}_{hidden}_{steps}_{'_'.join(map(str, inputs))}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_two_layers_cost_the_sum_of_their_parts(tmp_path: Path, runtime: str, cell: str) -> None:
    wide = 2 * HIDDEN
    paths = [layers(tmp_path, *inputs, cell=cell) for inputs in ((INPUTS, wide), (INPUTS,), (wide,))]
    result = estimate_rows(paths, gpus=["V100", "A100"], batch_sizes=[8], runtime=runtime)
    assert not result.failures
    for gpu in {row.gpu for row in result.rows}:
        both, first, second = (row for row in result.rows if row.gpu == gpu)
        assert both.latency_ms == pytest.approx(first.latency_ms + second.latency_ms, rel=0.03)
        # Two directions of 120 steps each: no step takes less than a microsecond.
        assert both.latency_ms > 4 * STEPS * 1e-3


def test_longer_sequences_larger_batches_and_wider_layers_take_longer(tmp_path: Path) -> None:
    def latencies(paths: list[Path], batches: list[int]) -> list[float]:
        result = estimate_rows(paths, gpus=["V100"], batch_sizes=batches)
        assert not result.failures
        return [row.latency_ms for row in result.rows]

    by_steps = latencies([layers(tmp_path, 256, steps=s) for s in (1, 10, 100, 1000)], [8])
    by_width = latencies([layers(tmp_path, 256, hidden=h) for h in (64, 256, 1000, 1024, 2048)], [8])
    by_batch = latencies([layers(tmp_path, 256)], [1, 2, 7, 16, 32, 100, 128])
    for rising in (by_steps, by_width, by_batch):
        assert all(less <= more * (1 + 1e-9) for less, more in pairwise(rising))
    assert by_steps[-1] > 8 * by_steps[-2]
    # Weights are read for all rows at once: sixteen rows do not cost sixteen times one.
    assert by_batch[3] < 3 * by_batch[0]
