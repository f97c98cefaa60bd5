"""ONNX Runtime's buffer for shapes it has seen: sizes worked out by hand."""

from __future__ import annotations

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, Kernel, KernelGraph, Step
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.memory import memory_profile
from gkestimator.memory.planning import planned_bytes, planned_requests
from gkestimator.memory.trace import trace_of

MIB = 1 << 20
FIGURES = load_runtime("onnxruntime").allocator_bytes


def step(name: str, read: tuple[str, ...], write: str, mib: int, scratch_mib: int = 0) -> Step:
    kernel = Kernel(
        name="k",
        family=Family.ELEMENTWISE,
        variant="add",
        precision=Precision.FP32,
        flops=1,
        read_bytes=0,
        write_bytes=0,
        workspace_bytes=scratch_mib * MIB,
    )
    return Step(
        name=name, op_type="Add", kernels=(kernel,), reads=read, writes=((write, mib * MIB),), host_calls=1
    )


def graph(weight_mib: int = 0) -> KernelGraph:
    """x (1 MiB) -> a (8) -> b (4) -> c (6) -> y (1); b needs 2 MiB of scratch."""
    return KernelGraph(
        name="m",
        runtime="onnxruntime",
        dtype="fp32",
        steps=(
            step("a", ("x",), "a", 8),
            step("b", ("a",), "b", 4, scratch_mib=2),
            step("c", ("b",), "c", 6),
            step("y", ("c",), "y", 1),
        ),
        weights={"w": weight_mib * MIB} if weight_mib else {},
        inputs={"x": MIB},
        outputs={"y": MIB},
    )


def test_the_buffer_holds_intermediates_alone() -> None:
    trace = trace_of(graph())
    # Requests: x, a, scratch of b, b, c, y.
    assert planned_requests(trace) == {1, 3, 4}


def test_a_gap_is_used_again() -> None:
    # a at 0..8, b behind it at 8..12; c takes the place of a.
    assert planned_bytes(trace_of(graph())) == 12 * MIB


def test_the_second_inference_asks_for_the_buffer_beside_what_the_first_left() -> None:
    reserved = memory_profile(
        graph(), allocator="arena", figures=FIGURES, library_workspace_bytes=0
    ).reserved_bytes
    # First: regions of 1 for x, 8 for a, 8 for the scratch, whose rest serves b; c takes the place of a. Second: no
    # chunk holds the buffer of 12, so the next region of 16 does.
    assert reserved == (1 + 8 + 8 + 16) * MIB


def test_weights_take_their_own_size() -> None:
    def reserved(weight_mib: int) -> int:
        profile = memory_profile(
            graph(weight_mib), allocator="arena", figures=FIGURES, library_workspace_bytes=0
        )
        return profile.reserved_bytes

    assert reserved(100) - reserved(0) == 100 * MIB
