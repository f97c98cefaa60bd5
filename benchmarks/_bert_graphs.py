"""Build BERT graphs with an answer for each token, as torch's exporter writes them, without weights.

``onnx`` alone is needed. ``write_bert(folder, "bert_large", 384)`` writes ``bert_large_s384.onnx`` once and returns its
path: inputs ``input_ids``, ``token_type_ids`` and ``attention_mask`` [N, sequence], output ``logits`` [N, sequence, 2]
(the head for SQuAD, which NVIDIA's demo/BERT and DeepLearningExamples serve). Weights are initializers whose file is not there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET = 17  # the first with LayerNormalization


@dataclass(frozen=True)
class BertSizes:
    """Hold the sizes of a BERT."""

    layers: int
    hidden: int
    heads: int
    inner: int
    words: int = 30_522
    places: int = 512


# bert_dist4l and bert_dist6l: DeepLearningExamples' 4L-288D and 6L-768D; the inner size of the first is taken as four
# times its hidden size.
BERTS = {
    "bert_base": BertSizes(layers=12, hidden=768, heads=12, inner=3072),
    "bert_large": BertSizes(layers=24, hidden=1024, heads=16, inner=4096),
    "bert_dist6l": BertSizes(layers=6, hidden=768, heads=12, inner=3072),
    "bert_dist4l": BertSizes(layers=4, hidden=288, heads=12, inner=1152),
}


@dataclass
class _Builder:
    """Collect the nodes and initializers of one graph; results are named after their node."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    offset: int = 0

    def node(self, op_type: str, name: str, *inputs: str, **attributes: object) -> str:
        """Add a node with one result and return the result's name."""
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name=f"/{name}", **attributes))
        return name

    def constant(self, name: str, value: object, dtype: type) -> str:
        """Add a small initializer whose value is kept."""
        self.initializers.append(numpy_helper.from_array(np.array(value, dtype=dtype), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """Add a weight whose values are in a file that is not there."""
        length = 4 * math.prod(shape)
        tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        places = {"location": "weights.bin", "offset": self.offset, "length": length}
        for key, value in places.items():
            tensor.external_data.add(key=key, value=str(value))
        self.initializers.append(tensor)
        self.offset += length
        return name

    def dense(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """Add a product with a weight and a bias."""
        product = self.node("MatMul", f"{name}.product", x, self.weight(f"{name}.weight", inputs, outputs))
        return self.node("Add", name, self.weight(f"{name}.bias", outputs), product)

    def norm(self, name: str, x: str, hidden: int) -> str:
        """Add a LayerNormalization over the last axis."""
        scale = self.weight(f"{name}.weight", hidden)
        return self.node(
            "LayerNormalization", name, x, scale, self.weight(f"{name}.bias", hidden), axis=-1, epsilon=1e-12
        )


def write_bert(folder: Path, name: str, sequence: int) -> Path:
    """Return the file of the model ``name`` of ``BERTS`` at ``sequence`` tokens; it is written if it is not there."""
    path = folder / f"{name}_s{sequence}.onnx"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bert_graph(BERTS[name], sequence).SerializeToString())
    return path


def bert_graph(sizes: BertSizes, sequence: int) -> onnx.ModelProto:
    """Return the graph of a BERT with its answers to ``sequence`` tokens, for any batch N."""
    build = _Builder()
    build.constant("heads_shape", [0, sequence, sizes.heads, sizes.hidden // sizes.heads], np.int64)
    build.constant("hidden_shape", [0, sequence, sizes.hidden], np.int64)
    build.constant("root_of_head", math.sqrt(sizes.hidden / sizes.heads), np.float32)
    for name, value in (
        ("root_of_2", math.sqrt(2.0)),
        ("one", 1.0),
        ("half", 0.5),
        ("hidden_keys", -10_000.0),
    ):
        build.constant(name, value, np.float32)
    mask = _mask(build)
    x = _embeddings(build, sizes, sequence)
    for layer in range(sizes.layers):
        x = _layer(build, f"layer.{layer}", x, mask, sizes)
    build.dense("logits", x, sizes.hidden, 2)
    inputs = []
    for name in ("input_ids", "token_type_ids", "attention_mask"):
        inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["N", sequence]))
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", sequence, 2])
    graph = helper.make_graph(build.nodes, "bert", inputs, [output], build.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)


def _mask(build: _Builder) -> str:
    """Return what is added to the scores: 0 for tokens, -10,000 for padding, (N, 1, 1, sequence)."""
    axes = build.constant("mask_axes", [1, 2], np.int64)
    spread = build.node("Unsqueeze", "mask.spread", "attention_mask", axes)
    truths = build.node("Cast", "mask.float", spread, to=TensorProto.FLOAT)
    padding = build.node("Sub", "mask.padding", "one", truths)
    return build.node("Mul", "mask", padding, "hidden_keys")


def _embeddings(build: _Builder, sizes: BertSizes, sequence: int) -> str:
    words = build.node(
        "Gather", "embeddings.words", build.weight("words.weight", sizes.words, sizes.hidden), "input_ids"
    )
    types = build.node(
        "Gather", "embeddings.types", build.weight("types.weight", 2, sizes.hidden), "token_type_ids"
    )
    both = build.node("Add", "embeddings.both", words, types)
    # The exporter folds the rows of the first ``sequence`` places into a constant.
    total = build.node("Add", "embeddings.sum", both, build.weight("places", 1, sequence, sizes.hidden))
    return build.norm("embeddings.norm", total, sizes.hidden)


def _layer(build: _Builder, at: str, x: str, mask: str, sizes: BertSizes) -> str:
    """Return the result of one encoder layer that reads ``x``."""
    attended = _attention(build, f"{at}.attention", x, mask, sizes)
    dense = build.dense(f"{at}.attention.output", attended, sizes.hidden, sizes.hidden)
    total = build.node("Add", f"{at}.attention.sum", dense, x)
    x = build.norm(f"{at}.attention.norm", total, sizes.hidden)
    inner = build.dense(f"{at}.inner", x, sizes.hidden, sizes.inner)
    activated = _gelu(build, f"{at}.gelu", inner)
    dense = build.dense(f"{at}.output", activated, sizes.inner, sizes.hidden)
    total = build.node("Add", f"{at}.sum", dense, x)
    return build.norm(f"{at}.norm", total, sizes.hidden)


def _attention(build: _Builder, at: str, x: str, mask: str, sizes: BertSizes) -> str:
    queries, keys, values = (
        _heads(build, f"{at}.{part}", x, sizes, turned)
        for part, turned in (("query", False), ("key", True), ("value", False))
    )
    scores = build.node("MatMul", f"{at}.scores", queries, keys)
    scaled = build.node("Div", f"{at}.scaled", scores, "root_of_head")
    masked = build.node("Add", f"{at}.masked", scaled, mask)
    shares = build.node("Softmax", f"{at}.shares", masked, axis=-1)
    mixed = build.node("MatMul", f"{at}.mixed", shares, values)
    by_token = build.node("Transpose", f"{at}.by_token", mixed, perm=[0, 2, 1, 3])
    return build.node("Reshape", f"{at}.joined", by_token, "hidden_shape")


def _heads(build: _Builder, at: str, x: str, sizes: BertSizes, turned: bool) -> str:
    """Return a projection of ``x`` by heads, (N, heads, sequence, size), its last two axes swapped where ``turned``."""
    dense = build.dense(at, x, sizes.hidden, sizes.hidden)
    split = build.node("Reshape", f"{at}.split", dense, "heads_shape")
    order = [0, 2, 3, 1] if turned else [0, 2, 1, 3]
    return build.node("Transpose", f"{at}.heads", split, perm=order)


def _gelu(build: _Builder, at: str, x: str) -> str:
    scaled = build.node("Div", f"{at}.scaled", x, "root_of_2")
    error = build.node("Erf", f"{at}.erf", scaled)
    shifted = build.node("Add", f"{at}.shifted", error, "one")
    product = build.node("Mul", f"{at}.product", x, shifted)
    return build.node("Mul", at, product, "half")
