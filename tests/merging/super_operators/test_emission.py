"""Which nodes stand for a super-operator: as few as can be, on views of the members' weights."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("scipy")

from onnx import helper
from onnx.reference import ReferenceEvaluator
from random_supers import Case, random_convolution, random_product, to_proto, to_tensor

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ModelError
from gkestimator.merging.editing import EditNode, ValueShape
from gkestimator.merging.operators import SuperOperator
from gkestimator.merging.super_operators import can_emit, emit, share_helpers


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def two(
    *, x=(2, 5, 4), other=(3, 5, 4), static=None, static_other=None, opset=17, weight=(4, 6), **more
) -> Case:
    """Two members of one whole weight."""
    case = Case("MatMul", DType.FLOAT, *weight, opset=opset)
    case.add(values(*x), values(*weight), (0, 0), static=static, **more)
    case.add(values(*other, seed=1), values(*weight), (0, 0), static=static_other, **more)
    return case


def operators(emitted) -> list[str]:
    return [node.op_type for node in emitted.nodes]


def test_a_whole_product_is_one_product() -> None:
    new = two().check()
    assert operators(new) == ["Concat", "MatMul", "Split"]
    assert new.nodes[1].inputs[1] == "m0/w"
    assert [w.name for w in new.weights] == ["merged/int64[2,3]"]
    assert new.replaces["merged/0/shared"] == ("m0/node", "m1/node")
    assert new.nodes[2].outputs == ("m0/y", "m1/y")


def test_unknown_batches_are_read_at_run_time() -> None:
    static = {"static": (None, 5, 4), "static_other": (None, 5, 4)}
    newer = two(opset=15, **static).check()
    assert operators(newer) == ["Concat", "MatMul", "Shape", "Shape", "Concat", "Split"]
    older = two(opset=14, **static).check()
    assert operators(older).count("Gather") == 2
    one = two(static_other=(None, 5, 4)).check()
    assert operators(one) == ["Concat", "MatMul", "Shape", "Concat", "Split"]


def test_an_empty_batch_stays_empty() -> None:
    case = two(x=(0, 5, 4), static=(None, 5, 4), static_other=(None, 5, 4))
    assert operators(case.check()).count("Shape") == 2


def test_unequal_sequences_are_stacked_as_rows() -> None:
    assert operators(two(other=(3, 7, 4)).check()) == [
        "Reshape",
        "Reshape",
        "Concat",
        "MatMul",
        "Split",
        "Reshape",
        "Reshape",
    ]
    unknown = two(other=(3, 7, 4), static=(None, None, 4), static_other=(None, None, 4)).check()
    assert operators(unknown).count("Shape") == 4  # rows of each, and the axes of each


def test_a_block_of_all_rows_takes_no_activation_apart() -> None:
    case = Case("Gemm", DType.FLOAT, 4, 3)
    first = values(4, 3)
    case.add(values(2, 4), first, (0, 0))
    case.add(values(5, 4, seed=1), np.hstack([values(4, 2), first]), (0, 2))
    assert operators(case.check()) == ["Concat", "Gemm", "Split", "MatMul", "Concat"]


def test_the_border_product_of_gemm_adds_for_nothing() -> None:
    case = Case("Gemm", DType.FLOAT, 4, 3)
    first = values(4, 3)
    case.add(values(2, 4), first, (0, 0))
    case.add(values(5, 9, seed=1), np.vstack([values(2, 3), first, values(3, 3)]), (2, 0))
    assert operators(case.check()) == ["Split", "Concat", "Gemm", "Split", "Concat", "Gemm"]


def test_the_border_product_of_three_axes_is_of_rows_so_that_gemm_adds_it_for_nothing() -> None:
    case = Case("MatMul", DType.FLOAT, 4, 3)
    first = values(4, 3)
    case.add(values(2, 2, 4), first, (0, 0))
    case.add(values(5, 2, 9, seed=1), np.vstack([values(2, 3), first, values(3, 3)]), (2, 0))
    found = [name for name in operators(case.check()) if name != "Reshape"]  # which moves nothing
    assert found == ["Split", "Concat", "MatMul", "Split", "Concat", "Gemm"]


def biased(first: np.ndarray | None, second: np.ndarray | None, op_type: str = "Gemm") -> Case:
    case = Case(op_type, DType.FLOAT, 4, 3)
    weight = values(4, 3) if op_type == "Gemm" else values(3, 4, 1, 1)
    tail = () if op_type == "Gemm" else (2, 2)
    case.add(values(2, 4, *tail), weight, (0, 0), bias=first)
    case.add(values(5, 4, *tail, seed=1), weight, (0, 0), bias=second)
    return case


@pytest.mark.parametrize("op_type", ["Gemm", "Conv"])
def test_an_equal_bias_stays_inside(op_type) -> None:
    bias = values(3)
    assert operators(biased(bias, bias + 5e-8, op_type).check(bound=1e-5)) == ["Concat", op_type, "Split"]
    assert operators(biased(bias, bias + 1e-3, op_type).check()) == ["Concat", op_type, "Split", "Add", "Add"]
    assert operators(biased(bias, None, op_type).check()) == ["Concat", op_type, "Split", "Add"]
    wide = biased(bias, bias + 1e-3, op_type)
    assert operators(wide.emitted(tolerance=1e-2)) == ["Concat", op_type, "Split"]


def test_a_residual_convolution_takes_the_members_own_bias() -> None:
    case = Case("Conv", DType.FLOAT, 2, 3)
    first = values(3, 2, 3, 3)
    case.add(values(1, 2, 6, 6), first, (0, 0), bias=values(3))
    more = np.concatenate([values(3, 1, 3, 3), first], axis=1)
    case.add(values(2, 3, 6, 6), more, (1, 0), bias=values(3, seed=4))
    new = case.check()
    assert operators(new) == ["Split", "Concat", "Conv", "Split", "Add", "Conv", "Add"]
    assert [len(node.inputs) for node in new.nodes if node.op_type == "Conv"] == [2, 3]


def test_smaller_images_are_filled_with_zeros_and_cut_back() -> None:
    case = Case("Conv", DType.FLOAT, 2, 3)
    for seed, size in enumerate([(6, 9), (8, 8), (8, 9)]):
        x = values(1 + seed, 2, *size, seed=seed)
        case.add(x, values(3, 2, 3, 3), (0, 0), strides=(2, 2), pads=(1, 1, 1, 1))
    new = case.check()
    assert operators(new) == ["Pad", "Pad", "Concat", "Conv", "Split", "Slice", "Slice"]
    pads = [node.inputs[1] for node in new.nodes if node.op_type == "Pad"]
    assert pads == ["merged/int64[0,0,0,0,0,0,2,0]", "merged/int64[0,0,0,0,0,0,0,1]"]


def test_zeros_that_add_no_result_are_not_cut() -> None:
    case = Case("Conv", DType.FLOAT, 2, 3)
    for seed, size in enumerate([(7, 7), (8, 8)]):
        case.add(
            values(1, 2, *size, seed=seed), values(3, 2, 2, 2), (0, 0), strides=(2, 2), pads=(0, 0, 1, 1)
        )
    assert operators(case.check()) == ["Pad", "Concat", "Conv", "Split"]


def test_depthwise_groups_are_taken_out_of_the_channels() -> None:
    case = Case("Conv", DType.FLOAT, 4, 1)
    first = values(4, 1, 3, 3)
    case.add(values(1, 4, 6, 6), first, (0, 0), group=4)
    case.add(values(2, 6, 6, 6), np.concatenate([values(2, 1, 3, 3), first]), (2, 0), group=6)
    new = case.check()
    assert operators(new) == ["Split", "Concat", "Conv", "Split", "Conv", "Concat"]
    assert [node.attributes["group"] for node in new.nodes if node.op_type == "Conv"] == [4, 2]


def test_weights_are_views_and_the_shared_block_is_the_first_members() -> None:
    case = Case("Gemm", DType.FLOAT, 3, 2)
    first = values(5, 4)
    second = values(6, 5, seed=9)
    second[2:5, 1:3] = first[1:4, 2:4] + np.float32(1e-4)
    case.add(values(2, 5), first, (1, 2))
    case.add(values(2, 6), second.T, (2, 1), transB=1)
    new = case.check(bound=1e-3)
    held = {name: weight.values.array() for name, weight in case.weights.items()}
    found = {w.name: w.values.array() for w in new.weights if w.dtype is DType.FLOAT}
    # Both have a border of two pieces; the sides are one piece of the first and two of the second.
    assert set(found) == {
        "merged/0/shared_weight",
        "merged/0/border_weight",
        "merged/0/sides_weight",
        "merged/0/border_weight_2",
        "merged/0/sides_weight_2",
    }
    views = {name for name, a in found.items() if any(np.shares_memory(a, b) for b in held.values())}
    assert views == {"merged/0/shared_weight", "merged/0/sides_weight"}
    np.testing.assert_array_equal(found["merged/0/shared_weight"], first[1:4, 2:4])
    np.testing.assert_array_equal(found["merged/0/border_weight_2"], second[[0, 1, 5], 1:3])
    np.testing.assert_array_equal(found["merged/0/sides_weight_2"], second[:, [0, 3, 4]])
    assert sum(a.size for a in found.values()) == first.size + second.size - 3 * 2


def test_both_sides_of_a_block_are_one_product() -> None:
    case = Case("Gemm", DType.FLOAT, 4, 3)
    first = values(4, 3)
    case.add(values(2, 4), first, (0, 0), bias=values(3))
    wide, bias = np.hstack([values(4, 2), first, values(4, 5)]), values(10, seed=3)
    case.add(values(5, 4, seed=1), wide, (0, 2), bias=bias)
    new = case.check()
    assert operators(new) == ["Concat", "Gemm", "Split", "Add", "Add", "Gemm", "Split", "Concat"]
    held = {w.name: w.values.array() for w in new.weights}
    np.testing.assert_array_equal(held["merged/0/sides_bias"], bias[[0, 1, 5, 6, 7, 8, 9]])


def test_the_same_super_operator_gives_the_same_nodes() -> None:
    for seed in range(20):
        assert random_product(seed).emitted().nodes == random_product(seed).emitted().nodes


def test_new_names_are_under_the_super_operators_own() -> None:
    for seed in range(40):
        case = (random_product, random_convolution)[seed % 2](seed)
        new = emit(
            case.super_operator(), shapes=case.shapes, tolerance=0.0, name="merged/7", opset=case.opset
        )
        names = [n.name for n in new.nodes] + [w.name for w in new.weights if w.dtype is not DType.INT64]
        assert all(name.startswith("merged/7/") for name in names) and len(set(names)) == len(names)
        written = [name for node in new.nodes for name in node.outputs]
        results = {operator.y for operator in case.operators}
        assert len(set(written)) == len(written) and results <= set(written)
        assert all(name.startswith("merged/7/") for name in set(written) - results)


def test_query_key_and_value_stack_their_activation_once() -> None:
    static = {"static": (None, None, 4), "static_other": (None, None, 4)}
    cases = [two(**static) for _ in range(3)]
    nodes, weights, originals = [], {}, []
    for index, (case, part) in enumerate(zip(cases, "qkv", strict=True)):
        op = case.super_operator()
        members = tuple(
            dataclasses.replace(
                member,
                operator=dataclasses.replace(member.operator, y=y, node=_writing(member.operator.node, y)),
            )
            for member, y in zip(op.members, (f"m0/{part}", f"m1/{part}"), strict=True)
        )
        op = dataclasses.replace(op, members=members)
        new = emit(op, shapes=case.shapes, tolerance=0.0, name=f"merged/{index}", opset=17)
        nodes += new.nodes
        weights |= {w.name: w for w in new.weights}
        originals += [member.operator.node for member in members]
    kept = share_helpers(nodes)
    count = [node.op_type for node in kept].count
    assert (count("Concat"), count("MatMul"), count("Split"), count("Shape")) == (4, 3, 3, 4)
    assert len(nodes) == 3 * 14 and len(kept) == len(nodes) - 2 * 10
    expected = _outputs(cases[0], originals, {})
    found = _outputs(cases[0], kept, weights)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def _writing(node, y: str):
    return dataclasses.replace(node, name=f"{y}/node", outputs=(y,))


def _outputs(case: Case, nodes, weights) -> list[np.ndarray]:
    import onnxruntime

    held = {**case.weights, **weights}
    read = {name for node in nodes for name in node.inputs}
    ends = [[f"m{m}/{part}" for m in range(2) for part in "qkv"], [o.x for o in case.operators]]
    outputs, inputs = (
        [
            helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [f"{n}:{i}" for i in range(3)])
            for n in names
        ]
        for names in ends
    )
    graph = helper.make_graph(
        [to_proto(n) for n in nodes],
        "qkv",
        inputs,
        outputs,
        [to_tensor(w) for w in held.values() if w.name in read],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(ends[0], dict(zip(ends[1], case.xs, strict=True)))


@pytest.mark.parametrize("build", [random_product, random_convolution])
def test_bfloat16_gives_the_same_whole_numbers(build) -> None:
    """Small whole numbers are exact in bfloat16; ONNX Runtime has no bfloat16 products on the CPU."""
    pytest.importorskip("ml_dtypes")
    if onnx.defs.onnx_opset_version() < 28:
        pytest.skip("the reference of onnx before 1.23 computes no products of bfloat16 (RuntimeTypeError)")
    for seed in range(25):
        case = build(seed, DType.BFLOAT16, whole_numbers=True)
        new = case.emitted()
        before = _reference(case, [operator.node for operator in case.operators], {})
        after = _reference(case, new.nodes, {w.name: w for w in new.weights})
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.any() or not a.size


def _reference(case: Case, nodes, weights) -> list[np.ndarray]:
    model = case.model(nodes, {**case.weights, **weights})
    import ml_dtypes

    feeds = {o.x: x.astype(ml_dtypes.bfloat16) for o, x in zip(case.operators, case.xs, strict=True)}
    found = ReferenceEvaluator(model).run([o.y for o in case.operators], feeds)
    return [np.asarray(y, np.float32) for y in found]


def refused(case: Case, **changes) -> str:
    op = dataclasses.replace(case.super_operator(), **changes)
    reason = can_emit(op, case.shapes)
    with pytest.raises(ModelError) as caught:
        emit(op, shapes=case.shapes, tolerance=0.0, name="merged/0")
    assert str(caught.value) == f"merged/0: {reason}"
    return str(reason)


def test_what_cannot_be_written_is_refused_with_a_reason() -> None:
    case = two()
    assert can_emit(case.super_operator(), case.shapes) is None
    assert refused(case, members=case.super_operator().members[:1]) == "1 member: expected at least two"
    assert "not inside m0/node's weight" in refused(case, rows=5)
    assert "not inside m0/node's weight" in refused(case, columns=0)
    assert "m1/x is not known" in str(can_emit(case.super_operator(), {"m0/x": case.shapes["m0/x"]}))
    half = two()
    half.dtype = DType.FLOAT16
    half.add(values(2, 5, 4), values(4, 6), (0, 0))
    assert "another type" in refused(half)


def test_convolutions_of_unknown_size_or_other_geometry_are_refused() -> None:
    case = Case("Conv", DType.FLOAT, 2, 3)
    case.add(values(1, 2, 6, 6), values(3, 2, 3, 3), (0, 0))
    case.add(values(1, 2, 6, 6), values(3, 2, 3, 3), (0, 0), static=(1, 2, None, 6))
    assert "not static" in refused(case)
    case = Case("Conv", DType.FLOAT, 2, 3)
    case.add(values(1, 2, 6, 6), values(3, 2, 3, 3), (0, 0))
    case.add(values(1, 2, 6, 6), values(3, 2, 3, 3), (0, 0), strides=(2, 2))
    assert "another kernel, stride" in refused(case)
    case.add(values(2, 4), values(4, 6), (0, 0), op_type="MatMul")
    assert "type or kernel" in refused(case)


def altered(case: Case, index: int, *, node: dict | None = None, **changes) -> SuperOperator:
    """The super-operator with one operator changed, as only a caller who passes by the candidates would."""
    op = case.super_operator()
    members = list(op.members)
    operator = members[index].operator
    changed = dataclasses.replace(
        operator, node=dataclasses.replace(operator.node, **(node or {})), **changes
    )
    members[index] = dataclasses.replace(members[index], operator=changed)
    return dataclasses.replace(op, members=tuple(members))


def test_operators_that_are_no_candidates_are_refused() -> None:
    case = biased(values(3), values(3))
    for attributes in ({"alpha": 2.0}, {"beta": 0.5}, {"transA": 1}):
        reason = can_emit(altered(case, 1, node={"attributes": attributes}), case.shapes)
        assert reason == "m1/node is a Gemm with alpha, beta or transA"
    assert "bias is not constant" in str(can_emit(altered(case, 1, bias=None), case.shapes))
    assert "MatMul with a bias" in str(can_emit(altered(case, 1, kind="matmul"), case.shapes))
    swapped = altered(case, 0, node={"inputs": ("m0/w", "m0/x", "m0/b")})
    assert "does not read an activation and a weight" in str(can_emit(swapped, case.shapes))
    assert "conv and gemm" in str(can_emit(altered(case, 1, kind="conv"), case.shapes))
    vector = case.shapes | {"m0/x": ValueShape(dtype=DType.FLOAT, dims=(4,))}
    assert can_emit(case.super_operator(), vector) == "m0/node multiplies a vector"


def test_weights_within_the_tolerance_change_little() -> None:
    rng = np.random.default_rng(3)
    weight = values(256, 64) / 16
    moved = weight + rng.uniform(-1e-7, 1e-7, weight.shape).astype(np.float32)
    case = Case("Gemm", DType.FLOAT, 256, 64)
    case.add(values(8, 256), weight, (0, 0), bias=values(64))
    case.add(values(9, 256), moved, (0, 0), bias=values(64) + np.float32(1e-7))
    assert operators(case.check(tolerance=2e-7, bound=1e-4)) == ["Concat", "Gemm", "Split"]


def test_helpers_that_differ_or_write_a_models_value_stay() -> None:
    def node(name: str, op_type: str = "Split", inputs=("x", "s"), outputs=1, **attributes) -> EditNode:
        names = tuple(f"{name}:{i}" for i in range(outputs))
        return EditNode(name=name, op_type=op_type, inputs=inputs, outputs=names, attributes=attributes)

    nodes = [
        node("merged/0/a", outputs=2, axis=0),
        node("merged/1/a", outputs=2, axis=1),
        node("merged/2/a", outputs=3, axis=0),
        node("merged/3/a", outputs=2, axis=0, inputs=("y", "s")),
        node("merged/4/a", outputs=2, axis=0),
        node("m0/a", outputs=2, axis=0),
        node("merged/5/a", "MatMul", inputs=("merged/4/a:1", "w")),
        node("merged/6/a", "MatMul", inputs=("merged/4/a:1", "w")),
    ]
    kept = share_helpers(nodes)
    assert [n.name for n in kept] == [n.name for n in nodes if n.name != "merged/4/a"]
    assert kept[-1].inputs == ("merged/0/a:1", "w")


def test_an_opset_without_sizes_as_input_is_refused() -> None:
    case = two()
    with pytest.raises(ModelError, match="opset 12: expected at least 13"):
        emit(case.super_operator(), shapes=case.shapes, tolerance=0.0, name="merged/0", opset=12)
