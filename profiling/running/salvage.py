"""Chunks in the making that a killed run left behind: without a profiler, whole records are all that there is to a
chunk, and they need not be measured again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.collectors import records_launches
from gkestimator.profiling.raw import ChunkInfo, document_of
from gkestimator.profiling.records import EntryRecord, read_records, record_line
from gkestimator.profiling.running.folder import ASIDE, RawFolder
from gkestimator.tables import write_bytes

DRAFT_FILE = "draft.json"
"""The ChunkInfo of a chunk in the making, its entries those that were asked for."""


def write_draft(folder: Path, info: ChunkInfo) -> None:
    """Leave word of what a chunk in the making is."""
    write_bytes(folder / DRAFT_FILE, json.dumps(document_of(info), allow_nan=False).encode())


def salvage(raw: RawFolder) -> int:
    """Commit the records of chunks in the making that had no collector; how many chunks were worth it. Whatever
    cannot be read is left for :meth:`RawFolder.clean`."""
    saved = 0
    for folder in sorted(raw.chunks.glob(f"{ASIDE}*")):
        name = folder.name.removeprefix(ASIDE)
        if (raw.chunks / name).exists() or not name[:6].isdigit():
            continue
        try:
            saved += _commit(raw, folder, name)
        except (OSError, GkestimatorError, ValueError, KeyError, TypeError):
            continue  # half-written: its entries are measured again
    return saved


def _commit(raw: RawFolder, folder: Path, name: str) -> bool:
    draft = json.loads((folder / DRAFT_FILE).read_text(encoding="utf-8"))
    asked = set(draft["entries"])
    if records_launches(draft["collector"]):
        return False
    records: dict[str, EntryRecord] = {
        r.entry_id: r for r in read_records(folder / "records.jsonl") if r.entry_id in asked
    }
    if not records:
        return False
    for path in list(folder.iterdir()):
        if path.name not in ("records.jsonl", "environment.jsonl", "child.log"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    write_bytes(folder / "records.jsonl", "".join(record_line(r) for r in records.values()).encode())
    info = draft | {"entries": list(records), "problems": ["the run was cut off; its records were saved"]}
    write_bytes(folder / "chunk.json", (json.dumps(info, indent=1) + "\n").encode())
    raw.commit(folder, name)
    return True
