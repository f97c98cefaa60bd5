"""Keep what a service must know after its death on the disk: the plan that runs, its version, and where it began."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gkestimator.core.records import NamedValues, frozen
from gkestimator.core.versions import record_version
from gkestimator.documents.checking import load_json, of_version
from gkestimator.documents.plan import MAX_PLAN_BYTES, PlacementPlan, plan_document, plan_from, plan_json
from gkestimator.tables import write_bytes
from gkestimator.tables.files import json_bytes

_VERSION = 1


@frozen
class ServiceState:
    """Hold the plan that runs and its ``version``, from 1. ``began``: the digest of the plan that the service was
    started with; ``settings``: how it was started, for whoever reads the file.
    """

    plan: PlacementPlan
    version: int
    began: str
    settings: NamedValues

    def save(self, path: Path) -> None:
        """Write the state wholly or not at all: aside, then renamed. Raises OutputError."""
        document = {
            "schema_version": _VERSION,
            "plan_version": self.version,
            "began": self.began,
            "settings": self.settings,
            "plan": plan_document(self.plan),
        }
        write_bytes(path, json_bytes(document))


def plan_digest(plan: PlacementPlan) -> str:
    """Return what tells ``plan`` from another."""
    return hashlib.sha256(plan_json(plan).encode()).hexdigest()[:16]


def read_state(path: Path) -> ServiceState:
    """Return the state in the file at ``path``. Raises DocumentError naming the field."""
    fields = load_json(path, what="the state of gkest serve", limit=2 * MAX_PLAN_BYTES)
    fields.whole("schema_version", low=_VERSION, high=_VERSION)
    version = fields.whole("plan_version", low=1)
    began = fields.text("began", limit=100)
    settings = fields.take("settings")
    plan_fields = fields.object("plan", what="a plan")
    fields.finish()
    with of_version(plan_fields, record_version(PlacementPlan)):
        plan = plan_from(plan_fields)
    return ServiceState(plan=plan, version=version, began=began, settings=dict(settings))
