"""What both ways of reading a report of Nsight Compute give: profiled actions, their numbers in the units that
``ncu_report`` uses (ns, bytes, per second, percent).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import field

from gkestimator.core.records import frozen
from gkestimator.profiling.type_names import Names, NumberByName, TextByName

_TIMES_NS = {
    "nsecond": 1.0,
    "ns": 1.0,
    "usecond": 1e3,
    "us": 1e3,
    "msecond": 1e6,
    "ms": 1e6,
    "second": 1e9,
    "s": 1e9,
}
# Nsight Compute counts in thousands, also bytes.
_SCALES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SCALED = re.compile(r"([KMGT])([a-z]+)\Z")
_PLAIN = re.compile(r"(?:[a-z_()# ]+|%|)\Z", re.IGNORECASE)

_NUMBER = re.compile(r"[+-]?(?:[0-9][0-9.,]*)(?:e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_INSTANCES = re.compile(r"\s*\(.*\)\s*\Z", re.DOTALL)


def unit_factor(unit: str) -> float | None:
    """Return what a value in ``unit`` is multiplied with to be in base units; None for a unit that is not
    understood."""
    top, slash, bottom = unit.strip().partition("/")
    # A time alone is counted in ns, a rate per second.
    above = _TIMES_NS.get(top) if not slash else _word_factor(top)
    above = _word_factor(top) if above is None else above
    if above is None or not slash:
        return above
    if bottom in _TIMES_NS:
        return above * (1e9 / _TIMES_NS[bottom])
    below = _word_factor(bottom)
    if below is None:
        return None
    return above / below


def _word_factor(word: str) -> float | None:
    scaled = _SCALED.match(word)
    if scaled:
        return _SCALES[scaled[1]]
    return 1.0 if _PLAIN.match(word) else None


def decimal_mark(texts: Iterable[str]) -> str | None:
    """Return which of ``.`` and ``,`` sets off the decimals in ``texts`` (numbers of one file, hence of one
    locale): what every number that shows it agrees on. None where there is no such number. Raises ValueError
    if they disagree."""
    marks = set()
    for text in texts:
        digits = text.strip().lstrip("+-").lower().partition("e")[0]
        if not digits.replace(".", "").replace(",", "").isdigit():
            continue
        marks |= _shown(digits)
        if len(marks) > 1:
            raise ValueError(f"number {text[:40]!r} has another decimal mark than those before")
    return marks.pop() if marks else None


def _shown(digits: str) -> set[str]:
    """Return the decimal mark that one number gives away, if any."""
    points = digits.count(".")
    commas = digits.count(",")
    if points and commas:
        # Groups come before decimals; of the two marks the later is the decimal one.
        return {"." if digits.rindex(".") > digits.rindex(",") else ","}
    if points > 1 or commas > 1:
        return {"," if points else "."}
    if not points and not commas:
        return set()
    mark = "." if points else ","
    before, _, after = digits.partition(mark)
    # 1,234 may be a thousand or a little more than one; 0,234 and 12,34 and 1234,567 show what they are.
    ambiguous = len(after) == 3 and 1 <= len(before) <= 3 and not before.startswith("0")
    return set() if ambiguous else {mark}


def number(text: str, mark: str | None) -> float | None:
    """Return the value of ``text`` with decimals set off by ``mark``; an aggregate followed by its instances
    in brackets is the aggregate. None where the text is no finite number. Raises ValueError where it has one
    mark of which nobody can tell whether it sets off decimals."""
    matched = _NUMBER.match(text.strip())
    if matched is None:
        return None
    rest = text.strip()[matched.end() :]
    if rest and not _INSTANCES.match(rest):
        return None
    digits = matched[0]
    if mark is None and ("." in digits or "," in digits):
        raise ValueError(f"number {digits[:40]!r} may have decimals or thousands")
    group = "," if mark != "," else "."
    digits = digits.replace(group, "").replace(mark or ".", ".")
    try:
        value = float(digits)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@frozen
class Action:
    """Hold a profiled kernel, or a range or graph (``workload``). ``ranges``: (domain, text) of the NVTX
    push/pop ranges around it. ``metrics``: numbers in base units. ``words``: metrics that are text."""

    name: str
    workload: str = "kernel"
    ranges: tuple[tuple[str | None, str], ...] = ()
    metrics: NumberByName = field(default_factory=dict)
    words: TextByName = field(default_factory=dict)


@frozen
class ReadReport:
    """Hold the actions in the order they ran; ``reader``: what read them; ``problems``: one line each."""

    reader: str
    actions: tuple[Action, ...]
    problems: Names = ()
