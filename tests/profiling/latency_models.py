"""A small whole model, for the tests of the latency pass."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.plan import ModelPoint, PlanEntry, entry_id


def small_network(blocks: int = 12, *, channels: int = 8, size: int = 16, features: int = 0) -> Fragment:
    """``blocks`` residual blocks of four nodes (two convolutions, an activation, a sum), then pooling and a product,
    which does not fit where ``features`` is not ``channels``."""
    tensors = [FragmentTensor(name="x0", dtype=DType.FLOAT, shape=(2, channels, size, size))]
    nodes = []

    def add(op_type: str, inputs: tuple[str, ...], output: str, **attributes: int | tuple[int, ...]) -> None:
        nodes.append(
            FragmentNode(op_type=op_type, domain="", attributes=attributes, inputs=inputs, outputs=(output,))
        )

    def weight(name: str, *shape: int) -> str:
        tensors.append(FragmentTensor(name=name, dtype=DType.FLOAT, shape=shape, role="weight"))
        return name

    for i in range(blocks):
        x = f"x{i}"
        add("Conv", (x, weight(f"a{i}", channels, channels, 3, 3)), f"c{i}", pads=(1, 1, 1, 1))
        add("Relu", (f"c{i}",), f"r{i}")
        add("Conv", (f"r{i}", weight(f"b{i}", channels, channels, 1, 1)), f"d{i}")
        add("Add", (f"d{i}", x), f"x{i + 1}")
    add("GlobalAveragePool", (f"x{blocks}",), "pooled")
    add("Flatten", ("pooled",), "flat")
    add("MatMul", ("flat", weight("w", features or channels, 10)), "y")
    return Fragment(
        opsets={"": 17}, nodes=tuple(nodes), tensors=tuple(tensors), outputs=("y",), pattern="model:small"
    )


def model_entry(fragment: Fragment, *, dtype: str = "fp32") -> PlanEntry:
    """A whole model's entry of a plan."""
    return PlanEntry(
        id=entry_id(fragment, dtype),
        fragment=fragment,
        dtype=dtype,
        source="model:small",
        model=ModelPoint(name="small", batch_size=2),
    )
