"""Ordering, combining, tidying and converting: what the result computes, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import families
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from gkestimator.core.errors import ModelError
from gkestimator.merging.editing import (
    EditNode,
    align_opsets,
    check_editable,
    combine,
    make_weight,
    operator_name,
    order_nodes,
    read_editable,
    tidy,
    write_editable,
)

RNG = np.random.default_rng(11)


def node(name: str, reads: str = "", *, outer: str = "") -> EditNode:
    return EditNode(
        name=name,
        op_type="Op",
        inputs=tuple(reads.split()),
        outputs=(f"{name}.y",),
        outer=tuple(outer.split()),
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.integers(1, 12).flatmap(lambda n: st.tuples(
    st.permutations(range(n)),
    st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.booleans()), max_size=30),
)))  # fmt: skip
def test_order_of_shuffled_nodes(drawn):
    order, edges = drawn
    reads: dict[int, list[tuple[str, bool]]] = {i: [("x", False)] for i in range(len(order))}
    for a, b, outer in edges:
        if a < b:
            reads[b].append((f"n{a}.y", outer))
    nodes = [
        node(f"n{i}", " ".join(r for r, o in reads[i] if not o), outer=" ".join(r for r, o in reads[i] if o))
        for i in range(len(order))
    ]
    assert order_nodes(nodes, ["x"]) == nodes  # in order already: nothing moves
    found = order_nodes([nodes[i] for i in order], ["x"])
    assert sorted(n.name for n in found) == sorted(n.name for n in nodes)
    known = {"x"}
    for n in found:
        assert known.issuperset(n.reads)
        known.update(n.writes)


def test_ready_nodes_keep_their_order():
    late, first, second = node("late", "second.y"), node("first", "x"), node("second", "x")
    assert [n.name for n in order_nodes([late, first, second], ["x"])] == ["first", "second", "late"]


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([node("a", "b.y"), node("b", "a.y"), node("c", "x")], r"2 nodes .* cycle.*: a \(Op\), b \(Op\)"),
        ([node("a", outer="a.y")], "cycle"),
        ([node("a", "nobody")], r"node a \(Op\) reads 'nobody', which nothing defines"),
        ([node("a"), node("a")], "'a.y' is defined twice"),
        ([replace(node("a"), outputs=("x",))], "'x' is defined twice"),
        ([replace(node("a"), outputs=("u", "u"))], "'u' is defined twice"),
    ],
)
def test_orders_that_cannot_be(nodes: list[EditNode], says: str):
    with pytest.raises(ModelError, match=says):
        order_nodes(nodes, ["x"])


def test_names_of_operators():
    assert operator_name(replace(node("n"), domain="com.microsoft")) == "n (com.microsoft.Op)"


def test_combined_siblings_run_as_they_did_alone(saved, tmp_path: Path, run):
    a = families.mobilenet_like(seed=1)
    b = families.sibling(a, last=1)
    paths = {n: saved(m, n) for n, m in {"a": a, "b": b}.items()}
    alone = {n: read_editable(p, prefix=f"{n}/", name=n) for n, p in paths.items()}
    merged = tidy(combine(list(alone.values()), "both"))
    check_editable(merged)
    assert merged.prefixes == ("a/", "b/")
    both = sum(len(m.weights) for m in alone.values())
    shared = [w.name for w in merged.weights.values() if w.name.startswith("a/")]
    assert len(shared) == len(alone["a"].weights) and both - len(merged.weights) > 10
    [out] = write_editable(merged, tmp_path / "both.onnx")
    feeds = {n: families.feeds(m, seed=i, batch=2 + i) for i, (n, m) in enumerate({"a": a, "b": b}.items())}
    found = run(out, {f"{n}/{k}": v for n, f in feeds.items() for k, v in f.items()})
    for name, path in paths.items():
        for output, value in run(path, feeds[name]).items():
            assert np.array_equal(found[f"{name}/{output}"], value)


def test_a_model_with_itself_keeps_one_set_of_weights(saved):
    path = saved(families.bert_like(seed=2))
    twice = [read_editable(path, prefix=f"{n}/", name=n) for n in ("m", "m#2")]
    merged = tidy(combine(twice, "twice"))
    assert len(merged.weights) == len(tidy(twice[0]).weights)
    assert all(n.startswith("m/") for n in merged.weights)
    assert len(merged.nodes) == 2 * len(twice[0].nodes)


def test_what_cannot_be_combined(read):
    one = read("g (float[4] x) => (float[4] y) { y = Relu (x) }")
    with pytest.raises(ModelError, match="'m/x' is defined twice, by m and by m"):
        combine([one, one], "both")
    other = replace(read("g (float[4] x) => (float[4] y) { y = Relu (x) }", "o"), opsets={"": 21})
    with pytest.raises(ModelError, match="o: opset 21 of domain ai.onnx; 17 was expected"):
        combine([one, other], "both")
    with pytest.raises(ModelError, match="found no model"):
        combine([], "none")


def test_tidy_keeps_what_differs(read):
    model = read(
        """g (float[2] x, bool c) => (float[2] y, float[2] e, float[2] k) <
        float[2] a = {0.0, 1.0}, float[2] b = {-0.0, 1.0}, float[2] d = {0.0, 1.0}, float[2] e = {0.0, 1.0},
        float[1,2] f = {0.0, 1.0}, float[2] s = {0.0, 1.0}, float[2] k = {5.0, 5.0}, float[2] u = {7.0, 7.0}>
    { dead = Add (x, u)
      p = Add (x, a) q = Add (p, b) r = Add (q, d) t = Add (r, e)
      v = Add (t, f) w = Reshape (v, sh) y = If (c) <
        then_branch = t1 () => (float[2] o) { o = Add (w, s) }, else_branch = t2 () => (float[2] o2) { o2 = Add (w, x) }>
    }""".replace("(v, sh)", "(v, shape)").replace("float[2] s =", "int64[1] shape = {2}, float[2] s =")
    )
    found = tidy(model)
    names = [n.removeprefix("m/") for n in found.weights]
    # b differs from a in a sign, f in its shape; e is an output and s is read by a subgraph
    assert names == ["a", "b", "e", "f", "shape", "s", "k"]
    reads = {n.outputs[0].removeprefix("m/"): n.inputs for n in found.nodes}
    assert "dead" not in reads
    assert reads["r"] == ("m/q", "m/a")
    assert reads["t"] == ("m/r", "m/e")


def test_large_weights_that_differ_in_one_place_only(read):
    base = RNG.standard_normal((700, 900)).astype(np.float32)
    for place in [(0, 0), (350, 451), (699, 899)]:
        other = base.copy()
        other[place] += 1
        model = read("g (float[900,1] x) => (float[700,1] y) { y = Relu (x) }")
        names = {"p": base, "q": base, "r": other}
        model.weights.update({n: make_weight(n, v) for n, v in names.items()})
        model.nodes = [
            EditNode(name=n, op_type="MatMul", inputs=(n, "m/x"), outputs=(f"{n}.y",)) for n in names
        ] + [EditNode(name="s", op_type="Sum", inputs=("p.y", "q.y", "r.y"), outputs=("m/y",))]
        found = tidy(model)
        assert list(found.weights) == ["p", "r"]
        assert [n.inputs[0] for n in found.nodes[:3]] == ["p", "p", "r"]


OLD = """<ir_version: 6, opset_import: ["": 9, "com.microsoft": 1]>
g (float[N,4] x, bool c) => (float[N,4] y, float[N] z) <float[4,4] w = {W}, int64[2] sh = {-1, 4}>
{ a = MatMul (x, w) b = com.microsoft.Gelu (a) s = Reshape (b, sh)
  f = Clip <min = -1.0, max = 1.0> (s) q = Unsqueeze <axes = [1]> (f) r = Squeeze <axes = [1]> (q)
  y = If (c) <then_branch = t () => (float[N,4] o1) { o0 = Clip <min = -2.0, max = 2.0> (r) o1 = Add (o0, x) },
              else_branch = e () => (float[N,4] o2) { o2 = Identity (x) }>
  z = ReduceSum <axes = [1], keepdims = 0> (f) }""".replace("W", ", ".join(map(str, np.linspace(-2, 3, 16))))


def test_opsets_are_raised(saved, tmp_path: Path, run):
    path = saved(OLD)
    new = saved("g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }", "new")
    models = [read_editable(path, prefix=p, name=p[:-1]) for p in ("a/", "b/")]
    [up, twin, same] = align_opsets([*models, read_editable(new, prefix="n/", name="n")])
    assert up.opsets == {"": 17, "com.microsoft": 1} == twin.opsets | {"": 17} and same.opsets == {"": 17}
    assert up.weights["a/w"] is models[0].weights["a/w"]  # never through the converter
    merged = tidy(combine([up, twin, same], "all"))
    check_editable(merged)
    [out] = write_editable(merged, tmp_path / "all.onnx")
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    for c in (True, False):
        feeds = {"x": x, "c": np.array(c)}
        expected = run(path, feeds)
        found = run(out, {"n/x": x, **{p + k: v for p in ("a/", "b/") for k, v in feeds.items()}})
        for name, value in expected.items():
            assert np.array_equal(found["a/" + name], value) and np.array_equal(found["b/" + name], value)


def test_opset_13_at_least_and_nothing_converted_without_need(read):
    old = read('<ir_version: 6, opset_import: ["": 11]> g (float[2] x) => (float[2] y) { y = Relu (x) }')
    assert align_opsets([old])[0].opsets == {"": 13}
    new = read("g (float[4] x) => (float[4] y) { y = Relu (x) }", "new")
    assert align_opsets([new])[0] is new


def test_opsets_that_cannot_be_aligned(read):
    text = '<ir_version: 8, opset_import: ["": 17, "own": {}]> g (float[4] x) => (float[4] y) {{ y = own.Op (x) }}'
    with pytest.raises(ModelError, match=r"^b: opset 2 of domain own; 1 was expected, as in a$"):
        align_opsets([read(text.format(1), "a"), read(text.format(2), "b")])
    relu = "g (float[4] x) => (float[4] y) { y = Relu (x) }"
    with pytest.raises(ModelError, match="^later: opset 99; at most [0-9]+ was expected, which onnx"):
        align_opsets([read(relu), replace(read(relu, "later"), opsets={"": 99})])
    softmax = helper.make_model(
        helper.make_graph(
            [helper.make_node("Softmax", ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", 1, None)],
            [helper.make_tensor_value_info("y", 1, None)],
        ),
        opset_imports=[helper.make_opsetid("", 11)],
        ir_version=6,
    )
    # opset 13 gave its axis another meaning, which takes the rank to translate
    with pytest.raises(
        ModelError, match="^s: cannot be converted from opset 11 to 13: .*'shape' .* missing"
    ) as e:
        align_opsets([read(softmax, "s")])
    assert "\n" not in str(e.value) and "/home" not in str(e.value)


def test_a_model_that_the_checker_refuses(read):
    model = read("g (float[4] x) => (float[4] y) { y = Relu (x) }")
    model.nodes[0] = replace(model.nodes[0], op_type="NoSuchOperator")
    with pytest.raises(ModelError, match="^m: not valid by ONNX's checker: .*NoSuchOperator"):
        check_editable(model)
    wrong = read(
        "g (float[4,3] x) => (float[4,5] y) <float[2,5] w = {1,2,3,4,5,6,7,8,9,10}> { y = Relu (x) }"
    )
    wrong.nodes[0] = replace(wrong.nodes[0], op_type="MatMul", inputs=("m/x", "m/w"))
    with pytest.raises(ModelError, match="^m: not valid by ONNX's checker: .*[Ii]ncompatible"):
        check_editable(wrong)
