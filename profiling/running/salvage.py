"""Chunks in the making that a killed run left behind: without a profiler, whole records are all that there is to a
chunk, and they need not be measured again."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection
from pathlib import Path

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.texts import parse_json
from gkestimator.profiling.collectors import records_launches
from gkestimator.profiling.raw import ChunkInfo, document_of
from gkestimator.profiling.records import read_records, record_line
from gkestimator.profiling.running.folder import RawFolder
from gkestimator.tables import write_bytes

# The ChunkInfo of a chunk in the making, its entries those that were asked for.
DRAFT_FILE = "draft.json"


def write_draft(folder: Path, info: ChunkInfo) -> None:
    """Leave word of what a chunk in the making is."""
    write_bytes(folder / DRAFT_FILE, json.dumps(document_of(info), allow_nan=False).encode())


def keep_files(folder: Path, names: Collection[str]) -> None:
    """Leave those files in a chunk in the making, and nothing else."""
    for path in list(folder.iterdir()):
        if path.name in names:
            path.chmod(path.stat().st_mode & ~0o022)  # nsys lets its target write files that anyone may write
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def salvage(raw: RawFolder) -> int:
    """Commit the records of chunks in the making that had no collector; return how many chunks were worth it.
    Whatever cannot be read is left for :meth:`RawFolder.clean`."""
    saved = 0
    for name, folder in raw.chunks.unfinished().items():
        if folder.with_name(name).exists() or not name[:6].isdigit():
            continue
        # Half-written: its entries are measured again.
        with contextlib.suppress(OSError, GkestimatorError, ValueError, KeyError, TypeError):
            saved += _commit(raw, folder)
    return saved


def _commit(raw: RawFolder, folder: Path) -> bool:
    draft = parse_json((folder / DRAFT_FILE).read_bytes())
    if records_launches(draft["collector"]):
        return False
    asked = set(draft["entries"])
    records = {r.entry_id: r for r in read_records(folder / "records.jsonl") if r.entry_id in asked}
    if not records:
        return False
    keep_files(folder, ("records.jsonl", "environment.jsonl", "child.log"))
    write_bytes(folder / "records.jsonl", "".join(map(record_line, records.values())).encode())
    info = draft | {"entries": list(records), "problems": ["the run was cut off; its records were saved"]}
    write_bytes(folder / "chunk.json", (json.dumps(info, indent=1) + "\n").encode())
    raw.chunks.commit(folder)
    return True
