"""More operators on a branch: products, convolutions, normalisation, broadcasting. See ``ways``."""

from __future__ import annotations

import numpy as np
from branches import Branch
from ways import case, simple

__all__: list[str] = []

# broadcasting of constants
for name, dims, shape, once in (
    ("scalar", (3, 4), (), True),
    ("a row", (3, 4), (4,), True),
    ("fewer dims", (3, 4), (3, 1), True),
    ("one in front", (3, 4), (1, 3, 4), True),
    ("a new axis in front", (3, 4), (1, 1, 3, 4), False),
):

    @case("Add", *dims, once=once, name=name)
    def _(b: Branch, x: str, shape: tuple[int, ...] = shape) -> str:
        return b.op("Add", x, b.random(*shape))


@case("Add", 3, 4, once=False, name="a constant for each sample", batches=(2, 2), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("Add", x, b.random(2, 3, 4))


@case("Add", 3, 4, once=False, name="a constant that repeats one sample", batches=(1, 1), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("Add", x, b.random(2, 3, 4))


@case("Mul", 3, 4, once=True, name="constants almost equal")
def _(b: Branch, x: str) -> str:
    return b.op("Mul", x, b.random(4, apart=5e-8))


@case("Mul", 3, 4, once=False, name="constants not equal")
def _(b: Branch, x: str) -> str:
    return b.op("Mul", x, b.random(4, apart=1e-3))


@case("Mul", 3, 4, once=False, name="constants of other shapes")
def _(b: Branch, x: str) -> str:
    return b.op("Mul", x, b.const(np.full(1 if b.place else (1, 1), 3.0)))


@case("Sub", 3, 4, once=True, name="two of the batch")
def _(b: Branch, x: str) -> str:
    return b.op("Sub", x, b.op("Relu", x))


@case("Sub", 3, 3, once=False, name="of lower rank", batches=(3, 3), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("Sub", x, b.op("ReduceMax", x, axes=[2], keepdims=0))


@case("Add", 3, 4, once=True, name="an input of the branch")
def _(b: Branch, x: str) -> str:
    return b.op("Add", x, b.op("Sigmoid", b.input(1, 4)))


@case("Where", 3, 4, once=True, name="a mask")
def _(b: Branch, x: str) -> str:
    return b.op("Where", b.const(np.tri(3, 4), bool), x, b.const(-100))


@case("Where", 3, 4, once=False, name="a mask for each sample", batches=(2, 2), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("Where", b.const(np.arange(24).reshape(2, 3, 4) % 5 > 1, bool), x, b.const(-100))


@case("Clip", 4, once=True, name="both ends")
def _(b: Branch, x: str) -> str:
    return b.op("Clip", x, b.const(-0.2), b.const(0.3))


@case("Clip", 4, once=False, name="other ends each")
def _(b: Branch, x: str) -> str:
    return b.op("Clip", x, b.const(-0.2), b.const(0.3 + b.place))


@case("Pow", 4, once=True, name="shared parts of constants")
def _(b: Branch, x: str) -> str:
    return b.op("Pow", x, b.op("Reshape", b.op("Mul", b.const([1.0]), b.const([2.0])), b.ints(1)))


# products
@case("MatMul", 3, 4, once=True, name="weight")
def _(b: Branch, x: str) -> str:
    return b.op("MatMul", x, b.random(4, 5))


@case("MatMul", 4, once=True, name="weight and rows")
def _(b: Branch, x: str) -> str:
    return b.op("MatMul", x, b.random(4, 5))


@case("MatMul", 3, 4, once=True, name="vector")
def _(b: Branch, x: str) -> str:
    return b.op("MatMul", x, b.random(4))


@case("MatMul", 3, 4, once=True, name="constant first")
def _(b: Branch, x: str) -> str:
    return b.op("MatMul", b.random(5, 3), x)


@case("MatMul", 4, once=False, name="constant first, batch inside", batches=(3, 3), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("MatMul", b.random(5, 3), x)


@case("MatMul", 3, 4, once=False, name="a weight for each sample", batches=(2, 2), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("MatMul", x, b.random(2, 4, 5))


@case("MatMul", 4, once=False, name="a stack of weights")
def _(b: Branch, x: str) -> str:
    return b.op("MatMul", x, b.random(2, 4, 5))


@case("MatMul", 3, 4, once=True, name="activations")
def _(b: Branch, x: str) -> str:
    return b.op("MatMul", x, b.op("Transpose", x, perm=[0, 2, 1]))


@case("MatMul", 4, once=False, name="activations of rank 2", batches=(4, 4), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("MatMul", x, b.op("Relu", x))


@case("MatMul", 3, 3, once=False, name="activations of other ranks", batches=(3, 3), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("MatMul", x, b.op("ReduceMax", x, axes=[2], keepdims=0))


@case("Gemm", 4, once=True, name="weight and bias")
def _(b: Branch, x: str) -> str:
    return b.op("Gemm", x, b.random(5, 4), b.random(5), transB=1, alpha=0.5)


@case("Gemm", 4, once=True, name="one row of bias")
def _(b: Branch, x: str) -> str:
    return b.op("Gemm", x, b.random(4, 5), b.random(1, 5))


@case("Gemm", 4, once=False, name="a bias for each row", batches=(3, 3), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("Gemm", x, b.random(4, 5), b.random(3, 5))


@case("Gemm", 4, once=True, name="a bias of the batch")
def _(b: Branch, x: str) -> str:
    return b.op("Gemm", x, b.random(4, 4), x)


@case("Gemm", 4, once=False, name="transposed", batches=(3, 3), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("Gemm", x, b.random(3, 5), transA=1)


@case("Gemm", 4, once=False, name="other weights each")
def _(b: Branch, x: str) -> str:
    return b.op("Gemm", x, b.random(4, 5, apart=1.0))


# convolutions and pools
@case("Conv", 3, 6, 6, once=True, name="weight and bias")
def _(b: Branch, x: str) -> str:
    return b.op("Conv", x, b.random(4, 3, 3, 3), b.random(4), pads=[1, 1, 1, 1], strides=[2, 2])


@case("ConvTranspose", 3, 6, 6, once=True, name="weight")
def _(b: Branch, x: str) -> str:
    return b.op("ConvTranspose", x, b.random(3, 2, 3, 3))


@case("Conv", 3, 6, 6, once=False, name="weight of the batch", batches=(2, 2), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("Conv", x, b.op("Relu", x))


simple("MaxPool", 3, 6, 6, once=True, name="plain", kernel_shape=[2, 2])
simple("AveragePool", 3, 6, 6, once=True, name="plain", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
simple("GlobalAveragePool", 3, 6, 6, once=True, name="plain")
simple("LRN", 3, 6, 6, once=True, name="plain", size=3)


@case("MaxPool", 3, 6, 6, once=False, name="with indices")
def _(b: Branch, x: str) -> str:
    return b.op("Cast", b.op("MaxPool", x, outputs=2, kernel_shape=[2, 2]) + ".1", to=1)


@case("Resize", 3, 4, 4, once=True, name="scales")
def _(b: Branch, x: str) -> str:
    return b.op("Resize", x, "", b.const([1, 1, 2, 2]), mode="linear")


@case("Resize", 3, 4, 4, once=False, name="first scaled", batches=(2, 2))
def _(b: Branch, x: str) -> str:
    return b.op("Resize", x, "", b.const([2, 1, 1, 1]), mode="nearest")


# normalisation
@case("BatchNormalization", 3, 4, once=True, name="inference")
def _(b: Branch, x: str) -> str:
    return b.op(
        "BatchNormalization", x, b.random(3), b.random(3, seed=1), b.random(3, seed=2), b.const([1, 2, 3])
    )


@case("BatchNormalization", 3, 4, once=False, name="training", symbolic=False, opset=15)
def _(b: Branch, x: str) -> str:
    means = b.random(3, seed=2)
    return b.op(
        "BatchNormalization",
        x,
        b.random(3),
        b.random(3),
        means,
        b.const([1, 2, 3]),
        outputs=3,
        training_mode=1,
    )


@case("LayerNormalization", 3, 4, once=True, name="last")
def _(b: Branch, x: str) -> str:
    return b.op("LayerNormalization", x, b.random(4), b.random(4, seed=1))


@case("LayerNormalization", 3, 4, once=True, name="all behind", opset=18)
def _(b: Branch, x: str) -> str:
    return b.op("LayerNormalization", x, b.random(3, 4), axis=-2)


@case("LayerNormalization", 3, 4, once=False, name="first", batches=(2, 2), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("LayerNormalization", x, b.random(2, 3, 4), axis=0)


@case(
    "LayerNormalization", 3, 4, once=False, name="first counted from behind", batches=(2, 2), symbolic=False
)
def _(b: Branch, x: str) -> str:
    return b.op("LayerNormalization", x, b.random(2, 3, 4), axis=-3)


@case("InstanceNormalization", 3, 4, once=True, name="plain")
def _(b: Branch, x: str) -> str:
    return b.op("InstanceNormalization", x, b.random(3), b.random(3, seed=1))


simple("LpNormalization", 3, 4, once=True, name="last")
simple("LpNormalization", 3, 4, once=False, name="first", axis=0)
simple("Dropout", 3, 4, once=True, name="inference")


@case("Dropout", 3, 4, once=True, name="said not to train")
def _(b: Branch, x: str) -> str:
    return b.op("Dropout", x, b.const(0.5), b.const(False, bool))


@case("QuantizeLinear", 3, 4, once=True, name="one scale")
def _(b: Branch, x: str) -> str:
    return b.op("QuantizeLinear", x, b.const(0.1), b.const(10, np.uint8))


@case("QuantizeLinear", 3, 4, once=True, name="a scale for each channel")
def _(b: Branch, x: str) -> str:
    return b.op("QuantizeLinear", x, b.const([0.1, 0.2, 0.3]), b.const([1, 2, 3], np.uint8), axis=1)


@case("QuantizeLinear", 3, 4, once=False, name="a scale for each sample", batches=(2, 2), symbolic=False)
def _(b: Branch, x: str) -> str:
    return b.op("QuantizeLinear", x, b.const([0.1, 0.2]), b.const([1, 2], np.uint8), axis=0)


@case("DynamicQuantizeLinear", 3, 4, once=False, name="of all samples")
def _(b: Branch, x: str) -> str:
    return b.op("DynamicQuantizeLinear", x, outputs=3)


# what looks at the whole value
@case("Shape", 3, 4, once=False, name="taken and used")
def _(b: Branch, x: str) -> str:
    return b.op("Add", x, b.op("Cast", b.op("Gather", b.op("Shape", x), b.ints(0)), to=1))


@case("Size", 3, 4, once=False, name="taken and used")
def _(b: Branch, x: str) -> str:
    return b.op("Add", x, b.op("Cast", b.op("Size", x), to=1))


@case("NonZero", 3, once=False, name="plain")
def _(b: Branch, x: str) -> str:
    return b.op("NonZero", b.op("Relu", x))


@case("LSTM", 3, 4, once=False, name="time in front")
def _(b: Branch, x: str) -> str:
    return b.op("LSTM", x, b.random(1, 8, 4), b.random(1, 8, 2), hidden_size=2, outputs=1)


# other operators of the runtime's own domain
for name, op, once in (("plain", "Gelu", True), ("plain", "FastGelu", True), ("plain", "QuickGelu", True)):
    case(op, 3, 4, once=once, name=f"microsoft {name}")(
        lambda b, x, op=op: b.op(op, x, domain="com.microsoft")
    )


@case("FusedConv", 3, 6, 6, once=True, name="microsoft")
def _(b: Branch, x: str) -> str:
    weights = b.random(4, 3, 3, 3), b.random(4)
    return b.op("FusedConv", x, *weights, domain="com.microsoft", activation="Relu", kernel_shape=[3, 3])


@case("CastLike", 3, 4, once=True, name="an integer")
def _(b: Branch, x: str) -> str:
    return b.op("CastLike", x, b.const(1, np.int32))


@case("Attention", 2, 3, 4, once=True, name="a causal mask", opset=23)
def _(b: Branch, x: str) -> str:
    return b.op("Attention", x, x, b.op("Relu", x), b.const(np.tri(3), bool))


@case("Attention", 2, 3, 3, once=True, name="a mask of the batch", opset=23)
def _(b: Branch, x: str) -> str:
    return b.op("Attention", x, x, b.op("Relu", x), b.op("Sign", x))


@case(
    "Attention", 2, 3, 4, once=False, name="a mask for each sample", opset=23, batches=(2, 2), symbolic=False
)
def _(b: Branch, x: str) -> str:
    return b.op("Attention", x, x, x, b.random(2, 2, 3, 3))


@case("SkipLayerNormalization", 3, 4, once=True, name="microsoft")
def _(b: Branch, x: str) -> str:
    skip = b.op("Relu", x)
    return b.op("SkipLayerNormalization", x, skip, b.random(4), b.random(4, seed=1), domain="com.microsoft")
