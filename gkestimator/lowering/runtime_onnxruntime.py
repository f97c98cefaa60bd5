"""What ONNX Runtime's CUDA provider does that torch does not: which operators cost nothing, what runs in
place.

Sources: ``onnxruntime/core/providers/cuda`` (Alias and MayInplace declarations of the kernel definitions) and
the
allocation planner, which reuses an input's buffer at its last use when sizes agree.
"""

from __future__ import annotations

__all__ = ["IN_PLACE", "VIEWS"]

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout"})
# Kernels declared MayInplace: the result may take over the first operand's buffer.
IN_PLACE = frozenset(
    {
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "And",
        "Or",
        "Xor",
        "Abs",
        "Neg",
        "Floor",
        "Ceil",
        "Round",
        "Clip",
        "Reciprocal",
        "Sqrt",
        "Log",
        "Exp",
        "Erf",
        "Not",
        "Sin",
        "Cos",
        "Relu",
        "LeakyRelu",
        "Sigmoid",
        "Tanh",
        "Elu",
        "Selu",
        "Celu",
        "Softplus",
        "Softsign",
        "ThresholdedRelu",
        "HardSigmoid",
        "HardSwish",
        "Sign",
        "Sum",
        "Max",
        "Min",
        "Softmax",
        "LogSoftmax",
    }
)
