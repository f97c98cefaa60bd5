"""Several inferences in one process: byte counts worked out by hand."""

from __future__ import annotations

import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import Family, Kernel, KernelGraph, Step
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.memory import cumulative_reserved, memory_profile

MIB = 1 << 20
FIGURES = load_runtime("torch").allocator_bytes


def step(
    name: str,
    reads: tuple[str, ...],
    writes: tuple[tuple[str, int], ...],
    *,
    family: Family = Family.ELEMENTWISE,
    holds: tuple[str, ...] = (),
) -> Step:
    kernel = Kernel(
        name="k", family=family, variant="add", precision=Precision.FP32, flops=1, read_bytes=0, write_bytes=0
    )
    return Step(
        name=name, op_type="Add", kernels=(kernel,), reads=reads, writes=writes, host_calls=1, holds=holds
    )


def chain(
    scale: int, *, family: Family = Family.ELEMENTWISE, weights: dict[str, int] | None = None
) -> KernelGraph:
    """x (10 MiB) -> t (20) -> u (40) -> y (30), times ``scale``; from 10 MiB on every request has its own segment."""
    unit = scale * MIB
    return KernelGraph(
        name="m",
        runtime="torch",
        dtype="fp32",
        steps=(
            step("a", ("x",), (("t", 20 * unit),), family=family),
            step("b", ("t",), (("u", 40 * unit),)),
            step("c", ("u",), (("y", 30 * unit),)),
        ),
        weights=weights or {},
        inputs={"x": 10 * unit},
        outputs={"y": 30 * unit},
    )


def reserved(*graphs: KernelGraph, library: int = 0, inferences: int = 2) -> list[int]:
    taken = cumulative_reserved(
        graphs,
        allocator="caching",
        figures=FIGURES,
        library_workspace_bytes=library,
        inferences=inferences,
    )
    return [n // MIB for n in taken]


def fresh(graph: KernelGraph, library: int = 0) -> int:
    profile = memory_profile(graph, allocator="caching", figures=FIGURES, library_workspace_bytes=library)
    assert profile.allocator_bytes >= 0
    return profile.reserved_bytes // MIB


def test_a_batch_finds_what_smaller_ones_left() -> None:
    # x' splits t's 20; then x takes 20 of y's 30 and t u's 40, and only u (80) and y (60) are new.
    assert reserved(chain(1), chain(2)) == [100, 240]
    assert [fresh(chain(1)), fresh(chain(2))] == [100, 200]


def test_the_next_input_is_made_while_the_previous_one_is_held() -> None:
    graph = KernelGraph(
        name="m",
        runtime="torch",
        dtype="fp32",
        steps=(step("a", ("x",), (("y", 2 * MIB),)),),
        weights={},
        inputs={"x": 64 * MIB},
        outputs={"y": 2 * MIB},
    )
    assert reserved(graph, inferences=1) == [64 + 20]
    assert reserved(graph) == reserved(graph, inferences=5) == [64 + 20 + 64]
    assert fresh(graph) == 64 + 20 + 64


def test_a_larger_batch_first_leaves_nothing_to_ask_for() -> None:
    assert reserved(chain(2), chain(1)) == [200, 200]


def test_weights_are_loaded_once_and_new_ones_when_they_come() -> None:
    first = chain(1, weights={"w": 64 * MIB})
    assert reserved(first, chain(1, weights={"w": 64 * MIB})) == [164, 164]
    assert reserved(first, chain(1, weights={"w": 64 * MIB, "mask": 48 * MIB}))[1] > 164


def test_the_library_workspace_is_asked_for_once() -> None:
    product = chain(1, family=Family.LINEAR)
    # 12 MiB have a segment of their own: nothing is free when the first product asks.
    assert reserved(product, product, library=12 * MIB) == [112, 112]
    assert reserved(chain(1), library=12 * MIB) == [100]
    assert fresh(product, 12 * MIB) == 112
    # asked for later, it finds room in what the smaller batch left, and a larger request cannot any more
    assert reserved(chain(1), product, library=12 * MIB)[1] < 112 + 40


def test_what_a_step_holds_is_freed_after_it() -> None:
    def graph(holds: tuple[str, ...]) -> KernelGraph:
        return KernelGraph(
            name="m",
            runtime="torch",
            dtype="fp32",
            steps=(
                step("a", ("x",), (("t", 20 * MIB),)),
                step("b", ("t",), (("u", 40 * MIB),)),
                step("c", ("u",), (("y", 20 * MIB),), holds=holds),
            ),
            weights={},
            inputs={"x": 10 * MIB},
            outputs={"y": 20 * MIB},
        )

    assert reserved(graph(()), inferences=1) == [70]  # y takes t's place
    assert reserved(graph(("t",)), inferences=1) == [90]


def test_a_session_frees_its_copy_of_the_inputs() -> None:
    figures = load_runtime("onnxruntime").allocator_bytes
    graph = KernelGraph(
        name="m",
        runtime="onnxruntime",
        dtype="fp32",
        steps=(step("a", ("x",), (("y", MIB),)),),
        weights={},
        inputs={"x": 64 * MIB},
        outputs={"y": MIB},
    )
    once, twice = (
        cumulative_reserved(
            [graph], allocator="arena", figures=figures, library_workspace_bytes=0, inferences=n
        )
        for n in (1, 2)
    )
    assert once == twice


def test_an_arena_keeps_the_librarys_workspace_beside_it() -> None:
    figures = load_runtime("onnxruntime").allocator_bytes

    def taken(library: int, *graphs: KernelGraph) -> tuple[int, ...]:
        return cumulative_reserved(
            graphs, allocator="arena", figures=figures, library_workspace_bytes=library
        )

    product = chain(1, family=Family.LINEAR)
    plain, later = taken(0, chain(1), product)
    assert taken(4 * MIB, chain(1), product) == (plain, later + 4 * MIB)


@pytest.mark.parametrize(("graphs", "inferences"), [((), 2), ((chain(1),), 0)])
def test_nothing_to_replay_is_refused(graphs: tuple[KernelGraph, ...], inferences: int) -> None:
    with pytest.raises(UsageError):
        reserved(*graphs, inferences=inferences)
