"""Small edited models made by hand, and a build function that merges their whole products by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import EditableModel, EditNode, Held, ValueInfo, Weight
from gkestimator.merging.operators import MergedMember, SuperOperator, WeightMatrix, WeightOperator
from gkestimator.merging.pricing import Built


def weight(name: str, *shape: int, dtype: DType = DType.FLOAT) -> Weight:
    """Zeros: the price does not look at values."""
    kind = {DType.FLOAT: "<f4", DType.FLOAT16: "<f2", DType.INT64: "<i8"}[dtype]
    return Weight(name=name, dtype=dtype, shape=shape, values=Held(held=np.zeros(shape, kind)))


def whole(name: str, *numbers: int) -> Weight:
    """A constant of whole numbers."""
    return Weight(
        name=name, dtype=DType.INT64, shape=(len(numbers),), values=Held(held=np.array(numbers, "<i8"))
    )


def chain(
    name: str,
    *,
    layers: int = 3,
    width: int = 64,
    widths: Sequence[int] | None = None,
    batch: int | str = "batch",
    rows: int | None = 16,
    bias: bool = False,
) -> EditableModel:
    """``layers`` times MatMul (, Add) and Relu on [batch, rows, width], or on [batch, width] where rows is None.

    ``widths``: of every value from the first to the last, one more than there are layers.
    """
    p = f"{name}/"
    sizes = list(widths) if widths is not None else [width] * (layers + 1)
    nodes, weights, x = [], {}, f"{p}x"
    for i, (inner, outer) in enumerate(itertools.pairwise(sizes)):
        w = weight(f"{p}w{i}", inner, outer)
        weights[w.name] = w
        nodes.append(EditNode(name=f"{p}mm{i}", op_type="MatMul", inputs=(x, w.name), outputs=(f"{p}y{i}",)))
        y = f"{p}y{i}"
        if bias:
            b = weight(f"{p}b{i}", outer)
            weights[b.name] = b
            nodes.append(
                EditNode(name=f"{p}add{i}", op_type="Add", inputs=(y, b.name), outputs=(f"{p}s{i}",))
            )
            y = f"{p}s{i}"
        nodes.append(EditNode(name=f"{p}relu{i}", op_type="Relu", inputs=(y,), outputs=(f"{p}z{i}",)))
        x = f"{p}z{i}"
    size = f"{p}{batch}" if isinstance(batch, str) else batch
    return EditableModel(
        name=name,
        nodes=nodes,
        weights=weights,
        inputs=[
            ValueInfo(
                name=f"{p}x",
                dtype=DType.FLOAT,
                shape=(size, sizes[0]) if rows is None else (size, rows, sizes[0]),
            )
        ],
        outputs=[ValueInfo(name=x, dtype=DType.FLOAT, shape=None)],
        opsets={"": 17},
        ir_version=9,
        prefixes=(p,),
    )


def super_of(models: Sequence[EditableModel], layer: int, rows: int | None = None) -> SuperOperator:
    """The super-operator of product ``layer`` of all ``models``, whose weights are taken to be equal (``rows``: in
    their first rows alone)."""
    members = []
    for index, model in enumerate(models):
        node = next(n for n in model.nodes if n.name.endswith(f"/mm{layer}"))
        w = model.weights[node.inputs[1]]
        matrix = WeightMatrix(rows=w.shape[0], columns=w.shape[1], taps=1, dtype=w.dtype, values=w.values)
        operator = WeightOperator(
            model=index, node=node, kind="matmul", x=node.inputs[0], y=node.outputs[0], weight_name=w.name,
            matrix=matrix, bias=None, geometry=(), start_ms=0.0, position=model.nodes.index(node),
        )  # fmt: skip
        members.append(MergedMember(operator=operator, row=0, column=0))
    return SuperOperator(
        members=tuple(members), rows=rows or matrix.rows, columns=matrix.columns, similarity=1.0
    )


class HandBuild:
    """Merges products of chains; ``lifted``: runs of whole merged layers as one trunk. Notes its calls.

    A product that shares some rows only is sliced, multiplied, split, and gets its own product of the rest added.
    """

    def __init__(self, models: Sequence[EditableModel], sizes: Sequence[int]) -> None:
        self.models = list(models)
        self.sizes = list(sizes)
        self.calls: list[tuple[int, bool]] = []

    def __call__(self, supers: Sequence[SuperOperator], lifted: bool, /) -> Built:
        self.calls.append((len(supers), lifted))
        by_member = {m.operator.node.name: i for i, op in enumerate(supers) for m in op.members}
        nodes: list[EditNode] = []
        weights = {n: w for m in self.models for n, w in m.weights.items()}
        weights["merged/sizes"] = whole("merged/sizes", *self.sizes)
        replaces: dict[str, tuple[str, ...]] = {}
        parts: list[tuple[str, ...]] = [() for _ in supers]
        done: set[str] = set()
        trunk = ""  # the concatenated value that all models are at
        if not supers:
            nodes = [n for m in self.models for n in m.nodes]
        for at, node in enumerate(self.models[0].nodes if supers else ()):
            row = [m.nodes[at] for m in self.models]
            op = supers[by_member[node.name]] if node.name in by_member else None
            if op is not None and not op.whole:
                if trunk:
                    nodes.append(
                        self.split(f"merged/{node.name}/end", trunk, [m.nodes[at - 1] for m in self.models])
                    )
                    replaces[f"merged/{node.name}/end"] = ()
                    trunk = ""
                made = self.partial(f"merged/{by_member[node.name]}", op, row, weights)
                nodes += made
                replaces |= {
                    n.name: tuple(r.name for r in row) if n.op_type == "MatMul" else () for n in made
                }
                parts[by_member[node.name]] = tuple(n.name for n in made)
            elif op is not None:
                i = by_member[node.name]
                pre = f"merged/{i}/"
                joined = trunk
                if not trunk:
                    joined = f"{pre}x"
                    nodes.append(
                        EditNode(
                            name=f"{pre}concat", op_type="Concat", attributes={"axis": 0}, outputs=(joined,),
                            inputs=tuple(n.inputs[0] for n in row),
                        )
                    )  # fmt: skip
                    replaces[f"{pre}concat"] = ()
                nodes.append(
                    EditNode(
                        name=f"{pre}mm",
                        op_type="MatMul",
                        inputs=(joined, node.inputs[1]),
                        outputs=(f"{pre}y",),
                    )
                )
                replaces[f"{pre}mm"] = tuple(n.name for n in row)
                trunk = f"{pre}y"
                if not lifted:
                    nodes.append(self.split(f"{pre}split", trunk, row))
                    replaces[f"{pre}split"] = ()
                    trunk = ""
                    parts[i] = (f"{pre}concat", f"{pre}mm", f"{pre}split")
            elif trunk and node.op_type == "Relu":
                name = f"merged/{node.name}"
                nodes.append(EditNode(name=name, op_type="Relu", inputs=(trunk,), outputs=(f"{name}/y",)))
                replaces[name] = tuple(n.name for n in row)
                trunk = f"{name}/y"
                following = self.models[0].nodes[at + 1].name if at + 1 < len(self.models[0].nodes) else ""
                if following not in by_member or not supers[by_member[following]].whole:
                    nodes.append(self.split(f"{name}/split", trunk, row))
                    replaces[f"{name}/split"] = ()
                    trunk = ""
            else:
                if trunk:
                    before = [m.nodes[at - 1] for m in self.models]
                    nodes.append(self.split(f"merged/{node.name}/split", trunk, before))
                    replaces[f"merged/{node.name}/split"] = ()
                    trunk = ""
                nodes += row
            done.update(n.name for n in row)
        first = self.models[0]
        model = EditableModel(
            name="merged", nodes=nodes, weights=weights, inputs=[i for m in self.models for i in m.inputs],
            outputs=[o for m in self.models for o in m.outputs], opsets=first.opsets, ir_version=first.ir_version,
            prefixes=tuple(p for m in self.models for p in m.prefixes),
        )  # fmt: skip
        return Built(model=model, replaces=replaces, parts=() if lifted else tuple(parts))

    def partial(
        self, pre: str, op: SuperOperator, row: Sequence[EditNode], weights: dict[str, Weight]
    ) -> list[EditNode]:
        """Slices, Concat, the shared product, Split, and for each model the product of the rest and the sum."""
        matrix = op.members[0].operator.matrix
        rest = matrix.rows - op.rows
        for w in (
            whole(f"{pre}/0", 0), whole(f"{pre}/h", op.rows), whole(f"{pre}/k", matrix.rows), whole(f"{pre}/axis", 2),
            weight(f"{pre}/c", op.rows, op.columns),
        ):  # fmt: skip
            weights[w.name] = w
        nodes = [
            EditNode(
                name=f"{pre}/{part}{i}", op_type="Slice", outputs=(f"{pre}/{part}x{i}",),
                inputs=(n.inputs[0], f"{pre}/{a}", f"{pre}/{b}", f"{pre}/axis"),
            )
            for part, a, b in (("slice", "0", "h"), ("rest", "h", "k"))
            for i, n in enumerate(row)
        ]  # fmt: skip
        joined = tuple(f"{pre}/slicex{i}" for i in range(len(row)))
        shared = tuple(f"{pre}/part{i}" for i in range(len(row)))
        nodes += [
            EditNode(name=f"{pre}/concat", op_type="Concat", inputs=joined, outputs=(f"{pre}/x",), attributes={"axis": 0}),
            EditNode(name=f"{pre}/mm", op_type="MatMul", inputs=(f"{pre}/x", f"{pre}/c"), outputs=(f"{pre}/y",)),
            EditNode(
                name=f"{pre}/split", op_type="Split", inputs=(f"{pre}/y", "merged/sizes"), outputs=shared,
                attributes={"axis": 0},
            ),
        ]  # fmt: skip
        for i, n in enumerate(row):
            own = weight(f"{pre}/w{i}", rest, op.columns)
            weights[own.name] = own
            nodes += [
                EditNode(
                    name=f"{pre}/mm{i}",
                    op_type="MatMul",
                    inputs=(f"{pre}/restx{i}", own.name),
                    outputs=(f"{pre}/r{i}",),
                ),
                EditNode(
                    name=f"{pre}/add{i}", op_type="Add", inputs=(shared[i], f"{pre}/r{i}"), outputs=n.outputs
                ),
            ]
        return nodes

    def split(self, name: str, value: str, row: Sequence[EditNode]) -> EditNode:
        """Back to the values that the originals had."""
        return EditNode(
            name=name, op_type="Split", inputs=(value, "merged/sizes"), attributes={"axis": 0},
            outputs=tuple(n.outputs[0] for n in row),
        )  # fmt: skip
