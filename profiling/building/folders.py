"""All raw folders that a command line means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.building.problems import Problems
from gkestimator.profiling.building.reading import RawContents, read_raw
from gkestimator.profiling.building.tools import Tools
from gkestimator.profiling.raw import run_folders

Progress = Callable[[str, int, int], None]


def read_folders(
    raws: Sequence[Path],
    tools: Tools,
    problems: Problems,
    progress: Progress | None,
    *,
    whole: bool = False,
) -> list[RawContents]:
    """What the raw folders at ``raws`` (themselves, or up to two levels below) hold of operators, or of whole models;
    what cannot be read is among the problems."""
    folders: list[Path] = []
    for raw in raws:
        found = run_folders(raw)
        if not found:
            problems.line(
                f"{raw}: no raw folder of gkest profile run (no run.json in it, or up to two levels below)"
            )
        folders += found
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
    """Why nothing came of the raw folders at ``raws``, in one line: ``made`` says what did not (nothing to build),
    ``of`` what it would have been made of (operator)."""
    listed = ", ".join(str(r) for r in raws)
    lines = problems.all()
    if lines:
        if len(lines) > 1:
            more = f" (and {len(lines) - 1} more)"
        else:
            more = ""
        if lines[0].startswith(f"{listed}:"):
            where = ""
        else:
            where = f"{listed}: "
        return f"{where}{made}: {lines[0]}{more}"
    reasons = [f"{n.entry_id}: {n.status}: {n.reason}" for c in contents for n in c.not_measured]
    if reasons:
        return f"{listed}: no {of} was measured; {len(reasons)} failed or were skipped, first {reasons[0]}"
    return f"{listed}: no {of} was measured yet; gkest profile run goes on where it stopped"
