"""What merging adds around a product costs what ONNX Runtime makes of it: one kernel for each copy, none for views.

Kernels of the CUDA provider: Concat, Split, Slice, Pad and Transpose copy; Reshape renames. Shape, and the arithmetic
on its result, run on the host and launch nothing: 0.27 us a node (``datasets/runtimes/onnxruntime.toml``), not charged
here as in every estimate.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from chains import weight, whole

from gkestimator.core.dtypes import DType
from gkestimator.merging.editing import EditableModel, EditNode, ValueInfo
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing import Price, Pricer

ROWS, WIDTH = 8, 64
VALUE = 4 * 128 * 4  # bytes of [batch, 128] at batch 4


def node(
    op_type: str, inputs: str, outputs: str, name: str = "", **attributes: int | tuple[int, ...]
) -> EditNode:
    return EditNode(
        name=name or outputs.partition(" ")[0], op_type=op_type, inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()), attributes=attributes,
    )  # fmt: skip


def pieces(nodes: list[EditNode], batch: int | str, *, rank: int = 2, opset: int = 17) -> dict[str, Price]:
    """Price of every node of a model with the inputs a and b of [batch, 128] (or [batch, 128, 7, 7])."""
    shape: tuple[int | str, ...] = (batch, 128, 7, 7) if rank == 4 else (batch, 128)
    constants = [
        weight("w", 128, 32), whole("zero", 0), whole("one", 1), whole("two", 2), whole("thirty", 30),
        whole("k", -1, 128), whole("both", 4, 4), whole("crop", 0, 0, 0, 0, 0, 0, 2, 2), whole("seven", 7, 7),
        whole("axes", 2, 3), whole("zeros", 0, 0),
    ]  # fmt: skip
    read = {name for n in nodes for name in n.inputs}
    written = [name for n in nodes for name in n.outputs]
    model = EditableModel(
        name="m", nodes=nodes, weights={w.name: w for w in constants}, opsets={"": opset}, ir_version=9,
        inputs=[ValueInfo(name=name, dtype=DType.FLOAT, shape=shape) for name in "ab"],
        outputs=[ValueInfo(name=name, dtype=None, shape=None) for name in written if name not in read],
        prefixes=("",),
    )  # fmt: skip
    model = replace(model, outputs=[replace(o, dtype=DType.FLOAT) for o in model.outputs])
    priced = Pricer(MergeOptions()).originals([model], [None if isinstance(batch, int) else 4])
    return {n.name: priced.piece([n.name]) for n in nodes}


@pytest.mark.parametrize("batch", [4, "batch"])
def test_whole_super_operator(batch: int | str) -> None:
    """Concat, one product, Split by constant sizes or by sizes from Shape."""
    sizes = "both"
    nodes = [node("Concat", "a b", "x", axis=0), node("MatMul", "x w", "y")]
    if isinstance(batch, str):
        sizes = "sizes"
        nodes += [
            node("Shape", "a", "na", start=0, end=1), node("Shape", "b", "nb", start=0, end=1),
            node("Concat", "na nb", "sizes", axis=0),
        ]  # fmt: skip
    nodes.append(node("Split", f"y {sizes}", "ya yb", axis=0))
    found = pieces(nodes, batch)
    out = 2 * 4 * 32 * 4
    assert (found["x"].kernels, found["x"].calls, found["x"].dram_bytes) == (1, 1, 2 * VALUE + 2 * VALUE)
    assert (found["y"].kernels, found["y"].flops) == (1, 2 * 8 * 128 * 32)
    assert (found["ya"].kernels, found["ya"].calls, found["ya"].dram_bytes) == (1, 1, out + out)
    for name in {"na", "nb", "sizes"} & found.keys():
        assert (found[name].kernels, found[name].calls, found[name].latency_ms) == (0, 0, 0)


def test_sizes_before_opset_15() -> None:
    nodes = [
        node("Shape", "a", "s"), node("Slice", "s zero one", "na"), node("Gather", "s zero", "nb", axis=0),
        node("Concat", "na nb", "sizes", axis=0), node("Concat", "a b", "x", axis=0),
        node("Split", "x sizes", "ya yb", axis=0),
    ]  # fmt: skip
    found = pieces(nodes, "batch", opset=13)
    assert [found[name].calls for name in ("s", "na", "nb", "sizes", "x", "ya")] == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("batch", [4, "batch"])
def test_parts_of_a_value(batch: int | str) -> None:
    """Slice reads what it writes; sums read both; a Concat of columns copies all."""
    nodes = [
        node("Slice", "a zero thirty one", "part"), node("Slice", "b zero thirty one", "other"),
        node("Add", "part other", "sum"), node("Concat", "sum a", "wide", axis=1),
    ]  # fmt: skip
    found = pieces(nodes, batch)
    part = 4 * 30 * 4
    assert [found[n].kernels for n in ("part", "other", "sum", "wide")] == [1, 1, 1, 1]
    assert found["part"].dram_bytes == 2 * part
    assert found["sum"].dram_bytes == 3 * part
    assert found["sum"].flops == 4 * 30
    assert found["wide"].dram_bytes == 2 * (part + VALUE)


def test_flattening_costs_nothing() -> None:
    nodes = [
        node("Reshape", "a k", "rows"), node("Shape", "b", "shape"), node("Reshape", "rows shape", "back"),
        node("Relu", "back", "y"),
    ]  # fmt: skip
    found = pieces(nodes, "batch")
    assert [found[n].calls for n in ("rows", "shape", "back", "y")] == [0, 0, 0, 1]


def test_zero_padding_of_pictures_and_its_crop_are_copies() -> None:
    nodes = [
        node("Pad", "a crop", "padded"), node("Slice", "padded zeros seven axes", "cropped"),
        node("Relu", "cropped", "y"),
    ]  # fmt: skip
    found = pieces(nodes, "batch", rank=4)
    small, large = 4 * 128 * 49 * 4, 4 * 128 * 81 * 4
    assert [found[n].kernels for n in ("padded", "cropped")] == [1, 1]
    assert found["padded"].dram_bytes == small + large
    assert found["cropped"].dram_bytes == 2 * small
