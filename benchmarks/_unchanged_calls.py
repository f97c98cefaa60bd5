"""Commands of gkest run in this process, and hashes of what they print and write.

Everything goes through ``gkestimator.cli.run``, the one name that stays where it is when modules move, so that the same
file measures a checkout before and after a refactoring.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "ROOT",
    "Answer",
    "call",
    "committed",
    "digest",
    "inside",
    "spread",
    "without_version",
    "write_rows",
]

ROOT = Path(__file__).resolve().parents[1]
VERSION = "schema_version"
_SKIPPED = {".git", "build", "dist", "node_modules", "__pycache__"}


@dataclass(frozen=True)
class Answer:
    """Hold the exit status of a command and what it wrote to its two streams."""

    status: int
    output: bytes
    errors: str


def call(arguments: Sequence[str | Path]) -> Answer:
    """Return the answer of ``gkest`` called with ``arguments`` in this process and the current folder."""
    from gkestimator.cli import run

    written = io.BytesIO()
    output = io.TextIOWrapper(written, encoding="utf-8", newline="")
    errors = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = run([str(a) for a in arguments])
    output.flush()
    return Answer(status, written.getvalue(), errors.getvalue())


def digest(answer: Answer, *files: Path) -> str:
    """Return the exit status and a hash of it, the output and ``files``, schema versions left out.

    What goes to stderr is not part of it: the words of errors and warnings may be mended, the status may not.
    """
    whole = hashlib.sha256(f"{answer.status}\n".encode())
    whole.update(without_version(answer.output))
    for path in files:
        content = path.read_bytes() if path.exists() else b"(not written)"
        whole.update(b"\0" + (content if path.suffix == ".onnx" else without_version(content)))
    return f"{answer.status} {whole.hexdigest()[:20]}"


def without_version(content: bytes) -> bytes:
    """Return JSON or CSV ``content`` without its schema versions; anything else as it is."""
    text = content.decode("utf-8", "surrogateescape")
    if text.lstrip().startswith(("{", "[")):
        return json.dumps(_pruned(json.loads(text))).encode()
    heading = text.split("\n", 1)[0].strip().split(",")
    if VERSION not in heading:
        return content
    column = heading.index(VERSION)
    rows = [row[:column] + row[column + 1 :] for row in csv.reader(io.StringIO(text))]
    return json.dumps(rows).encode()


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _pruned(v) for k, v in value.items() if k != VERSION}
    if isinstance(value, list):
        return [_pruned(v) for v in value]
    return value


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[Path]:
    """Make ``folder`` the current one for a while, so that outputs name no path of this machine."""
    before = Path.cwd()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


def committed(name: str) -> Path:
    """Return the file or folder of the checkout whose path ends in ``name``, wherever modules have moved it."""
    tail = Path(name).parts
    for folder, below, files in os.walk(ROOT):
        below[:] = sorted(b for b in below if b not in _SKIPPED and not b.startswith("."))
        for entry in (*below, *files):
            path = Path(folder, entry)
            if path.parts[-len(tail) :] == tail:
                return path
    sys.exit(f"{name}: found nothing of this name below {ROOT}")


def spread(files: Sequence[Path], folder: Path) -> list[str]:
    """Copy ``files`` into ``folder`` with their weights' files, where there are any; return their names."""
    names = []
    for path in files:
        shutil.copyfile(path, folder / path.name)
        names.append(path.name)
    return names


def write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write ``rows`` as CSV with the columns of the first row."""
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
