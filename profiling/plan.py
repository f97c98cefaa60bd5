"""Sweep plans: the operators to measure, in order of value, as a file that people read, edit, split and resume."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.escaping import is_line
from gkestimator.core.files import FileWords, opened
from gkestimator.core.fragments import Fragment
from gkestimator.core.records import frozen
from gkestimator.core.texts import parse_json
from gkestimator.hardware.runtimes import RUNTIMES, runtime_words
from gkestimator.profiling.type_names import CountByName, Fields, Members, Paths
from gkestimator.tables import write_bytes

PLAN_VERSION = 1
DTYPES = ("fp32", "tf32", "fp16", "bf16")
"""Arithmetic of an entry. The fragment's tensors are float for fp32 and tf32, float16 or bfloat16 for the others;
executors switch TF32 off for fp32 and on for tf32."""
MAX_PLAN_BYTES = 256 * 2**20
MAX_ENTRIES = 100_000
_WORDS = FileWords(
    error=UsageError,
    unreadable="not a sweep plan",
    not_regular="not a regular file, expected a sweep plan (JSON)",
    too_large="{size:,} bytes, expected a plan of at most {limit:,}",
)
_PLAN_FIELDS = frozenset({"schema_version", "made_by", "runtime", "gpu", "minutes", "seed", "entries"})
_ENTRY_FIELDS = frozenset({"id", "dtype", "source", "counters", "estimated_s", "model", "fragment"})
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}\Z")


@frozen
class ModelPoint:
    """Say which row of a requirement table a whole model is: ``name`` as estimates have it (the file's stem),
    ``batch_size`` (None: no input has a batch) and the numbers of its other symbolic dimensions."""

    name: str
    batch_size: int | None
    dims: CountByName = field(default_factory=dict)


@frozen
class PlanEntry:
    """Hold one operator, pattern or whole model to measure.

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
    """Hold entries, most valuable first. ``runtime``: whose fusions and calls the patterns follow (``torch`` or
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
        """Return the seconds of all entries together; None if that of one is not known."""
        total = 0.0
        for entry in self.entries:
            if entry.estimated_s is None:
                return None
            total += entry.estimated_s
        return total

    def split(self, parts: int) -> tuple[SweepPlan, ...]:
        """Return ``parts`` plans of about equal value and length: entries are dealt round robin. Raises UsageError."""
        if not 1 <= parts <= max(1, len(self.entries)):
            raise UsageError(f"cannot split {len(self.entries)} entries into {parts} plans")
        plans = []
        for first in range(parts):
            dealt = self.entries[first::parts]
            plans.append(replace(self, entries=dealt))
        return tuple(plans)


def entry_id(fragment: Fragment, dtype: str) -> str:
    """Return ``Conv-fp32-<16 hexadecimal digits>``: the same operator in the same arithmetic has the same id
    everywhere."""
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
    # One entry a line: people cut and split plans with text tools.
    opened = json.dumps(head, indent=1, allow_nan=False).removesuffix("\n}")
    lines = ",\n".join(json.dumps(_entry_document(entry), allow_nan=False) for entry in plan.entries)
    write_bytes(path, f'{opened},\n "entries": [\n{lines}\n]}}\n'.encode())


def part_paths(path: Path, parts: int) -> Paths:
    """Return, for ``plan.json`` in 4 parts: ``plan-1of4.json``, ..., ``plan-4of4.json``."""
    paths = []
    for number in range(1, parts + 1):
        name = f"{path.stem}-{number}of{parts}{path.suffix}"
        paths.append(path.with_name(name))
    return tuple(paths)


def write_plans(
    plan: SweepPlan, path: Path, split: int | None = None, *, read: Iterable[Path | str] = ()
) -> Paths:
    """Write ``plan``, or ``split`` plans that share its entries, and say where.

    ``read``: files that the plan was made from, which it must not replace. Raises UsageError, OutputError.
    """
    for source in read:
        there = os.path.exists(path) and os.path.exists(source)
        if there and os.path.samefile(path, source):
            raise UsageError(f"-o {path}: is also read (as {source}); expected a file of its own")
    if split is None:
        write_plan(plan, path)
        return (path,)
    paths = part_paths(path, split)
    for part, target in zip(plan.split(split), paths, strict=True):
        write_plan(part, target)
    return paths


def _entry_document(entry: PlanEntry) -> Fields:
    document: Fields = {"id": entry.id}
    if entry.model is not None:
        document["model"] = {
            "name": entry.model.name,
            "batch_size": entry.model.batch_size,
            "dims": dict(sorted(entry.model.dims.items())),
        }
    return document | {
        "dtype": entry.dtype,
        "source": entry.source,
        "counters": entry.counters,
        "estimated_s": entry.estimated_s,
        "fragment": entry.fragment.document(),
    }


def read_plan(path: Path) -> SweepPlan:
    """Return the plan in the file at ``path``. An entry without an ``id`` (added by hand) is given its own; one whose
    fragment was edited must lose its old id. Raises UsageError in one line naming file, entry and field."""
    with opened(path, _WORDS, MAX_PLAN_BYTES) as stream:
        document = parse_json(stream.read())
    return _plan(document, str(path))


def _plan(document: Any, where: str) -> SweepPlan:
    version = document.get("schema_version") if isinstance(document, dict) else type(document).__name__
    if version != PLAN_VERSION:
        raise UsageError(
            f"{where}: schema_version: found {version!r}, expected a sweep plan of version {PLAN_VERSION}"
        )
    _refuse_unknown(document, _PLAN_FIELDS, f"{where}: {{!r}} is no field of a sweep plan")
    entries = document.get("entries")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_ENTRIES:
        raise UsageError(f"{where}: entries: expected a list of 1 to {MAX_ENTRIES:,} entries")
    fields = _Fields(document, f"{where}: ")
    runtime = fields.take("runtime", runtime_words(), lambda value: value in tuple(RUNTIMES))
    minutes = fields.take("minutes", "a positive number or null", _is_positive_or_null)
    seed = fields.take("seed", "a whole number", lambda value: type(value) is int, default=0)
    gpu = fields.take("gpu", "a name or null", lambda value: value is None or isinstance(value, str))
    read = []
    for number, entry in enumerate(entries, start=1):
        read.append(_entry(entry, f"{where}: entry {number}"))
    plan = SweepPlan(
        runtime=runtime,
        entries=tuple(read),
        gpu=gpu,
        minutes=None if minutes is None else float(minutes),
        seed=seed,
        made_by=str(document.get("made_by", ""))[:500],
    )
    _refuse_twice(plan.entries, where)
    return plan


def _refuse_unknown(document: Members, known: Collection[str], complaint: str) -> None:
    for key in document:
        if key not in known:
            raise UsageError(f"{complaint.format(key)} (known: {', '.join(sorted(known))})")


class _Fields:
    """Read the fields of an object, each checked; ``prefix``: where they stand, in the words of an error."""

    def __init__(self, document: Members, prefix: str) -> None:
        self._document = document
        self._prefix = prefix

    def take(self, name: str, expected: str, fits: Callable[[Any], bool], *, default: Any = None) -> Any:
        """Return a field that ``fits``. Raises UsageError naming it, what was found and what was ``expected``."""
        value = self._document.get(name, default)
        if not fits(value):
            raise UsageError(f"{self._prefix}{name}: found {value!r}, expected {expected}")
        return value

    def short_text(self, name: str, *, default: Any = None, least: int = 0) -> str:
        """Return a field of ``least`` to 200 printable characters."""
        value = self._document.get(name, default)
        if not is_line(value, 200, least=least):
            raise UsageError(f"{self._prefix}{name}: found {str(value)[:40]!r}, expected a short text")
        return value


def _refuse_twice(entries: Sequence[PlanEntry], where: str) -> None:
    # Two of one id would be measured twice and be one row.
    seen: dict[str, int] = {}
    for number, entry in enumerate(entries, start=1):
        first = seen.setdefault(entry.id, number)
        if first != number:
            raise UsageError(f"{where}: entries {first} and {number} are both {entry.id}; expected each once")


def _entry(document: Any, where: str) -> PlanEntry:
    if not isinstance(document, dict):
        raise UsageError(f"{where}: found {type(document).__name__}, expected an object")
    _refuse_unknown(document, _ENTRY_FIELDS, f"{where}: {{!r}} is no field of an entry")
    fields = _Fields(document, f"{where}: ")
    dtype = fields.take("dtype", f"one of {', '.join(DTYPES)}", lambda value: value in DTYPES)
    source = fields.short_text("source", default="by hand")
    counters = fields.take("counters", "true or false", lambda value: type(value) is bool, default=False)
    seconds = fields.take("estimated_s", "seconds or null", _is_number_or_null)
    try:
        fragment = Fragment.from_document(document.get("fragment"), where=f"{where}: fragment")
    except GkestimatorError as e:
        raise UsageError(str(e)) from e
    point = _point(document.get("model"), where, whole=fragment.is_model)
    own = entry_id(fragment, dtype)
    _refuse_another_id(document.get("id"), own, where)
    return PlanEntry(
        id=own,
        fragment=fragment,
        dtype=dtype,
        source=source,
        counters=counters,
        estimated_s=None if seconds is None else float(seconds),
        model=point,
    )


def _refuse_another_id(written: Any, own: str, where: str) -> None:
    """Refuse an id that is not that of the fragment: rows of measurements are joined by it."""
    if written is None or written == own:
        return
    if not isinstance(written, str) or not _ID.match(written):
        raise UsageError(f"{where}: id: found {str(written)[:40]!r}, expected {own}, or none")
    raise UsageError(
        f"{where}: id {written} is not that of its fragment ({own}); remove the id of an edited entry"
    )


def _point(document: Any, where: str, *, whole: bool) -> ModelPoint | None:
    if (document is not None) != whole:
        what = "which model this is" if whole else "none, for its fragment is no whole model"
        raise UsageError(f"{where}: model: found {type(document).__name__}, expected {what}")
    if document is None:
        return None
    required = {"name", "batch_size"}
    if not isinstance(document, dict) or not required <= document.keys() <= required | {"dims"}:
        raise UsageError(f"{where}: model: expected an object of name, batch_size and dims")
    fields = _Fields(document, f"{where}: model.")
    name = fields.short_text("name", least=1)
    batch_size = fields.take("batch_size", "a whole number from 1, or null", _is_size_or_null)
    dims = document.get("dims", {})
    if not isinstance(dims, dict) or not all(map(_is_dimension, dims, dims.values())):
        raise UsageError(f"{where}: model.dims: expected whole numbers from 1 by name")
    return ModelPoint(name=name, batch_size=batch_size, dims=dims)


def _is_dimension(name: str, size: object) -> bool:
    return is_line(name, 200, least=1) and size is not None and _is_size_or_null(size)


def _is_size_or_null(value: Any) -> bool:
    return value is None or (type(value) is int and 1 <= value < 2**31)


def _is_number_or_null(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < 1e12)


def _is_positive_or_null(value: Any) -> bool:
    return value != 0 and _is_number_or_null(value)


def plan_of(entries: Iterable[tuple[Fragment, str, str]], *, runtime: str) -> SweepPlan:
    """Return a plan of (fragment, dtype, source) as they come, each operator once: for tests and for small sweeps."""
    planned: dict[str, PlanEntry] = {}
    for fragment, dtype, source in entries:
        name = entry_id(fragment, dtype)
        planned.setdefault(name, PlanEntry(id=name, fragment=fragment, dtype=dtype, source=source))
    return SweepPlan(runtime=runtime, entries=tuple(planned.values()))
