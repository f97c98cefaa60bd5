"""Estimate BERT-base with a symbolic length at several lengths: writes the table of examples/lengths.

    python benchmarks/bert_lengths.py [--gpu RTX-3090] [--runtime onnxruntime] [--lengths 64,128,...,512]
    [-o examples/lengths/bert-base.csv]

The encoder of Devlin et al. (2019): 12 layers, width 768, 12 heads, 3,072 inside, vocabulary 30,522; weights are declared
and absent. Written as ONNX to a temporary folder, then what ``gkest estimate bert-base.onnx --batch-size 1 --dim
sequence=N`` says for each N, in one table. ``--model FILE`` estimates another file with a dimension ``sequence``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from gkestimator.estimation.api import estimate_rows
from gkestimator.tables import REQUIREMENTS, write_table

WIDTH, HEADS, INSIDE, LAYERS, VOCABULARY, POSITIONS = 768, 12, 3072, 12, 30522, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gpu", default="RTX-3090")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--lengths", default=",".join(str(n) for n in range(64, 513, 64)))
    parser.add_argument("--model", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("examples/lengths/bert-base.csv"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or write_bert(Path(folder) / "bert-base.onnx")
        rows = [
            row
            for length in given.lengths.split(",")
            for row in estimate_rows(
                [model],
                gpus=[given.gpu],
                batch_sizes=[1],
                dims={"sequence": int(length)},
                runtime=given.runtime,
            ).rows
        ]
    write_table(REQUIREMENTS, rows, given.output)
    for row in rows:
        print(f"{row.dims}: {row.latency_ms:.3f} ms ({row.latency_low_ms:.2f} to {row.latency_high_ms:.2f})")


def write_bert(path: Path) -> Path:
    """BERT-base at ``path``: batch ``N`` and length ``sequence`` are symbolic."""
    import onnx
    from onnx import TensorProto, helper

    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(*shape: int) -> str:
        tensor = TensorProto(name=f"w{len(weights)}", data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="absent")
        weights.append(tensor)
        return tensor.name

    def whole(*values: int) -> str:
        weights.append(helper.make_tensor(f"w{len(weights)}", TensorProto.INT64, [len(values)], values))
        return weights[-1].name

    def number(value: float) -> str:
        weights.append(helper.make_tensor(f"w{len(weights)}", TensorProto.FLOAT, [], [value]))
        return weights[-1].name

    def op(kind: str, *inputs: str, **attributes: object) -> str:
        out = f"{kind}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [out], name=out, **attributes))
        return out

    def linear(x: str, inside: int, outside: int) -> str:
        return op("Add", op("MatMul", x, weight(inside, outside)), weight(outside))

    def norm(x: str) -> str:
        return op("LayerNormalization", x, weight(WIDTH), weight(WIDTH), axis=-1)

    def heads(x: str, order: list[int]) -> str:
        return op(
            "Transpose",
            op("Reshape", linear(x, WIDTH, WIDTH), whole(0, -1, HEADS, WIDTH // HEADS)),
            perm=order,
        )

    def attention(x: str) -> str:
        query, key, value = heads(x, [0, 2, 1, 3]), heads(x, [0, 2, 3, 1]), heads(x, [0, 2, 1, 3])
        scores = op("Div", op("MatMul", query, key), number((WIDTH / HEADS) ** 0.5))
        mixed = op("Transpose", op("MatMul", op("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
        return linear(op("Reshape", mixed, whole(0, -1, WIDTH)), WIDTH, WIDTH)

    def gelu(x: str) -> str:
        bent = op("Add", op("Erf", op("Div", x, number(2**0.5))), number(1.0))
        return op("Mul", op("Mul", x, bent), number(0.5))

    places = op("Slice", weight(POSITIONS, WIDTH), whole(0), op("Shape", "ids", start=1, end=2), whole(0))
    x = norm(op("Add", op("Gather", weight(VOCABULARY, WIDTH), "ids", axis=0), places))
    for _ in range(LAYERS):
        x = norm(op("Add", attention(x), x))
        x = norm(op("Add", linear(gelu(linear(x, WIDTH, INSIDE)), INSIDE, WIDTH), x))
    graph = helper.make_graph(
        nodes,
        "bert-base",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", "sequence"])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["N", "sequence", WIDTH])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


if __name__ == "__main__":
    main()
