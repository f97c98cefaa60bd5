"""Change valid files: values, structure, numbers at extremes, repeats, bytes. What all fuzzers of documents share."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**399, 0.0, -0.0, 1e-320, 1e308, -1e308, 1e15, 1e12, 0.5,
    "", " ", "\x1b[31mred", "\u202egnp", "a" * 70_000, "../../etc/passwd", "=1+1", "1:30:00", "0x10", "nan", "inf", "2026-13-45",
    "\ud800", "\x00", "é" * 300, [], {}, [[]], [None], {"": None}, {"a": {"b": {"c": []}}}, [0] * 3000, ["x"] * 50, [[[[[[1]]]]]],
)  # fmt: skip
WORDS = (
    b"NaN", b"Infinity", b"-", b"1e999", b"1e-999", b"9" * 5000, b"0x" + b"f" * 300, b"1:1:1:1", b"null", b"~", b"&a", b"*a", b"!!int",
    b"<<: {}", b"[" * 400, b"{" * 50, b"\xff\xfe", b"\x00", b"\xef\xbb\xbf", b"\r", b"\n\n", b"\t", b'"', b"'", b",", b";", b":", b"#",
    b"---\n", b"...\n", b"\\ud800", b"\x1b]0;x\x07", b"1_000", b"+1", b".5", b"1979-05-27", b"'''", b'"""',
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def changed_values(rng: random.Random, document: Any, times: int | None = None) -> Any:
    """Return a copy of ``document`` with some values or names in it replaced, dropped, repeated or moved."""
    document = copy.deepcopy(document)
    for _ in range(times or rng.choice((1, 1, 1, 2, 3, 6))):
        places = list(_places(document))
        if not places:
            return rng.choice(ODD)
        container, key = rng.choice(places)
        _change(rng, container, key, places)
    return document


def _places(document: Any) -> Any:
    stack = [document]
    while stack:
        container = stack.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], dict | list):
                stack.append(container[key])


def _change(rng: random.Random, container: Any, key: Any, places: list[Any]) -> None:
    way = rng.randrange(8)
    if way <= 2:
        container[key] = copy.deepcopy(rng.choice(ODD))
    elif way == 3:
        value = container[key]
        # A whole number too large for a float, which an earlier change put there, is replaced.
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e290:
            container[key] = value * rng.choice((0, -1, 1e-9, 1e3, 1e6, 1e12)) + rng.choice((0, 0, 1))
        else:
            container[key] = rng.choice(ODD)
    elif way == 4:
        del container[key]
    elif way == 5 and isinstance(container, list):
        container.extend(copy.deepcopy([container[key]] * rng.choice((1, 3, 40))))
    elif way == 6:
        other, there = rng.choice(places)
        try:
            container[key] = copy.deepcopy(other[there])
        except (KeyError, IndexError, RecursionError):
            container[key] = None
    elif isinstance(container, dict):
        container[rng.choice(("x", "", f"{key}_ms", str(key).upper(), "\x1b[2J"))] = container.pop(key)


def changed_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return ``content`` with some bytes flipped, cut, repeated, or words and numbers put in their place."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        way = rng.randrange(7)
        if way == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif way == 1:
            del data[at:]
        elif way == 2:
            del data[at : at + rng.choice((1, 4, 40))]
        elif way == 3:
            data[at:at] = rng.choice(WORDS)
        elif way == 4:
            piece = data[at : at + rng.choice((1, 10, 200))]
            data[at:at] = piece * rng.choice((1, 2, 30))
        else:
            numbers = list(_NUMBER.finditer(bytes(data[:200_000])))
            if numbers:
                number = rng.choice(numbers)
                data[number.start() : number.end()] = rng.choice(
                    (b"0", b"-1", b"1e12", b"1e308", b"nan", b"", b"9999999999", b"0.000001", b"9" * 400)
                )
    return bytes(data)


def dumped(document: Any) -> bytes:
    """Return ``document`` as JSON, in which odd values stand as they are."""
    return json.dumps(document, default=str).encode("utf-8", "replace")
