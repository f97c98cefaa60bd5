"""What shapes are: with every dimension a number, and whatever the symbolic ones are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from onnx import AttributeProto

from gkestimator.core.errors import GkestimatorError, LimitError, UsageError
from gkestimator.core.graph import OperatorGraph
from gkestimator.merging.editing.dimensions import assignments, edges
from gkestimator.merging.editing.form import EditableModel, EditNode, ValueInfo, ValueShape
from gkestimator.merging.editing.protos import to_proto
from gkestimator.onnx_io.binding.dims import choose_batch, name_dims
from gkestimator.onnx_io.model import Model
from gkestimator.onnx_io.reading.convert import convert_model
from gkestimator.onnx_io.reading.program import InputSpec
from gkestimator.operators.registry import DeclaredType, TensorType, ValueType

_MEASURING = frozenset({"Shape", "Size", "SequenceLength"})


def symbolic_dims(model: EditableModel) -> tuple[str, ...]:
    """Names of the inputs' symbolic dimensions, each once (those without a name have none)."""
    return tuple(dict.fromkeys(d for i in model.inputs for d in i.shape or () if isinstance(d, str)))


def fix_dims(model: EditableModel, dims: Mapping[str, int]) -> EditableModel:
    """``model`` with symbolic dimensions of its inputs and outputs as numbers.

    ``dims`` names them as the file does or with the model's prefix; names that the model has not are left for other
    models. Raises UsageError for a number below 1.
    """
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"dimension {name} is {size!r}; a positive whole number was expected")
    if not dims:
        return model
    return replace(
        model,
        inputs=[_fixed(v, model, dims, anonymous=True) for v in model.inputs],
        outputs=[_fixed(v, model, dims, anonymous=False) for v in model.outputs],
    )


def _fixed(value: ValueInfo, model: EditableModel, dims: Mapping[str, int], *, anonymous: bool) -> ValueInfo:
    """``anonymous``: an input's dimension without a name may be called ``<input>.<axis>``."""
    if value.shape is None:
        return value
    shape: list[int | str | None] = list(value.shape)
    for axis, dim in enumerate(shape):
        if dim is None and anonymous:
            name = f"{value.name}.{axis}"
        else:
            name = dim
        if isinstance(name, str):
            found = _given(model, dims, name)
            shape[axis] = dim if found is None else found
    return replace(value, shape=tuple(shape))


def _given(model: EditableModel, dims: Mapping[str, int], name: str) -> int | None:
    """The number that ``dims`` has for ``name``, with or without the prefix."""
    found = dims.get(name)
    if found is not None:
        return found
    return dims.get(name.removeprefix(_prefix(model, name)))


def _prefix(model: EditableModel, name: str) -> str:
    return max((p for p in model.prefixes if name.startswith(p)), key=len, default="")


def batch_dims(model: EditableModel) -> dict[str, tuple[str, ...]]:
    """By prefix: the symbolic dimensions that stand for that model's batch; none where it is fixed or there is none.

    A dimension without a name is called ``<input>.<axis>``. Found as for an estimate, by the names in the file.
    """
    found: dict[str, tuple[str, ...]] = {}
    for prefix, specs in _specs(model).items():
        found[prefix] = tuple(prefix + name for name in choose_batch(name_dims(specs)).names)
    return found


def _specs(model: EditableModel) -> dict[str, list[InputSpec]]:
    """The inputs by prefix, with the names that the files have."""
    specs: dict[str, list[InputSpec]] = {p: [] for p in model.prefixes or ("",)}
    for slot, value in enumerate(model.inputs):
        prefix = _prefix(model, value.name)
        shape = value.shape and tuple(
            d.removeprefix(prefix) if isinstance(d, str) else d for d in value.shape
        )
        kind = "tensor" if value.opaque is None else "other"
        specs.setdefault(prefix, []).append(
            InputSpec(slot, value.name.removeprefix(prefix), kind, DeclaredType(value.dtype, shape))
        )
    return specs


def _bindable(model: EditableModel) -> Model:
    try:
        return Model(convert_model(to_proto(model)), name=model.name)
    except RecursionError as e:
        raise LimitError(f"{model.name}: nested too deeply") from e
    except GkestimatorError as e:
        raise type(e)(f"{model.name}: {e}") from e


def graph_of(
    model: EditableModel, *, batch_size: int | None = None, dims: Mapping[str, int] | None = None
) -> OperatorGraph:
    """The operator graph of ``model``; its tensors are called as the values are, its operators as the nodes.

    ``batch_size`` is every symbolic batch (None: 1) that ``dims`` does not name; ``dims`` are symbolic dimensions as
    for :func:`fix_dims`. A fixed batch is changed for a model alone, never for models combined. Raises what
    :meth:`gkestimator.onnx_io.Model.bind` does, naming the model.
    """
    ready = _bindable(model)
    batches = [name for names in batch_dims(model).values() for name in names]
    bound = {n: size for n in ready.dims if (size := _given(model, dims or {}, n)) is not None}
    if not batches:
        if len(model.prefixes) > 1 and batch_size is not None and batch_size != ready.exported_batch:
            raise UsageError(
                f"{model.name}: batch size {batch_size}; {ready.exported_batch} was expected, at which the combined "
                "models are exported"
            )
        return ready.bind(batch_size=batch_size, dims=bound)
    for name in batches:
        bound.setdefault(name, 1 if batch_size is None else batch_size)
    return ready.bind(dims=bound, batch_dim=batches[0])


def value_shapes(model: EditableModel, dims: Mapping[str, int] | None = None) -> dict[str, ValueShape]:
    """What is certain of the tensors of the main graph, whatever the symbolic dimensions are (see ValueShape).

    ``dims`` fix symbolic dimensions as for :func:`fix_dims`. The rest are bound to several numbers each, far apart: a
    size that is the same every time is static. Sizes that depend on data are not; of what follows from an operator
    with subgraphs nothing is said, nor of a value whose rank differs or that is no tensor. Where no two different
    numbers fit the model, only what depends on no input with symbolic dimensions is static.
    Raises what binding does where no numbers fit at all.
    """
    ready = _bindable(model)
    fixed = {n: size for n in ready.dims if (size := _given(model, dims or {}, n)) is not None}
    free = [n for n in ready.dims if n not in fixed]
    bindings = _bindings(ready, model, fixed, free)
    unsure = _after(model, {w for n in model.nodes if n.outer or _has_graphs(n) for w in n.writes})
    if not bindings:
        unsure |= _after(model, {i.name for i in model.inputs if _open(i)})
        bindings = [ready.types(fixed | dict.fromkeys(free, 1))]
    unsure |= _after(model, {w for n in model.nodes if _measures(n, bindings[0]) for w in n.writes})
    found = {}
    for name in _names(model):
        types = [t for b in bindings if isinstance(t := b.get(name), TensorType)]
        if name in unsure or len(types) < len(bindings) or len({len(t.shape) for t in types}) > 1:
            continue
        certain = not any(t.bounded for t in types)
        sizes = zip(*(t.shape for t in types), strict=True)
        found[name] = ValueShape(
            dtype=types[0].dtype, dims=tuple(s[0] if certain and len(set(s)) == 1 else None for s in sizes)
        )
    return found


def _bindings(
    ready: Model, model: EditableModel, fixed: Mapping[str, int], free: Sequence[str]
) -> list[Mapping[str, ValueType]]:
    """Types under bindings that differ in every free dimension: small numbers, large ones, and what else fits.

    A batch of one is among them, if it fits: there a Squeeze without axes takes axis 0 away, and ``x[:2]`` is shorter.
    Empty where no small or no large numbers were found that fit.
    """
    if not free:
        return [ready.types(fixed)]
    batches = frozenset(n for names in batch_dims(model).values() for n in names)
    tries: tuple[list[dict[str, int]], ...] = ([], [], [])
    for prefix in dict.fromkeys(_prefix(model, n) for n in free):
        mine = [n for n in free if _prefix(model, n) == prefix]
        names = [n.removeprefix(prefix) for n in mine]
        one_number = frozenset(n.removeprefix(prefix) for n in mine if n in batches)
        bare = (*assignments(names, one_number), edges(names, one_number))
        for together, found in zip(tries, bare, strict=True):
            _extend(together, [{prefix + k: v for k, v in one.items()} for one in found])
    bound: list[Mapping[str, ValueType]] = []
    # two large ones: rests of divisions differ too; of the last ones, which few models take, all that fit
    for together, wanted, needed in zip(tries, (1, 2, len(tries[2])), (1, 1, 0), strict=True):
        enough = len(bound) + wanted
        least = len(bound) + needed
        for numbers in together:
            if len(bound) < enough:
                with contextlib.suppress(GkestimatorError):
                    bound.append(ready.types({**fixed, **numbers}))
        if len(bound) < least:
            return []
    alone = dict.fromkeys(batches.intersection(free), 1)
    for numbers in tries[0] if alone else ():
        with contextlib.suppress(GkestimatorError):
            bound.append(ready.types({**fixed, **numbers, **alone}))
            break
    return bound


def _extend(together: list[dict[str, int]], more: list[dict[str, int]]) -> None:
    """Put the i-th of ``more`` to the i-th of ``together``, the last of the shorter list to what is left."""
    if not together:
        together.extend({} for _ in more)
    for i in range(max(len(together), len(more)) if more else 0):
        if i == len(together):
            together.append(dict(together[-1]))
        together[i].update(more[min(i, len(more) - 1)])


def _names(model: EditableModel) -> Iterator[str]:
    yield from model.weights
    yield from (i.name for i in model.inputs)
    for node in model.nodes:
        yield from node.writes


def _after(model: EditableModel, names: set[str]) -> set[str]:
    """``names`` and all that is made from them."""
    found = set(names)
    for node in model.nodes:
        if any(r in found for r in node.reads):
            found.update(node.writes)
    return found


def _measures(node: EditNode, types: Mapping[str, ValueType]) -> bool:
    """Whether ``node`` tells a size that depends on data as a number, whose bound here is not it."""
    return node.op_type in _MEASURING and any(
        (t := types.get(i)) is not None and t.bounded for i in node.inputs
    )


def _has_graphs(node: EditNode) -> bool:
    """Whether a subgraph is among the attributes (one that reads nothing from outside has no ``outer``)."""
    kinds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    return any(AttributeProto.FromString(a).type in kinds for a in node.opaque)


def _open(value: ValueInfo) -> bool:
    return value.shape is None or any(not isinstance(d, int) for d in value.shape)
