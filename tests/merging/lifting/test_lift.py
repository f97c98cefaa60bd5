"""What lifting keeps: names, provenance, an order without cycles; where it stops."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
import branches
import onnx
from branches import Branch
from onnx import TensorProto, helper, numpy_helper
from random_branches import random_graph

from gkestimator.merging.lifting import Lifted, lift


def layer(b: Branch, x: str) -> str:
    """A small layer with a residual."""
    hidden = b.op("Relu", b.op("Add", b.op("MatMul", x, b.random(4, 4)), b.random(4)))
    return b.op("LayerNormalization", b.op("Add", x, hidden), b.random(4, seed=1))


def test_equal_branches_become_one_and_are_cut_at_the_end(tmp_path: Path) -> None:
    model, feeds = branches.graph(layer, (3, 4))
    found = branches.lifted(model, [feeds], tmp_path).model
    types = [n.op_type for n in found.nodes]
    assert types == ["Concat", "Tanh", "MatMul", "Add", "Relu", "Add", "LayerNormalization", "Split"]
    assert found.nodes[-1].outputs == tuple(f"m/{o.name}" for o in model.graph.output)
    assert [o.name for o in found.outputs] == [f"m/{o.name}" for o in model.graph.output]


def test_a_concat_of_what_was_cut_is_the_value_itself(tmp_path: Path) -> None:
    model, feeds = branches.graph(layer, (3, 4), merged=True)
    model.graph.node.append(helper.make_node("Identity", ["end"], ["last"], name="last"))
    model.graph.output[0].name = "last"
    found = branches.lifted(model, [feeds], tmp_path)
    assert not any(n.op_type == "Split" for n in found.model.nodes)
    assert sum(n.op_type == "Concat" for n in found.model.nodes) == 1
    wanted = branches.originals(model, feeds)["last"]
    np.testing.assert_allclose(branches.results(found.model, feeds, tmp_path)["last"], wanted, rtol=1e-5)


@pytest.mark.parametrize("opset", [13, 14, 15, 18, 21])
def test_symbolic_batches_are_measured_at_run_time(opset: int, tmp_path: Path) -> None:
    def way(b: Branch, x: str) -> str:
        return b.op("Softmax", b.op("MatMul", b.op("Reshape", x, b.ints(-1, 4)), b.random(4, 4)), axis=1)

    runs = [
        branches.graph(way, (3, 4), symbolic=True, opset=opset, batches=b) for b in ((2, 3), (5, 1), (1, 1))
    ]
    found = branches.lifted(runs[0][0], [feeds for _, feeds in runs], tmp_path)
    assert branches.count(found, "MatMul") == 1
    for model, feeds in runs:
        for name, value in branches.results(found.model, feeds, tmp_path).items():
            np.testing.assert_allclose(value, branches.originals(model, feeds)[name], rtol=1e-5)


def test_every_original_node_is_replaced_or_stays_exactly_once(tmp_path: Path) -> None:
    for seed in range(12):
        model, feeds = random_graph(seed)
        found = branches.lifted(model, feeds, tmp_path)
        names = [n.name for n in found.model.nodes]
        assert len(set(names)) == len(names)
        assert set(found.replaces) <= set(names)
        stood_for = [o for n in names for o in found.replaces.get(n, (n,))]
        assert len(set(stood_for) - {"m/p/super", "m/q/super"}) == sum(
            not o.endswith("/super") for o in stood_for
        )
        originals = {f"m/{n.name}" for n in model.graph.node if not n.name.startswith(("helper/", "super"))}
        alive = originals & needed(model)
        assert alive <= set(stood_for) <= originals | {"m/p/super", "m/q/super"}


def needed(model: onnx.ModelProto) -> set[str]:
    """Names of the nodes that an output depends on."""
    makers = {o: n for n in model.graph.node for o in n.output}
    left, found = [o.name for o in model.graph.output], set()
    while left:
        node = makers.get(left.pop())
        if node is not None and f"m/{node.name}" not in found:
            found.add(f"m/{node.name}")
            left.extend(node.input)
    return found


@pytest.mark.parametrize(("number", "apart", "nodes"), [(1e-8, 0.0, 1), (1e-8, 5e-9, 2), (0.9, 6e-8, 1)])
def test_a_small_number_must_be_equal_within_a_part_of_itself(
    number: float, apart: float, nodes: int, tmp_path: Path
) -> None:
    """The tolerance is for weights that are added up: x / 1e-8 and x / 1.5e-8 differ by a third."""

    def way(b: Branch, x: str) -> str:
        return b.op("Div", x, b.const(number + apart * b.place))

    model, feeds = branches.graph(way, (3, 4))
    assert branches.count(branches.lifted(model, [feeds], tmp_path), "Div") == nodes


def test_shape_arithmetic_that_is_not_needed_any_more_counts_to_the_reshape(tmp_path: Path) -> None:
    def way(b: Branch, x: str) -> str:
        size = b.op("Unsqueeze", b.op("Gather", b.op("Shape", x), b.const(0, np.int64)), b.ints(0))
        return b.op("Reshape", x, b.op("Concat", size, b.ints(12), axis=0))

    model, feeds = branches.graph(way, (3, 4))
    found = branches.lifted(model, [feeds], tmp_path)
    (name,) = [n.name for n in found.model.nodes if n.op_type == "Reshape"]
    assert set(found.replaces[name]) == {
        f"m/{n.name}" for n in model.graph.node if n.name[:2] in ("p/", "q/")
    }
    assert sorted(n.op_type for n in found.model.nodes) == ["Concat", "Reshape", "Split", "Tanh"]


def test_nothing_is_lifted_into_a_cycle(tmp_path: Path) -> None:
    """q's value is made with what p's Relu gives, so p's Relu cannot wait for it."""
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    sizes = numpy_helper.from_array(np.array([2, 2], np.int64), "sizes")
    nodes = [
        helper.make_node("Relu", ["p"], ["p.relu"], name="p/Relu"),
        helper.make_node("Concat", ["p.relu", "q"], ["v1"], name="helper/Concat1", axis=0),
        helper.make_node("MatMul", ["v1", "w"], ["y1"], name="super1"),
        helper.make_node("Split", ["y1", "sizes"], ["p.1", "q.1"], name="helper/Split1", axis=0),
        helper.make_node("Concat", ["p", "q.1"], ["v2"], name="helper/Concat2", axis=0),
        helper.make_node("MatMul", ["v2", "w"], ["y2"], name="super2"),
        helper.make_node("Split", ["y2", "sizes"], ["p.2", "q.2"], name="helper/Split2", axis=0),
        helper.make_node("Relu", ["q.1"], ["q.relu"], name="q/Relu"),
        helper.make_node("Sum", ["p.1", "p.2"], ["p.end"], name="p/Sum"),
        helper.make_node("Add", ["q.relu", "q.2"], ["q.end"], name="q/Add"),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "pq"]
    ends = [helper.make_empty_tensor_value_info(f"{n}.end") for n in "pq"]
    made = helper.make_graph(nodes, "cycle", inputs, ends, [weight, sizes])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = {n: np.random.default_rng(i).standard_normal((2, 4), np.float32) for i, n in enumerate("pq")}
    found = branches.lifted(model, [feeds], tmp_path)
    assert branches.count(found, "Relu") == 2
    for name, value in branches.results(found.model, feeds, tmp_path).items():
        np.testing.assert_allclose(value, branches.originals(model, feeds)[name], rtol=1e-5)


def test_what_a_subgraph_reads_keeps_its_name(tmp_path: Path) -> None:
    """The value that the branches of an If read from outside is still made, and the If is not lifted."""

    def way(b: Branch, x: str) -> str:
        relu = b.op("Relu", x)
        bodies = [
            helper.make_graph(
                [helper.make_node(op, [relu], [f"{b.name}.{op}"])],
                op, [], [helper.make_tensor_value_info(f"{b.name}.{op}", TensorProto.FLOAT, None)],
            )
            for op in ("Neg", "Exp")
        ]  # fmt: skip
        return b.op("If", b.const(True, bool), then_branch=bodies[0], else_branch=bodies[1])

    model, feeds = branches.graph(way, (3, 4))
    found = branches.lifted(model, [feeds], tmp_path)
    assert branches.count(found, "If") == 2
    for name, value in branches.results(found.model, feeds, tmp_path).items():
        np.testing.assert_allclose(value, branches.originals(model, feeds)[name], rtol=1e-5)


def test_parts_of_other_lengths_are_not_added_as_a_whole(tmp_path: Path) -> None:
    """One row each, repeated over two and three rows: the whole of two rows does not fit the whole of five."""
    sizes = [
        numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("many", [2, 3]), ("ones", [1, 1]))
    ]
    nodes = [
        helper.make_node("Split", ["x", "many"], ["p.x", "q.x"], name="helper/Split1", axis=0),
        helper.make_node("Split", ["y", "ones"], ["p.y", "q.y"], name="helper/Split2", axis=0),
        helper.make_node("Add", ["p.x", "p.y"], ["p.end"], name="p/Add"),
        helper.make_node("Add", ["q.x", "q.y"], ["q.end"], name="q/Add"),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [d, 4]) for n, d in (("x", 5), ("y", 2))]
    ends = [helper.make_empty_tensor_value_info(f"{n}.end") for n in "pq"]
    made = helper.make_graph(nodes, "rows", inputs, ends, sizes)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = {n: np.ones((d, 4), np.float32) for n, d in (("x", 5), ("y", 2))}
    found = branches.lifted(model, [feeds], tmp_path)
    assert branches.count(found, "Add") == 2
    assert branches.results(found.model, feeds, tmp_path)["q.end"].shape == (3, 4)


def test_a_concat_that_is_an_output_keeps_its_name(tmp_path: Path) -> None:
    model, feeds = branches.graph(layer, (3, 4), merged=True)
    found = branches.lifted(model, [feeds], tmp_path)
    assert [o.name for o in found.model.outputs] == ["m/end"]
    wanted = branches.originals(model, feeds)["end"]
    np.testing.assert_allclose(branches.results(found.model, feeds, tmp_path)["end"], wanted, rtol=1e-5)


@pytest.mark.parametrize("output", [False, True])
def test_values_made_of_equal_constants_are_made_once_unless_they_are_outputs(
    output: bool, tmp_path: Path
) -> None:
    def way(b: Branch, x: str) -> str:
        return b.op("Add", x, b.op("Exp", b.random(4)))

    model, feeds = branches.graph(way, (3, 4))
    if output:
        model.graph.output.append(helper.make_empty_tensor_value_info("q/Exp0"))
    found = branches.lifted(model, [feeds], tmp_path)
    assert branches.count(found, "Exp") == (2 if output else 1)
    results = branches.results(found.model, feeds, tmp_path)
    for name, value in branches.originals(model, feeds).items():
        np.testing.assert_allclose(results[name], value, rtol=1e-5)


def cut_by_a_sequence(
    *picks: int, sizes: object = 2, last: str = "SequenceAt"
) -> Callable[[Branch, str], str]:
    """torch's ``split``: the last axis of [batch, 3, 5] in parts, of which some are added up over that axis."""

    def way(b: Branch, x: str) -> str:
        parts = b.op("SplitToSequence", x, b.const(sizes, np.int64), axis=2)
        found = [b.op("SequenceAt", parts, b.const(p, np.int64)) for p in picks]
        if last != "SequenceAt":
            found.append(b.op("ConcatFromSequence", parts, axis=2))
        return b.op("Sum", *(b.op("ReduceSum", f, b.ints(2)) for f in found))

    return way


@pytest.mark.parametrize(("picks", "sizes"), [((0, 1, 2), 2), ((2,), 2), ((-1, 1), [1, 3, 1]), ((0, 1), 3)])
def test_a_sequence_that_is_taken_apart_is_one_split(
    picks: tuple[int, ...], sizes: object, tmp_path: Path
) -> None:
    model, feeds = branches.graph(cut_by_a_sequence(*picks, sizes=sizes), (3, 5))
    found = branches.lifted(model, [feeds], tmp_path)
    assert branches.count(found, "SplitToSequence") == branches.count(found, "SequenceAt") == 0
    assert branches.count(found, "Split") == 1
    (split,) = [n for n in found.model.nodes if n.op_type == "Split" and found.replaces[n.name]]
    assert len(found.replaces[split.name]) == 2 * (1 + len(picks))
    for name, value in branches.results(found.model, feeds, tmp_path).items():
        np.testing.assert_allclose(value, branches.originals(model, feeds)[name], rtol=1e-5)


@pytest.mark.parametrize(
    "way",
    [cut_by_a_sequence(0, last="ConcatFromSequence"), cut_by_a_sequence(0, 0), cut_by_a_sequence(0, -3)],
)
def test_a_sequence_that_others_read_stays(way: Callable[[Branch, str], str], tmp_path: Path) -> None:
    model, feeds = branches.graph(way, (3, 5))
    found = branches.lifted(model, [feeds], tmp_path)
    assert branches.count(found, "SplitToSequence") == 2
    for name, value in branches.results(found.model, feeds, tmp_path).items():
        np.testing.assert_allclose(value, branches.originals(model, feeds)[name], rtol=1e-5)


def test_constants_are_equal_within_the_tolerance(tmp_path: Path) -> None:
    def way(b: Branch, x: str) -> str:
        return b.op("Mul", x, b.random(4, apart=1e-4))

    model, feeds = branches.graph(way, (3, 4))
    assert branches.count(branches.lifted(model, [feeds], tmp_path), "Mul") == 2
    assert branches.count(branches.lifted(model, [feeds], tmp_path, tolerance=2e-4), "Mul") == 1


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("RandomNormalLike", {"seed": 1.0}), ("RandomUniformLike", {}), ("Bernoulli", {}), ("Multinomial", {})],
)
def test_random_operators_stay_apart(op: str, attributes: dict[str, float], tmp_path: Path) -> None:
    def way(b: Branch, x: str) -> str:
        drawn = b.op(op, b.op("Sigmoid", x), **attributes)
        return b.op("Add", x, b.op("Cast", drawn, to=1)) if op != "Multinomial" else drawn

    model, feeds = branches.graph(way, (4,))
    assert branches.count(branches.lifted(model, [feeds], tmp_path), op) == 2


def test_an_operator_of_an_unknown_domain_stays_apart(tmp_path: Path) -> None:
    """A stranger's Relu need not be ONNX's."""
    model, feeds = branches.graph(lambda b, x: b.op("Relu", x), (4,))
    shapes = branches.shapes_of(model, [feeds], "m/")
    for node in model.graph.node:
        node.domain = "example.org" if node.op_type == "Relu" else ""
    model.opset_import.append(helper.make_opsetid("example.org", 1))
    editable = branches.read(model, tmp_path)
    replaces = {n.name: () for n in editable.nodes if "helper" in n.name}
    found = lift(editable, shapes=shapes, replaces=replaces, tolerance=0.0)
    assert branches.count(found, "Relu") == 2


def test_the_model_that_is_given_is_not_changed_and_the_same_comes_out_twice(tmp_path: Path) -> None:
    model, feeds = branches.graph(layer, (3, 4), symbolic=True)
    shapes = branches.shapes_of(model, [feeds], "m/")
    editable = branches.read(model, tmp_path)
    before = copy.copy(editable.nodes), dict(editable.weights), list(editable.outputs)
    replaces = {n.name: () for n in editable.nodes if "helper" in n.name}

    def run() -> Lifted:
        return lift(editable, shapes=shapes, replaces=replaces, tolerance=1e-7)

    first, second = run(), run()
    assert (editable.nodes, editable.weights, editable.outputs) == before
    assert first.model.nodes == second.model.nodes
    assert list(first.model.weights) == list(second.model.weights)
    assert dict(first.replaces) == dict(second.replaces)
    assert len(first.model.nodes) < len(editable.nodes)


def test_old_opsets_are_left_as_they_are(tmp_path: Path) -> None:
    model, feeds = branches.graph(layer, (3, 4), opset=17)
    shapes = branches.shapes_of(model, [feeds], "m/")
    editable = branches.read(model, tmp_path)
    editable.opsets[""] = 12
    found = lift(editable, shapes=shapes, replaces={}, tolerance=0.0)
    assert found.model is editable


def test_without_shapes_nothing_is_lifted(tmp_path: Path) -> None:
    """What is not known is not taken for sound."""
    model, feeds = branches.graph(layer, (3, 4), symbolic=True)
    branches.shapes_of(model, [feeds], "m/")
    editable = branches.read(model, tmp_path)
    editable.inputs = [type(i)(name=i.name, dtype=i.dtype, shape=None) for i in editable.inputs]
    replaces = {n.name: () for n in editable.nodes if "helper" in n.name}
    found = lift(editable, shapes={}, replaces=replaces, tolerance=0.0)
    assert branches.count(found, "MatMul") == 2
