"""Attention that is torch's call, by the form its exporters write, and attention written by hand, which may not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Family, Kernel
from gkestimator.lowering import lower
from gkestimator.lowering.patterns import explain, find_matches
from gkestimator.operators.registry import LoweringOptions

Graphs = Callable[..., OperatorGraph]
Options = Callable[..., LoweringOptions]

_C: dict[str, Any] = {
    "root": 0.35, "scale": 0.125, "least": -1e9, "bias": (4, 8, 8), "table": (49, 4), "window": (1, 8, 8),
    "places": np.arange(64).reshape(8, 8) % 49, "heads_first": np.array([2, 4, 8, 16], np.int64),
}  # fmt: skip
_IO = "(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,8,16] v) => (float[2,4,8,16] y) {{ {0} }}"
_CALL = "u = Mul(q, root) t = Transpose<perm=[0,1,3,2]>(k) w = Mul(t, root) a = MatMul(u, w) "
_HAND = "u = Mul(q, scale) t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(u, t) "
_END = " p = Softmax<axis=-1>(s) y = MatMul(p, v)"
_RELATIVE = (
    "g = Gather<axis=0>(table, places) h = Transpose<perm=[2,0,1]>(g) i = Unsqueeze(h, first) s = Add(a, i)"
)

# body of the graph; whether it is the call under auto, and under fused
_FORMS = {
    "call": (_CALL + "s = Identity(a)" + _END, True, True),
    "call_bias": (_CALL + "s = Add(a, bias)" + _END, True, True),
    "call_relative_positions": (_CALL + _RELATIVE + _END, True, True),
    "call_bias_on_windows": (
        _CALL + "r = Reshape(a, rows) b = Add(r, bias) c = Add(b, window) s = Reshape(c, back)" + _END, True, True),
    "call_selected": (_CALL + "m = Less(bias, least) s = Where(m, least, a)" + _END, True, True),
    "call_capped_below": (_CALL + "b = Add(a, window) s = Max(b, least)" + _END, True, True),
    "hand": (_HAND + "s = Identity(a)" + _END, True, True),
    "hand_mask": (_HAND + "s = Add(a, window)" + _END, True, True),
    "hand_bias": (_HAND + "s = Add(a, bias)" + _END, False, True),
    "hand_relative_positions": (_HAND + _RELATIVE + _END, False, True),
}  # fmt: skip
_MORE = {
    "first": np.array([0], np.int64), "rows": np.array([2, 4, 8, 8], np.int64), "back": np.array([2, 4, 8, 8], np.int64)
}  # fmt: skip


@pytest.mark.parametrize("form", _FORMS)
def test_a_bias_for_every_head_is_fused_where_the_exporter_saw_the_call(
    form: str, graph_of: Graphs, lowering_options: Options
) -> None:
    body, auto, fused = _FORMS[form]
    graph = graph_of(_IO.format(body), {**_C, **_MORE})
    for option, expected in (("auto", auto), ("fused", fused), ("eager", False)):
        matches = find_matches(graph, lowering_options("torch", attention=option))
        assert [m.name for m in matches if m.name == "attention"] == ["attention"] * expected


def _kernels(graph: OperatorGraph, options: LoweringOptions) -> list[Kernel]:
    return [kernel for step in lower(graph, options).steps for kernel in step.kernels]


def test_an_additive_bias_goes_to_the_kernel_that_takes_one(
    graph_of: Graphs, lowering_options: Options
) -> None:
    (kernel,) = _kernels(graph_of(_IO.format(_FORMS["call_bias"][0]), _C), lowering_options("torch"))
    assert (kernel.family, kernel.variant, kernel.inputs) == (Family.ATTENTION, "masked", 4)
    assert kernel.read_bytes == 4 * (3 * 2 * 4 * 8 * 16 + 4 * 8 * 8)


_FLAT = "(float[2,4,16,8] q, float[2,4,16,8] k, float[2,4,8,16] v) => (float[2,4,8,16] y) {{ {0} }}"


def test_operands_that_lie_transposed_are_copied_first(graph_of: Graphs, lowering_options: Options) -> None:
    body = "t = Transpose<perm=[0,1,3,2]>(q) u = Mul(t, root) w = Mul(k, root) s = MatMul(u, w)" + _END
    names = [kernel.name for kernel in _kernels(graph_of(_FLAT.format(body), _C), lowering_options("torch"))]
    assert names == ["copy.contiguous", "copy.contiguous", "attention"]  # queries and keys


def test_keys_that_only_swapped_their_heads_are_not_copied(
    graph_of: Graphs, lowering_options: Options
) -> None:
    text = (
        "(float[2,4,8,16] q, float[2,8,4,16] k, float[2,4,8,16] v) => (float[2,4,8,16] y) "
        "{ u = Mul(q, root) t = Transpose<perm=[0,2,3,1]>(k) w = Mul(t, root) s = MatMul(u, w)" + _END + " }"
    )
    assert [k.name for k in _kernels(graph_of(text, _C), lowering_options("torch"))] == ["attention"]


def test_attention_over_channels_by_hand_is_not_the_call(graph_of: Graphs, lowering_options: Options) -> None:
    text = (
        "(float[2,4,8,16] q, float[2,4,8,16] k, float[2,4,16,8] v) => (float[2,4,16,8] y) "
        "{ t = Transpose<perm=[0,1,3,2]>(q) u = Mul(t, scale) s = MatMul(u, k)" + _END + " }"
    )
    graph = graph_of(text, _C)
    options = lowering_options("torch", attention="fused")
    assert not [m for m in find_matches(graph, options) if m.name == "attention"]
    assert any("transposes its left operand" in refusal.reason for refusal in explain(graph, options))


_WINDOWS = (
    "(float[2,4,3,8,16] q, float[2,4,3,8,16] k, float[2,4,3,8,16] v) => (float[2,4,3,8,16] y) {{ {0} }}"
)
_SHARED = "(float[2,4,8,16] q, float[2,1,8,16] k, float[2,1,8,16] v) => (float[2,4,8,16] y) {{ {0} }}"


def test_the_call_composes_what_its_kernels_do_not_take(graph_of: Graphs, lowering_options: Options) -> None:
    half = {"dtype": "amp", "half": Precision.FP16}
    windows = "u = Mul(q, root) t = Transpose<perm=[0,1,2,4,3]>(k) w = Mul(t, root) s = MatMul(u, w)" + _END
    kernels = _kernels(graph_of(_WINDOWS.format(windows), _C), lowering_options("torch", **half))
    assert [k.family.value for k in kernels] == [*["copy"] * 3, "bmm", *["elementwise"] * 2, "softmax", "bmm"]
    softmax = next(k for k in kernels if k.family is Family.SOFTMAX)
    assert (softmax.element_bytes, softmax.rows, softmax.cols) == (2, 2 * 4 * 3 * 8, 8)
    one_head = _kernels(
        graph_of(_SHARED.format(_CALL + "s = Identity(a)" + _END), _C), lowering_options("torch")
    )
    assert [k.name for k in one_head].count("copy.expand") == 2  # keys and values, for each of four heads
    assert not [k for k in one_head if k.family is Family.ATTENTION]
