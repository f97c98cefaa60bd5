"""Board files: a GPU type in about twenty lines on top of its capability file.

A board file says what differs between boards of one compute capability (SMs, clocks, memory, link, power, price).
:func:`expand_board` derives the rest and returns the same entries that a flat GPU file spells out, so that one reader
and one set of checks serve both forms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import SpecError
from gkestimator.core.naming import nearest_name
from gkestimator.core.specfiles import UNKNOWN
from gkestimator.core.values import is_list, is_text
from gkestimator.hardware.gpu_capabilities import Capability, find_capability, unknown_capability

BOARD_VERSION = 2
BOARD_TEXTS = ("name", "aliases", "short_names", "architecture", "note")
BOARD_OTHERS = (
    "schema_version",
    "capability",
    "source",
    "fp32",
    "tensor",
    "tensor_clock_mhz",
    "half_rate_tensor",
    "peak",
    "tensor_tflops",
    "unknown_rates",
    "pcie",
    "price_usd_per_hour",
)
_NO_PRICE = {
    "value": "unknown",
    "unit": "USD/h",
    "date": "unknown",
    "source": "no list price that could be named with confidence",
}
# Giga-transfers a second and lane, of which 128 of 130 bits carry data (PCI Express Base Specification, 3.0 on).
_PCIE_GT = {"3.0": 8, "4.0": 16, "5.0": 32}
_PUBLISHED_TOLERANCE = 0.05


class _BoardField(NamedTuple):
    """Name the flat field that a board's field stands for, its unit, and the source where the board names none."""

    flat: str
    unit: str
    source: str = "{source}"


BOARD_FIELDS: Mapping[str, _BoardField] = {
    "sms": _BoardField("sms", "1"),
    "base_clock_mhz": _BoardField("base_clock_mhz", "MHz"),
    "boost_clock_mhz": _BoardField("boost_clock_mhz", "MHz"),
    "memory_bus_bits": _BoardField("memory_bus_bits", "1"),
    "memory_pin_gbit_per_s": _BoardField(
        "memory_pin_rate", "Gbit/s", "effective data rate that the bandwidth in {source} implies"
    ),
    "dram_gb_per_s": _BoardField("dram_bytes_per_s", "GB/s"),
    "dram_sustained_gb_per_s": _BoardField("dram_sustained_bytes_per_s", "GB/s"),
    "nvlink_gb_per_s": _BoardField("nvlink_bytes_per_s", "GB/s"),
    "l2_mib": _BoardField("l2_bytes", "MiB"),
    "memory_gib": _BoardField("memory_bytes", "GiB", "{source} (sold in units of 2^30 bytes)"),
    "memory_visible_mib": _BoardField("memory_visible_bytes", "MiB"),
    "power_w": _BoardField("power_limit_w", "W"),
}


def _rounded(value: float) -> float:
    """Return ``value`` to five digits, the precision in which rates are stated."""
    return float(f"{value:.5g}")


@dataclass(frozen=True, slots=True)
class _Board:
    """Read one board file's entries and derive those of the flat form. Errors name the file and the field."""

    path: Path
    data: Mapping[str, Any]
    capability: Capability

    def fail(self, name: str, message: str) -> SpecError:
        return SpecError(f"{self.path}: [{name}] {message}")

    def number(self, name: str) -> float | None:
        """Return the required number ``name``, which may stand alone or in a table with its source; None: unknown."""
        entry = self.data.get(name)
        if isinstance(entry, dict):
            value = entry.get("value")
        else:
            value = entry
        if value == UNKNOWN:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise self.fail(name, f"is {str(value)[:60]}, expected a number above 0")
        return value

    def text(self, name: str) -> str:
        """Return the required text ``name``."""
        value = self.data.get(name)
        if not isinstance(value, str):
            raise self.fail(name, "is missing or no text")
        return value

    def figures(self) -> dict[str, Any]:
        """Return the figures that the board states itself, in the flat form."""
        flat: dict[str, Any] = {}
        for name, (target, unit, source) in BOARD_FIELDS.items():
            entry = self.data.get(name)
            if entry is None:
                continue
            default = {"unit": unit, "source": source.format(source=self.text("source"))}
            if isinstance(entry, dict):
                stated = entry
            else:
                stated = {"value": entry}
            flat[target] = default | stated
        return flat

    def link(self) -> dict[str, Any]:
        """Return one direction's rate of the PCI Express link, which the board names like ``4.0 x16``."""
        stated = self.data.get("pcie")
        if isinstance(stated, dict):  # unknown: memory is shared with the CPU, or no PCI Express lies between
            return {"unit": "GB/s"} | stated
        words = self.text("pcie").split(" x")
        if len(words) != 2 or words[0] not in _PCIE_GT or words[1] not in ("1", "2", "4", "8", "16"):
            known = ", ".join(_PCIE_GT)
            raise self.fail("pcie", f"is {self.data['pcie']!r}, expected one like '4.0 x16' (known: {known})")
        generation, lanes = words
        transfers = _PCIE_GT[generation]
        source = (
            f"PCI Express {generation} x{lanes}, one direction: {transfers} GT/s x {lanes} lanes x 128/130 / 8; "
            f"{self.text('source')}"
        )
        return {"value": _rounded(transfers * int(lanes) * 128 / 130 / 8), "unit": "GB/s", "source": source}

    def clock(self) -> float | None:
        """Return the clock of the CUDA cores' rates (MHz): the boost clock, or the tensor clock if that is unknown."""
        boost = self.number("boost_clock_mhz")
        if boost is None and "tensor_clock_mhz" in self.data:
            return self.number("tensor_clock_mhz")
        return boost

    def tensor_clock(self) -> dict[str, Any]:
        """Return the flat form's entry of the tensor clock, which stands for an unknown boost clock."""
        entry = self.data["tensor_clock_mhz"]
        if not isinstance(entry, dict):
            raise self.fail(
                "tensor_clock_mhz", "is no table of value and source, as an unknown boost clock needs"
            )
        return {"unit": "MHz"} | entry

    def fp32(self) -> tuple[float, str]:
        """Return the fp32 rate (TFLOP/s) and its source, held to the rate that the maker publishes.

        The published rate alone is taken where the board does not know its SMs or its clock.
        """
        cores = self.capability.limits["cuda_cores_per_sm"]
        sms = self.number("sms")
        clock = self.clock()
        published, said = self.published_fp32(required=self.number("boost_clock_mhz") is not None)
        if sms is None or clock is None:
            if published is None:
                raise self.fail("fp32", "is missing, but is required where sms or boost_clock_mhz is unknown")
            return published, said
        rate = 2 * sms * cores * clock / 1e6
        source = f"2 x {sms} SMs x {cores} cores x {clock} MHz"
        if published is None:
            return rate, f"{source}, the tensor clock: the boost clock is unknown"
        if abs(rate - published) > _PUBLISHED_TOLERANCE * rate:
            raise self.fail(
                "fp32.published_tflops",
                f"is {published!r}, but 2 x sms x {cores} cores x boost_clock_mhz is {rate:.4g} TFLOP/s",
            )
        if said:
            source = f"{source}; {said}"
        return rate, source

    def published_fp32(self, *, required: bool) -> tuple[float | None, str]:
        """Return the fp32 rate that the maker publishes (TFLOP/s, None: not stated) and its source."""
        entry = self.data.get("fp32")
        if entry is None and not required:
            return None, ""
        if not isinstance(entry, dict) or set(entry) - {"source"} != {"published_tflops"}:
            raise self.fail("fp32", "is no table of published_tflops and optionally source")
        published = entry["published_tflops"]
        if isinstance(published, bool) or not isinstance(published, int | float) or not 0 < published < 1e6:
            raise self.fail("fp32.published_tflops", f"is {str(published)[:60]}, expected a number above 0")
        return published, str(entry.get("source", ""))

    def rates(self) -> dict[str, Any]:
        """Return the vector and peak rates: SMs x rate per clock and SM x clock."""
        rate, source = self.fp32()
        vector = {"fp32": _tera("fp32", rate, source)}
        peak = {"fp32": _tera("fp32", rate, f"CUDA cores: {source}")}
        for precision, of in self.capability.vector.items():
            vector[precision] = _tera(precision, rate * of.ratio, of.source)
            peak[precision] = _tera(precision, rate * of.ratio, of.peak_source)
        peak |= self.tensor_rates()
        own = self.data.get("peak", {})
        if not isinstance(own, dict):
            raise self.fail("peak", "is no table of figures by precision")
        rates = {"vector_flops_per_s": vector, "peak_flops_per_s": peak | own}
        self.strike_unknown(rates)
        return rates

    def strike_unknown(self, rates: dict[str, dict[str, Any]]) -> None:
        """Replace the rates that the board lists as unknown, which its capability alone would give."""
        entry = self.data.get("unknown_rates", {"rates": [], "source": ""})
        if (
            not isinstance(entry, dict)
            or set(entry) != {"rates", "source"}
            or not is_list(entry["rates"], is_text)
        ):
            raise self.fail("unknown_rates", "is no table of rates (texts like 'peak.fp64') and source")
        known = [str(precision) for precision in Precision if precision is not Precision.FP32]
        for name in entry["rates"]:
            kind, _, precision = name.partition(".")
            of_kind = rates.get(f"{kind}_flops_per_s")
            if of_kind is None or precision not in known:
                raise self.fail(
                    "unknown_rates",
                    f"names {name[:40]!r}, expected peak or vector and one of {', '.join(known)}",
                )
            of_kind[precision] = _tera(precision, None, str(entry["source"]))

    def tensor_rates(self) -> dict[str, Any]:
        """Return the peaks of the tensor cores (fp64 at the boost clock, the rest at the tensor clock)."""
        halved = self.data.get("half_rate_tensor", [])
        if not isinstance(halved, list) or not set(halved) <= set(self.capability.tensor):
            known = ", ".join(self.capability.tensor)
            raise self.fail("half_rate_tensor", f"is {halved!r}, expected some of {known}")
        published = self.data.get("tensor_tflops", {})
        if not isinstance(published, dict) or not set(published) <= set(self.capability.tensor):
            known = ", ".join(self.capability.tensor)
            raise self.fail("tensor_tflops", f"is no table of published rates (known: {known})")
        peaks: dict[str, Any] = {}
        for precision, full in self.capability.tensor.items():
            if precision in self.data.get("peak", {}):
                continue
            if precision in published:
                peaks[precision] = _tera(precision, published[precision], f"dense; {self.text('tensor')}")
            elif precision in halved:
                peaks[precision] = self.tensor_rate(precision, full // 2)
            else:
                peaks[precision] = self.tensor_rate(precision, full)
        return peaks

    def tensor_rate(self, precision: str, per_clock: int) -> dict[str, Any]:
        """Return the peak of ``per_clock`` operations a clock and SM; unknown where the SMs or the clock are."""
        sms = self.number("sms")
        clock = self.clock()
        if precision != "fp64" and "tensor_clock_mhz" in self.data:
            clock = self.number("tensor_clock_mhz")
        said = self.text("tensor")
        if sms is None or clock is None:
            return _tera(precision, None, said)
        source = f"tensor cores, dense: {sms} SMs x {per_clock} per clock x {clock} MHz; {said}"
        return _tera(precision, sms * per_clock * clock / 1e6, source)


def _tera(precision: str, rate: Any, source: str) -> dict[str, Any]:
    """Return a flat figure of a rate in 10^12 operations a second, None where it is unknown.

    A rate that is no number passes as it is, so that the common reader refuses it with the field's name.
    """
    if precision == "int8":
        unit = "TOP/s"
    else:
        unit = "TFLOP/s"
    value: Any = rate
    if rate is None:
        value = UNKNOWN
    elif isinstance(rate, int | float):
        value = _rounded(rate)
    return {"value": value, "unit": unit, "source": source}


def expand_board(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a flat GPU file for the board file ``data`` at ``path``.

    Raises SpecError for an unknown field, an unknown capability, and a board whose fp32 rate is not the published one.
    """
    for name in data:
        if name not in BOARD_TEXTS and name not in BOARD_OTHERS and name not in BOARD_FIELDS:
            known = sorted((*BOARD_TEXTS, *BOARD_OTHERS, *BOARD_FIELDS))
            meant = nearest_name(name, known)
            raise SpecError(
                f"{path}: [{name}] is not a field of a GPU board file{meant} (known: {', '.join(known)})"
            )
    wanted = data.get("capability")
    if isinstance(wanted, str):
        capability = find_capability(wanted, path.parent)
    else:
        capability = None
    if capability is None:
        raise unknown_capability(path, str(wanted)[:20])
    board = _Board(path, data, capability)
    flat = {name: data[name] for name in BOARD_TEXTS if name in data}
    flat |= board.figures() | board.rates()
    if board.number("boost_clock_mhz") is None and "tensor_clock_mhz" in data:
        flat["tensor_clock_mhz"] = board.tensor_clock()
    flat["pcie_bytes_per_s"] = board.link()
    flat["compute_capability"] = {
        "value": wanted,
        "unit": "1",
        "source": f"CUDA Programming Guide / CUDA GPUs list: {data.get('name')} has compute capability {wanted}",
    }
    flat |= capability.figures
    price = data.get("price_usd_per_hour")
    if isinstance(price, dict):
        flat["price_per_hour_usd"] = {"unit": "USD/h"} | price
    else:
        flat["price_per_hour_usd"] = dict(_NO_PRICE)
    return flat
