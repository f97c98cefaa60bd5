"""What shapes are: with every dimension a number, and whatever the symbolic ones are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gkestimator.errors import GkestimatorError, LimitError, UsageError
from gkestimator.graph import OperatorGraph
from gkestimator.onnx_io.convert import convert_model
from gkestimator.onnx_io.dims import choose_batch
from gkestimator.onnx_io.editing.form import EditableModel, ValueInfo, ValueShape
from gkestimator.onnx_io.editing.protos import to_proto
from gkestimator.onnx_io.model import Model
from gkestimator.onnx_io.program import InputSpec
from gkestimator.onnx_io.shapes.registry import DeclaredType, TensorType

__all__ = ["batch_dims", "fix_dims", "graph_of", "symbolic_dims", "value_shapes"]


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
        inputs=[_fixed(v, model, dims) for v in model.inputs],
        outputs=[_fixed(v, model, dims) for v in model.outputs],
    )


def _fixed(value: ValueInfo, model: EditableModel, dims: Mapping[str, int]) -> ValueInfo:
    if value.shape is None:
        return value
    shape = tuple(
        _lookup(model, dims, d if d is not None else f"{value.name}.{axis}", d)
        if not isinstance(d, int)
        else d
        for axis, d in enumerate(value.shape)
    )
    return replace(value, shape=shape)


def _lookup(
    model: EditableModel, dims: Mapping[str, int], name: str, else_: str | None
) -> int | str | None:
    found = dims.get(name, dims.get(_bare(model, name)))
    return else_ if found is None else found


def _bare(model: EditableModel, name: str) -> str:
    """``name`` as the file has it."""
    return name.removeprefix(_prefix(model, name))


def _prefix(model: EditableModel, name: str) -> str:
    return max((p for p in model.prefixes if name.startswith(p)), key=len, default="")
