"""Mutate bytes, and protobuf messages field by field: both leave files that almost are what they were."""

from __future__ import annotations

import random
from dataclasses import dataclass

_NUMBERS = (0, 1, 2, 127, 128, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
_DEEPEST = 12


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return ``data`` with some bytes changed, taken out, put in, repeated, or with its end cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(out) + 1) if out else 0
        match rng.randrange(6):
            case 0 if out:
                out[min(at, len(out) - 1)] ^= 1 << rng.randrange(8)
            case 1 if out:
                out[min(at, len(out) - 1)] = rng.randrange(256)
            case 2:
                del out[at : at + rng.randrange(1, 40)]
            case 3:
                out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 20)))
            case 4:
                piece = out[at : at + rng.randrange(1, 200)]
                where = rng.randrange(len(out) + 1)
                out[where:where] = piece
            case 5:
                del out[at:]
    return bytes(out)


@dataclass
class _Field:
    number: int
    wire: int
    value: int | bytes


def mutate_wire(data: bytes, rng: random.Random) -> bytes:
    """Return a serialised message of which one field, at some depth, was changed; lengths around it fit again."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = _mutated(data, rng, 0)
    return data


def _mutated(data: bytes, rng: random.Random, depth: int) -> bytes:
    fields = _fields(data)
    if not fields:
        return mutate_bytes(data, rng)
    place = rng.randrange(len(fields))
    # the larger a field, the more there is inside to change
    sizes = [1 + (len(f.value) if isinstance(f.value, bytes) else 0) for f in fields]
    if rng.random() < 0.9:
        place = rng.choices(range(len(fields)), sizes)[0]
    field = fields[place]
    if isinstance(field.value, bytes) and depth < _DEEPEST and rng.random() < 0.85 and _fields(field.value):
        field.value = _mutated(field.value, rng, depth + 1)
        return _joined(fields)
    match rng.randrange(7):
        case 0:
            fields[place:place] = [field] * rng.choice((1, 2, 100))
        case 1:
            del fields[place]
        case 2:
            field.number = rng.randrange(1, 32)
        case 3:
            field.wire = rng.choice((0, 1, 2, 3, 4, 5, 7))
        case 4:
            other = rng.randrange(len(fields))
            fields[place], fields[other] = fields[other], fields[place]
        case 5 if isinstance(field.value, bytes):
            field.value = mutate_bytes(field.value, rng)
        case _:
            field.value = rng.choice(_NUMBERS) if isinstance(field.value, int) else b""
    return _joined(fields)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] >= 0x80:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | data[at] << shift, at + 1


def _fields(data: bytes) -> list[_Field]:
    """Return the fields of a message; none where ``data`` is no message."""
    fields = []
    at = 0
    try:
        while at < len(data):
            tag, at = _read(data, at)
            value: int | bytes
            if tag & 7 == 2:
                size, at = _read(data, at)
                value = data[at : at + size]
                at += size
            elif tag & 7 == 0:
                value, at = _read(data, at)
            elif tag & 7 in (1, 5):
                size = 8 if tag & 7 == 1 else 4
                value = int.from_bytes(data[at : at + size], "little")
                at += size
            else:
                return []
            fields.append(_Field(tag >> 3, tag & 7, value))
    except IndexError:
        return []
    if at != len(data):
        return []
    return fields


def _joined(fields: list[_Field]) -> bytes:
    out = bytearray()
    for field in fields:
        out += _varint(field.number << 3 | field.wire)
        value = field.value
        if isinstance(value, bytes):
            out += _varint(len(value)) + value
        elif field.wire in (1, 5):
            size = 8 if field.wire == 1 else 4
            out += (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        else:
            out += _varint(value)
    return bytes(out)
