"""What an engine of TensorRT holds: plans worked out by hand, and bounds that every plan keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gkestimator
from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import Family, Kernel, KernelGraph, Step
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.memory import MemoryReplay, cumulative_reserved
from gkestimator.memory.engines import Lives, engine_bytes, planned_block_bytes
from gkestimator.memory.trace import trace_of

MIB = 1 << 20
ROUNDING = 256
NATIVE = load_runtime("tensorrt")
IN_ORT = load_runtime("onnxruntime_tensorrt")


def step(name: str, reads: tuple[str, ...], write: str, nbytes: int, scratch: int = 0) -> Step:
    kernel = Kernel(
        name="k",
        family=Family.ELEMENTWISE,
        variant="add",
        precision=Precision.FP32,
        flops=1,
        read_bytes=0,
        write_bytes=0,
        workspace_bytes=scratch,
    )
    return Step(
        name=name, op_type="Add", kernels=(kernel,), reads=reads, writes=((write, nbytes),), host_calls=1
    )


def graph(*steps: Step, x: int = MIB, y: int = MIB) -> KernelGraph:
    return KernelGraph(
        name="m",
        runtime="tensorrt",
        dtype="fp32",
        steps=steps,
        weights={"w": 5 * MIB},
        inputs={"x": x},
        outputs={"y": y},
    )


def chain(scratch: int = 0) -> KernelGraph:
    """x (1 MiB) -> a (8) -> b (4, with scratch) -> c (6) -> y (1)."""
    return graph(
        step("a", ("x",), "a", 8 * MIB),
        step("b", ("a",), "b", 4 * MIB, scratch),
        step("c", ("b",), "c", 6 * MIB),
        step("y", ("c",), "y", MIB),
    )


def test_neighbours_lie_beside_each_other_and_the_next_one_where_the_first_was() -> None:
    # a at 0; b behind it; c lives with b alone and fits below it. Input and output are the program's own.
    held = engine_bytes(trace_of(chain()), NATIVE.allocator, NATIVE.allocator_bytes)
    assert (held.weights, held.planned, held.bindings) == (5 * MIB, 12 * MIB, 2 * MIB)


def test_scratch_memory_lies_in_the_planned_block_up_to_the_limit() -> None:
    def planned(most: int | None) -> int:
        trace = trace_of(chain(scratch=3 * MIB), most)
        return engine_bytes(trace, NATIVE.allocator, NATIVE.allocator_bytes).planned

    assert planned(None) == (8 + 4 + 3) * MIB
    assert planned(2 * MIB) == (8 + 4 + 2) * MIB
    assert planned(0) == (8 + 4) * MIB


def test_a_profile_adds_up_and_the_library_has_no_workspace_beside() -> None:
    memory = MemoryReplay(NATIVE.allocator, NATIVE.allocator_bytes).profile(chain(scratch=3 * MIB), 0)
    assert memory.reserved_bytes == (5 + 15 + 2) * MIB
    parts = memory.weights_bytes + memory.activations_bytes + memory.workspace_bytes + memory.allocator_bytes
    assert parts == memory.reserved_bytes
    assert memory.workspace_bytes == 3 * MIB
    assert memory.allocator_bytes == MIB  # y, which is not alive where most is


def test_inside_onnxruntime_its_arena_serves_inputs_and_outputs() -> None:
    trace = trace_of(graph(step("y", ("x",), "y", 3 * MIB), x=3 * MIB, y=3 * MIB))
    held = engine_bytes(trace, IN_ORT.allocator, IN_ORT.allocator_bytes)
    assert (
        held.bindings == (4 + 4) * MIB
    )  # regions of 1 MiB, doubled until they hold 3; the next falls back to 4
    assert engine_bytes(trace, NATIVE.allocator, NATIVE.allocator_bytes).bindings == 6 * MIB


def test_graphs_of_one_model_share_weights_and_the_largest_block() -> None:
    small = graph(step("a", ("x",), "a", MIB), step("y", ("a",), "y", MIB))

    def held(*graphs: KernelGraph) -> tuple[int, ...]:
        return cumulative_reserved(
            graphs,
            allocator=NATIVE.allocator,
            figures=NATIVE.allocator_bytes,
            library_workspace_bytes=0,
        )

    assert held(small, chain(), small) == (8 * MIB, 19 * MIB, 19 * MIB)


def _most_alive(sizes: np.ndarray, lives: Lives) -> int:
    moments = np.unique(lives.births)
    return max(int(sizes[(lives.births <= t) & (lives.deaths > t)].sum()) for t in moments)


@pytest.mark.parametrize("seed", range(40))
def test_no_plan_is_below_what_lives_at_one_time_nor_above_the_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 60))
    births = np.sort(rng.choice(10 * count, size=count, replace=False))
    deaths = births + 1 + rng.geometric(1 / 20, size=count)
    lives = Lives(sizes=rng.integers(1, 10_000, size=count), births=births, deaths=deaths)
    rounded = -(-lives.sizes // ROUNDING) * ROUNDING
    planned = planned_block_bytes(lives, ROUNDING)
    assert _most_alive(rounded, lives) <= planned <= int(rounded.sum())


def test_most_random_graphs_need_no_more_than_what_lives_at_one_time() -> None:
    rng = np.random.default_rng(7)
    exact = 0
    for _ in range(100):
        steps = []
        names = ["x"]
        for at in range(int(rng.integers(2, 40))):
            reads = tuple(rng.choice(names[-4:], size=min(2, len(names)), replace=False).tolist())
            steps.append(step(f"s{at}", reads, f"t{at}", int(rng.integers(1, 9)) * MIB))
            names.append(f"t{at}")
        steps.append(step("end", (names[-1],), "y", MIB))
        lives = Lives.of(trace_of(graph(*steps)))
        planned = planned_block_bytes(lives, ROUNDING)
        most = _most_alive(lives.sizes, lives)
        assert most <= planned <= lives.sizes.sum()
        exact += planned == most
    assert exact >= 60


def test_what_lives_at_one_time_never_overlaps() -> None:
    # Two that never meet lie on each other, though a third meets both.
    lives = Lives(sizes=np.array([300, 300, 512]), births=np.array([0, 4, 2]), deaths=np.array([3, 6, 5]))
    assert planned_block_bytes(lives, ROUNDING) == 512 + 512


def of_scratch() -> Any:
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, "n"])
    made = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "positions", [x], [y])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])


def row(**options: Any) -> Any:
    return gkestimator.estimate([of_scratch()], gpus=["T4"], **options).iloc[0]


def test_the_limit_of_scratch_memory_is_an_option_of_runtimes_that_build_engines() -> None:
    assert row(runtime="tensorrt").workspace_bytes > 0
    assert row(runtime="tensorrt", workspace_mib=0).workspace_bytes == 0
    with pytest.raises(UsageError, match="workspace_mib: torch has no such limit"):
        row(runtime="torch", workspace_mib=1)
