"""Hold one example of every counted operator that ONNX has no test of: its inputs and a plain NumPy reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ValueInfoProto, helper

from .counted_numbers import erf
from .counting import Key, NodeCase
from .references import layer_norm, sigmoid, windows

__all__ = ["EXAMPLES", "NO_CPU_KERNEL", "Example", "node_case"]

MS, NCHWC = "com.microsoft", "com.microsoft.nchwc"
_RNG = np.random.default_rng(17)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Hold one call of an operator. ``reference`` takes the inputs and attributes and gives the first output."""

    inputs: tuple[np.ndarray | None, ...]
    reference: Callable[..., Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 17


def node_case(key: Key, example: Example) -> NodeCase:
    """Return ``example`` as a model of one node, with the outputs of onnxruntime where that has a CPU kernel."""
    domain, op_type = key
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(example.inputs)]
    results = [f"y{i}" for i in range(example.outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, **example.attributes)
    arrays = {name: array for name, array in zip(names, example.inputs, strict=True) if array is not None}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    outputs = [ValueInfoProto(name=name) for name in results]
    opsets = [helper.make_opsetid("", example.opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(
        helper.make_graph([node], op_type, inputs, outputs), opset_imports=opsets, ir_version=9
    )
    expected = None if key in NO_CPU_KERNEL else _run(model.SerializeToString(), arrays)
    return NodeCase(
        name=f"{domain}.{op_type}".lstrip("."),
        key=key,
        model=model,
        inputs=tuple(arrays.values()),
        outputs=expected,
    )


def _run(model: bytes, arrays: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return tuple(session.run(None, dict(arrays)))


def _numbers(*shape: int) -> np.ndarray:
    return _RNG.normal(size=shape).astype(np.float32)


def _bytes(*shape: int) -> np.ndarray:
    return _RNG.integers(0, 255, size=shape, dtype=np.uint8)


def _scale(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def _zero(value: int) -> np.ndarray:
    return np.array(value, np.uint8)


def _silu(x: Any) -> Any:
    return x * sigmoid(x)


def _gelu(x: Any, *_: Any) -> Any:
    return 0.5 * x * (1 + erf(x / np.sqrt(2.0)))


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def _rms_norm(x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, **_: Any) -> Any:
    inverse = 1 / np.sqrt(np.mean(x * x, axis=axis, keepdims=True) + epsilon)
    return x * inverse * scale


def _softmax(x: Any, axis: int = -1) -> Any:
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def _group_norm(x: Any, scale: Any, bias: Any, *, groups: int, activation: int, epsilon: float = 1e-5) -> Any:
    batch, height, width, channels = x.shape
    parts = x.reshape(batch, height * width, groups, channels // groups).transpose(0, 2, 1, 3)
    normalised = layer_norm(parts, axis=2, epsilon=epsilon).transpose(0, 2, 1, 3).reshape(x.shape)
    result = normalised * scale + bias
    return result * sigmoid(result) if activation else result


def _skip_group_norm(x: Any, scale: Any, bias: Any, skip: Any, more: Any, **attributes: Any) -> Any:
    return _group_norm(x + skip + more, scale, bias, **attributes)


def _embed(ids: Any, segments: Any, words: Any, places: Any, kinds: Any, scale: Any, bias: Any) -> Any:
    ids, segments = np.asarray(ids), np.asarray(segments)
    return layer_norm(words[ids] + places[: ids.shape[1]] + kinds[segments], scale, bias, epsilon=1e-12)


def _split_gelu(x: Any, bias: Any) -> Any:
    left, right = np.split(x + bias, 2, axis=-1)
    return left * _gelu(right)


def _complex_product(a: Any, b: Any, *, sign: int = 1) -> Any:
    real, imaginary = a[..., 0] * b[..., 0], a[..., 1] * b[..., 1]
    first = real - imaginary if sign > 0 else real + imaginary
    cross = a[..., 1] * b[..., 0]
    other = a[..., 0] * b[..., 1]
    return np.stack([first, cross + other if sign > 0 else cross - other], axis=-1)


def _dequantised(x: Any, scale: Any, zero: Any) -> Any:
    return (x.astype(np.float32) - np.float32(zero)) * scale


def _quantised(y: Any, scale: Any, zero: Any) -> Any:
    return np.clip(np.round(y / scale) + np.float32(zero), 0, 255)


def _around(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` of one quantised operand with its scales: dequantise, calculate, quantise."""

    def whole(x: Any, scale: Any, zero: Any, out_scale: Any, out_zero: Any, **attributes: Any) -> Any:
        return _quantised(function(_dequantised(x, scale, zero), **attributes), out_scale, out_zero)

    return whole


def _between(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def whole(a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, sc: Any, zc: Any) -> Any:
        return _quantised(function(_dequantised(a, sa, za), _dequantised(b, sb, zb)), sc, zc)

    return whole


def _qlinear_where(c: Any, a: Any, sa: Any, za: Any, b: Any, sb: Any, zb: Any, sc: Any, zc: Any) -> Any:
    return _quantised(np.where(c != 0, _dequantised(a, sa, za), _dequantised(b, sb, zb)), sc, zc)


def _ordered_layer_norm(x: Any, sx: Any, scale: Any, bias: Any, sy: Any, **_: Any) -> Any:
    return _ordered_quantised(layer_norm(_ordered_dequantised(x, sx), scale, bias), sy)


def _ordered_quantised(y: Any, scale: Any, **_: Any) -> Any:
    return np.clip(np.round(y / scale) + 0, -128, 127)


def _ordered_dequantised(x: Any, scale: Any, **_: Any) -> Any:
    return (x.astype(np.float32) - 0) * scale


def _max_pool(x: Any, *, kernel_shape: Any) -> Any:
    return np.max(windows(x, tuple(kernel_shape)), axis=(-2, -1))


def _average_pool(x: Any, *, kernel_shape: Any) -> Any:
    return np.sum(windows(x, tuple(kernel_shape)), axis=(-2, -1)) / int(np.prod(kernel_shape))


def _channels_last_max_pool(x: Any, *, kernel_shape: Any) -> Any:
    return _max_pool(x.transpose(0, 3, 1, 2), kernel_shape=kernel_shape).transpose(0, 2, 3, 1)


def _quantised_average_pool(x: Any, *scales: Any, kernel_shape: Any) -> Any:
    # A window's elements are dequantised where they are added: no float image is stored in between.
    mean = _around(lambda near: np.sum(near, axis=(-2, -1)) / int(np.prod(kernel_shape)))
    return mean(windows(x, tuple(kernel_shape)), *scales)


def _mean(x: Any, *, axes: Any = (2, 3), **_: Any) -> Any:
    axes = tuple(axes)
    return np.sum(x, axis=axes, keepdims=True) / int(np.prod([x.shape[axis] for axis in axes]))


_X, _C = _numbers(2, 6, 16), _numbers(16)
_IMAGE, _PIXELS = _numbers(1, 8, 6, 6), _numbers(2, 4, 4, 8)
_QUANTISED = (_scale(0.02), _zero(120))
_ONE = (_bytes(4, 16), *_QUANTISED, _scale(0.03), _zero(100))
_TWO = (_bytes(4, 16), *_QUANTISED, _bytes(4, 16), _scale(0.01), _zero(90), _scale(0.03), _zero(100))
_QUANTISED_IMAGE = (_bytes(1, 8, 6, 6), *_QUANTISED, _scale(0.03), _zero(100))
_SIGNED = _RNG.integers(-128, 127, size=(2, 4, 16), dtype=np.int8)
_ORDER = {"order_input": 1, "order_output": 1}
_BOTH_ORDERS = {"order_X": 1, "order_Y": 1}
_TABLES = (_numbers(10, 16), _numbers(8, 16), _numbers(2, 16))
_IDS = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
_GROUPS = {"groups": 2, "activation": 1, "channels_last": 1}


def _grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    def without_layout(*operands: Any, channels_last: int, **attributes: Any) -> Any:
        return function(*operands, **attributes)

    return without_layout


EXAMPLES: dict[Key, Example] = {
    ("", "Affine"): Example(
        inputs=(_X,),
        attributes={"alpha": 2.0, "beta": 0.5},
        opset=6,
        reference=lambda x, *, alpha, beta: alpha * x + beta,
    ),
    ("", "ParametricSoftplus"): Example(
        inputs=(_X,),
        attributes={"alpha": 2.0, "beta": 0.5},
        opset=6,
        reference=lambda x, *, alpha, beta: alpha * np.log(1 + np.exp(beta * x)),
    ),
    ("", "ScaledTanh"): Example(
        inputs=(_X,),
        attributes={"alpha": 2.0, "beta": 0.5},
        opset=6,
        reference=lambda x, *, alpha, beta: alpha * np.tanh(beta * x),
    ),
    ("", "GlobalLpPool"): Example(
        inputs=(_IMAGE,),
        attributes={"p": 3},
        reference=lambda x, *, p: np.sum(np.abs(x) ** float(p), axis=(2, 3), keepdims=True) ** (1 / p),
    ),
    ("", "SimplifiedLayerNormalization"): Example(inputs=(_X, _C), reference=_rms_norm),
    (MS, "SimplifiedLayerNormalization"): Example(inputs=(_X, _C), reference=_rms_norm),
    (MS, "Gelu"): Example(inputs=(_X,), reference=_gelu),
    (MS, "FastGelu"): Example(inputs=(_X, _C), reference=lambda x, bias: _gelu_tanh(x + bias)),
    (MS, "BiasGelu"): Example(inputs=(_X, _C), reference=lambda x, bias: _gelu(x + bias)),
    (MS, "QuickGelu"): Example(
        inputs=(_X,), attributes={"alpha": 1.5}, reference=lambda x, *, alpha: x * sigmoid(alpha * x)
    ),
    (MS, "ScaledSiLU"): Example(
        inputs=(_X,), attributes={"alpha": 1.5}, reference=lambda x, *, alpha: _silu(alpha * x)
    ),
    (MS, "BiasAdd"): Example(inputs=(_X, _C, _X), reference=lambda x, bias, skip: x + bias + skip),
    (MS, "BiasDropout"): Example(inputs=(_X, _C, _X), reference=lambda x, bias, skip: x + bias + skip),
    (MS, "BiasSplitGelu"): Example(inputs=(_X, _C), reference=_split_gelu),
    (MS, "ComplexMul"): Example(inputs=(_numbers(4, 2), _numbers(4, 2)), reference=_complex_product),
    (MS, "ComplexMulConj"): Example(
        inputs=(_numbers(4, 2), _numbers(4, 2)), reference=lambda a, b: _complex_product(a, b, sign=-1)
    ),
    (MS, "SkipLayerNormalization"): Example(
        inputs=(_X, _X, _C, _C, _C),
        reference=lambda x, skip, scale, shift, bias: layer_norm(
            x + skip + bias, scale, shift, epsilon=1e-12
        ),
    ),
    (MS, "SkipSimplifiedLayerNormalization"): Example(
        inputs=(_X, _X, _C, _C),
        reference=lambda x, skip, scale, bias: _rms_norm(x + skip + bias, scale, epsilon=1e-12),
    ),
    (MS, "EmbedLayerNormalization"): Example(
        inputs=(_IDS, _IDS % 2, *_TABLES, _C, _C), outputs=2, reference=_embed
    ),
    (MS, "GroupNorm"): Example(
        inputs=(_PIXELS, _numbers(8), _numbers(8)), attributes=_GROUPS, reference=_grouped(_group_norm)
    ),
    (MS, "SkipGroupNorm"): Example(
        inputs=(_PIXELS, _numbers(8), _numbers(8), _PIXELS, _numbers(8)),
        attributes=_GROUPS,
        reference=_grouped(_skip_group_norm),
    ),
    (MS, "BiasSoftmax"): Example(
        inputs=(_X, _numbers(1, 1, 16)),
        attributes={"axis": 2, "is_inner_broadcast": 0},
        reference=lambda x, bias, **_: _softmax(x + bias),
    ),
    (MS, "QLinearAdd"): Example(inputs=_TWO, reference=_between(lambda a, b: a + b)),
    (MS, "QLinearMul"): Example(inputs=_TWO, reference=_between(lambda a, b: a * b)),
    (MS, "QLinearSigmoid"): Example(inputs=_ONE, reference=_around(sigmoid)),
    (MS, "QLinearLeakyRelu"): Example(
        inputs=_ONE,
        attributes={"alpha": 0.1},
        reference=_around(lambda x, *, alpha: np.where(x > 0, x, alpha * x)),
    ),
    (MS, "QLinearWhere"): Example(inputs=(_bytes(4, 16) > 127, *_TWO), reference=_qlinear_where),
    (MS, "QLinearSoftmax"): Example(
        inputs=(_ONE[0], _scale(0.02), _zero(120), _scale(1 / 256), _zero(0)),
        attributes={"axis": -1, "opset": 13},
        reference=_around(lambda x, **_: _softmax(x)),
    ),
    (MS, "QLinearAveragePool"): Example(
        inputs=_QUANTISED_IMAGE, attributes={"kernel_shape": [3, 3]}, reference=_quantised_average_pool
    ),
    (MS, "QLinearGlobalAveragePool"): Example(inputs=_QUANTISED_IMAGE, reference=_around(_mean)),
    (MS, "QLinearReduceMean"): Example(
        inputs=_QUANTISED_IMAGE, attributes={"axes": [2, 3]}, reference=_around(_mean)
    ),
    (MS, "QuantizeWithOrder"): Example(
        inputs=(_X, _scale(0.02)), attributes=_ORDER, reference=_ordered_quantised
    ),
    (MS, "DequantizeWithOrder"): Example(
        inputs=(_SIGNED, _scale(0.02)), attributes={**_ORDER, "to": 1}, reference=_ordered_dequantised
    ),
    (MS, "QOrderedGelu"): Example(
        inputs=(_SIGNED, _scale(0.02), _scale(0.03)),
        attributes=_BOTH_ORDERS,
        reference=lambda x, sx, sy, **_: _ordered_quantised(_gelu(_ordered_dequantised(x, sx)), sy),
    ),
    (MS, "QOrderedLayerNormalization"): Example(
        inputs=(_SIGNED, _scale(0.02), _C, _C, _scale(0.03)),
        attributes=_BOTH_ORDERS,
        reference=_ordered_layer_norm,
    ),
    (MS, "NhwcMaxPool"): Example(
        inputs=(_bytes(1, 6, 6, 8),), attributes={"kernel_shape": [3, 3]}, reference=_channels_last_max_pool
    ),
    (NCHWC, "MaxPool"): Example(inputs=(_IMAGE,), attributes={"kernel_shape": [3, 3]}, reference=_max_pool),
    (NCHWC, "AveragePool"): Example(
        inputs=(_IMAGE,), attributes={"kernel_shape": [3, 3]}, reference=_average_pool
    ),
}
# onnxruntime runs these on CUDA alone, no longer at all, or on blocks whose size the machine decides: that the values
# are right cannot be shown here.
NO_CPU_KERNEL: frozenset[Key] = frozenset(
    {
        (MS, "BiasAdd"),
        (MS, "BiasDropout"),
        (MS, "BiasSoftmax"),
        (MS, "BiasSplitGelu"),
        (MS, "ComplexMul"),
        (MS, "ComplexMulConj"),
        (MS, "DequantizeWithOrder"),
        (MS, "GroupNorm"),
        (MS, "QLinearReduceMean"),
        (MS, "QOrderedGelu"),
        (MS, "QOrderedLayerNormalization"),
        (MS, "QuantizeWithOrder"),
        (MS, "SimplifiedLayerNormalization"),
        (MS, "SkipGroupNorm"),
        (NCHWC, "AveragePool"),
        (NCHWC, "MaxPool"),
    }
)
