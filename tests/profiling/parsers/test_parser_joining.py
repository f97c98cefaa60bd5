"""Repeats of a range, and counters joined to a timeline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gkestimator.profiling.captures import Capture, CapturedLaunch, EntryRange
from gkestimator.profiling.parsers import join, split_repeats
from gkestimator.profiling.parsers.joining import base_name
from gkestimator.profiling.parsers.spans import parse_label


def launch(name: str, *, grid: int = 1, kind: str = "kernel", **other: object) -> CapturedLaunch:
    geometry = {"grid": (grid, 1, 1), "block": (32, 1, 1)} if kind == "kernel" else {}
    return CapturedLaunch(kind=kind, name=name, **{"start_ns": 0, "duration_ns": 1, **geometry, **other})  # type: ignore[arg-type]


def range_of(launches: list[CapturedLaunch], repeats: int, entry_id: str = "e") -> EntryRange:
    return EntryRange(entry_id=entry_id, repeats=repeats, start_ns=0, end_ns=1, launches=tuple(launches))


def capture(*ranges: EntryRange, tool: str = "nsys", **other: object) -> Capture:
    return Capture(tool=tool, tool_version=None, schema=None, ranges=ranges, **other)  # type: ignore[arg-type]


def names(parts: tuple[tuple[CapturedLaunch, ...], ...] | None) -> list[str] | None:
    return None if parts is None else ["".join(k.name for k in part) for part in parts]


def kernels(text: str) -> list[CapturedLaunch]:
    return [launch(name) for name in text]


@pytest.mark.parametrize(
    ("sequence", "repeats", "parts", "problem"),
    [
        ("ababab", 3, ["ab", "ab", "ab"], None),
        ("aaaa", 4, ["a"] * 4, None),
        ("aaaa", 2, ["aa"] * 2, None),
        ("", 3, ["", "", ""], None),
        ("abc", 1, ["abc"], None),
        (
            "xababab",
            3,
            ["ab"] * 3,
            "1 of 7 launches come once, before 3 equal repeats of 2; left out: x (1, 1, 1)x(32, 1, 1)",
        ),
        ("abaab", 2, None, "5 launches cannot be 2 equal repeats"),
        ("aaaaa", 2, None, "5 launches cannot be 2 equal repeats"),
        ("aaabab", 3, None, "launch 4 is b (1, 1, 1)x(32, 1, 1), expected a"),
        ("abcabd", 2, None, "the 2 repeats differ: launch 6 is d"),
        ("a", 2, None, "1 launches cannot be 2 equal repeats"),
    ],
)
def test_repeats(sequence: str, repeats: int, parts: list[str] | None, problem: str | None) -> None:
    found, said = split_repeats(range_of(kernels(sequence), repeats))
    assert names(found) == parts
    assert said is problem or (problem is not None and said is not None and problem in said)


def test_an_odd_one_that_may_stand_before_or_after_is_not_guessed() -> None:
    found, said = split_repeats(range_of(kernels("aaa"), 2))
    assert found is None
    assert said == "e: 3 launches cannot be 2 equal repeats"


def test_another_grid_is_another_launch() -> None:
    found, said = split_repeats(range_of([launch("a", grid=1), launch("a", grid=2)], 2))
    assert found is None
    assert said is not None and "launch 2 is a (2, 1, 1)x(32, 1, 1), expected a (1, 1, 1)" in said


@given(st.text("abc", min_size=1, max_size=6), st.integers(1, 8))
def test_any_sequence_repeated_is_cut_back(sequence: str, repeats: int) -> None:
    found, said = split_repeats(range_of(kernels(sequence * repeats), repeats))
    assert (names(found), said) == ([sequence] * repeats, None)


@given(st.text("abc", max_size=12), st.integers(1, 5))
def test_what_is_cut_is_equal_and_whole(sequence: str, repeats: int) -> None:
    found, said = split_repeats(range_of(kernels(sequence), repeats))
    if found is None:
        assert said is not None
    else:
        assert len(found) == repeats and len(set(names(found) or [])) == 1
        assert sequence.endswith("".join(names(found) or []))
        assert said is not None or len("".join(names(found) or [])) == len(sequence)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::f<float>(a)::{lambda(float)#1}>(int)",
            "vectorized_elementwise_kernel",
        ),
        (
            "void (anonymous namespace)::elementwise_kernel_with_index<int, g>(int)",
            "elementwise_kernel_with_index",
        ),
        ("void at::native::<unnamed>::foo<(int)4>(int)", "foo"),
        ("addConstDouble(int, double *)", "addConstDouble"),
        ("Sobel", "Sobel"),
        ("sm80_xmma_gemm_f32_32x32x8", "sm80_xmma_gemm_f32_32x32x8"),
        ("", ""),
    ],
)
def test_base_name(name: str, base: str) -> None:
    assert base_name(name) == base


def test_base_name_of_a_hostile_name_is_found_in_time() -> None:
    hostile = " " * 500_000 + ")(" * 500_000
    assert base_name(hostile) == hostile


def counted(name: str, value: float, **other: object) -> CapturedLaunch:
    return launch(name, counters={"m": value}, **other)


def test_every_repeat_gets_the_counters_of_its_kernel() -> None:
    timeline = capture(
        range_of([launch("void ns::a<(int)1>(T1)"), launch("[copy]", kind="memcpy"), launch("b(int)")] * 2, 2)
    )
    joined = join(
        timeline, capture(range_of([counted("void ns::a<1>(float)", 1.0), counted("b", 2.0)], 1), tool="ncu")
    )
    assert [k.counters and k.counters["m"] for k in joined.ranges[0].launches] == [1.0, None, 2.0] * 2
    assert joined.unjoined == {} and joined.problems == ()
    assert joined.tool == "nsys"


def test_several_kernels_of_one_name_are_joined_in_order() -> None:
    timeline = capture(range_of([launch("a"), launch("b"), launch("a")], 1))
    joined = join(timeline, capture(range_of([counted("a", 1.0), counted("b", 2.0), counted("a", 3.0)], 1)))
    assert [(k.counters or {})["m"] for k in joined.ranges[0].launches] == [1.0, 2.0, 3.0]


def test_another_grid_is_not_joined_but_told() -> None:
    timeline = capture(range_of([launch("a"), launch("b")] * 3, 3))
    joined = join(timeline, capture(range_of([counted("a", 1.0, grid=9), counted("b", 2.0)], 1)))
    assert [k.counters for k in joined.ranges[0].launches] == [None, {"m": 2.0}] * 3
    assert joined.unjoined == {"counters: no kernel of that name, grid and block at that place": 1}
    assert (
        "1 of 2 kernels with counters have no sure partner among 2 in the timeline, the first a (9, 1, 1)"
        in joined.problems[0]
    )


@pytest.mark.parametrize("measured", ["a", "aaa", "ba"])
def test_too_few_too_many_and_another_order_are_not_guessed(measured: str) -> None:
    timeline = capture(range_of(kernels("aab" if measured != "ba" else "ab"), 1))
    joined = join(timeline, capture(range_of([counted(name, 1.0) for name in measured], 1)))
    assert [k.counters for k in joined.ranges[0].launches if k.name == "a"] == [None] * (
        2 if measured != "ba" else 1
    )
    assert sum(joined.unjoined.values()) == len(measured)


def test_launches_that_come_once_stay_without_counters() -> None:
    joined = join(
        capture(range_of(kernels("xabab"), 2)), capture(range_of([counted("a", 1.0), counted("b", 2.0)], 1))
    )
    assert [(k.name, k.counters) for k in joined.ranges[0].launches] == [
        ("x", None), ("a", {"m": 1.0}), ("b", {"m": 2.0}), ("a", {"m": 1.0}), ("b", {"m": 2.0}),
    ]  # fmt: skip


@pytest.mark.parametrize("grid_size", [6.0, 7.0, None])
def test_without_dimensions_the_sizes_are_compared(grid_size: float | None) -> None:
    timeline = capture(range_of([launch("a", grid=6)], 1))
    sizes = {"launch__block_size": 32.0} | ({} if grid_size is None else {"launch__grid_size": grid_size})
    bare = CapturedLaunch(kind="kernel", name="a", start_ns=0, duration_ns=1, counters=sizes)
    joined = join(timeline, capture(range_of([bare], 1)))
    assert (joined.ranges[0].launches[0].counters is not None) == (grid_size == 6.0)
    assert sum(joined.unjoined.values()) == (grid_size != 6.0)


def test_repeats_that_differ_are_not_joined() -> None:
    joined = join(capture(range_of(kernels("abcabd"), 2)), capture(range_of([counted("a", 1.0)], 1)))
    assert joined.unjoined == {"counters: repeats of the entry differ": 1}
    assert "the 2 repeats differ" in joined.problems[0]


def test_several_passes_are_averaged_if_they_agree() -> None:
    timeline = capture(range_of(kernels("a"), 1))
    once, twice, other = (range_of([counted("a", v)], 1) for v in (1.0, 3.0, 5.0))
    assert join(timeline, capture(once, twice)).ranges[0].launches[0].counters == {"m": 2.0}
    assert join(timeline, capture(range_of([counted("a", 1.0), counted("a", 5.0)], 2))).ranges[0].launches[
        0
    ].counters == {"m": 3.0}
    differing = join(timeline, capture(other, range_of([counted("b", 1.0)], 1)))
    assert differing.ranges[0].launches[0].counters is None
    assert differing.unjoined == {"counters: repeats of the entry differ": 2}


def test_what_both_sides_could_not_tell_is_kept() -> None:
    timeline = capture(range_of(kernels("a"), 1), unjoined={"lost": 2}, problems=("one",))
    counters = capture(range_of([counted("a", 1.0)], 1, "gone"), unjoined={"lost": 3}, problems=("two",))
    joined = join(timeline, counters)
    assert joined.unjoined == {"lost": 2, "counters: lost": 3, "counters: entry is not in the timeline": 1}
    assert joined.problems == ("one", "two", "gone: counters without a range in the timeline")
    assert joined.ranges == timeline.ranges


@pytest.mark.parametrize(
    ("text", "domain", "found"),
    [
        ("Conv-fp32-0a#5", "gkestimator", ("Conv-fp32-0a", 5)),
        ("gkestimator:Conv-fp32-0a#5", None, ("Conv-fp32-0a", 5)),
        ("gkestimator:Conv-fp32-0a#5", "gkestimator", ("Conv-fp32-0a", 5)),
        ("Conv-fp32-0a#5", None, None),
        ("Conv-fp32-0a#5", "other", None),
        ("Conv#05", "gkestimator", None),
        ("Conv#٣", "gkestimator", None),
        ("Conv#5\n", "gkestimator", None),
        ("../Conv#5", "gkestimator", None),
        ("Conv#9999999999", "gkestimator", None),
    ],
)
def test_labels(text: str, domain: str | None, found: tuple[str, int] | None) -> None:
    assert parse_label(text, domain=domain) == found


def test_labels_that_are_written_are_read() -> None:
    assert parse_label("a.b-c#7", domain="gkestimator") == ("a.b-c", 7)
    assert parse_label("gkestimator:a.b-c#7", domain=None) == ("a.b-c", 7)
