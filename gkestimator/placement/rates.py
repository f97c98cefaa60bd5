"""Say how a workload's rates vary: by which factors, and for which part of the time each.

A policy that is told so maximises what is expected over all of them, the mean weighted by time. A distribution is
written as ``factor:part`` pairs, or measured on a trace: its requests are counted by windows of ``_WINDOW_S``, and
the windows, by ascending count, are put into ``_LEVELS`` levels of equally many requests. A level's factor is its mean
count over that of all windows, its part that of the windows. So the highest levels, which are short, are told apart
from each other as well as the long ones."""

from __future__ import annotations

import csv
import datetime
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gkestimator.core.errors import UsageError
from gkestimator.core.files import FileWords, check_file
from gkestimator.core.texts import csv_rows
from gkestimator.placement.expected import expect
from gkestimator.placement.policy import PlacedReplicas
from gkestimator.placement.problem import FloatPair, Problem

Moments: TypeAlias = tuple[FloatPair, ...]

_WINDOW_S = 1.0
_LEVELS = 8
_MOST_FACTOR = 1e4
_MOST_PAIRS = 100
_MOST_REQUESTS = 50_000_000
_MOST_BYTES = 1 << 31
_WORDS = FileWords(error=UsageError)
_EXPECTED = "expected a factor, FACTOR:PART pairs such as 1:0.9,4:0.1, or the file of a trace (.csv)"


def moments_of(rates: object) -> Moments:
    """Return (factor, part of the time) of what the option ``rates`` says: a number, a text of pairs, the path
    of a trace, or pairs. Parts sum to 1. Raises UsageError."""
    if isinstance(rates, Path) or (isinstance(rates, str) and rates.lower().endswith(".csv")):
        return measured(Path(rates))
    pairs: list[FloatPair] = []
    try:
        for factor, part in _pairs(rates):
            pairs.append((float(factor), float(part)))
    except (TypeError, ValueError):
        raise UsageError(f"rates: found {str(rates)[:60]!r}, {_EXPECTED}") from None
    if not 1 <= len(pairs) <= _MOST_PAIRS:
        raise UsageError(f"rates: found {len(pairs)} factors, expected 1 to {_MOST_PAIRS}")
    for factor, part in pairs:
        if not (0 < factor <= _MOST_FACTOR and 0 < part <= _MOST_FACTOR):
            raise UsageError(
                f"rates: found {factor:g}:{part:g}, expected numbers above 0 and at most {_MOST_FACTOR:g}"
            )
    whole = math.fsum(part for _, part in pairs)
    return tuple(sorted((factor, part / whole) for factor, part in pairs))


def _pairs(rates: object) -> Iterable[Sequence[Any]]:
    if isinstance(rates, int | float) and not isinstance(rates, bool):
        return [(rates, 1.0)]
    if isinstance(rates, str):
        pairs: list[Sequence[Any]] = []
        for text in rates.split(","):
            factor, _, part = text.partition(":")
            pairs.append((factor, part or "1"))
        return pairs
    if isinstance(rates, Sequence):
        return rates
    raise TypeError


def measured(path: Path) -> Moments:
    """Return (factor, part of the time) of the trace at ``path``, a CSV with the column ``time_s`` (seconds) or
    ``TIMESTAMP`` (dates). Levels without requests are left out, so parts may sum to less than 1. Raises UsageError."""
    counts = _counts(path)
    windows = sorted(counts.values())
    length = max(counts) + 1
    requests = sum(windows)
    mean = requests / length
    levels: dict[float, float] = {}
    held = passed = 0
    size = length - len(windows)  # those without requests, which come first
    level = 1
    for i, count in enumerate(windows):
        held += count
        passed += count
        size += 1
        if passed >= requests * level / _LEVELS or i == len(windows) - 1:
            if held:
                factor = held / size / mean
                levels[factor] = levels.get(factor, 0.0) + size / length
            level += 1
            held = size = 0
    return tuple(levels.items())


def _counts(path: Path) -> Counter[int]:
    """Return the requests of each window, by its number from 0."""
    times: list[float] = []
    check_file(path, _WORDS, _MOST_BYTES)
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = csv_rows(lines)
            header = [name.strip() for name in next(rows, [])]
            column = next((name for name in ("time_s", "TIMESTAMP") if name in header), None)
            if column is None:
                raise UsageError(f"rates: {path}: expected the column time_s (seconds) or TIMESTAMP (dates)")
            at = header.index(column)
            for row in rows:
                text = row[at]
                # The dates' seven decimals are one more than Python reads.
                time = float(text) if column == "time_s" else _seconds(text[:26])
                if not math.isfinite(time) or len(times) >= _MOST_REQUESTS:
                    raise ValueError
                times.append(time)
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"rates: {path}: {e}") from e
    except (ValueError, IndexError, csv.Error):
        raise UsageError(f"rates: {path}: line {len(times) + 2}: expected a time in {column}") from None
    if len(times) < _LEVELS:
        raise UsageError(f"rates: {path}: found {len(times)} requests, expected at least {_LEVELS}")
    begin = min(times)
    if max(times) - begin > 1e8:
        raise UsageError(f"rates: {path}: spans more than three years, expected at most that")
    return Counter(int((time - begin) / _WINDOW_S) for time in times)


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC).timestamp()


def mean_factor(moments: Moments) -> float:
    """Return the mean of the factors over time."""
    return math.fsum(factor * part for factor, part in moments)


def expected_over(problem: Problem, placed: PlacedReplicas, moments: Moments) -> float | None:
    """Return the part of all requests that is expected on time at ``placed`` over ``moments`` of the rates; None
    where that is unknown."""
    on_time = 0.0
    for factor, part in moments:
        goodput = expect(problem.times(factor), placed).goodput_rps
        if goodput is None:
            return None
        on_time += part * goodput
    asked = mean_factor(moments) * math.fsum(m.rate_rps for m in problem.models)
    return on_time / asked
