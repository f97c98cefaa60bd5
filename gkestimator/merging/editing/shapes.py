"""Tell what shapes are: with every dimension a number, and whatever the symbolic ones are."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from onnx import AttributeProto

from gkestimator.core.errors import GkestimatorError, LimitError, UsageError
from gkestimator.core.graph import OperatorGraph
from gkestimator.merging.editing.dimensions import Assignment, Assignments, assignments, edges
from gkestimator.merging.editing.form import DimSizes, EditableModel, EditNode, Names, ValueInfo, ValueShape
from gkestimator.merging.editing.protos import to_proto
from gkestimator.onnx_io.binding.dims import choose_batch, name_dims
from gkestimator.onnx_io.model import Model
from gkestimator.onnx_io.reading.convert import convert_model
from gkestimator.onnx_io.reading.program import InputSpec
from gkestimator.operators.registry import DeclaredType, TensorType, ValueType

_MEASURING = frozenset({"Shape", "Size", "SequenceLength"})
_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)

#: The types of all values under one assignment of the symbolic dimensions.
Binding: TypeAlias = "Mapping[str, ValueType]"


def symbolic_dims(model: EditableModel) -> Names:
    """Return the names of the inputs' symbolic dimensions, each once (those without a name have none)."""
    names: dict[str, None] = {}
    for value in model.inputs:
        for size in value.shape or ():
            if isinstance(size, str):
                names[size] = None
    return tuple(names)


def fix_dims(model: EditableModel, dims: DimSizes) -> EditableModel:
    """Return ``model`` with symbolic dimensions of its inputs and outputs as numbers.

    ``dims`` names them as the file does or with the model's prefix; names that the model has not are left for
    other models. Raises UsageError for a number below 1.
    """
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"dimension {name} is {size!r}; a positive whole number was expected")
    if not dims:
        return model
    return replace(
        model,
        inputs=[_fixed(value, model, dims, anonymous=True) for value in model.inputs],
        outputs=[_fixed(value, model, dims, anonymous=False) for value in model.outputs],
    )


def _fixed(value: ValueInfo, model: EditableModel, dims: DimSizes, *, anonymous: bool) -> ValueInfo:
    """Return ``value`` with numbers; ``anonymous``: a dimension without a name may be called
    ``<input>.<axis>``.
    """
    if value.shape is None:
        return value
    shape = list(value.shape)
    for axis, name in enumerate(value.shape):
        if name is None and anonymous:
            name = f"{value.name}.{axis}"
        if isinstance(name, str):
            size = _asked_for(model, dims, name)
            if size is not None:
                shape[axis] = size
    return replace(value, shape=tuple(shape))


def _asked_for(model: EditableModel, dims: DimSizes, name: str) -> int | None:
    """Return the number that ``dims`` has for ``name``, with or without the prefix."""
    if name in dims:
        return dims[name]
    return dims.get(name.removeprefix(_prefix(model, name)))


def _prefix(model: EditableModel, name: str) -> str:
    prefixes = [prefix for prefix in model.prefixes if name.startswith(prefix)]
    return max(prefixes, key=len, default="")


def batch_dims(model: EditableModel) -> dict[str, Names]:
    """Return by prefix the symbolic dimensions that stand for that model's batch; none where it is fixed or
    absent.

    A dimension without a name is called ``<input>.<axis>``. They are told as for an estimate, by the names in
    the file.
    """
    batches: dict[str, Names] = {}
    for prefix, specs in _specs(model).items():
        names = choose_batch(name_dims(specs)).names
        batches[prefix] = tuple(prefix + name for name in names)
    return batches


def _specs(model: EditableModel) -> dict[str, list[InputSpec]]:
    """Return the inputs by prefix, with the names that the files have."""
    specs: dict[str, list[InputSpec]] = {prefix: [] for prefix in model.prefixes or ("",)}
    for slot, value in enumerate(model.inputs):
        prefix = _prefix(model, value.name)
        shape: list[int | str | None] = []
        for size in value.shape or ():
            if isinstance(size, str):
                size = size.removeprefix(prefix)
            shape.append(size)
        declared = DeclaredType(value.dtype, None if value.shape is None else tuple(shape))
        kind = "tensor"
        if value.opaque is not None:
            kind = "other"
        spec = InputSpec(slot, value.name.removeprefix(prefix), kind, declared)
        specs.setdefault(prefix, []).append(spec)
    return specs


def _bindable(model: EditableModel) -> Model:
    try:
        return Model(convert_model(to_proto(model)), name=model.name)
    except RecursionError as e:
        raise LimitError(f"{model.name}: nested too deeply") from e
    except GkestimatorError as e:
        raise type(e)(f"{model.name}: {e}") from e


def graph_of(
    model: EditableModel, *, batch_size: int | None = None, dims: DimSizes | None = None
) -> OperatorGraph:
    """Return the operator graph of ``model``; its tensors are called as the values are, its operators as the
    nodes.

    ``batch_size`` is every symbolic batch (None: 1) that ``dims`` does not name; ``dims`` are symbolic
    dimensions as for :func:`fix_dims`. A fixed batch is changed for a model alone, never for models combined.
    Raises what :meth:`gkestimator.onnx_io.Model.bind` does, naming the model.
    """
    ready = _bindable(model)
    bound: Assignment = {}
    for name in ready.dims:
        size = _asked_for(model, dims or {}, name)
        if size is not None:
            bound[name] = size
    batches: list[str] = []
    for names in batch_dims(model).values():
        batches += names
    if batches:
        for name in batches:
            bound.setdefault(name, 1 if batch_size is None else batch_size)
        return ready.bind(dims=bound, batch_dim=batches[0])
    if len(model.prefixes) > 1 and batch_size not in (None, ready.exported_batch):
        raise UsageError(
            f"{model.name}: batch size {batch_size}; {ready.exported_batch} was expected, at which the combined "
            "models are exported"
        )
    return ready.bind(batch_size=batch_size, dims=bound)


def value_shapes(model: EditableModel) -> dict[str, ValueShape]:
    """Return what is certain of the tensors of the main graph, whatever the symbolic dimensions are (see
    ValueShape).

    Symbolic dimensions are bound to several numbers each, far apart: a size that is the same every time is
    static. Sizes that depend on data are not; of what follows from an operator with subgraphs nothing is said,
    nor of a value whose rank differs or that is no tensor. Where no two different numbers fit the model, only
    what depends on no input with symbolic dimensions is static. Raises what binding does where no numbers fit
    at all.
    """
    ready = _bindable(model)
    # a size that is the same under numbers far apart does not depend on them
    bindings = _bindings(ready, model)
    unsure = {value.name for value in model.inputs if _open(value) and not bindings}
    if not bindings:
        bindings = [ready.types(dict.fromkeys(ready.dims, 1))]
    for node in model.nodes:
        follows = not unsure.isdisjoint(node.reads)
        if follows or node.outer or _has_graphs(node) or _measures(node, bindings[0]):
            unsure.update(node.writes)
    shapes = {}
    for name in model.defined():
        if name not in unsure:
            shape = _certain([binding.get(name) for binding in bindings])
            if shape is not None:
                shapes[name] = shape
    return shapes


def _certain(types: Sequence[ValueType | None]) -> ValueShape | None:
    """Return what several bindings say of a value alike; None where it is no tensor or of several ranks."""
    # a value may be a tensor under one binding and a sequence under another
    tensors = [kind for kind in types if isinstance(kind, TensorType)]
    if len(tensors) < len(types):
        return None
    if len({len(tensor.shape) for tensor in tensors}) > 1:
        return None
    certain = not any(tensor.bounded for tensor in tensors)
    dims: list[int | None] = []
    for sizes in zip(*(tensor.shape for tensor in tensors), strict=True):
        if certain and len(set(sizes)) == 1:
            dims.append(sizes[0])
        else:
            dims.append(None)
    return ValueShape(dtype=tensors[0].dtype, dims=tuple(dims))


def _bindings(ready: Model, model: EditableModel) -> list[Binding]:
    """Return types under bindings that differ in every free dimension: small numbers, large ones, and what
    else fits.

    A batch of one is among them, if it fits: there a Squeeze without axes takes axis 0 away, and ``x[:2]`` is
    shorter. Empty where no small or no large numbers were found that fit.
    """
    if not ready.dims:
        return [ready.types({})]
    batches: set[str] = set()
    for names in batch_dims(model).values():
        batches.update(names)
    small, large, others = _tries(model, ready.dims, batches)
    bound: list[Binding] = []
    # two large ones: rests of divisions differ too; of the last ones, which few models take, all that fit
    for tries, most, least in ((small, 1, 1), (large, 2, 1), (others, len(others), 0)):
        fitting: list[Binding] = []
        for numbers in tries:
            if len(fitting) < most:
                with contextlib.suppress(GkestimatorError):
                    fitting.append(ready.types(numbers))
        if len(fitting) < least:
            return []
        bound += fitting
    # only the batch is 1 here: other dimensions of 1 are tried above
    alone = dict.fromkeys(batches.intersection(ready.dims), 1)
    for numbers in small:
        if alone:
            with contextlib.suppress(GkestimatorError):
                bound.append(ready.types(numbers | alone))
                break
    return bound


def _tries(
    model: EditableModel, free: Sequence[str], batches: set[str]
) -> tuple[Assignments, Assignments, Assignments]:
    """Return small and large numbers for all models at once, and those that few models take."""
    small: Assignments = []
    large: Assignments = []
    others: Assignments = []
    for prefix in dict.fromkeys(_prefix(model, name) for name in free):
        own = [name for name in free if _prefix(model, name) == prefix]
        names = [name.removeprefix(prefix) for name in own]
        one_number = frozenset(name.removeprefix(prefix) for name in own if name in batches)
        own_small, own_large = assignments(names, one_number)
        _extend(small, own_small, prefix)
        _extend(large, own_large, prefix)
        _extend(others, edges(names, one_number), prefix)
    return small, large, others


def _extend(together: Assignments, more: Assignments, prefix: str) -> None:
    """Put the i-th of ``more`` to the i-th of ``together``, the last of the shorter list to what is left."""
    if not together:
        together.extend({} for _ in more)
    if not more:
        return
    for i in range(max(len(together), len(more))):
        if i == len(together):
            together.append(dict(together[-1]))
        numbers = more[min(i, len(more) - 1)]
        together[i].update({prefix + name: size for name, size in numbers.items()})


def _measures(node: EditNode, types: Binding) -> bool:
    """Return True where ``node`` tells a size that depends on data as a number, whose bound here is not it."""
    if node.op_type not in _MEASURING:
        return False
    measured = [types.get(name) for name in node.inputs]
    return any(kind is not None and kind.bounded for kind in measured)


def _has_graphs(node: EditNode) -> bool:
    """Return True where a subgraph is among the attributes (one that reads nothing from outside has no
    ``outer``).
    """
    return any(AttributeProto.FromString(opaque).type in _GRAPHS for opaque in node.opaque)


def _open(value: ValueInfo) -> bool:
    """Return True where the shape is not a list of numbers."""
    return value.shape is None or not all(isinstance(size, int) for size in value.shape)
