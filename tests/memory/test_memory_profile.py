"""Liveness over hand-made step lists."""

from __future__ import annotations

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, Kernel, KernelGraph, Step
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.memory import MemoryReplay, memory_profile

MIB = 1 << 20
FIGURES = load_runtime("torch").allocator_bytes


def kernel(
    *,
    read: int = 0,
    write: int = 0,
    workspace: int = 0,
    family: Family = Family.ELEMENTWISE,
    variant: str = "add",
    weight: int = 0,
) -> Kernel:
    return Kernel(
        name="k", family=family, variant=variant, precision=Precision.FP32, flops=1, read_bytes=read,
        write_bytes=write, weight_bytes=weight, workspace_bytes=workspace,
    )  # fmt: skip


def step(name: str, reads: tuple[str, ...], writes: tuple[tuple[str, int], ...], *kernels: Kernel) -> Step:
    return Step(
        name=name, op_type="Add", kernels=kernels or (kernel(),), reads=reads, writes=writes, host_calls=1
    )


def graph(*steps: Step, weights: dict[str, int] | None = None) -> KernelGraph:
    return KernelGraph(
        name="m", runtime="torch", dtype="fp32", steps=steps, weights=weights or {}, inputs={"x": 10 * MIB},
        outputs={"y": 30 * MIB},
    )  # fmt: skip


def test_an_intermediate_dies_after_its_last_reader() -> None:
    p = memory_profile(
        graph(
            step("a", ("x",), (("t", 20 * MIB),)),
            step("b", ("t",), (("u", 40 * MIB),)),
            step("c", ("u",), (("y", 30 * MIB),)),
        ),
        allocator="caching",
        figures=FIGURES,
        library_workspace_bytes=0,
    )
    assert p.activations_bytes == (10 + 40 + 30) * MIB  # x, u and y at step c; t is gone
    assert p.peak_step == "c"
    assert p.reserved_bytes == p.weights_bytes + p.activations_bytes + p.workspace_bytes + p.allocator_bytes
    assert p.reserved_bytes == (10 + 20 + 40 + 30) * MIB  # t's freed 20 MiB cannot hold y


def test_a_storage_written_again_is_written_in_place() -> None:
    p = memory_profile(
        graph(step("a", ("x",), (("y", 30 * MIB),)), step("relu", ("y",), (("y", 30 * MIB),))),
        allocator="caching",
        figures=FIGURES,
        library_workspace_bytes=0,
    )
    assert p.activations_bytes == 40 * MIB


def test_workspace_is_what_scratch_adds_to_the_peak() -> None:
    p = memory_profile(
        graph(step("conv", ("x",), (("y", 30 * MIB),), kernel(workspace=16 * MIB))),
        allocator="caching",
        figures=FIGURES,
        library_workspace_bytes=0,
    )
    assert p.activations_bytes == 40 * MIB
    assert p.workspace_bytes == 16 * MIB


def test_what_one_kernel_hands_to_the_next_is_held_unless_a_bias_is_added_in_place() -> None:
    conv = kernel(write=30 * MIB, family=Family.CONV)
    norm = kernel(read=30 * MIB, write=30 * MIB, family=Family.BATCHNORM, variant="batchnorm")
    bias = kernel(read=30 * MIB, write=30 * MIB, variant="bias_add")
    two = graph(step("conv", ("x",), (("y", 30 * MIB),), conv, norm))
    one = graph(step("conv", ("x",), (("y", 30 * MIB),), conv, bias))
    assert (
        memory_profile(two, allocator="caching", figures=FIGURES, library_workspace_bytes=0).workspace_bytes
        == 30 * MIB
    )
    assert (
        memory_profile(one, allocator="caching", figures=FIGURES, library_workspace_bytes=0).workspace_bytes
        == 0
    )


def test_the_library_workspace_appears_with_the_first_matrix_product() -> None:
    plain = graph(step("a", ("x",), (("y", 30 * MIB),)))
    product = graph(step("a", ("x",), (("y", 30 * MIB),), kernel(family=Family.LINEAR)))
    size = 8_519_680
    assert (
        memory_profile(
            plain, allocator="caching", figures=FIGURES, library_workspace_bytes=size
        ).workspace_bytes
        == 0
    )
    assert (
        memory_profile(
            product, allocator="caching", figures=FIGURES, library_workspace_bytes=size
        ).workspace_bytes
        == size
    )


def test_usher_mreq_is_weights_and_the_largest_kernel() -> None:
    big = kernel(read=25 * MIB, weight=5 * MIB, write=30 * MIB)
    p = memory_profile(
        graph(step("a", ("x", "w"), (("y", 30 * MIB),), big), weights={"w": 5 * MIB}),
        allocator="caching",
        figures=FIGURES,
        library_workspace_bytes=0,
    )
    assert p.usher_mreq_bytes == (5 + 20 + 30) * MIB


def test_one_replay_for_many_graphs_says_what_fresh_ones_say() -> None:
    def made(scale: int, family: Family) -> KernelGraph:
        return graph(
            step("a", ("x", "w"), (("t", scale),), kernel(family=family, workspace=2 * scale)),
            step("b", ("t",), (("y", 30 * MIB),)),
            weights={"w": 3 * MIB},
        )

    replay = MemoryReplay("caching", FIGURES)
    graphs = [made(n, f) for n in (1000, 15 * MIB, 1000) for f in (Family.ELEMENTWISE, Family.LINEAR)]
    seen = set()
    for each in graphs:
        for library in (0, 8 * MIB, 32 * MIB):
            fresh = memory_profile(
                each, allocator="caching", figures=FIGURES, library_workspace_bytes=library
            )
            assert replay.profile(each, library) == fresh
            seen.add(fresh)
    assert len(seen) == 6  # without a product the library does not matter, and 0 bytes of it is none


def test_a_library_workspace_that_fits_into_freed_memory_adds_nothing_to_an_earlier_peak() -> None:
    product = kernel(family=Family.LINEAR)
    p = memory_profile(
        graph(
            step("a", ("x",), (("t", 60 * MIB),)),
            step("b", ("t",), (("u", 1 * MIB),)),
            step("c", ("u",), (("y", 30 * MIB),), product),
        ),
        allocator="caching",
        figures=FIGURES,
        library_workspace_bytes=8_519_680,
    )
    assert p.activations_bytes == 71 * MIB
    assert p.workspace_bytes == 0
    assert p.allocator_bytes >= 0


def test_an_arena_does_not_serve_the_librarys_workspace() -> None:
    product = graph(step("a", ("x",), (("y", 30 * MIB),), kernel(family=Family.LINEAR)))
    arena = load_runtime("onnxruntime").allocator_bytes
    without = memory_profile(product, allocator="arena", figures=arena, library_workspace_bytes=0)
    beside = memory_profile(product, allocator="arena", figures=arena, library_workspace_bytes=4 * MIB)
    assert beside.reserved_bytes == without.reserved_bytes + 4 * MIB
    assert beside.workspace_bytes == 4 * MIB
