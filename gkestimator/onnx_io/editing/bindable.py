"""An edited model as one that can be bound to batch sizes and estimated, without the values of its weights."""

from __future__ import annotations

from gkestimator.errors import GkestimatorError, LimitError
from gkestimator.onnx_io.convert import convert_model
from gkestimator.onnx_io.editing.form import EditableModel
from gkestimator.onnx_io.editing.protos import to_proto
from gkestimator.onnx_io.model import Model

__all__ = ["bindable"]


def bindable(model: EditableModel) -> Model:
    """``model`` as :func:`gkestimator.onnx_io.read_model` would have read it from a file.

    Operators of a binding are named like the nodes, tensors like the values. Values of weights are looked at only
    where they may be shape arithmetic (whole numbers up to 65,536 of them, a few floats), so that nothing of a large
    weight is read. Raises ModelError (LimitError) naming the model.
    """
    try:
        return Model(convert_model(to_proto(model)), name=model.name)
    except GkestimatorError as e:
        raise type(e)(f"{model.name}: {e}") from e
    except RecursionError as e:
        raise LimitError(f"{model.name}: nested too deeply") from e
