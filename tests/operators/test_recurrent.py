"""Recurrent layers as cuDNN runs them: products of the inputs apart, one kernel a direction for the steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gkestimator.onnx_io  # noqa: F401  (registers the shape rules)
from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.graph import Attribute, Operator, Tensor
from gkestimator.core.kernels import Family, GemmShape, Kernel
from gkestimator.operators.registry import LOWERINGS, Lowered, LoweringOptions

STEPS, BATCH, INPUTS, HIDDEN = 7, 3, 20, 16
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ORT = LoweringOptions(
    runtime="onnxruntime", dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
)
TORCH = replace(ORT, runtime="torch")


def tensor(name: str, *shape: int, weight: bool = False) -> Tensor:
    return Tensor(name=name, dtype=DType.FLOAT, shape=shape, storage=name, is_weight=weight)


def lower(
    cell: str,
    options: LoweringOptions = TORCH,
    *,
    directions: int = 1,
    peepholes: bool = False,
    y: bool = True,
    **attributes: Attribute,
) -> Lowered:
    rows = GATES[cell] * HIDDEN
    shape = (STEPS, BATCH, INPUTS)
    if attributes.get("layout"):
        shape = (BATCH, STEPS, INPUTS)
    inputs: list[Tensor | None] = [
        tensor("x", *shape),
        tensor("w", directions, rows, INPUTS, weight=True),
        tensor("r", directions, rows, HIDDEN, weight=True),
        tensor("b", directions, 2 * rows, weight=True),
    ]
    if peepholes:
        inputs += [None, None, None, tensor("p", directions, 3 * HIDDEN, weight=True)]
    outputs = (
        tensor("y", STEPS, directions, BATCH, HIDDEN) if y else None,
        tensor("h", directions, BATCH, HIDDEN),
    )
    op = Operator(
        name="n", domain="", op_type=cell, version=14, attributes=attributes, inputs=tuple(inputs), outputs=outputs
    )  # fmt: skip
    return LOWERINGS[op.key](op, options)


def only(kernels: tuple[Kernel, ...], family: Family) -> list[Kernel]:
    return [kernel for kernel in kernels if kernel.family is family]


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("layout", [0, 1])
def test_inputs_are_multiplied_at_once_and_states_step_by_step(cell: str, layout: int) -> None:
    lowered = lower(cell, layout=layout)
    product, steps = lowered.kernels
    rows = GATES[cell] * HIDDEN
    assert (product.family, product.gemm) == (
        Family.LINEAR,
        GemmShape(batch=1, m=STEPS * BATCH, n=rows, k=INPUTS),
    )
    assert (steps.family, steps.gemm) == (Family.RNN, GemmShape(batch=STEPS, m=BATCH, n=rows, k=HIDDEN))
    assert product.write_bytes == STEPS * BATCH * rows * 4
    assert steps.weight_bytes == (rows * HIDDEN + 2 * rows) * 4
    assert steps.read_bytes == product.write_bytes + steps.weight_bytes
    assert lowered.host_calls == 1


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_a_bidirectional_layer_is_its_two_directions(cell: str) -> None:
    single, double = lower(cell).kernels, lower(cell, directions=2, direction="bidirectional").kernels
    assert sum(k.flops for k in double) == 2 * sum(k.flops for k in single)
    for family in (Family.LINEAR, Family.RNN):
        one, two = only(single, family), only(double, family)
        assert [k.gemm for k in two] == 2 * [k.gemm for k in one]
        assert [k.weight_bytes for k in two] == 2 * [k.weight_bytes for k in one]
        assert [k.read_bytes for k in two] == 2 * [k.read_bytes for k in one]
    assert not only(double, Family.COPY)


def test_onnxruntime_rearranges_what_two_directions_wrote() -> None:
    lowered = lower("LSTM", ORT, directions=2, direction="bidirectional")
    (copy,) = only(lowered.kernels, Family.COPY)
    assert copy.write_bytes == STEPS * 2 * BATCH * HIDDEN * 4
    assert lowered.host_calls == 2


@pytest.mark.parametrize("options", [TORCH, ORT])
def test_backwards_alone_turns_input_and_result_around(options: LoweringOptions) -> None:
    copies = only(lower("LSTM", options, direction="reverse").kernels, Family.COPY)
    assert [k.write_bytes for k in copies] == [STEPS * BATCH * INPUTS * 4, STEPS * BATCH * HIDDEN * 4]
    # Without a use of every step's state there is nothing to turn around behind the layer.
    copies = only(lower("LSTM", options, y=False, direction="reverse").kernels, Family.COPY)
    assert [k.write_bytes for k in copies] == [STEPS * BATCH * INPUTS * 4]


def test_gates_of_every_step_are_kept_and_onnxruntime_holds_the_weights_twice() -> None:
    gates = 2 * STEPS * BATCH * 4 * HIDDEN * 4
    weights = 2 * 4 * HIDDEN * (INPUTS + HIDDEN + 2) * 4
    for options, expected in ((TORCH, gates), (ORT, gates + weights)):
        kernels = lower("LSTM", options, directions=2, direction="bidirectional").kernels
        assert max(k.workspace_bytes for k in kernels) == expected


@pytest.mark.parametrize(
    ("cell", "attributes"),
    [
        ("LSTM", {"clip": 3.0}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"activations": ("Sigmoid", "Relu", "Tanh")}),
        ("LSTM", {"peepholes": True}),
        ("GRU", {"linear_before_reset": 0}),
        ("RNN", {"activations": ("Relu",)}),
    ],
)
def test_cells_that_cudnn_lacks_run_on_the_cpu_in_onnxruntime(cell: str, attributes: dict[str, bool]) -> None:
    (kernel,) = lower(cell, ORT, **attributes).kernels
    assert kernel.family is Family.HOST
    torch = lower(cell, TORCH, **attributes).kernels
    assert only(torch, Family.RNN)
    assert kernel.flops == sum(k.flops for k in torch)


@pytest.mark.parametrize(
    ("cell", "attributes"),
    [
        ("LSTM", {"input_forget": 0, "activations": ("Sigmoid", "Tanh", "Tanh")}),
        ("GRU", {"linear_before_reset": 1}),
        ("RNN", {"activations": ("Tanh",)}),
    ],
)
def test_usual_cells_written_out_stay_on_the_gpu(cell: str, attributes: dict[str, int]) -> None:
    assert only(lower(cell, ORT, **attributes).kernels, Family.RNN)


def test_tf32_is_cudnns_to_use_and_amp_casts_once() -> None:
    options = replace(TORCH, conv_precision=Precision.TF32)
    assert {k.precision for k in lower("LSTM", options).kernels} == {Precision.TF32}
    half = replace(TORCH, dtype="amp", half=Precision.FP16)
    lowered = lower("LSTM", half)
    casts = only(lowered.kernels, Family.COPY)
    assert len(casts) == 4  # x, w, r, b
    assert lowered.host_calls == 1 + len(casts)
    (steps,) = only(lowered.kernels, Family.RNN)
    assert (steps.precision, steps.element_bytes) == (Precision.FP16, 2)
    assert steps.weight_bytes == (4 * HIDDEN * HIDDEN + 8 * HIDDEN) * 2
