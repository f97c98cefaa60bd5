"""Write super-operators of MatMul and Gemm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gkestimator.core.records import frozen
from gkestimator.merging.editing import Dims, Rearranged, Shapes
from gkestimator.merging.operators import MergedMember, SuperOperator
from gkestimator.merging.super_operators.form import Sheet, unstack
from gkestimator.merging.super_operators.pieces import Piece, Pieces, Span, common, pieces_of


def product_reason(op: SuperOperator, shapes: Shapes) -> str | None:
    """Say why the members' products cannot be merged; None where they can."""
    for member in op.members:
        operator = member.operator
        name = operator.node.name
        if len(shapes[operator.x].dims) < 2:
            return f"{name} multiplies a vector"
        if operator.kind != "gemm":
            continue
        attributes = operator.node.attributes
        scaled = attributes.get("alpha", 1.0) != 1.0
        if operator.bias is not None:
            scaled = scaled or attributes.get("beta", 1.0) != 1.0
        if scaled or attributes.get("transA", 0):
            return f"{name} is a Gemm with alpha, beta or transA"
    return None


@frozen
class _Lane:
    """Hold a member on its way through: ``x`` as it is multiplied ([rows, K] if ``flat``), rows along axis 0
    or None.
    """

    member: MergedMember
    pieces: Pieces
    x: str
    dims: Dims
    flat: bool
    count: int | None

    def product(
        self, sheet: Sheet, x: str, piece: Piece, *, added: str | None = None, bias: Span | None = None
    ) -> str:
        """Multiply ``x`` by a residual piece of the weight, plus ``added`` (two axes only) or a bias."""
        operator = self.member.operator
        replaces = (operator.node.name,)
        shape = (piece.rows, piece.columns)
        values = Rearranged(base=piece.values(self.member), shape=shape)
        inputs = [x, sheet.weight(f"{piece.hint}_weight", operator.matrix.dtype, shape, values)]
        if bias is not None:
            added = bias.named(sheet, piece.hint)
        if added is None:
            return sheet.node("MatMul", inputs, piece.hint, replaces=replaces)
        return sheet.node("Gemm", [*inputs, added], piece.hint, replaces=replaces)


def emit_products(sheet: Sheet, op: SuperOperator, shapes: Shapes, tolerance: float) -> None:
    """Write the shared product, each member's residual products, and what puts the results together.

    The activations [..., K] are stacked as they stand where their ranks are equal and their sizes between
    axis 0 and the last are equal and static, else as rows [-1, K]. They are rows as well where a residual
    product is to be added, because Gemm adds it for nothing (and rounds the sum once).
    """
    lanes = _lanes(sheet, op, shapes)
    inner = [sheet.spans(lane.x, lane.pieces.rows, -1, "rows") for lane in lanes]
    spans = [_bias(lane, lane.pieces.shared) for lane in lanes]
    shared_bias = None
    if common(spans, tolerance):
        shared_bias = spans[0]
        spans = [None] * len(lanes)
    stacked = sheet.joined([parts[1] for parts in inner], 0, "stacked")
    product = _shared_product(sheet, op, lanes, stacked, shared_bias)
    results = unstack(sheet, product, [lane.x for lane in lanes], [lane.count for lane in lanes])
    for lane, part, rows, span in zip(lanes, results, inner, spans, strict=True):
        completed = _completed(sheet, lane, part, rows, span)
        sheet.finish(completed, lane.member.operator.y)


def _lanes(sheet: Sheet, op: SuperOperator, shapes: Shapes) -> list[_Lane]:
    every = [shapes[member.operator.x].dims for member in op.members]
    between = {dims[1:-1] for dims in every}
    ranks = set(map(len, every))
    as_they_stand = len(ranks) == len(between) == 1 and None not in next(iter(between))
    # rows: every activation is [rows, K] then, whatever axes it had
    flat = not as_they_stand or _rows_left(op)
    lanes = []
    for member, dims in zip(op.members, every, strict=True):
        x = member.operator.x
        count = dims[0]
        turned = flat and len(dims) > 2
        if turned:
            rows = sheet.whole_numbers([-1, member.operator.matrix.rows])
            x = sheet.node("Reshape", [x, rows], "flat")
            count = None
            if None not in dims[:-1]:
                count = math.prod(size for size in dims[:-1] if size is not None)
        pieces = pieces_of(op, member)
        lanes.append(_Lane(member=member, pieces=pieces, x=x, dims=dims, flat=turned, count=count))
    return lanes


def _rows_left(op: SuperOperator) -> bool:
    """Return True where a residual product is added to a member's part: Gemm, which takes two axes, does that
    for nothing.
    """
    return any(member.operator.matrix.rows > op.rows for member in op.members)


def _shared_product(
    sheet: Sheet, op: SuperOperator, lanes: Sequence[_Lane], stacked: str, bias: Span | None
) -> str:
    """Multiply all stacked rows by the first member's block."""
    first = op.members[0]
    operator = first.operator
    matrix = operator.matrix
    if (op.rows, op.columns) == (matrix.rows, matrix.columns):
        # Gemm's transB belongs to the weight as it stands
        weight = operator.weight_name
        attributes = dict(operator.node.attributes)
    else:
        shape = (op.rows, op.columns)
        values = Rearranged(base=lanes[0].pieces.shared.values(first), shape=shape)
        weight = sheet.weight("shared_weight", matrix.dtype, shape, values)
        attributes = {}
    inputs = [stacked, weight]
    if bias is not None:
        inputs.append(bias.named(sheet, "shared"))
    if bias is not None or operator.kind == "gemm":
        op_type = "Gemm"
    else:
        op_type = "MatMul"
    return sheet.node(op_type, inputs, "shared", replaces=op.names, attributes=attributes)


def _completed(sheet: Sheet, lane: _Lane, part: str, rows: Sequence[str], bias: Span | None) -> str:
    """Return a member's result, from its part of the shared product and its residual products."""
    pieces = lane.pieces
    above, _, below = rows
    if not pieces.border.empty:
        x = sheet.joined((above, below), -1, "border_rows")
        part = lane.product(sheet, x, pieces.border, added=part)
    if bias is not None:
        part = sheet.node("Add", [part, bias.spread(sheet, "own", 0)], "biased")
    before = after = ""
    if not pieces.sides.empty:
        sides = lane.product(sheet, lane.x, pieces.sides, bias=_bias(lane, pieces.sides))
        left, _, right = pieces.columns
        before, after = sheet.spans(sides, [left, right], -1, "side_columns")
    result = sheet.joined((before, part, after), -1, "columns")
    if lane.flat:
        return _unflattened(sheet, lane, result)
    return result


def _bias(lane: _Lane, piece: Piece) -> Span | None:
    """Return the bias of a piece's columns."""
    return Span.of(lane.member, [(block.left, block.right) for block in piece.blocks])


def _unflattened(sheet: Sheet, lane: _Lane, value: str) -> str:
    """Reshape [rows, N] to [..., N], with the axes that x had."""
    operator = lane.member.operator
    columns = operator.matrix.columns
    leading = lane.dims[:-1]
    if leading.count(None) <= 1:
        # The one size that is not static follows from the number of rows.
        sizes = [-1 if size is None else size for size in leading]
        shape = sheet.whole_numbers([*sizes, columns])
    elif columns == operator.matrix.rows:
        shape = sheet.node("Shape", [operator.x], "shape")
    else:
        leading_sizes = sheet.leading(operator.x, -1, "leading")
        shape = sheet.joined([leading_sizes, sheet.whole_numbers([columns])], 0, "shape")
    return sheet.node("Reshape", [value, shape], "unflattened")
