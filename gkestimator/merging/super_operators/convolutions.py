"""Write super-operators of Conv, of one group or of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.merging.editing import Numbers, Rearranged, Shapes, ValueShape
from gkestimator.merging.editing.form import AttributeValue
from gkestimator.merging.operators import MergedMember, SuperOperator
from gkestimator.merging.super_operators.form import Sheet, unstack
from gkestimator.merging.super_operators.pieces import Piece, Pieces, Span, common, pieces_of

Ranges: TypeAlias = "tuple[Numbers, ...]"


def conv_reason(op: SuperOperator, shapes: Shapes) -> str | None:
    """Say why the members' convolutions cannot be merged; None where they can."""
    first = op.members[0].operator
    for member in op.members:
        operator = member.operator
        name = operator.node.name
        kernel = operator.geometry[0]
        dims = shapes[operator.x].dims
        if operator.geometry[:3] != first.geometry[:3] or operator.geometry[4] != first.geometry[4]:
            return f"{name} has another kernel, stride, dilation or group than {first.node.name}"
        if len(dims) != 2 + len(kernel):
            return f"{name} has an input of {len(dims)} axes for a kernel of {len(kernel)}"
        if None in dims[2:]:
            return (
                f"the height or width of {name}'s input is not static (a number for its dimension fixes it)"
            )
    return None


@frozen
class _Window:
    """Hold what the members' convolutions have in common when they run as one.

    ``begin``, ``end``: pads of the shared convolution. ``extent``: the size along each spatial axis to which
    every member's input is filled with zeros. ``front``, ``back``: the zeros, per member.
    """

    kernel: Numbers
    strides: Numbers
    dilations: Numbers
    begin: Numbers
    end: Numbers
    extent: Numbers
    front: Ranges
    back: Ranges

    def results(self, extent: Sequence[int], pads: Sequence[int]) -> Numbers:
        """Return the sizes of a result, from the input's and both pads of each axis together (ONNX, Conv)."""
        results = []
        for axis, kernel in enumerate(self.kernel):
            span = self.dilations[axis] * (kernel - 1) + 1
            results.append((extent[axis] + pads[axis] - span) // self.strides[axis] + 1)
        return tuple(results)


def _window(geometries: Sequence[Ranges], sizes: Sequence[Numbers]) -> _Window:
    """Return the window that is right for every member.

    A convolution's own pads are zeros, so zeros put before the input in place of pads, and behind it up to
    the largest input, change none of the results that the member had; there may be more of them, which are
    cut off.
    """
    kernel, strides, dilations = geometries[0][:3]
    rank = len(kernel)
    # [members, axes]
    begins = np.array([geometry[3][:rank] for geometry in geometries])
    ends = np.array([geometry[3][rank:] for geometry in geometries])
    # pads that all members have stay pads: zeros in memory cost a copy
    begin = begins.min(axis=0)
    front = begins - begin
    filled = np.array(sizes) + front
    extent = filled.max(axis=0)
    end = np.maximum(0, (filled + ends).max(axis=0) - extent)
    back = extent - filled
    return _Window(
        kernel=kernel,
        strides=strides,
        dilations=dilations,
        begin=tuple(begin.tolist()),
        end=tuple(end.tolist()),
        extent=tuple(extent.tolist()),
        front=tuple(map(tuple, front.tolist())),
        back=tuple(map(tuple, back.tolist())),
    )


@frozen
class _Lane:
    """Hold a member on its way through.

    A group takes ``into`` channels and gives ``out``; both 1 where rows and columns are channels themselves
    (``grouped`` False).
    """

    member: MergedMember
    pieces: Pieces
    size: Numbers
    count: int | None
    grouped: bool
    into: int
    out: int

    def bias(self, piece: Piece) -> Span | None:
        """Return the bias of the channels of the result that a piece of the weight is for."""
        if self.grouped:
            ranges = [(block.top * self.out, block.bottom * self.out) for block in piece.blocks]
        else:
            ranges = [(block.left, block.right) for block in piece.blocks]
        return Span.of(self.member, ranges)

    def weight(self, sheet: Sheet, piece: Piece) -> str:
        """Return a piece of the weight in Conv's layout [channels out, channels in of a group, kernel...]."""
        operator = self.member.operator
        kernel = operator.geometry[0]
        if self.grouped:
            shape: Numbers = (piece.rows * self.out, self.into, *kernel)
            values = Rearranged(base=piece.values(self.member), shape=shape)
        else:
            shape = (piece.columns, piece.rows, *kernel)
            values = Rearranged(base=piece.values(self.member), axes=(1, 0, 2), shape=shape)
        return sheet.weight(f"{piece.hint}_weight", operator.matrix.dtype, shape, values)

    def residual(self, sheet: Sheet, x: str, piece: Piece, bias: Span | None) -> str:
        """Convolve ``x`` with a piece of the weight that is this member's alone."""
        operator = self.member.operator
        kernel, strides, dilations, pads = operator.geometry[:4]
        group = 1
        if self.grouped:
            group = piece.rows
        attributes = _attributes(kernel, strides, dilations, pads, group)
        inputs = [x, self.weight(sheet, piece)]
        if bias is not None:
            inputs.append(bias.named(sheet, piece.hint))
        replaces = (operator.node.name,)
        return sheet.node("Conv", inputs, piece.hint, replaces=replaces, attributes=attributes)


def emit_convolutions(sheet: Sheet, op: SuperOperator, shapes: Shapes, tolerance: float) -> None:
    """Write the shared convolution, each member's residual ones, and what puts the results together.

    Inputs of unequal height or width are filled with zeros at the bottom and right up to the largest; the
    results are cut back.
    """
    operators = [member.operator for member in op.members]
    inputs = [operator.x for operator in operators]
    lanes = [_lane(op, member, shapes[x]) for member, x in zip(op.members, inputs, strict=True)]
    window = _window([operator.geometry for operator in operators], [lane.size for lane in lanes])
    inner = []
    for x, lane in zip(inputs, lanes, strict=True):
        channels = [rows * lane.into for rows in lane.pieces.rows]
        inner.append(sheet.spans(x, channels, 1, "channels"))
    filled = [_filled(sheet, window, k, parts[1]) for k, parts in enumerate(inner)]
    spans = [lane.bias(lane.pieces.shared) for lane in lanes]
    shared_bias = None
    if common(spans, tolerance):
        shared_bias = spans[0]
        spans = [None] * len(lanes)
    stacked = sheet.joined(filled, 0, "stacked")
    product = _shared_convolution(sheet, op, lanes[0], window, stacked, shared_bias)
    results = unstack(sheet, product, inputs, [lane.count for lane in lanes])
    for lane, part, rows, span in zip(lanes, results, inner, spans, strict=True):
        cropped = _cropped(sheet, window, lane, part)
        completed = _completed(sheet, lane, cropped, rows, span)
        sheet.finish(completed, lane.member.operator.y)


def _lane(op: SuperOperator, member: MergedMember, x: ValueShape) -> _Lane:
    grouped = member.operator.kind == "grouped_conv"
    if grouped:
        into, out = member.operator.geometry[4]
    else:
        into, out = (1, 1)
    size = tuple(extent for extent in x.dims[2:] if extent is not None)
    return _Lane(
        member=member,
        pieces=pieces_of(op, member),
        size=size,
        count=x.dims[0],
        grouped=grouped,
        into=into,
        out=out,
    )


def _attributes(
    kernel: Numbers,
    strides: Numbers,
    dilations: Numbers,
    pads: Numbers,
    group: int,
) -> dict[str, AttributeValue]:
    return {"dilations": dilations, "group": group, "kernel_shape": kernel, "pads": pads, "strides": strides}


def _filled(sheet: Sheet, window: _Window, index: int, value: str) -> str:
    """Return ``value`` with the zeros that member ``index`` needs; itself where it needs none."""
    front = window.front[index]
    back = window.back[index]
    if not any(front) and not any(back):
        return value
    return sheet.node("Pad", [value, sheet.whole_numbers([0, 0, *front, 0, 0, *back])], "filled")


def _shared_convolution(
    sheet: Sheet, op: SuperOperator, lane: _Lane, window: _Window, stacked: str, bias: Span | None
) -> str:
    """Convolve all stacked inputs with the first member's block."""
    operator = op.members[0].operator
    # the whole weight needs no copy under a new name
    if (op.rows, op.columns) == (operator.matrix.rows, operator.matrix.columns):
        weight = operator.weight_name
    else:
        weight = lane.weight(sheet, lane.pieces.shared)
    inputs = [stacked, weight]
    if bias is not None:
        inputs.append(bias.named(sheet, "shared"))
    group = 1
    if lane.grouped:
        group = op.rows
    pads = (*window.begin, *window.end)
    attributes = _attributes(window.kernel, window.strides, window.dilations, pads, group)
    return sheet.node(
        "Conv",
        inputs,
        "shared",
        replaces=op.names,
        attributes=attributes,
    )


def _cropped(sheet: Sheet, window: _Window, lane: _Lane, value: str) -> str:
    """Return the member's own results, without those that its zeros added behind them."""
    pads = lane.member.operator.geometry[3]
    rank = len(window.kernel)
    own_pads = [pads[axis] + pads[rank + axis] for axis in range(rank)]
    shared_pads = [window.begin[axis] + window.end[axis] for axis in range(rank)]
    own = window.results(lane.size, own_pads)
    shared = window.results(window.extent, shared_pads)
    axes = [axis for axis in range(rank) if own[axis] != shared[axis]]
    if not axes:
        return value
    starts = sheet.whole_numbers([0] * len(axes))
    ends = sheet.whole_numbers([own[axis] for axis in axes])
    along = sheet.whole_numbers([2 + axis for axis in axes])
    return sheet.node("Slice", [value, starts, ends, along], "cropped")


def _completed(sheet: Sheet, lane: _Lane, part: str, rows: Sequence[str], bias: Span | None) -> str:
    """Return a member's result, from its part of the shared convolution and its residual ones."""
    pieces = lane.pieces
    above, _, below = rows
    if not lane.grouped and not pieces.border.empty:
        # A residual convolution adds the member's own bias for nothing.
        x = sheet.joined((above, below), 1, "border_channels")
        residual = lane.residual(sheet, x, pieces.border, bias)
        part = sheet.node("Add", [part, residual], "sum")
        bias = None
    if bias is not None:
        part = sheet.node("Add", [part, bias.spread(sheet, "own", len(lane.size))], "biased")
    before = after = ""
    if lane.grouped:
        if not pieces.above.empty:
            before = lane.residual(sheet, above, pieces.above, lane.bias(pieces.above))
        if not pieces.below.empty:
            after = lane.residual(sheet, below, pieces.below, lane.bias(pieces.below))
    elif not pieces.sides.empty:
        sides = lane.residual(sheet, lane.member.operator.x, pieces.sides, lane.bias(pieces.sides))
        left, _, right = pieces.columns
        before, after = sheet.spans(sides, [left, right], 1, "side_channels")
    return sheet.joined((before, part, after), 1, "channels_out")
