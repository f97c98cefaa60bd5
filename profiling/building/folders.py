"""All raw folders that a command line means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gkestimator.errors import GkestimatorError
from gkestimator.profiling.building.problems import Problems
from gkestimator.profiling.building.reading import RawContents, read_raw
from gkestimator.profiling.building.tools import Tools
from gkestimator.profiling.raw import run_folders

__all__ = ["Progress", "read_folders"]

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
