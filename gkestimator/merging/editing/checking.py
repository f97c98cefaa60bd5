"""Whether a model is valid by ONNX's own checker."""

from __future__ import annotations

import onnx
import onnx.checker
import onnx.shape_inference

from gkestimator.core.errors import ModelError
from gkestimator.merging.editing.form import EditableModel
from gkestimator.merging.editing.protos import to_proto

# What the library's C++ part raises; its own errors are no RuntimeError.
FAILURES = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
)


def check_editable(model: EditableModel) -> None:
    """ONNX's checker and strict shape inference on ``model``; large weights are looked at by type and shape only.

    Raises ModelError with the checker's first complaint.
    """
    # Weights without values would be refused, or their files looked for: for these checks inputs say the same.
    proto = to_proto(model, large="inputs")
    try:
        onnx.checker.check_model(proto)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as e:
        raise ModelError(f"{model.name}: not valid by ONNX's checker: {e}") from e
    except FAILURES as e:
        raise ModelError(f"{model.name}: ONNX's checker failed: {e}") from e
