"""All raw folders that a command line means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gkestimator.core.errors import GkestimatorError
from gkestimator.jobs.stopping import Progress
from gkestimator.profiling.building.contents import Problems, RawContents, Tools
from gkestimator.profiling.building.reading import read_raw
from gkestimator.profiling.raw import run_folders


def read_folders(
    raws: Sequence[Path],
    tools: Tools,
    problems: Problems,
    progress: Progress | None,
    *,
    whole: bool = False,
) -> list[RawContents]:
    """Return what the raw folders at ``raws`` (themselves, or up to two levels below) hold of operators, or
    of whole models; what cannot be read is among the problems."""
    folders: list[Path] = []
    for raw in raws:
        below = run_folders(raw)
        if not below:
            problems.line(
                f"{raw}: no raw folder of gkest profile run (no run.json in it, or up to two levels below)"
            )
        folders += below
    contents = []
    for done, folder in enumerate(dict.fromkeys(f.resolve() for f in folders)):
        if progress is not None:
            progress(f"reading {folder.name}", done, len(folders))
        try:
            contents.append(read_raw(folder, tools, problems, whole=whole))
        except GkestimatorError as e:
            problems.line(str(e))
    return contents


def why_nothing(
    raws: Sequence[Path], contents: Sequence[RawContents], problems: Problems, *, made: str, of: str
) -> str:
    """Say why nothing came of the raw folders at ``raws``, in one line: ``made`` says what did not (nothing
    to build), ``of`` what it would have been made of (operator)."""
    listed = ", ".join(map(str, raws))
    lines = problems.all()
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        where = "" if lines[0].startswith(f"{listed}:") else f"{listed}: "
        return f"{where}{made}: {lines[0]}{more}"
    failed = [n for c in contents for n in c.not_measured]
    if failed:
        first = f"{failed[0].entry_id}: {failed[0].status}: {failed[0].reason}"
        return f"{listed}: no {of} was measured; {len(failed)} failed or were skipped, first {first}"
    return f"{listed}: no {of} was measured yet; gkest profile run goes on where it stopped"
