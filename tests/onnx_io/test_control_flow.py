"""If, Loop, Scan and SequenceMap become the operators of their subgraphs."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from gkestimator.core.errors import LimitError

BRANCHES = """If (c) <then_branch = a () => (float[N,4] t) { t = Relu(x) },
    else_branch = b () => (float[N,8] e) { e = Concat<axis=1>(x, x) }> }"""
LOOP = """Loop (m, c, x) <body = b (int64 i, bool cin, float[N,4] v) => (bool co, float[N,4] vo, float[N,4] so)
    { co = Identity(cin)  vo = Add(v, x)  so = Relu(vo) }> }"""


def listed(graph):
    return [(o.op_type, o.outputs[0].shape, o.repeat) for o in graph.operators]


def test_if_with_known_condition_takes_that_branch(load):
    for value, expected in ((1, ("Relu", (3, 4), 1)), (0, ("Concat", (3, 8), 1))):
        model = load(f"g (float[N,4] x) => (float[N,M] y) <bool c = {{{value}}}> {{ y = {BRANCHES}")
        graph = model.bind(batch_size=3)
        assert listed(graph) == [expected]
        assert graph.outputs[0].shape == expected[1]
        assert not graph.warnings


def test_sparse_constants_of_a_branch_are_its_own_where_nodes_are_out_of_order(load):
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[N,4] x, bool c) => (float[N,4] z) { z = Neg(y)  y = If (c) <
            then_branch = a () => (float[N,4] t) { t = Add(x, s) },
            else_branch = b () => (float[N,4] e) { e = Relu(x) }> }""")
    values, places = np.array([2.0], np.float32), np.array([1])
    model.graph.node[1].attribute[0].g.sparse_initializer.append(
        helper.make_sparse_tensor(
            numpy_helper.from_array(values, "s"), numpy_helper.from_array(places, "i"), [4]
        )
    )
    assert [o[0] for o in listed(load(model).bind(batch_size=3))] == ["Add", "Neg"]


def test_if_on_data_takes_the_branch_with_more_elements_and_warns(load):
    graph = load(f"g (float[N,4] x, bool c) => (float[N,M] y) {{ y = {BRANCHES}").bind(batch_size=3)
    assert listed(graph) == [("Concat", (3, 8), 1)]
    assert "else_branch" in graph.warnings[0]


def test_nested_ifs_are_walked_once_each(load):
    depth = 18
    body = "t = Relu(x)"
    for level in range(depth):
        body = (
            f"t{level} = If (c) <then_branch = a{level} () => (float[N,4] t) {{ {body} }}, "
            f"else_branch = b{level} () => (float[N,4] e) {{ e = Exp(x) }}>\n t = Identity(t{level})"
        )
    graph = load(f"g (float[N,4] x, bool c) => (float[N,4] t) {{ {body} }}").bind(batch_size=2)
    assert graph.operators[0].op_type in ("Relu", "Exp")


def test_loop_with_constant_trip_count_repeats_its_body(load):
    graph = load(
        f"g (float[N,4] x) => (float[N,4] y, float[K,N,4] s) <int64 m = {{5}}, bool c = {{1}}> {{ y, s = {LOOP}"
    )
    bound = graph.bind(batch_size=3)
    assert listed(bound) == [("Add", (3, 4), 5), ("Relu", (3, 4), 5), ("Concat", (5, 3, 4), 1)]
    assert [o.shape for o in bound.outputs] == [(3, 4), (5, 3, 4)]


def test_loop_with_unknown_trip_count_runs_once_or_as_often_as_told(load):
    model = load(
        f"g (float[N,4] x, int64 m) => (float[N,4] y, float[K,N,4] s) <bool c = {{1}}> {{ y, s = {LOOP}"
    )
    once = model.bind(batch_size=3)
    assert [r for _, _, r in listed(once)] == [1, 1, 1]
    assert any("option trip_count" in w for w in once.warnings)
    told = model.bind(batch_size=3, trip_count=7)
    assert listed(told) == [("Add", (3, 4), 7), ("Relu", (3, 4), 7), ("Concat", (7, 3, 4), 1)]
    assert not told.warnings


def test_loop_of_no_trips_passes_its_inputs_on(load):
    model = load(
        f"g (float[N,4] x) => (float[N,4] y, float[K,N,4] s) <int64 m = {{0}}, bool c = {{1}}> {{ y, s = {LOOP}"
    )
    graph = model.bind(batch_size=3)
    assert graph.operators == ()
    assert [o.shape for o in graph.outputs] == [(3, 4), (0, 3, 4)]


GROWING = """Loop (m, c, x) <body = b (int64 i, bool cin, float[N,J] v) => (bool co, float[N,L] vo)
    { co = Identity(cin)  vo = Concat<axis=1>(v, x) }> }"""


def test_loop_whose_shapes_change_is_unrolled(load):
    model = load(f"g (float[N,4] x) => (float[N,K] y) <int64 m = {{3}}, bool c = {{1}}> {{ y = {GROWING}")
    graph = model.bind(batch_size=2)
    assert listed(graph) == [("Concat", (2, 8), 1), ("Concat", (2, 12), 1), ("Concat", (2, 16), 1)]
    assert len({o.outputs[0].storage for o in graph.operators}) == 3


def test_unrolling_and_trip_counts_are_bounded(load):
    model = load(
        f"g (float[N,4] x) => (float[N,K] y) <int64 m = {{100000}}, bool c = {{1}}> {{ y = {GROWING}"
    )
    with pytest.raises(LimitError, match="trip"):
        model.bind(batch_size=2)
    model = load(
        f"g (float[N,4] x) => (float[N,4] y, float[K,N,4] s) <int64 m = {{10000000000}}, bool c = {{1}}> {{ y, s = {LOOP}"
    )
    with pytest.raises(LimitError, match="10,000,000,000"):
        model.bind(batch_size=2)


@pytest.mark.slow
def test_nested_unrolled_loops_are_bounded(load):
    inner = """w = Loop (m, c, v) <body = d (int64 j, bool din, float[N,J] u) => (bool do, float[N,L] uo)
        { do = Identity(din)  uo = Concat<axis=1>(u, x) }>"""
    model = load(
        f"""g (float[N,1] x) => (float[N,K] y) <int64 m = {{2000}}, bool c = {{1}}> {{
        y = Loop (m, c, x) <body = b (int64 i, bool cin, float[N,J] v) => (bool co, float[N,L] w)
        {{ co = Identity(cin)  {inner} }}> }}"""
    )
    with pytest.raises(LimitError):
        model.bind(batch_size=1)


def test_scan_takes_its_trips_from_shapes(load):
    model = load(
        """g (float[N,6,4] x, float[N,4] h) => (float[N,4] y, float[N,K,4] s) {
        y, s = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
            body = b (float[N,4] v, float[N,4] xi) => (float[N,4] vo, float[N,4] so) { vo = Add(v, xi) so = Tanh(vo) }
        > (h, x) }"""
    )
    graph = model.bind(batch_size=3)
    assert listed(graph) == [("Add", (3, 4), 6), ("Tanh", (3, 4), 6), ("Concat", (3, 6, 4), 1)]


def test_sequence_map_runs_its_body_per_element(load):
    model = load(
        """g (float[N,6,4] x) => (float[N,1,4] y) { q = SplitToSequence<axis=1>(x)
        r = SequenceMap <body = b (float[N,1,4] v) => (float[N,1,4] vo) { vo = Relu(v) }> (q)
        one = Constant<value_int=1>()  y = SequenceAt(r, one) }"""
    )
    graph = model.bind(batch_size=3)
    assert [o.op_type for o in graph.operators] == ["SplitToSequence", *["Relu"] * 6, "SequenceAt"]
    assert graph.outputs[0].shape == (3, 1, 4)


def test_weights_used_inside_a_loop_are_counted_once(load):
    model = load(
        """g (float[N,4] x) => (float[N,4] y) <int64 m = {9}, bool c = {1}, float[4,4] w = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}> {
        y = Loop (m, c, x) <body = b (int64 i, bool cin, float[N,4] v) => (bool co, float[N,4] vo)
        { co = Identity(cin)  t = Transpose(w)  vo = MatMul(v, t) }> }"""
    )
    graph = model.bind(batch_size=2)
    assert listed(graph) == [("MatMul", (2, 4), 9)]
    assert graph.weights == {"w": 64}
