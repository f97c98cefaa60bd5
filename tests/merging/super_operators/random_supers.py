"""Operators with a block of weights in common, and what ONNX Runtime says of them before and after emission."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import EditableModel, EditNode, Held, ValueInfo, ValueShape, Weight
from gkestimator.merging.matching.candidates import candidates
from gkestimator.merging.operators import MergedMember, SuperOperator
from gkestimator.merging.super_operators import Emitted, emit

NUMPY = {DType.FLOAT: np.float32, DType.FLOAT16: np.float16, DType.INT64: np.int64}
ONNX = {
    DType.FLOAT: onnx.TensorProto.FLOAT,
    DType.FLOAT16: onnx.TensorProto.FLOAT16,
    DType.INT64: onnx.TensorProto.INT64,
    DType.BFLOAT16: onnx.TensorProto.BFLOAT16,
}
OPSETS = range(13, min(24, onnx.defs.onnx_opset_version()) + 1)
BOUND = {DType.FLOAT: 1e-5, DType.FLOAT16: 2e-3}


@dataclass(slots=True)
class Case:
    """Members with what they are given. ``static``: what is said of each member's x; ``xs``: a value for each."""

    op_type: str
    dtype: DType
    rows: int
    columns: int
    opset: int = 17
    operators: list = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    xs: list[np.ndarray] = field(default_factory=list)
    static: list[tuple[int | None, ...]] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)

    def add(
        self,
        x: np.ndarray,
        weight: np.ndarray,
        place: tuple[int, int],
        *,
        bias: np.ndarray | None = None,
        static: tuple[int | None, ...] | None = None,
        **attributes,
    ) -> None:
        """A member whose block is at ``place``; ``static``: what is known of x's sizes (None: all)."""
        prefix = f"m{len(self.operators)}"
        names = [f"{prefix}/w", *([f"{prefix}/b"] if bias is not None else [])]
        for name, array in zip(names, (weight, bias), strict=False):
            held = _stored(array, self.dtype)
            self.weights[name] = Weight(name=name, dtype=self.dtype, shape=held.shape, values=Held(held=held))
        node = EditNode(
            name=f"{prefix}/node",
            op_type=self.op_type if "op_type" not in attributes else str(attributes.pop("op_type")),
            inputs=(f"{prefix}/x", *names),
            outputs=(f"{prefix}/y",),
            attributes=attributes,
        )
        known = x.shape if static is None else static
        model = EditableModel(
            name=prefix,
            nodes=[node],
            weights={name: self.weights[name] for name in names},
            inputs=[ValueInfo(name=f"{prefix}/x", dtype=self.dtype, shape=known)],
            outputs=[ValueInfo(name=f"{prefix}/y", dtype=self.dtype, shape=None)],
            opsets={"": self.opset},
            ir_version=8,
        )
        shape = ValueShape(dtype=self.dtype, dims=known)
        found = candidates(model, len(self.operators), {f"{prefix}/x": shape}, {})
        assert len(found) == 1, f"{node} is no candidate"
        self.operators.append(found[0])
        self.places.append(place)
        self.xs.append(np.asarray(x, NUMPY.get(self.dtype, np.float32)))
        self.static.append(known)

    @property
    def shapes(self) -> dict[str, ValueShape]:
        return {
            operator.x: ValueShape(dtype=self.dtype, dims=dims)
            for operator, dims in zip(self.operators, self.static, strict=True)
        }

    def super_operator(self) -> SuperOperator:
        members = tuple(
            MergedMember(operator=operator, row=row, column=column)
            for operator, (row, column) in zip(self.operators, self.places, strict=True)
        )
        return SuperOperator(members=members, rows=self.rows, columns=self.columns, similarity=1.0)

    def emitted(self, tolerance: float = 1e-7) -> Emitted:
        return emit(
            self.super_operator(),
            shapes=self.shapes,
            tolerance=tolerance,
            name="merged/0",
            opset=self.opset,
        )

    def model(self, nodes: Sequence[EditNode], weights: Mapping[str, Weight]) -> onnx.ModelProto:
        """Those nodes on all members' inputs, checked strictly."""
        read = {name for node in nodes for name in node.reads}
        graph = helper.make_graph(
            [to_proto(node) for node in nodes],
            "case",
            [
                helper.make_tensor_value_info(
                    operator.x,
                    ONNX[self.dtype],
                    [size if size is not None else f"{operator.x}:{i}" for i, size in enumerate(dims)],
                )
                for operator, dims in zip(self.operators, self.static, strict=True)
            ],
            [
                helper.make_tensor_value_info(
                    operator.y, ONNX[self.dtype], [f"{operator.y}:{i}" for i in range(x.ndim)]
                )
                for operator, x in zip(self.operators, self.xs, strict=True)
            ],
            [to_tensor(weight) for weight in weights.values() if weight.name in read],
        )
        opsets = [helper.make_opsetid("", self.opset)]
        version = max(8, helper.find_min_ir_version_for(opsets))
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version)
        onnx.checker.check_model(model, full_check=True)
        return model

    def run(self, nodes: Sequence[EditNode], weights: Mapping[str, Weight]) -> list[np.ndarray]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        session = onnxruntime.InferenceSession(
            self.model(nodes, weights).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feeds = {operator.x: x for operator, x in zip(self.operators, self.xs, strict=True)}
        return session.run([operator.y for operator in self.operators], feeds)

    def check(self, tolerance: float = 1e-7, bound: float | None = None) -> Emitted:
        """The emitted nodes give what the members give; they are what was emitted."""
        new = self.emitted(tolerance)
        assert set(new.replaces) == {node.name for node in new.nodes}
        replaced = {name for names in new.replaces.values() for name in names}
        assert replaced == {operator.node.name for operator in self.operators}
        before = self.run([operator.node for operator in self.operators], self.weights)
        after = self.run(new.nodes, {**self.weights, **{w.name: w for w in new.weights}})
        for expected, found in zip(before, after, strict=True):
            assert found.shape == expected.shape and found.dtype == expected.dtype
            expected, found = expected.astype(np.float64), found.astype(np.float64)
            largest = np.abs(expected).max(initial=0.0)
            apart = np.abs(found - expected).max(initial=0.0)
            assert apart <= (BOUND[self.dtype] if bound is None else bound) * largest, (apart, largest)
        return new


def _stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is DType.BFLOAT16:
        return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(array, NUMPY[dtype])


def to_proto(node: EditNode) -> onnx.NodeProto:
    return helper.make_node(
        node.op_type, list(node.inputs), list(node.outputs), node.name, domain=node.domain, **node.attributes
    )


def to_tensor(weight: Weight) -> onnx.TensorProto:
    array = np.ascontiguousarray(weight.values.array())
    assert array.shape == weight.shape and array.nbytes == weight.nbytes
    return helper.make_tensor(weight.name, ONNX[weight.dtype], weight.shape, array.tobytes(), raw=True)


class _Draw:
    """Normal values, or whole numbers from -1 to 1 (sums of which stay exact in bfloat16)."""

    def __init__(self, rng: np.random.Generator, whole_numbers: bool) -> None:
        self.rng, self.whole_numbers = rng, whole_numbers

    def __call__(self, *shape: int) -> np.ndarray:
        if self.whole_numbers:
            return self.rng.integers(-1, 2, shape).astype(np.float32)
        return self.rng.standard_normal(shape).astype(np.float32)


def _hidden(rng: np.random.Generator, known: tuple[int, ...], least: int) -> tuple[int | None, ...]:
    """``known`` with some of the first ``least`` sizes unknown."""
    return tuple(None if i < least and rng.random() < 0.4 else size for i, size in enumerate(known))


def _block(rng: np.random.Generator, most: int) -> int:
    return int(rng.integers(1, most + 1))


def random_product(seed: int, dtype: DType = DType.FLOAT, *, whole_numbers: bool = False) -> Case:
    """MatMul and Gemm: ranks 2 to 4, batches, known and unknown sizes, whole and partial blocks, biases."""
    rng = np.random.default_rng(seed)
    draw = _Draw(rng, whole_numbers)
    rows, columns, count = _block(rng, 7), _block(rng, 7), int(rng.integers(2, 5))
    whole, same = rng.random() < 0.35, rng.random() < 0.5
    kinds = [("MatMul",), ("Gemm",), ("MatMul", "Gemm")][rng.integers(3)]
    case = Case(
        "MatMul",
        dtype,
        rows,
        columns,
        opset=int(rng.choice(OPSETS[9:] if dtype is DType.BFLOAT16 else OPSETS)),
    )
    block = draw(rows, columns)
    bias = [None, draw(columns)][rng.integers(2)]
    rank, inner = int(rng.integers(2, 5)), [int(rng.integers(1, 4)) for _ in range(2)]
    for _ in range(count):
        pads = [0] * 4 if whole else [int(rng.integers(0, 4)) * int(rng.random() < 0.6) for _ in range(4)]
        top, bottom, left, right = pads
        weight = draw(top + rows + bottom, left + columns + right)
        weight[top : top + rows, left : left + columns] = block
        kind = kinds[rng.integers(len(kinds))]
        own = rank if same else int(rng.integers(2, 5))
        own = 2 if kind == "Gemm" else own
        middle = inner if same else [int(rng.integers(1, 4)) for _ in range(2)]
        x = draw(int(rng.integers(1, 4)), *middle[: own - 2], len(weight))
        static = _hidden(rng, x.shape, 1 if same else own - 1)
        if kind == "MatMul":
            case.add(x, weight, (top, left), static=static, op_type="MatMul")
            continue
        turned = int(rng.integers(2))
        mine = None
        if bias is not None:
            mine = draw(weight.shape[1])
            if same:
                mine[left : left + columns] = bias
            mine = mine[None] if rng.random() < 0.3 else mine
        case.add(
            x,
            weight.T if turned else weight,
            (top, left),
            bias=mine,
            static=static,
            op_type="Gemm",
            transB=turned,
        )
    return case


def random_convolution(seed: int, dtype: DType = DType.FLOAT, *, whole_numbers: bool = False) -> Case:
    """Conv of one to three dimensions: strides, dilations, pads, unequal sizes, whole and partial blocks, biases."""
    rng = np.random.default_rng(seed)
    draw = _Draw(rng, whole_numbers)
    rank, count = int(rng.choice([1, 2, 2, 2, 3])), int(rng.integers(2, 4))
    kernel, strides = ([int(k) for k in rng.integers(1, most, rank)] for most in (4, 3))
    dilations = [int(d) for d in rng.integers(1, 3, rank)]
    pads = [int(p) for p in rng.integers(0, 3, 2 * rank)]
    rows, columns, grouped = _block(rng, 4), _block(rng, 4), rng.random() < 0.4
    into, out = (_block(rng, 2), _block(rng, 2)) if grouped else (1, 1)
    rows, columns = (rows + 1, 1) if grouped else (rows, columns)
    case = Case(
        "Conv", dtype, rows, columns, opset=int(rng.choice(OPSETS[9:] if dtype is DType.BFLOAT16 else OPSETS))
    )
    block = draw(rows * out, into, *kernel) if grouped else draw(columns, rows, *kernel)
    whole, same, bias = rng.random() < 0.35, rng.random() < 0.5, draw(len(block))
    auto = str(rng.choice(["NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto.startswith("SAME"):
        dilations = [1] * rank
    biased, alike = rng.random() < 0.6, rng.random() < 0.5
    size = [int(s) for s in rng.integers(6, 9, rank)]
    for _ in range(count):
        top, bottom, left, right = (0 if whole else int(rng.integers(0, 3)) for _ in range(4))
        if grouped:
            left, right = top * out, bottom * out
            weight = draw(left + rows * out + right, into, *kernel)
            weight[left : left + rows * out] = block
            channels = into * (top + rows + bottom)
        else:
            weight = draw(left + columns + right, top + rows + bottom, *kernel)
            weight[left : left + columns, top : top + rows] = block
            channels = top + rows + bottom
        mine = None
        if biased and (alike or rng.random() < 0.8):
            mine = draw(len(weight))
            if alike:
                mine[left : left + len(block)] = bias
        own = size if same else [int(s) for s in rng.integers(6, 9, rank)]
        x = draw(int(rng.integers(1, 4)), channels, *own)
        geometry = {"strides": tuple(strides), "dilations": tuple(dilations)}
        if auto == "NOTSET":
            geometry["pads"] = tuple(pads)
        if rng.random() < 0.5:
            geometry["kernel_shape"] = tuple(kernel)
        if grouped:
            geometry["group"] = top + rows + bottom
        place = (top, 0 if grouped else left)
        static = _hidden(rng, x.shape, 1)
        case.add(x, weight, place, bias=mine, static=static, auto_pad=auto, **geometry)
    assert math.prod(block.shape) > 0
    return case
