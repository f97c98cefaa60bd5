"""Matrix products: transpositions and factors of their operands, products of one input side by side, and what follows.

Developer Guide: a fully connected layer fuses with its activation; layers of one kind that read one input are merged.
That a generated epilogue adds biases, a residual and any activation (GELU, SiLU) is how transformers run as
"ForeignNode" layers; the guide names the fusion without listing the forms.
"""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.graph import Attribute, Operator, Tensor
from gkestimator.core.kernels import GemmShape
from gkestimator.lowering.patterns.match import FUSED_DOMAIN, Match, side_by_side
from gkestimator.lowering.patterns.products import bare_operand, scaling_after
from gkestimator.lowering.patterns.tensorrt.extended import extended
from gkestimator.lowering.patterns.tensorrt.regions import grown_forwards, joins
from gkestimator.lowering.patterns.view import GraphView, Indices, is_scalar
from gkestimator.operators.builders import gemm_kernel, int_of, tensor_inputs, tensor_outputs
from gkestimator.operators.registry import Lowered, LoweringOptions, launched, lowering_rule

_MERGED = "MergedGemm"
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")


def match_product(view: GraphView, product: int, options: LoweringOptions) -> Match:
    """Return the MatMul or Gemm at index ``product`` with factors and transpositions before it and an epilogue."""
    op = view.operators[product]
    core = op
    own = [product]
    if op.op_type == "MatMul":
        core, before = _bare(view, product, op)
        own += before
    value = view.result(product)
    scaling = scaling_after(view, value)
    if scaling is not None and view.free(scaling):
        own.append(scaling)
        value = view.result(scaling)
    added = _epilogue(view, value)
    if not added:
        reshaped, views = _as_read(view, value)
        added = _epilogue(view, reshaped)
        if added:
            own += views
    if len(own) == 1 and not added:
        raise view.mismatch(product, "has nothing around it that its kernel could do")
    return extended(view, "product", core, own, added, options)


def _bare(view: GraphView, product: int, op: Operator) -> tuple[Operator, Indices]:
    """Return the product of the operands before factors and transpositions, and those."""
    members: Indices = []
    operands: list[Tensor] = []
    attributes: dict[str, Attribute] = {}
    for position, name in enumerate(("transA", "transB")):
        value, before, flipped = bare_operand(view, view.operand(product, position))
        if all(view.free(index) for index in before):
            members += before
            attributes[name] = flipped
        else:
            value = view.operand(product, position)
            attributes[name] = 0
        operands.append(value)
    if not members:
        return op, members
    core = replace(
        op, op_type="FusedMatMul", domain="com.microsoft", inputs=tuple(operands), attributes=attributes
    )
    return core, members


def _as_read(view: GraphView, value: Tensor) -> tuple[Tensor, Indices]:
    """Return ``value`` behind views that alone read it and keep its columns (rows N x S as N, S), and those."""
    passed: Indices = []
    while True:
        index = view.optional_reader(value, *_VIEWS)
        if index is None or not view.free(index):
            return value, passed
        result = view.result(index)
        if not view.reads(index, 0, value) or result.shape[-1:] != value.shape[-1:]:
            return value, passed
        passed.append(index)
        value = result


def _epilogue(view: GraphView, value: Tensor) -> Indices:
    """Return the element-wise operators after a product that its kernel calculates: with constants, with vectors of
    weights, and the sum with one tensor of the result's shape.
    """
    residuals: set[str] = set()

    def accepts(index: int, outside: list[Tensor]) -> bool:
        for other in outside:
            if is_scalar(other) or (other.is_weight and other.elements == other.shape[-1] == value.shape[-1]):
                continue
            if view.operators[index].op_type != "Add" or other.shape != value.shape or other.is_weight:
                return False
            residuals.add(other.name)
        return len(residuals) <= 1

    return grown_forwards(view, value, accepts)


def match_merged(view: GraphView, product: int, options: LoweringOptions) -> Match:
    """Return the products by weights that read what the one at index ``product`` reads, as one, with their biases."""
    op = view.operators[product]
    x = view.operand(product, 0)
    if op.attributes.get("transA", 0):
        raise view.mismatch(product, "transposes what it reads")
    own: Indices = []
    ends: Indices = []
    parameters: list[Tensor] = []
    for index in view.consumers.get(x.name, ()):
        if not _alike(view, index, op, x):
            continue
        own.append(index)
        end = index
        parameters += [value for value in view.operators[index].inputs[1:] if isinstance(value, Tensor)]
        if op.op_type == "MatMul":
            bias = _bias(view, index)
            if bias is not None:
                end, vector = bias
                own.append(end)
                parameters.append(vector)
        ends.append(end)
    if len(ends) < 2:
        raise view.mismatch(product, f"is the only product by a matrix of weights that reads {x.name}")
    columns = sum([view.result(end).shape[-1] for end in ends])
    biased = sum([view.result(end).elements for end in ends if view.operators[end].op_type == "Add"])
    if op.op_type == "Gemm" and len(op.inputs) > 2:
        biased = sum([view.result(end).elements for end in ends])
    attributes: dict[str, Attribute] = {"depth": x.shape[-1], "columns": columns, "epilogue": biased}
    return side_by_side(
        view,
        "merged_products",
        own,
        ends,
        op_type=_MERGED,
        inputs=(x, *parameters),
        attributes=attributes,
    )


def _alike(view: GraphView, index: int, op: Operator, x: Tensor) -> bool:
    """Return True for a product of ``x`` by weights with the attributes of ``op`` that belongs to no group yet."""
    other = view.operators[index]
    if other.key != op.key or not view.free(index) or other.repeat != op.repeat:
        return False
    if len(other.inputs) != len(op.inputs) or dict(other.attributes) != dict(op.attributes):
        return False
    if other.inputs[0] is None or other.inputs[0].name != x.name:
        return False
    weights = [value for value in other.inputs[1:] if isinstance(value, Tensor)]
    if len(weights) != len(other.inputs) - 1 or not all(weight.is_weight for weight in weights):
        return False
    return len(weights[0].shape) == 2 and weights[0].dtype is x.dtype


def _bias(view: GraphView, product: int) -> tuple[int, Tensor] | None:
    """Return the Add of a vector of weights that alone reads a product, and the vector."""
    value = view.result(product)
    index = view.optional_reader(value, "Add")
    if index is None or not joins(view, index, value.shape):
        return None
    vector = view.other(index, value)
    if vector.is_weight and vector.shape == value.shape[-1:]:
        return index, vector
    return None


@lowering_rule(_MERGED, domain=FUSED_DOMAIN, kind="gemm")
def lower_merged(op: Operator, options: LoweringOptions) -> Lowered:
    """Return one GEMM over the columns of all weights, biases in its epilogue."""
    reads = tensor_inputs(op)
    depth = int_of(op, "depth", 1)
    shape = GemmShape(batch=1, m=reads[0].elements // max(1, depth), n=int_of(op, "columns", 1), k=depth)
    epilogue = int_of(op, "epilogue", 0)
    return launched(gemm_kernel(shape, reads, tensor_outputs(op), options, epilogue_flops=epilogue))
