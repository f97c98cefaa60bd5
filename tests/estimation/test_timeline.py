"""The timeline against a plain loop, and the sets of concurrent kernels against their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, Kernel, Step
from gkestimator.estimation.timeline import LaunchProgram, Timeline, concurrent_maxima, schedule


def program(spec: list[tuple[int, int, int]], reads: list[tuple[str, ...]] | None = None) -> LaunchProgram:
    """``spec``: (kernels, host calls, repeat) of each step; step i writes ``s<i>``."""
    steps = []
    rows: dict[int, int] = {}
    keep = []
    for i, (count, calls, repeat) in enumerate(spec):
        kernels = tuple(
            Kernel(
                name=f"{i}.{j}",
                family=Family.COPY,
                variant="copy",
                precision=Precision.FP32,
                flops=0,
                read_bytes=1,
                write_bytes=1,
            )
            for j in range(count)
        )
        keep.extend(kernels)
        steps.append(
            Step(
                name=str(i),
                op_type="X",
                kernels=kernels,
                reads=(reads[i] if reads else ()),
                writes=((f"s{i}", 1),),
                host_calls=calls,
                repeat=repeat,
            )
        )
    for k in keep:
        rows[id(k)] = len(rows)
    return LaunchProgram.of(steps, rows)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=12),
    st.floats(0, 50),
    st.randoms(use_true_random=False),
)
def test_one_stream_equals_the_plain_loop(spec, overhead, rng) -> None:
    p = program([(k, c, 1) for k, c in spec])
    d = np.array([rng.uniform(0.1, 100) for _ in range(len(p.kernel))])
    t = schedule(p, d, host_overhead_us=overhead)
    clock = issued = 0.0
    at = 0
    ends = []
    for count, calls in spec:
        issued += calls * overhead
        for _ in range(count):
            clock = max(clock, issued) + d[at]
            ends.append(clock)
            at += 1
    assert t.end_us == pytest.approx(ends)
    assert t.total_us == pytest.approx(max([issued, *ends]))
    assert np.all(t.start_us[1:] >= t.end_us[:-1] - 1e-9)


def test_small_kernels_come_out_host_bound() -> None:
    t = schedule(program([(1, 1, 1)] * 100), np.full(100, 2.0), host_overhead_us=10.0)
    assert t.total_us == pytest.approx(1002.0)
    assert t.busy_us == pytest.approx(200.0)
    assert t.host_us == pytest.approx(1000.0)


def test_a_loop_counts_every_trip_on_host_and_gpu() -> None:
    gpu = schedule(program([(1, 1, 50)]), np.array([20.0]), host_overhead_us=5.0)
    assert gpu.total_us == pytest.approx(5 + 50 * 20)
    host = schedule(program([(1, 1, 50)]), np.array([2.0]), host_overhead_us=5.0)
    assert host.total_us == pytest.approx(50 * 5 + 2)


def test_streams_overlap_independent_steps_and_keep_dependent_ones_in_order() -> None:
    reads = [(), (), ("s0", "s1")]
    p = program([(1, 0, 1)] * 3, reads)
    d = np.array([100.0, 80.0, 10.0])
    assert schedule(p, d, host_overhead_us=0, streams=1).total_us == pytest.approx(190)
    two = schedule(p, d, host_overhead_us=0, streams=2)
    assert two.total_us == pytest.approx(110)
    assert two.start_us[2] == pytest.approx(100)


def timeline(spans: list[tuple[float, float, int]]) -> Timeline:
    start, end, stream = (np.array(c) for c in zip(*spans, strict=True))
    return Timeline(
        start_us=start, end_us=end, stream=stream.astype(int), total_us=float(end.max()), host_us=0, busy_us=0
    )


def test_creq_is_the_largest_sum_over_kernels_that_run_together() -> None:
    values = {"o": np.array([40.0, 50.0, 70.0])}
    apart = timeline([(0, 10, 0), (20, 30, 1), (40, 50, 0)])
    assert concurrent_maxima(apart, values)["o"] == 70
    overlapping = timeline([(0, 10, 0), (5, 30, 1), (40, 50, 0)])
    assert concurrent_maxima(overlapping, values)["o"] == 90


def test_starts_within_tau_count_as_concurrent_even_when_the_intervals_do_not_touch() -> None:
    t = timeline([(0, 0.2, 0), (0.9, 3, 1)])
    values = {"o": np.array([40.0, 50.0])}
    assert concurrent_maxima(t, values, tau_ms=0.001)["o"] == 90
    assert concurrent_maxima(t, values, tau_ms=0.0001)["o"] == 50


def test_an_empty_program_takes_only_the_hosts_time() -> None:
    t = schedule(program([(0, 3, 1)]), np.zeros(0), host_overhead_us=7.0)
    assert (t.total_us, t.busy_us) == (21.0, 0.0)


def test_an_overwriting_step_waits_for_the_readers_of_what_it_overwrites() -> None:
    def step(name: str, reads: tuple[str, ...], writes: str) -> Step:
        return Step(name=name, op_type="X", kernels=(), reads=reads, writes=((writes, 1),), host_calls=0)

    steps = [step("a", (), "s"), step("b", ("s",), "t"), step("c", ("s",), "u"), step("d", ("t",), "s")]
    assert LaunchProgram.of(steps, {}).producers() == ((), (0,), (0,), (0, 1, 2))


@pytest.mark.parametrize(("overhead", "durations"), [(50.0, (100.0, 1.0, 5.0)), (1.0, (3.0, 4.0, 5.0))])
def test_unrolled_loops_take_as_long_as_the_same_steps_written_out(
    overhead: float, durations: tuple[float, float, float]
) -> None:
    first, second, last = durations
    loop = program([(1, 1, 3), (2, 1, 3), (1, 2, 1)]).unrolled()
    written_out = program([(1, 1, 1), (2, 1, 1)] * 3 + [(1, 2, 1)])
    of_launches = np.array([first, second, second] * 3 + [last])
    assert loop.launches == written_out.launches == 10
    assert loop.kernel.tolist() == [0, 1, 2] * 3 + [3]
    taken = schedule(loop, of_launches, host_overhead_us=overhead)
    expected = schedule(written_out, of_launches, host_overhead_us=overhead)
    assert taken.total_us == pytest.approx(expected.total_us)
    assert taken.host_us == pytest.approx(expected.host_us)


def test_a_program_without_loops_is_unrolled_to_itself() -> None:
    p = program([(1, 1, 1), (0, 1, 1), (2, 1, 1)])
    unrolled = p.unrolled()
    assert unrolled.step.tolist() == p.step.tolist() and unrolled.calls.tolist() == p.calls.tolist()
    assert program([]).unrolled().launches == 0
