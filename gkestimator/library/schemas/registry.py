"""Name the JSON Schema of every kind of document, each derived from what reads the document.

``python -m gkestimator.library.schemas.registry`` writes them to ``published/`` beside this file, where editors
and other programs find them without running anything.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.core.leftovers import scratch_folder
from gkestimator.core.naming import nearest_name
from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.core.versions import FIRST_DERIVED
from gkestimator.documents.checking import Fields
from gkestimator.library.schemas.templating import (
    TEMPLATES,
    field_words,
    parsed_template,
    template_text,
    whole_text,
)
from gkestimator.library.schemas.tracing import traced

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


@frozen
class DocumentKind:
    """Hold a kind of document: what it is, in words, and how its schema is derived."""

    summary: str
    derive: Callable[[], NamedValues]


def schema_of(kind: str) -> NamedValues:
    """Return the JSON Schema (draft 2020-12) of a ``kind`` of document. Raises UsageError for an unknown one."""
    if kind not in KINDS:
        raise UsageError(
            f"no schema is named {kind!r}{nearest_name(kind, KINDS)} (known: {', '.join(KINDS)})"
        )
    document = KINDS[kind]
    schema = document.derive()
    return {"$schema": _DIALECT, **schema, "title": f"gkestimator: {document.summary}"}


def schema_text(kind: str) -> str:
    """Return the schema of a ``kind`` of document as JSON text. Raises UsageError for an unknown one."""
    return json.dumps(schema_of(kind), indent=1) + "\n"


def published_folder() -> Path:
    """Return the folder of the package that holds the schemas as files, ``KIND.schema.json`` each."""
    return Path(str(files("gkestimator.library.schemas"))) / "published"


def _described(schema: NamedValues, words: Mapping[Names, str], way: Names = ()) -> NamedValues:
    """Add to every field of ``schema`` that ``words`` explain its explanation, and return it."""
    for name, own in schema.get("properties", {}).items():
        here = (*way, name)
        if here in words:
            schema["properties"][name] = own = {"description": words[here], **own}
        _described(own, words, here)
        _described(own.get("items", {}), words, here)
    return schema


def _words_of(kind: str) -> dict[Names, str]:
    """Return the explanations of a ``kind``, of documents that may stand inside it included."""
    words = field_words(kind) if kind in TEMPLATES else {}
    for name, inner in _INSIDE.get(kind, {}).items():
        words = {(name, *way): text for way, text in field_words(inner).items()} | words
    return words


_INSIDE = {"comparison": {"workloads": "workload", "clusters": "cluster"}, "plan": {"workload": "workload"}}


def _workload() -> NamedValues:
    from gkestimator.documents.workload import workload_from

    sample = parsed_template("workload", whole_text("workload"))
    return _described(traced(workload_from, [sample], what="a workload").schema(), _words_of("workload"))


def _cluster() -> NamedValues:
    from gkestimator.documents.cluster import cluster_from
    from gkestimator.hardware.gpus import gpu_catalogue

    catalogue = gpu_catalogue()
    rented = parsed_template("cluster", whole_text("cluster"))
    samples = [parsed_template("cluster", template_text("cluster")), {**rented, "gpus": []}]
    notes = traced(lambda fields: cluster_from(fields, catalogue), samples, what="a cluster")
    return _described(notes.schema(), _words_of("cluster"))


def _comparison() -> NamedValues:
    from gkestimator.simulation.comparing.spec import comparison_from

    sample = parsed_template("comparison", whole_text("comparison"))
    with scratch_folder("gkest-schema") as here:
        # The reader looks whether files are there; it opens none of these.
        for name in ("requirements.csv", "trace.csv"):
            (here / name).touch()
        reader: Callable[[Fields], object] = lambda fields: comparison_from(fields, here / "sample.yaml")  # noqa: E731
        notes = traced(reader, [sample], what="a comparison")
    return _described(notes.schema(), _words_of("comparison"))


def _versioned(schema: NamedValues) -> NamedValues:
    """Return ``schema`` with the version that a program writes, counted by hand (1) or derived."""
    version = {"anyOf": [{"const": 1}, {"type": "integer", "minimum": FIRST_DERIVED}]}
    properties = {"schema_version": version, **schema["properties"]}
    return {**schema, "properties": properties, "required": ["schema_version", *schema.get("required", [])]}


def _plan() -> NamedValues:
    from gkestimator.documents.plan import plan_from

    return _described(_versioned(traced(plan_from, [{}], what="a plan").schema()), _words_of("plan"))


def _simulation() -> NamedValues:
    from gkestimator.documents.simulation import simulation_from

    return _versioned(traced(simulation_from, [{}], what="a simulation's report").schema())


def _interference() -> NamedValues:
    from gkestimator.documents.interference import interference_from

    return traced(interference_from, [{}], what="coefficients of interference").schema()


def _network() -> NamedValues:
    from gkestimator.simulation.network import network_from

    base = {"schema_version": 1, "source": "x"}
    points = [{"bytes": 1, "ms": 1}, {"bytes": 2, "ms": 2}]
    return traced(
        network_from, [{**base, "base_ms": 1}, {**base, "points": points}], what="a network"
    ).schema()


def _igniter() -> NamedValues:
    from gkestimator.interference.igniter_coefficients import coefficients_from

    reader: Callable[[Fields], object] = lambda fields: coefficients_from(fields, "sample")  # noqa: E731
    return traced(reader, [{}], what="iGniter's coefficients").schema()


def _table_row(name: str) -> NamedValues:
    from gkestimator import tables

    schema = getattr(tables, name)
    properties: NamedValues = {}
    for column in schema.columns:
        properties[column.name] = column.json_schema()
    required = [column.name for column in schema.columns if column.required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _gpu() -> NamedValues:
    from gkestimator.library.schemas.figures import gpu_schema

    return gpu_schema(_words_of("gpu"))


def _host() -> NamedValues:
    from gkestimator.library.schemas.figures import host_schema

    return host_schema()


KINDS: Mapping[str, DocumentKind] = {
    "workload": DocumentKind(summary="workload (YAML)", derive=_workload),
    "cluster": DocumentKind(summary="cluster (YAML)", derive=_cluster),
    "plan": DocumentKind(summary="placement plan (JSON)", derive=_plan),
    "simulation": DocumentKind(summary="simulation's report (JSON)", derive=_simulation),
    "comparison": DocumentKind(summary="comparison (YAML)", derive=_comparison),
    "requirement": DocumentKind(
        summary="row of a requirement table", derive=functools.partial(_table_row, "REQUIREMENTS")
    ),
    "llm": DocumentKind(
        summary="row of a language model table", derive=functools.partial(_table_row, "LLM_TABLE")
    ),
    "kernel": DocumentKind(
        summary="row of a kernel dataset", derive=functools.partial(_table_row, "KERNEL_DATASET")
    ),
    "gpu": DocumentKind(summary="GPU file (TOML)", derive=_gpu),
    "host": DocumentKind(summary="host file (TOML)", derive=_host),
    "network": DocumentKind(summary="delay of a network (TOML)", derive=_network),
    "interference": DocumentKind(summary="coefficients of interference (YAML)", derive=_interference),
    "igniter": DocumentKind(summary="iGniter's coefficients (TOML or JSON)", derive=_igniter),
}


def publish() -> None:
    """Write every schema into the package's folder."""
    for kind in KINDS:
        path = published_folder() / f"{kind}.schema.json"
        path.write_text(schema_text(kind), encoding="utf-8")


if __name__ == "__main__":
    publish()
