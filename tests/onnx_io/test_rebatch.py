"""Which dimension is the batch, and models exported at a fixed one."""

from __future__ import annotations

import pytest

from gkestimator.core.errors import ModelError, UsageError


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("float[N,T] x", "N"),
        ("float[T,batch] x", "batch"),
        ("float[batch_size,sequence_length] ids", "batch_size"),
        ("float[foo,3] x", "foo"),
        ("float[seq,bs,8] x, float[seq] m", "bs"),
        ("float[rows,8] x, float[batch,8] y", "batch"),
        ("float[1,T] x", None),
        ("float[4,3] x", None),
    ],
)
def test_the_batch_dimension_is_found(load, inputs, expected):
    x = inputs.split("] ")[1].split(",")[0]
    assert load(f"g ({inputs}) => (float[A] out) {{ out = Flatten({x}) }}").batch_dim == expected


def test_symbolic_batch_defaults_to_one_and_says_so(load):
    graph = load("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }").bind()
    assert graph.batch_size == 1
    assert any("N = 1" in w for w in graph.warnings)


def test_fixed_batch_as_exported_and_rebatched(load):
    model = load(
        """g (float[8,3,4,4] x, float[2,3,3,3] w, float[32,5] v) => (float[8,5] y) <int64[2] s = {8, -1}> {
        c = Conv<pads = [1,1,1,1]>(x, w)  r = Reshape(c, s)  y = MatMul(r, v) }"""
    )
    # w and v are inputs here, and keep their shape: their first dimension is not the batch's
    assert model.bind().batch_size == 8
    assert model.bind().outputs[0].shape == (8, 5)
    graph = model.bind(batch_size=3)
    assert graph.batch_size == 3
    assert [o.outputs[0].shape for o in graph.operators] == [(3, 2, 4, 4), (3, 32), (3, 5)]


def test_target_without_placeholder_is_rebatched(load):
    model = load(
        """g (float[1,196,768] x) => (float[1,196,12,64] y) <int64[4] s = {1, 196, 12, 64}> { y = Reshape(x, s) }"""
    )
    assert model.bind(batch_size=16).outputs[0].shape == (16, 196, 12, 64)


def test_batch_merged_with_heads_is_rebatched(load):
    model = load(
        """g (float[2,6,8] x) => (float[12,4,2] y) <int64[4] s = {2, 6, 4, 2}, int64[3] t = {12, 4, 2}> {
        a = Reshape(x, s)  y = Reshape(a, t) }"""
    )
    assert model.bind(batch_size=5).outputs[0].shape == (30, 4, 2)


def test_batch_behind_another_axis_is_rebatched(load):
    model = load(
        """g (float[2,6,8] x) => (float[6,2,2,4] y) <int64[4] s = {6, 2, 2, 4}> {
        a = Transpose<perm = [1,0,2]>(x)  y = Reshape(a, s) }"""
    )
    assert model.bind(batch_size=7).outputs[0].shape == (6, 7, 2, 4)


def test_expand_to_the_batch_is_rebatched(load):
    model = load(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,6,8] x) => (float[2,7,8] y) <int64[3] s = {2, 1, 8}> {
        z = ReduceMax<axes = [1]>(x)  e = Expand(z, s)  y = Concat<axis = 1>(e, x) }"""
    )
    assert model.bind(batch_size=9).outputs[0].shape == (9, 7, 8)


@pytest.mark.parametrize(
    ("body", "node"),
    [
        ("y = Gather<axis = 0>(x, i)", "Gather"),  # picks one sample
        ("t = Transpose(x) y = MatMul(t, x)", "MatMul"),  # contracts over the batch
        ("y = Concat<axis = 1>(x, w)", "Concat"),  # a constant of the exported batch
        ("y = ReduceMean<keepdims = 1>(x)", "ReduceMean"),
        (
            "s = Constant<value_ints = [4, 8]>() y = Expand(w, s)",
            "output",
        ),  # does not depend on the input at all
    ],
)
def test_unsound_rebatching_is_refused_and_names_the_node(load, body, node):
    model = load(
        f"g (float[4,8] x) => (float[A,B] y) <int64 i = {{0}}, float[4,1] w = {{0, 1, 2, 3}}> {{ {body} }}"
    )
    assert model.bind().batch_size == 4
    with pytest.raises(ModelError, match=node) as e:
        model.bind(batch_size=6)
    assert "\n" not in str(e.value)


def test_model_without_inputs_has_no_batch(load):
    model = load("g () => (float[2] y) { y = RandomNormal<shape = [2]>() }")
    assert model.bind().outputs[0].shape == (2,)
    with pytest.raises(UsageError, match="no input has a batch"):
        model.bind(batch_size=4)
