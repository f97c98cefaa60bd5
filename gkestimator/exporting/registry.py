"""The targets by name: one line each; the module of a target is imported when the target is asked for."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gkestimator.core.errors import UsageError
from gkestimator.core.options import spelled
from gkestimator.core.records import Names

if TYPE_CHECKING:  # not at start-up: the help of `gkest export` names the targets
    from gkestimator.exporting.deployment import Exporter

# name: module of gkestimator.exporting and class
EXPORTERS: Mapping[str, tuple[str, str]] = {
    "csv": ("flat", "CsvExporter"),
    "json": ("flat", "JsonExporter"),
    "hami": ("hami", "HamiExporter"),
    "kai": ("kai", "KaiExporter"),
    "volcano": ("volcano", "VolcanoExporter"),
    "device-plugin": ("device_plugin", "DevicePluginExporter"),
    "mig": ("mig", "MigExporter"),
    "dra": ("dra", "DraExporter"),
    "dra-mig": ("dra", "DraMigExporter"),
    "dra-capacity": ("dra", "DraCapacityExporter"),
    "ray-serve": ("ray_serve", "RayServeExporter"),
    "triton": ("triton", "TritonExporter"),
    "kserve": ("kserve", "KServeExporter"),
    "modelmesh": ("modelmesh", "ModelMeshExporter"),
    "mps": ("mps", "MpsExporter"),
}


def exporter_class(name: str) -> type[Exporter]:
    """Return the class of target ``name``. Raises UsageError for one that is not known."""
    if name not in EXPORTERS:
        close = difflib.get_close_matches(name, EXPORTERS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"{spelled('to')} {name!r}: expected one of {', '.join(EXPORTERS)}{hint}")
    module, attribute = EXPORTERS[name]
    kind: type[Exporter] = getattr(importlib.import_module(f"gkestimator.exporting.{module}"), attribute)
    return kind


def make_exporters(names: Names, **options: Any) -> tuple[Exporter, ...]:
    """Return the targets ``names``, each given those of ``options`` that it takes; options that are None are
    left out.

    Raises UsageError for an unknown target, and for an option that none of the targets takes.
    """
    options = {key: value for key, value in options.items() if value is not None}
    classes = [exporter_class(name) for name in dict.fromkeys(names)]
    for key in options:
        if not any(key in kind.options for kind in classes):
            raise UsageError(f"{spelled(key)}: not an option of {', '.join(c.name for c in classes)}")
    exporters = []
    for kind in classes:
        taken = {key: value for key, value in options.items() if key in kind.options}
        exporters.append(kind(**taken))
    return tuple(exporters)
