"""Models of four families with random weights, as exporters write them; siblings and cousins of a model.

Every weight is drawn by its own generator, seeded by the model's seed and the weight's name, so two models of one
seed and size are equal byte for byte, and re-drawing a layer leaves the others alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from family_parts import BFLOAT16, FLOAT, FLOAT16, Draw, Graph, Heads, drawn, stored, values
from family_relatives import nudged, shifted, sibling, weighted_layers
from onnx import TensorProto, helper, numpy_helper

__all__ = [
    "BFLOAT16",
    "FLOAT",
    "FLOAT16",
    "Draw",
    "Graph",
    "bert_like",
    "drawn",
    "feeds",
    "gpt_like",
    "mobilenet_like",
    "nudged",
    "resnet_like",
    "saved",
    "shifted",
    "sibling",
    "stored",
    "values",
    "weighted_layers",
]


def resnet_like(
    *,
    seed: int = 0,
    dtype: int = FLOAT,
    batch: int | str = "batch",
    opset: int = 17,
    width: int = 8,
    blocks: Sequence[int] = (1, 1, 1),
    image: int = 32,
    classes: int = 10,
    folded: bool = True,
    weights: Draw | None = None,
) -> onnx.ModelProto:
    """A ResNet of basic blocks; ResNet-18 is width=64, blocks=(2, 2, 2, 2), image=224, classes=1000."""
    g = Graph(seed, dtype, opset, weights)
    x = g.conv("image", "stem", [width, 3, 7, 7], stride=2, folded=folded)
    x = g.add("Relu", x, name="stem/Relu")
    x = g.add("MaxPool", x, name="stem/MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = width
    for stage, count in enumerate(blocks):
        wide = width * 2**stage
        for index in range(count):
            name, stride = f"layer{stage + 1}.{index}", 2 if stage and not index else 1
            y = g.conv(x, f"{name}.conv1", [wide, channels, 3, 3], stride=stride, folded=folded)
            y = g.add("Relu", y, name=f"{name}/Relu")
            y = g.conv(y, f"{name}.conv2", [wide, wide, 3, 3], folded=folded)
            if channels != wide:
                x = g.conv(x, f"{name}.downsample", [wide, channels, 1, 1], stride=stride, folded=folded)
            x = g.add("Relu", g.add("Add", y, x, name=f"{name}/Add"), name=f"{name}/Relu_1")
            channels = wide
    x = g.add("GlobalAveragePool", x, name="pool")
    x = g.add("Flatten", x, name="flatten", axis=1)
    g.head(x, "fc", channels, classes)
    return _classifier(g, "resnet_like", batch, image, classes)


def mobilenet_like(
    *,
    seed: int = 0,
    dtype: int = FLOAT,
    batch: int | str = "batch",
    opset: int = 17,
    width: int = 8,
    stages: Sequence[tuple[int, int, int]] = ((16, 1, 2), (24, 2, 2), (32, 2, 1)),
    expand: int = 6,
    image: int = 32,
    classes: int = 10,
    folded: bool = True,
    weights: Draw | None = None,
) -> onnx.ModelProto:
    """Inverted residuals with depthwise Conv and Clip; ``stages``: (channels, blocks, stride)."""
    g = Graph(seed, dtype, opset, weights)

    def clipped(x: str, name: str) -> str:
        return g.add("Clip", x, g.number(0.0), g.number(6.0), name=f"{name}/Clip")

    x = clipped(g.conv("image", "stem", [width, 3, 3, 3], stride=2, folded=folded), "stem")
    channels = width
    for stage, (wide, count, first) in enumerate(stages):
        for index in range(count):
            name, stride, inner = f"block{stage}.{index}", first if not index else 1, channels * expand
            y = clipped(g.conv(x, f"{name}.expand", [inner, channels, 1, 1], folded=folded), f"{name}.expand")
            y = g.conv(y, f"{name}.depthwise", [inner, 1, 3, 3], stride=stride, group=inner, folded=folded)
            y = g.conv(clipped(y, f"{name}.depthwise"), f"{name}.project", [wide, inner, 1, 1], folded=folded)
            x = g.add("Add", x, y, name=f"{name}/Add") if stride == 1 and wide == channels else y
            channels = wide
    x = clipped(g.conv(x, "last", [channels * 4, channels, 1, 1], folded=folded), "last")
    x = g.mean(x, "pool", 2, 3)
    x = g.add("Reshape", x, g.whole(-1, channels * 4), name="flatten")
    g.head(x, "fc", channels * 4, classes)
    return _classifier(g, "mobilenet_like", batch, image, classes)


def bert_like(
    *,
    seed: int = 0,
    dtype: int = FLOAT,
    batch: int | str = "batch",
    sequence: int | str = 16,
    opset: int = 17,
    layers: int = 2,
    width: int = 32,
    heads: int = 4,
    vocabulary: int = 100,
    positions: int = 64,
    classes: int = 3,
    reshape: str = "zero",
    decomposed: bool = False,
    weights: Draw | None = None,
) -> onnx.ModelProto:
    """An encoder with a pooler and a classifier; BERT-base is layers=12, width=768, heads=12, vocabulary=30522,
    positions=512.

    ``reshape``: how heads are parted: ``zero`` (shape [0, -1, heads, size]), ``static`` (numbers; ``batch`` and
    ``sequence`` must be numbers), ``shape`` (computed by Shape, Gather and Concat).
    """
    g = Graph(seed, dtype, opset, weights)
    length = g.add(
        "Gather", g.add("Shape", "input_ids", name="ids/Shape"), g.whole(1), name="ids/Gather", axis=0
    )
    words = g.add(
        "Gather", g.weight("embeddings.word", [vocabulary, width], 0.5), "input_ids", name="words", axis=0
    )
    places = g.add(
        "Slice",
        g.weight("embeddings.position", [1, positions, width], 0.5),
        g.whole(0),
        length,
        g.whole(1),
        name="places",
    )
    x = g.normalised(g.add("Add", words, places, name="embed"), "embeddings.norm", width, decomposed)
    parted = Heads(g, batch, sequence, heads, width // heads, reshape)
    for layer in range(layers):
        name = f"layer.{layer}"
        query, key, value = (
            parted.split(g.linear(x, f"{name}.{part}", width, width), f"{name}.{part}", part == "key")
            for part in ("query", "key", "value")
        )
        scores = g.add("MatMul", query, key, name=f"{name}/scores")
        scores = g.add("Div", scores, g.number((width / heads) ** 0.5), name=f"{name}/Div")
        mixed = g.add(
            "MatMul", g.add("Softmax", scores, name=f"{name}/Softmax", axis=-1), value, name=f"{name}/mix"
        )
        y = g.linear(parted.join(mixed, name), f"{name}.output", width, width)
        x = g.normalised(g.add("Add", y, x, name=f"{name}/Add"), f"{name}.norm1", width, decomposed)
        y = _gelu_by_erf(g, g.linear(x, f"{name}.up", width, 4 * width), name)
        y = g.linear(y, f"{name}.down", 4 * width, width)
        x = g.normalised(g.add("Add", y, x, name=f"{name}/Add_1"), f"{name}.norm2", width, decomposed)
    first = g.add("Gather", x, g.whole(0), name="first", axis=1)
    pooled = g.head(g.add("Flatten", first, name="first/Flatten", axis=1), "pooler", width, width)
    g.head(g.add("Tanh", pooled, name="pooler/Tanh"), "classifier", width, classes)
    g.nodes[-1].output[0] = "logits"
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [batch, sequence])
    out = helper.make_tensor_value_info("logits", dtype, [batch, classes])
    return g.model("bert_like", [ids], [out])


def gpt_like(
    *,
    seed: int = 0,
    dtype: int = FLOAT,
    batch: int | str = "batch",
    sequence: int | str = 16,
    opset: int = 17,
    layers: int = 2,
    width: int = 32,
    heads: int = 4,
    vocabulary: int = 100,
    positions: int = 64,
    decomposed: bool = False,
    weights: Draw | None = None,
) -> onnx.ModelProto:
    """A decoder as GPT-2 is exported: Gemm between Reshapes, one product for query, key and value, a causal mask.

    GPT-2 is layers=12, width=768, heads=12, vocabulary=50257, positions=1024.
    """
    g = Graph(seed, dtype, opset, weights)
    shape = g.add("Shape", "input_ids", name="ids/Shape")
    length = g.add("Gather", shape, g.whole(1), name="ids/Gather", axis=0)
    words = g.add("Gather", g.weight("wte", [vocabulary, width], 0.5), "input_ids", name="words", axis=0)
    table = g.weight("wpe", [1, positions, width], 0.5)
    places = g.add("Slice", table, g.whole(0), length, g.whole(1), name="places")
    x = g.add("Add", words, places, name="embed")
    mask = np.tril(np.ones((1, 1, positions, positions), bool))
    g.initializers["mask"] = numpy_helper.from_array(mask, "mask")
    rows = g.add("Slice", "mask", g.whole(0), length, g.whole(2), name="mask/rows")
    seen = g.add("Slice", rows, g.whole(0), length, g.whole(3), name="mask/columns")
    parted = Heads(g, batch, sequence, heads, width // heads, "zero")

    def flat(x: str, name: str, rows: int, columns: int) -> str:
        """Reshape, Gemm, Reshape: how GPT-2's Conv1D is exported."""
        y = g.add("Reshape", x, g.whole(-1, rows), name=f"{name}/Reshape")
        weight = g.weight(f"{name}.weight", [rows, columns], rows**-0.5)
        y = g.add("Gemm", y, weight, g.weight(f"{name}.bias", [columns], 0.1), name=f"{name}/Gemm")
        back = g.add("Concat", shape, g.whole(columns), name=f"{name}/Concat", axis=0)
        return g.add("Reshape", y, back, name=f"{name}/Reshape_1")

    for layer in range(layers):
        name = f"h.{layer}"
        y = flat(g.normalised(x, f"{name}.ln_1", width, decomposed), f"{name}.attn.c_attn", width, 3 * width)
        parts = g.whole(width, width, width)
        first = g.add("Split", y, parts, name=f"{name}/Split", outputs=3, axis=2)
        thirds = [first, *(first[:-1] + str(i) for i in (1, 2))]
        query, key, value = (
            parted.split(third, f"{name}.{part}", part == "key")
            for part, third in zip(("query", "key", "value"), thirds, strict=True)
        )
        scores = g.add("MatMul", query, key, name=f"{name}/scores")
        scores = g.add("Div", scores, g.number((width / heads) ** 0.5), name=f"{name}/Div")
        scores = g.add("Where", seen, scores, g.number(-1e4), name=f"{name}/Where")
        soft = g.add("Softmax", scores, name=f"{name}/Softmax", axis=-1)
        y = parted.join(g.add("MatMul", soft, value, name=f"{name}/mix"), name)
        x = g.add("Add", x, flat(y, f"{name}.attn.c_proj", width, width), name=f"{name}/Add")
        y = flat(g.normalised(x, f"{name}.ln_2", width, decomposed), f"{name}.mlp.c_fc", width, 4 * width)
        y = flat(_gelu_by_tanh(g, y, name), f"{name}.mlp.c_proj", 4 * width, width)
        x = g.add("Add", x, y, name=f"{name}/Add_1")
    x = g.normalised(x, "ln_f", width, decomposed)
    g.add("MatMul", x, g.weight("lm_head", [width, vocabulary], width**-0.5), name="lm_head/MatMul")
    g.nodes[-1].output[0] = "logits"
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [batch, sequence])
    out = helper.make_tensor_value_info("logits", dtype, [batch, sequence, vocabulary])
    return g.model("gpt_like", [ids], [out])


def _gelu_by_erf(g: Graph, x: str, name: str) -> str:
    erf = g.add(
        "Erf", g.add("Div", x, g.number(math.sqrt(2.0)), name=f"{name}/gelu/Div"), name=f"{name}/gelu/Erf"
    )
    y = g.add("Mul", x, g.add("Add", erf, g.number(1.0), name=f"{name}/gelu/Add"), name=f"{name}/gelu/Mul")
    return g.add("Mul", y, g.number(0.5), name=f"{name}/gelu/Mul_1")


def _gelu_by_tanh(g: Graph, x: str, name: str) -> str:
    cube = g.add("Pow", x, g.number(3.0), name=f"{name}/gelu/Pow")
    y = g.add("Mul", cube, g.number(0.044715), name=f"{name}/gelu/Mul")
    y = g.add(
        "Mul", g.add("Add", x, y, name=f"{name}/gelu/Add"), g.number(0.7978845608), name=f"{name}/gelu/Mul_1"
    )
    y = g.add("Add", g.add("Tanh", y, name=f"{name}/gelu/Tanh"), g.number(1.0), name=f"{name}/gelu/Add_1")
    return g.add(
        "Mul", g.add("Mul", x, g.number(0.5), name=f"{name}/gelu/Mul_2"), y, name=f"{name}/gelu/Mul_3"
    )


def _classifier(g: Graph, name: str, batch: int | str, image: int, classes: int) -> onnx.ModelProto:
    g.nodes[-1].output[0] = "logits"
    pixels = helper.make_tensor_value_info("image", g.dtype, [batch, 3, image, image])
    out = helper.make_tensor_value_info("logits", g.dtype, [batch, classes])
    return g.model(name, [pixels], [out])


def saved(model: onnx.ModelProto, path: Path, *, external: bool = False) -> Path:
    """Write ``model`` (``external``: weights of 100 bytes and more to ``<path>.data``); the path again."""
    if external:
        model = _copied(model)
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=100)
    else:
        onnx.save(model, path)
    return path


def feeds(model: onnx.ModelProto, *, seed: int = 0, **dims: int) -> dict[str, np.ndarray]:
    """Random inputs: normal values, or ids below 50; symbolic dimensions by ``dims`` (else 2)."""
    generator, found = np.random.default_rng(seed), {}
    for info in model.graph.input:
        shape = [d.dim_value or dims.get(d.dim_param, 2) for d in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type == TensorProto.INT64:
            found[info.name] = generator.integers(0, 50, shape)
        else:
            dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
            found[info.name] = generator.standard_normal(shape).astype(dtype)
    return found


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    new = onnx.ModelProto()
    new.CopyFrom(model)
    return new
