"""Sweep plans: the operators to measure, in order of value, as a file that people read, edit, split and resume."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.fragments import Fragment
from gkestimator.core.records import frozen
from gkestimator.hardware.runtimes import RUNTIMES, runtime_words
from gkestimator.tables import write_bytes

PLAN_VERSION = 1
DTYPES = ("fp32", "tf32", "fp16", "bf16")
"""Arithmetic of an entry. The fragment's tensors are float for fp32 and tf32, float16 or bfloat16 for the others;
executors switch TF32 off for fp32 and on for tf32."""
MAX_PLAN_BYTES = 256 * 2**20
MAX_ENTRIES = 100_000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}\Z")


@frozen
class ModelPoint:
    """Which row of a requirement table a whole model is: ``name`` as estimates have it (the file's stem),
    ``batch_size`` (None: no input has a batch) and the numbers of its other symbolic dimensions."""

    name: str
    batch_size: int | None
    dims: Mapping[str, int] = field(default_factory=dict)


@frozen
class PlanEntry:
    """One operator, pattern or whole model to measure.

    ``id`` names it in NVTX ranges, records and datasets (:func:`entry_id`). ``source`` says why it is there
    (``catalogue:vision``, ``model:resnet50``). ``counters``: hardware counters are wanted as well. ``estimated_s``:
    seconds that measuring it is expected to take, None where nothing can say. ``model``: of a whole model (its
    fragment's ``is_model``) which one, at which sizes; None for all else.
    """

    id: str
    fragment: Fragment
    dtype: str
    source: str
    counters: bool = False
    estimated_s: float | None = None
    model: ModelPoint | None = None


@frozen
class SweepPlan:
    """Entries, most valuable first. ``runtime``: whose fusions and calls the patterns follow (``torch`` or
    ``onnxruntime``). ``gpu``: the type whose estimates it was planned with, None for none. ``minutes``: the budget it
    was cut to, None for all. ``made_by``: the command, for people."""

    runtime: str
    entries: tuple[PlanEntry, ...]
    gpu: str | None = None
    minutes: float | None = None
    seed: int = 0
    made_by: str = ""

    @property
    def estimated_s(self) -> float | None:
        """Seconds of all entries together; None if that of one is not known."""
        each = [e.estimated_s for e in self.entries]
        if any(s is None for s in each):
            return None
        return sum(s for s in each if s is not None)

    def split(self, parts: int) -> tuple[SweepPlan, ...]:
        """``parts`` plans of about equal value and length: entries are dealt round robin. Raises UsageError."""
        if not 1 <= parts <= max(1, len(self.entries)):
            raise UsageError(f"cannot split {len(self.entries)} entries into {parts} plans")
        return tuple(replace(self, entries=self.entries[i::parts]) for i in range(parts))


def entry_id(fragment: Fragment, dtype: str) -> str:
    """``Conv-fp32-<16 hexadecimal digits>``: the same operator in the same arithmetic has the same id everywhere."""
    word = re.sub(r"[^A-Za-z0-9_]", "_", fragment.op_type)[:40]
    return f"{word}-{dtype}-{fragment.digest()}"


def write_plan(plan: SweepPlan, path: Path) -> None:
    """Write ``plan`` as JSON with one entry a line, wholly or not at all. Raises OutputError."""
    head = {
        "schema_version": PLAN_VERSION,
        "made_by": plan.made_by,
        "runtime": plan.runtime,
        "gpu": plan.gpu,
        "minutes": plan.minutes,
        "seed": plan.seed,
    }
    lines = [json.dumps(_entry_document(e), allow_nan=False) for e in plan.entries]
    text = (
        json.dumps(head, indent=1, allow_nan=False)[:-2] + ',\n "entries": [\n' + ",\n".join(lines) + "\n]}\n"
    )
    write_bytes(path, text.encode())


def _entry_document(entry: PlanEntry) -> dict[str, Any]:
    point = entry.model
    return {
        "id": entry.id,
        **({} if point is None else {"model": _point_document(point)}),
        "dtype": entry.dtype,
        "source": entry.source,
        "counters": entry.counters,
        "estimated_s": entry.estimated_s,
        "fragment": entry.fragment.document(),
    }


def _point_document(point: ModelPoint) -> dict[str, Any]:
    return {"name": point.name, "batch_size": point.batch_size, "dims": dict(sorted(point.dims.items()))}


def read_plan(path: Path) -> SweepPlan:
    """The plan in the file at ``path``. An entry without an ``id`` (added by hand) is given its own; one whose
    fragment was edited must lose its old id. Raises UsageError in one line naming file, entry and field."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path}: not a regular file, expected a sweep plan (JSON)")
        if status.st_size > MAX_PLAN_BYTES:
            raise UsageError(
                f"{path}: {status.st_size:,} bytes, expected a plan of at most {MAX_PLAN_BYTES:,}"
            )
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as e:
        raise UsageError(f"{path}: not a sweep plan: {getattr(e, 'strerror', None) or e}") from e
    return plan_from_document(document, where=str(path))


def plan_from_document(document: Any, *, where: str) -> SweepPlan:
    """The plan that JSON values describe. Raises UsageError as :func:`read_plan`."""
    if not isinstance(document, dict) or document.get("schema_version") != PLAN_VERSION:
        if isinstance(document, dict):
            found = document.get("schema_version")
        else:
            found = type(document).__name__
        raise UsageError(
            f"{where}: schema_version: found {found!r}, expected a sweep plan of version {PLAN_VERSION}"
        )
    known = {"schema_version", "made_by", "runtime", "gpu", "minutes", "seed", "entries"}
    for key in document:
        if key not in known:
            raise UsageError(
                f"{where}: {key!r} is no field of a sweep plan (known: {', '.join(sorted(known))})"
            )
    entries = document.get("entries")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_ENTRIES:
        raise UsageError(f"{where}: entries: expected a list of 1 to {MAX_ENTRIES:,} entries")
    runtime = document.get("runtime")
    if not isinstance(runtime, str) or runtime not in RUNTIMES:
        raise UsageError(f"{where}: runtime: found {runtime!r}, expected {runtime_words()}")
    minutes = document.get("minutes")
    seed = document.get("seed", 0)
    gpu = document.get("gpu")
    if minutes is not None and not (_is_number(minutes) and minutes > 0):
        raise UsageError(f"{where}: minutes: found {minutes!r}, expected a positive number or null")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UsageError(f"{where}: seed: found {seed!r}, expected a whole number")
    if gpu is not None and not isinstance(gpu, str):
        raise UsageError(f"{where}: gpu: found {gpu!r}, expected a name or null")
    plan = SweepPlan(
        runtime=runtime,
        entries=tuple(_entry(e, f"{where}: entry {i}") for i, e in enumerate(entries, start=1)),
        gpu=gpu,
        minutes=None if minutes is None else float(minutes),
        seed=seed,
        made_by=str(document.get("made_by", ""))[:500],
    )
    _refuse_twice(plan.entries, where)
    return plan


def _refuse_twice(entries: Sequence[PlanEntry], where: str) -> None:
    seen: dict[str, int] = {}
    for number, entry in enumerate(entries, start=1):
        first = seen.setdefault(entry.id, number)
        if first != number:
            raise UsageError(f"{where}: entries {first} and {number} are both {entry.id}; expected each once")


def _entry(document: Any, where: str) -> PlanEntry:
    if not isinstance(document, dict):
        raise UsageError(f"{where}: found {type(document).__name__}, expected an object")
    known = {"id", "dtype", "source", "counters", "estimated_s", "model", "fragment"}
    for key in document:
        if key not in known:
            raise UsageError(f"{where}: {key!r} is no field of an entry (known: {', '.join(sorted(known))})")
    dtype = document.get("dtype")
    source = document.get("source", "by hand")
    if dtype not in DTYPES:
        raise UsageError(f"{where}: dtype: found {dtype!r}, expected one of {', '.join(DTYPES)}")
    if not isinstance(source, str) or not source.isprintable() or len(source) > 200:
        raise UsageError(f"{where}: source: found {str(source)[:40]!r}, expected a short text")
    counters = document.get("counters", False)
    seconds = document.get("estimated_s")
    if not isinstance(counters, bool):
        raise UsageError(f"{where}: counters: found {counters!r}, expected true or false")
    if seconds is not None and not (_is_number(seconds) and seconds >= 0):
        raise UsageError(f"{where}: estimated_s: found {seconds!r}, expected seconds or null")
    try:
        fragment = Fragment.from_document(document.get("fragment"), where=f"{where}: fragment")
    except GkestimatorError as e:
        raise UsageError(str(e)) from e
    point = _point(document.get("model"), where, whole=fragment.is_model)
    own = entry_id(fragment, dtype)
    given = document.get("id")
    if given is not None and given != own:
        if not isinstance(given, str) or not _ID.match(given):
            raise UsageError(f"{where}: id: found {str(given)[:40]!r}, expected {own}, or none")
        raise UsageError(
            f"{where}: id {given} is not that of its fragment ({own}); remove the id of an edited entry"
        )
    return PlanEntry(
        id=own,
        fragment=fragment,
        dtype=dtype,
        source=source,
        counters=counters,
        estimated_s=None if seconds is None else float(seconds),
        model=point,
    )


def _point(found: Any, where: str, *, whole: bool) -> ModelPoint | None:
    if (found is not None) != whole:
        what = "none, for its fragment is no whole model" if found is not None else "which model this is"
        raise UsageError(f"{where}: model: found {type(found).__name__}, expected {what}")
    if found is None:
        return None
    if not isinstance(found, dict) or not {"name", "batch_size"} <= found.keys() <= {
        "name",
        "batch_size",
        "dims",
    }:
        raise UsageError(f"{where}: model: expected an object of name, batch_size and dims")
    name = found["name"]
    batch = found["batch_size"]
    dims = found.get("dims", {})
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 200:
        raise UsageError(f"{where}: model.name: found {str(name)[:40]!r}, expected a short text")
    if batch is not None and not _is_size(batch):
        raise UsageError(
            f"{where}: model.batch_size: found {batch!r}, expected a whole number from 1, or null"
        )
    if not isinstance(dims, dict) or not all(
        k and k.isprintable() and len(k) <= 200 and _is_size(v) for k, v in dims.items()
    ):
        raise UsageError(f"{where}: model.dims: expected whole numbers from 1 by name")
    return ModelPoint(name=name, batch_size=batch, dims=dims)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def _no_constant(text: str) -> float:
    raise ValueError(f"found {text}, expected a finite number")


def plan_of(entries: Iterable[tuple[Fragment, str, str]], *, runtime: str) -> SweepPlan:
    """A plan of (fragment, dtype, source) as they come, each operator once: for tests and for small sweeps."""
    planned: dict[str, PlanEntry] = {}
    for fragment, dtype, source in entries:
        name = entry_id(fragment, dtype)
        planned.setdefault(name, PlanEntry(id=name, fragment=fragment, dtype=dtype, source=source))
    return SweepPlan(runtime=runtime, entries=tuple(planned.values()))
