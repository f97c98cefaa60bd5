"""Fused patterns and sequences of operators: the right numbers, and as many pieces as the lowering rules predict."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
from torch_fragments import constant, entry, fragment, node, reference, tensor, weight

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment
from gkestimator.lowering import lower
from gkestimator.onnx_io.fragment_models import fragment_graph

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed (it is no test dependency)"
)

_HEADS = (2, 3, 5, 8)  # batch, heads, length, size


def _gelu(form: str) -> Fragment:
    tensors = [
        tensor("x", 4, 16),
        constant("root", math.sqrt(2)),
        constant("one", 1.0),
        constant("half", 0.5),
    ]
    start = [node("Div", "x root", "a"), node("Erf", "a", "b"), node("Add", "b one", "c")]
    if form == "half last":
        return fragment(tensors, *start, node("Mul", "x c", "d"), node("Mul", "d half", "y"), pattern="gelu")
    if form == "half inside":
        return fragment(tensors, *start, node("Mul", "c half", "d"), node("Mul", "x d", "y"), pattern="gelu")
    return fragment(tensors, node("Mul", "x half", "h"), *start, node("Mul", "h c", "y"), pattern="gelu")


def _tanh_gelu() -> Fragment:
    return fragment(
        [tensor("x", 4, 16), constant("kappa", 0.044715), constant("beta", math.sqrt(2 / math.pi)),
         constant("one", 1.0), constant("half", 0.5)],
        node("Mul", "x x", "s"), node("Mul", "s x", "cube"), node("Mul", "cube kappa", "k"), node("Add", "x k", "p"),
        node("Mul", "p beta", "q"), node("Tanh", "q", "t"), node("Add", "t one", "u"), node("Mul", "x u", "v"),
        node("Mul", "v half", "y"), pattern="tanh_gelu",
    )  # fmt: skip


def _layer_norm() -> Fragment:
    return fragment(
        [tensor("x", 2, 5, 16), constant("two", 2.0), constant("eps", 1e-5), weight("g", 16), weight("b", 16)],
        node("ReduceMean", "x", "m", axes=(-1,)), node("Sub", "x m", "c"), node("Pow", "c two", "s"),
        node("ReduceMean", "s", "v", axes=(-1,)), node("Add", "v eps", "w"), node("Sqrt", "w", "r"),
        node("Div", "c r", "n"), node("Mul", "n g", "o"), node("Add", "o b", "y"), pattern="layer_norm",
    )  # fmt: skip


# What exporters give the inner normalisation where scale and shift follow.
_UNIT = [constant("s", 1.0, 1.0, 1.0, 1.0), constant("t", 0.0, 0.0, 0.0, 0.0)]


def _group_norm() -> Fragment:
    return fragment(
        [tensor("x", 2, 8, 6, 6), constant("groups", 0, 4, -1, dtype=DType.INT64), *_UNIT,
         constant("back", 2, 8, 6, 6, dtype=DType.INT64), weight("g", 8, 1, 1), weight("b", 8, 1, 1)],
        node("Reshape", "x groups", "r"), node("InstanceNormalization", "r s t", "n", epsilon=1e-5),
        node("Reshape", "n back", "z"), node("Mul", "z g", "o"), node("Add", "o b", "y"), pattern="group_norm",
    )  # fmt: skip


def _group_norm_bare() -> Fragment:
    return fragment(
        [tensor("x", 2, 8, 6, 6), constant("groups", 0, 4, -1, dtype=DType.INT64), weight("s", 4), weight("t", 4),
         constant("back", 2, 8, 6, 6, dtype=DType.INT64)],
        node("Reshape", "x groups", "r"), node("InstanceNormalization", "r s t", "n", epsilon=1e-5),
        node("Reshape", "n back", "y"), pattern="group_norm",
    )  # fmt: skip


def _silu() -> Fragment:
    return fragment(
        [tensor("x", 4, 9)], node("Sigmoid", "x", "s"), node("Mul", "x s", "y"), pattern="sigmoid_gate"
    )


def _hard_swish() -> Fragment:
    return fragment(
        [tensor("x", 4, 9)], node("HardSigmoid", "x", "s", alpha=1 / 6, beta=0.5), node("Mul", "x s", "y"),
        pattern="hard_sigmoid_swish",
    )  # fmt: skip


def _clip_swish() -> Fragment:
    return fragment(
        [tensor("x", 4, 9), constant("three", 3.0), constant("zero", 0.0), constant("six", 6.0)],
        node("Add", "x three", "a"), node("Clip", "a zero six", "c"), node("Mul", "x c", "m"),
        node("Div", "m six", "y"), pattern="clip_swish",
    )  # fmt: skip


def _mish() -> Fragment:
    return fragment(
        [tensor("x", 4, 9)], node("Softplus", "x", "s"), node("Tanh", "s", "t"), node("Mul", "x t", "y"),
        pattern="mish",
    )  # fmt: skip


def _rsqrt() -> Fragment:
    return fragment(
        [tensor("x", 4, 9, fill="positive"), constant("one", 1.0)],
        node("Sqrt", "x", "s"), node("Div", "one s", "y"), pattern="rsqrt",
    )  # fmt: skip


def _linear() -> Fragment:
    return fragment(
        [tensor("x", 2, 7, 16), weight("w", 16, 24), weight("b", 24)],
        node("MatMul", "x w", "m"), node("Add", "b m", "y"), pattern="linear",
    )  # fmt: skip


def _attention(mask: str = "", keys: str = "swapped", scale: str = "scores") -> Fragment:
    batch, heads, length, size = _HEADS
    tensors = [tensor("q", *_HEADS), tensor("v", *_HEADS), constant("f", 0.25), constant("g", 3.0)]
    nodes = []
    left, right = "q", "kt"
    if keys == "swapped":
        tensors.append(tensor("k", *_HEADS))
        nodes.append(node("Transpose", "k", "kt", perm=(0, 1, 3, 2)))
    elif keys == "moved":  # from (batch, length, heads, size) straight to (batch, heads, size, length)
        tensors.append(tensor("k", batch, length, heads, size))
        nodes.append(node("Transpose", "k", "kt", perm=(0, 2, 3, 1)))
    else:
        tensors.append(tensor("kt", batch, heads, size, length))
    if scale == "both":
        nodes += [node("Mul", "q f", "qs"), node("Div", "kt g", "ks")]
        left, right = "qs", "ks"
    nodes.append(node("MatMul", f"{left} {right}", "s"))
    at = "s"
    if scale == "scores":
        nodes.append(node("Div", "s g", "scaled"))
        at = "scaled"
    if mask == "added":
        tensors.append(tensor("m", batch, 1, length, length))
        nodes.append(node("Add", f"{at} m", "masked"))
        at = "masked"
    elif mask in ("keeps", "drops"):
        tensors += [
            constant("m", *_keeping(mask == "keeps"), dtype=DType.BOOL, shape=(1, 1, length, length)),
            constant("low", -1e9),
        ]
        nodes.append(node("Where", f"m {at} low" if mask == "keeps" else f"m low {at}", "masked"))
        at = "masked"
    nodes += [node("Softmax", at, "p", axis=-1), node("MatMul", "p v", "y")]
    return fragment(tensors, *nodes, pattern="attention")


def _keeping(keep: bool) -> list[bool]:
    length = _HEADS[2]
    kept = np.tri(length, dtype=bool)
    return [bool(v) for v in (kept if keep else ~kept).reshape(-1)]


_PATTERNS = {
    **{f"gelu, {form}": _gelu(form) for form in ("half last", "half inside", "half first")},
    "tanh_gelu": _tanh_gelu(),
    "layer_norm": _layer_norm(),
    "group_norm": _group_norm(),
    "group_norm without affine": _group_norm_bare(),
    "silu": _silu(),
    "hard_swish": _hard_swish(),
    "clip_swish": _clip_swish(),
    "mish": _mish(),
    "rsqrt": _rsqrt(),
    "linear": _linear(),
    "attention": _attention(),
    "attention, keys moved": _attention(keys="moved"),
    "attention, keys as they are": _attention(keys="turned"),
    "attention, scale on both": _attention(scale="both"),
    "attention, no scale": _attention(scale=""),
    "attention, mask added": _attention("added"),
    "attention, mask keeps": _attention("keeps"),
    "attention, mask drops": _attention("drops"),
}
_SEQUENCES = {
    "views, then a copy": fragment(
        [tensor("x", 2, 3, 8), constant("flat", 2, 24, dtype=DType.INT64)],
        node("Transpose", "x", "t", perm=(0, 2, 1)), node("Reshape", "t flat", "y"),
    ),
    "split, one part used": fragment(
        [tensor("x", 4, 12), constant("sizes", 4, 8, dtype=DType.INT64)],
        node("Split", "x sizes", "a b", axis=1), node("Relu", "b", "y"),
    ),
    "slices backwards": fragment(
        [tensor("x", 6, 10), constant("s", 8, dtype=DType.INT64, shape=(1,)),
         constant("e", 1, dtype=DType.INT64, shape=(1,)), constant("a", 1, dtype=DType.INT64, shape=(1,)),
         constant("d", -3, dtype=DType.INT64, shape=(1,))],
        node("Slice", "x s e a d", "y"),
    ),
    "strided slice, squeezed": fragment(
        [tensor("x", 6, 10, 1), constant("s", 1, dtype=DType.INT64, shape=(1,)),
         constant("e", 9, dtype=DType.INT64, shape=(1,)), constant("a", 1, dtype=DType.INT64, shape=(1,)),
         constant("d", 2, dtype=DType.INT64, shape=(1,)), constant("last", 2, dtype=DType.INT64, shape=(1,))],
        node("Slice", "x s e a d", "z"), node("Squeeze", "z last", "q"), node("Tanh", "q", "y"),
    ),
    "expanded": fragment(
        [tensor("x", 1, 5), tensor("z", 4, 5), constant("shape", 4, 5, dtype=DType.INT64)],
        node("Expand", "x shape", "e"), node("Mul", "e z", "y"),
    ),
    "identity, unsqueeze, flatten": fragment(
        [tensor("x", 3, 4), constant("a", 0, dtype=DType.INT64, shape=(1,))],
        node("Identity", "x", "i"), node("Unsqueeze", "i a", "u"), node("Flatten", "u", "f"), node("Exp", "f", "y"),
    ),
    "several results": fragment(
        [tensor("x", 3, 4)], node("Relu", "x", "r"), node("Neg", "r", "n"), outputs="n r",
    ),
    "weight folded": fragment(
        [tensor("x", 3, 4), weight("w", 6, 4)],
        node("Transpose", "w", "t", perm=(1, 0)), node("MatMul", "x t", "y"),
    ),
    "constant look-up": fragment(
        [weight("table", 10, 6), tensor("i", 2, 3, dtype=DType.INT64, fill="index", below=10)],
        node("Gather", "table i", "y"),
    ),
    "look-up from the end": fragment(
        [tensor("x", 4, 6), constant("i", -1, 0, 2, dtype=DType.INT64)], node("Gather", "x i", "y", axis=1),
    ),
    "one constant index": fragment(
        [tensor("x", 4, 6, 2), constant("i", -2, dtype=DType.INT64)],
        node("Gather", "x i", "g", axis=1), node("Relu", "g", "y"),
    ),
    "old softmax": fragment([tensor("x", 2, 3, 4)], node("Softmax", "x", "y", axis=1), opset=11),
    "old clip": fragment([tensor("x", 2, 30)], node("Clip", "x", "y", min=-0.5, max=0.5), opset=9),
    "old sums": fragment([tensor("x", 2, 3, 4)], node("ReduceSum", "x", "y", axes=(1,), keepdims=0), opset=11),
    "transB with a bias": fragment(
        [tensor("x", 3, 4), weight("w", 6, 4), weight("b", 6)], node("Gemm", "x w b", "y", transB=1),
    ),
    "gemm with factors": fragment(
        [tensor("x", 4, 3), weight("w", 4, 6), weight("b", 1, 6)],
        node("Gemm", "x w b", "y", transA=1, alpha=0.5, beta=2.0),
    ),
    "global norms": fragment([tensor("x", 2, 3, 4, 5)], node("GlobalLpPool", "x", "y", p=2), opset=14),
    "what is unique": fragment(
        [constant("c", *range(7), *range(3), shape=(2, 5)), tensor("x", 2, 5)],
        node("Mul", "c x", "z"), node("Round", "z", "r"), node("Unique", "r", "y - - n", axis=1),
        outputs="y n",
    ),
    "gru": fragment(
        [tensor("x", 6, 2, 8), weight("w", 2, 24, 8), weight("r", 2, 24, 8), weight("b", 2, 48), tensor("h", 2, 2, 8)],
        node("GRU", "x w r b - h", "y z", hidden_size=8, linear_before_reset=1, direction="bidirectional"),
        opset=14,
    ),
    "lstm": fragment(
        [tensor("x", 6, 2, 8), weight("w", 2, 32, 8), weight("r", 2, 32, 8), weight("b", 2, 64), tensor("h", 2, 2, 8),
         tensor("c", 2, 2, 8)],
        node("LSTM", "x w r b - h c", "y z s", hidden_size=8, direction="bidirectional"), opset=14,
    ),
    "rnn": fragment(
        [tensor("x", 6, 2, 8), weight("w", 1, 4, 8), weight("r", 1, 4, 4)],
        node("RNN", "x w r", "y z", hidden_size=4, activations=("Relu",)), opset=14,
    ),
    "pads that differ": fragment(
        [tensor("x", 1, 4, 9, 9), weight("w", 6, 2, 3, 3), weight("b", 6)],
        node("Conv", "x w b", "y", group=2, pads=(0, 1, 2, 1), strides=(2, 2), dilations=(1, 2)),
    ),
}  # fmt: skip


# Pieces on the CPU are not the kernels of a GPU (padding is a fill and a copy, the bias is in the convolution), or the
# rules count a copy of keys that are contiguous the other way round.
_OTHERWISE = ("pads that differ", "attention, keys moved", "gru", "lstm", "rnn", "what is unique")


def _run(found: Fragment) -> tuple[list[np.ndarray], list[str]]:
    from gkestimator.profiling.executors.torch import TorchExecutor

    prepared = TorchExecutor("cpu").prepare(entry(found), seed=0)
    try:
        pieces = prepared.host_kernels(2)
        assert pieces is not None
        return [t.numpy() for t in prepared.outputs()], [p.name for p in pieces]
    finally:
        prepared.close()


@pytest.mark.parametrize("name", list(_PATTERNS))
def test_a_pattern_is_one_call_with_the_right_numbers(name: str) -> None:
    found = _PATTERNS[name]
    (result,), pieces = _run(found)
    np.testing.assert_allclose(result, reference(found)[0], rtol=2e-3, atol=2e-5)
    assert len(pieces) == 1, pieces


@pytest.mark.parametrize("name", list(_SEQUENCES))
def test_sequences_of_operators_give_the_right_numbers(name: str) -> None:
    found = _SEQUENCES[name]
    results, _ = _run(found)
    expected = reference(found)
    assert len(results) == len(expected) > 0
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in (*_PATTERNS, *_SEQUENCES) if n not in _OTHERWISE])
def test_as_many_pieces_run_as_are_predicted(name: str) -> None:
    from gkestimator.profiling.executors.torch_calls.program import lowering_options

    found = _PATTERNS.get(name) or _SEQUENCES[name]
    predicted = [k for s in lower(fragment_graph(found), lowering_options("fp32")).steps for k in s.kernels]
    _, pieces = _run(found)
    assert len(pieces) == len(predicted), (pieces, [k.name for k in predicted])


def test_a_causal_mask_is_an_argument() -> None:
    """The exported comparison of positions is no tensor in eager mode: the call is told ``is_causal``."""
    import torch

    length = _HEADS[2]
    tensors = [tensor("q", *_HEADS), tensor("k", *_HEADS), tensor("v", *_HEADS), constant("f", 0.25),
               constant("one", 1, dtype=DType.INT64), constant("full", *(-1e9,) * length**2, shape=(length, length))]  # fmt: skip
    found = fragment(
        [*tensors, tensor("z", length, length, fill="value", values=(0.0,) * length**2)],
        node("Add", "full z", "m0"), node("Trilu", "m0 one", "m", upper=1),
        node("Transpose", "k", "kt", perm=(0, 1, 3, 2)), node("MatMul", "q kt", "s"), node("Mul", "s f", "t"),
        node("Add", "t m", "u"), node("Softmax", "u", "p", axis=-1), node("MatMul", "p v", "y"), pattern="attention",
    )  # fmt: skip
    seen = []
    original = torch.nn.functional.scaled_dot_product_attention

    def spy(*arguments: object, **options: object) -> object:
        seen.append((len(arguments), options))
        return original(*arguments, **options)

    torch.nn.functional.scaled_dot_product_attention = spy
    try:
        (result,), _ = _run(found)
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
    assert seen and all(o["is_causal"] and o.get("attn_mask") is None and o["scale"] == 0.25 for _, o in seen)
    np.testing.assert_allclose(result, reference(found)[0], rtol=1e-4, atol=1e-5)
