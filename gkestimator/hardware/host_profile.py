"""Read and write what one machine's host adds to a runtime's kernels: the launch overhead and the copy rate,
fitted to measurements.

A small TOML file, read by the rules of ``specfiles``; ``gkest evaluate --write-host`` writes one, ``gkest estimate
--host`` (and ``$GKEST_HOME/host.toml``) uses it instead of the runtime profile's figures.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from pathlib import Path

from gkestimator.core import specfiles as specs
from gkestimator.core.errors import SpecError, one_line
from gkestimator.core.escaping import utf8
from gkestimator.core.records import frozen
from gkestimator.core.specfiles import Quantity, SpecReader
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.tables import write_bytes

WHAT = "host profile"
SCHEMA_VERSION = 1
_OVERHEAD = Quantity(units=specs.TIME_US, low=0.01, high=1e5)
_RATE = Quantity(units=specs.BYTE_RATE, low=1e7, high=1e13)
FIGURES = {
    "host_overhead_us": _OVERHEAD,
    "host_low_us": _OVERHEAD,
    "host_high_us": _OVERHEAD,
    "copy_bytes_per_s": _RATE,
}


@frozen
class HostProfile:
    """Hold one machine. ``host_overhead_us`` maps a runtime to the host's microseconds per framework call,
    ``copy_bytes_per_s`` to the rate at which inputs and outputs move; a runtime that is absent keeps its profile's
    figure. ``host_low_us`` and ``host_high_us`` say between which figures the overhead of nine measured models in ten
    lies, where that is known. ``sources`` maps ``host_overhead_us.torch`` and so on to where the figure is from.
    """

    name: str
    host_overhead_us: Mapping[str, float] = field(hash=False)
    copy_bytes_per_s: Mapping[str, float] = field(hash=False)
    sources: Mapping[str, str] = field(hash=False)
    host_low_us: Mapping[str, float] = field(hash=False, default_factory=dict)
    host_high_us: Mapping[str, float] = field(hash=False, default_factory=dict)
    note: str = ""
    path: Path | None = None

    def overhead_range_us(self, runtime: str) -> tuple[float, float] | None:
        """Return between which figures the overhead of ``runtime`` was measured to lie; None where that is
        not known."""
        at = self.host_overhead_us.get(runtime)
        low = self.host_low_us.get(runtime)
        high = self.host_high_us.get(runtime)
        if at is None or low is None or high is None:
            return None
        return min(at, low), max(at, high)

    def source(self, figure: str, runtime: str) -> str:
        """Return where a figure is from, with the file's name."""
        source = self.sources.get(f"{figure}.{runtime}", "")
        if self.path is None:
            return source
        return f"{self.path}: {source}"


def default_host_file() -> Path | None:
    """Return ``$GKEST_HOME/host.toml`` (default ``~/.config/gkest/host.toml``) where there is one."""
    home = os.environ.get("GKEST_HOME")
    try:
        path = (Path(home) if home else Path.home() / ".config" / "gkest") / "host.toml"
    except RuntimeError:  # no home directory at all
        return None
    if path.exists():
        return path
    return None


def load_host_file(path: Path | str) -> HostProfile:
    """Read one host profile (TOML, at most 64 KiB). Raises SpecError naming the file and the field."""
    return _load(*specs.spec_version(Path(path), what=WHAT))


@lru_cache(maxsize=16)
def _load(path: Path, changed_ns: int, size: int) -> HostProfile:
    del changed_ns, size  # part of the cache's key: a changed file is read again
    reader = SpecReader(path, specs.read_spec(path, what=WHAT), what=WHAT)
    reader.schema_version(SCHEMA_VERSION)
    figures: dict[str, dict[str, float]] = {}
    for name, quantity in FIGURES.items():
        figures[name] = {}
        if reader.has(name):
            figures[name] = reader.numbers(name, dict.fromkeys(RUNTIMES, quantity))
    profile = HostProfile(
        name=reader.text("name"),
        note=reader.text("note", default=""),
        sources=reader.sources,
        path=path,
        **figures,
    )
    reader.finish()
    if not profile.host_overhead_us and not profile.copy_bytes_per_s:
        raise SpecError(
            f"{path}: holds no figure, expected host_overhead_us or copy_bytes_per_s of a runtime"
        )
    return profile


def write_host_file(profile: HostProfile, path: Path) -> None:
    """Write ``profile`` to ``path`` as :func:`load_host_file` reads it, wholly or not at all. Raises OutputError."""
    lines = [
        "# Written by `gkest evaluate --write-host`; `gkest estimate --host` reads it.",
        f"schema_version = {SCHEMA_VERSION}",
        f"name = {_text(profile.name)}",
    ]
    if profile.note:
        lines.append(f"note = {_text(profile.note)}")
    for figure, values, unit, factor in (
        ("host_overhead_us", profile.host_overhead_us, "us", 1.0),
        ("host_low_us", profile.host_low_us, "us", 1.0),
        ("host_high_us", profile.host_high_us, "us", 1.0),
        ("copy_bytes_per_s", profile.copy_bytes_per_s, "GB/s", 1e-9),
    ):
        for runtime, value in values.items():
            lines += [
                "",
                f"[{figure}.{runtime}]",
                f"value = {value * factor:.4g}",
                f"unit = {_text(unit)}",
                f"source = {_text(profile.sources[f'{figure}.{runtime}'])}",
            ]
    write_bytes(path, utf8("\n".join(lines) + "\n"))


def _text(value: str) -> str:
    """Return a TOML basic string: JSON's escapes are TOML's, and the text is one printable line of at most
    590 characters."""
    return json.dumps(one_line(value, limit=590), ensure_ascii=False)
