"""Counters of one tool put to the kernels that another timed, by entry, order, name and launch geometry."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from statistics import fmean

from gkestimator.profiling.captures import Capture, CapturedLaunch, Dim3, EntryRange, RangesByEntry
from gkestimator.profiling.parsers.repeats import geometry_text, split_repeats
from gkestimator.profiling.type_names import Ints, NumberByName

_NO_TIMELINE = "counters: entry is not in the timeline"
_NO_REPEATS = "counters: repeats of the entry differ"
_NO_PARTNER = "counters: no kernel of that name, grid and block at that place"

_GRID_SIZE = "launch__grid_size"
_BLOCK_SIZE = "launch__block_size"

Key = tuple[str, Ints | None, Ints | None]


def base_name(name: str) -> str:
    """Return the function's name without return type, namespaces, template arguments and parameters, which every
    tool spells its own way: ``void at::native::reduce_kernel<512, 1>(Op)`` and ``reduce_kernel`` are both
    ``reduce_kernel``."""
    name = (
        name.replace("(anonymous namespace)", "").replace("<unnamed>", "").replace("operator()", "operator ")
    )
    depth = 0
    named = False
    own: list[str] = []
    for character in name:
        if character in "<(":
            # The first bracket of parameters at the outermost level ends the name.
            if character == "(" and not depth and named:
                break
            depth += 1
        elif character in ">)":
            depth = max(0, depth - 1)
        elif not depth:
            own.append(character)
            named = named or not character.isspace()
    words = "".join(own).strip().split()
    return words[-1].rpartition("::")[2] if words else name


def join(timeline: Capture, counters: Capture) -> Capture:
    """Return ``timeline`` with ``Launch.counters`` set where a kernel of ``counters`` is surely the same one.

    An entry's range is cut into its repeats; the kernels of one repeat are set against those of the counters'
    pass. Kernels of one name, grid and block belong together, the first to the first, where both sides have
    equally many of them and all pairs stand in the same order; every repeat gets the counters, which were
    measured once. Whatever does not fit is counted in ``unjoined`` and told in ``problems``, never guessed.
    """
    of_entry: RangesByEntry = defaultdict(list)
    for counted in counters.ranges:
        of_entry[counted.entry_id].append(counted)
    unjoined: Counter[str] = Counter(timeline.unjoined)
    problems = [*timeline.problems, *counters.problems]
    for reason, count in counters.unjoined.items():
        unjoined[f"counters: {reason}"] += count
    ranges = []
    for timed in timeline.ranges:
        measured = of_entry.get(timed.entry_id)
        ranges.append(_joined(timed, measured, unjoined, problems) if measured else timed)
    for entry_id in of_entry.keys() - {timed.entry_id for timed in timeline.ranges}:
        unjoined[_NO_TIMELINE] += sum(len(r.launches) for r in of_entry[entry_id])
        problems.append(f"{entry_id}: counters without a range in the timeline")
    return replace(timeline, ranges=tuple(ranges), unjoined=dict(unjoined), problems=tuple(problems))


def _joined(
    timed: EntryRange, measured: Sequence[EntryRange], unjoined: Counter[str], problems: list[str]
) -> EntryRange:
    total = sum(len(r.launches) for r in measured)
    repeats, problem = split_repeats(timed)
    counted = _counted(measured)
    if repeats is None or counted is None:
        unjoined[_NO_REPEATS] += total
        problems.append(problem or f"{timed.entry_id}: the kernels of its passes for counters differ")
        return timed
    pattern = repeats[0]
    partner = _pairs(pattern, counted)
    missing = len(counted) - len(partner)
    if missing:
        unjoined[_NO_PARTNER] += missing
        partners = set(partner.values())
        odd = next(launch for i, launch in enumerate(counted) if i not in partners)
        problems.append(
            f"{timed.entry_id}: {missing} of {len(counted)} kernels with counters have no sure partner among "
            f"{sum(launch.kind == 'kernel' for launch in pattern)} in the timeline, the first {geometry_text(odd)}"
        )
    # Launches that come once in front (a problem that split_repeats told) keep their place without counters.
    launches = list(timed.launches)
    once = len(launches) - len(repeats) * len(pattern)
    for i in range(once, len(launches)):
        place = (i - once) % len(pattern)
        if place in partner:
            launches[i] = replace(launches[i], counters=counted[partner[place]].counters)
    return replace(timed, launches=tuple(launches))


def _counted(measured: Sequence[EntryRange]) -> tuple[CapturedLaunch, ...] | None:
    """Return the kernels of one repeat with counters, averaged where several passes counted the same; None if
    they differ."""
    passes = []
    for measured_range in measured:
        repeats, _ = split_repeats(measured_range)
        if repeats is None:
            return None
        for repeat in repeats:
            passes.append(tuple(launch for launch in repeat if launch.kind == "kernel"))
    first = passes[0]
    # Replays of one launch must show the same kernels, else their mean is of nothing.
    keys = list(map(_key, first))
    for other in passes[1:]:
        if list(map(_key, other)) != keys:
            return None
    if len(passes) == 1:
        return first
    averaged = []
    for same in zip(*passes, strict=True):
        counters = _mean([launch.counters or {} for launch in same])
        averaged.append(replace(same[0], counters=counters))
    return tuple(averaged)


def _mean(counters: Sequence[NumberByName]) -> dict[str, float]:
    """Return the mean of each counter that every pass has."""
    common = set.intersection(*map(set, counters))
    means = {}
    for name in counters[0]:
        if name in common:
            means[name] = fmean(each[name] for each in counters)
    return means


def _key(launch: CapturedLaunch, *, sizes: bool = False) -> Key:
    """Return name and geometry; with ``sizes`` the blocks of the grid and the threads of a block in all, for
    where the dimensions of one side are not known."""
    name = base_name(launch.name)
    if not sizes:
        return (name, launch.grid, launch.block)
    return (name, _size(launch, launch.grid, _GRID_SIZE), _size(launch, launch.block, _BLOCK_SIZE))


def _size(launch: CapturedLaunch, dimensions: Dim3 | None, counter: str) -> Ints | None:
    if dimensions is not None:
        return (prod(dimensions),)
    size = (launch.counters or {}).get(counter)
    return None if size is None else (round(size),)


def _pairs(pattern: Sequence[CapturedLaunch], counted: Sequence[CapturedLaunch]) -> dict[int, int]:
    """Return place in ``pattern`` -> place in ``counted`` for every kernel that has one sure partner."""
    places: dict[Key, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    sizes = any(launch.grid is None or launch.block is None for launch in counted)
    for side, launches in enumerate((pattern, counted)):
        for i, launch in enumerate(launches):
            if launch.kind == "kernel":
                places[_key(launch, sizes=sizes)][side].append(i)
    pairs: list[tuple[int, int]] = []
    for ours, theirs in places.values():
        if len(ours) == len(theirs):
            pairs += zip(ours, theirs, strict=True)
    pairs.sort()
    order = [theirs for _, theirs in pairs]
    # Kernels that changed places may have changed their part in the operator as well.
    return dict(pairs) if order == sorted(order) else {}
