"""What surrounds a matrix product: scalar factors and transpositions of its operands."""

from __future__ import annotations

from gkestimator.core.graph import Tensor
from gkestimator.lowering.patterns.view import GraphView, is_scalar


def bare_operand(view: GraphView, value: Tensor) -> tuple[Tensor, list[int], int]:
    """The operand before factors and transpositions that only this product reads, those, and whether it is
    flipped.
    """
    members: list[int] = []
    flipped = 0
    while view.sole_reader(value) is not None:
        index = view.made_by(value, "Mul", "Div", "Transpose")
        if index is None:
            break
        op = view.operators[index]
        if op.op_type == "Transpose":
            rank = len(value.shape)
            swapped = (*range(rank - 2), rank - 1, rank - 2)
            if rank < 2 or op.attributes.get("perm", tuple(reversed(range(rank)))) != swapped:
                break
            flipped ^= 1
        elif not scales(view, index, value):
            break
        members.append(index)
        if op.op_type != "Mul":
            value = view.operand(index, 0)
        else:
            value = view.split_scalar(index)[0]
    return value, members, flipped


def flattened_transpose(view: GraphView, value: Tensor) -> tuple[Tensor, list[int]]:
    """The (B, H, S, D) behind ``value`` (B, H, D, S), where Reshape to (B*H, S, D), Transpose and Reshape back
    lie between, as torch.onnx.export(dynamo=True) turns the keys; ``value`` itself and no operators otherwise.
    """
    members: list[int] = []
    at = value
    for op_type in ("Reshape", "Transpose", "Reshape"):
        if view.sole_reader(at) is not None:
            index = view.made_by(at, op_type)
        else:
            index = None
        if index is None:
            return value, []
        members.append(index)
        at = view.operand(index, 0)
    batch, heads, size, length = value.shape
    turned = view.operators[members[1]].attributes.get("perm", (2, 1, 0))
    flat = view.operand(members[1], 0).shape
    if (
        turned != (0, 2, 1)
        or at.shape != (batch, heads, length, size)
        or flat != (batch * heads, length, size)
    ):
        return value, []
    return at, members


def scales(view: GraphView, index: int, value: Tensor) -> bool:
    """True where a Mul or Div changes nothing but the magnitude."""
    op = view.operators[index]
    first = view.operand(index, 0)
    second = view.operand(index, 1)
    if op.op_type == "Div":
        return is_scalar(second) and first.shape == value.shape
    return (is_scalar(second) and first.shape == value.shape) or (
        is_scalar(first) and second.shape == value.shape
    )


def scaling_after(view: GraphView, value: Tensor) -> int | None:
    """The Mul or Div by a one-element constant that alone reads the product ``value``."""
    index = view.optional_reader(value, "Mul", "Div")
    if index is None or not scales(view, index, view.result(index)):
        return None
    if view.operators[index].op_type == "Div" and view.operand(index, 0).name != value.name:
        return None
    return index
