"""Derive the JSON Schemas of GPU files and host files from the quantities that their readers hold figures to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gkestimator.core.records import NamedValues
from gkestimator.core.specfiles import UNKNOWN, Quantity
from gkestimator.hardware import gpu_boards, gpu_reading, host_profile
from gkestimator.hardware.runtimes import RUNTIMES

_TEXT: NamedValues = {"type": "string"}
_TEXTS: NamedValues = {"type": "array", "maxItems": 64, "items": _TEXT}


def closed(title: str, properties: Mapping[str, Any], required: list[str]) -> NamedValues:
    """Return the schema of a mapping with no other fields than ``properties``."""
    schema = {"type": "object", "title": title, "properties": dict(properties), "required": required}
    return {**schema, "additionalProperties": False}


def figure(quantity: Quantity) -> NamedValues:
    """Return the schema of one figure: value, unit, source, and the texts that it must have besides."""
    value: NamedValues = {"type": "number"}
    if quantity.nullable:
        value = {"anyOf": [value, {"const": UNKNOWN}]}
    properties: NamedValues = {"value": value, "unit": {"enum": list(quantity.units)}, "source": _TEXT}
    properties |= dict.fromkeys(quantity.extra, _TEXT)
    return closed("a figure with its unit and source", properties, list(properties))


def gpu_schema(words: Mapping[tuple[str, ...], str]) -> NamedValues:
    """Return the schema of a GPU file: a board on its compute capability, or a flat file."""
    return {"oneOf": [_board(words), _flat()]}


def _board(words: Mapping[tuple[str, ...], str]) -> NamedValues:
    number = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": UNKNOWN}, {"type": "object"}]}
    properties: NamedValues = {}
    for name in gpu_boards.BOARD_TEXTS:
        properties[name] = _TEXTS if name.endswith("names") or name == "aliases" else _TEXT
    for name in gpu_boards.BOARD_OTHERS:
        properties[name] = {}
    for name in gpu_boards.BOARD_FIELDS:
        properties[name] = number
    properties["schema_version"] = {"const": gpu_boards.BOARD_VERSION}
    for name, schema in properties.items():
        if (name,) in words:
            properties[name] = {"description": words[(name,)], **schema}
    return closed(
        "a GPU board file", properties, ["schema_version", "name", "architecture", "capability", "source"]
    )


def _flat() -> NamedValues:
    quantities = {**gpu_reading.WHOLE, **gpu_reading.MEASURED}
    properties: NamedValues = {"schema_version": {"const": gpu_reading.SCHEMA_VERSION}}
    properties |= {
        "name": _TEXT,
        "aliases": _TEXTS,
        "short_names": _TEXTS,
        "architecture": _TEXT,
        "note": _TEXT,
    }
    properties["compute_capability"] = {"type": "object"}
    required = ["schema_version", "name", "architecture", "compute_capability"]
    for name, quantity in quantities.items():
        properties[name] = figure(quantity)
        required.append(name)
    rates = {name: figure(quantity) for name, quantity in gpu_reading.PER_PRECISION.items()}
    for name in ("peak_flops_per_s", "vector_flops_per_s"):
        properties[name] = closed("rates by precision", rates, [])
        required.append(name)
    properties["price_per_hour_usd"] = figure(gpu_reading.PRICE)
    required.append("price_per_hour_usd")
    for name, quantity in gpu_reading.OPTIONAL.items():
        properties[name] = figure(quantity)
    return closed("a flat GPU file", properties, required)


def host_schema() -> NamedValues:
    """Return the schema of a host file."""
    properties: NamedValues = {"schema_version": {"const": host_profile.SCHEMA_VERSION}}
    properties |= {"name": _TEXT, "note": _TEXT}
    for name, quantity in host_profile.FIGURES.items():
        runtimes = {runtime: figure(quantity) for runtime in sorted(RUNTIMES)}
        properties[name] = closed("figures by runtime", runtimes, [])
    return closed("a host profile", properties, ["schema_version", "name"])
