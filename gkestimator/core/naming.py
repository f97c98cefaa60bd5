"""Say which files a command line means, and what their models are called in tables."""

from __future__ import annotations

import difflib
import glob
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.escaping import printable

MAX_FILES = 100_000


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return what to ask about a misspelt ``name``, as the end of a sentence; nothing where no known one is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    if not close:
        return ""
    return f"; did you mean {close[0]}?"


def distinct_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return one name per path, all different: the file stem, or with the fewest parents that tell the stems apart.

    ``timm/resnet50`` and ``ethz/resnet50`` for two files called ``resnet50.onnx``. Files that differ in their
    suffix alone keep it; a path given twice is numbered (``resnet50#2``). What cannot be printed is escaped.
    """
    absolute = [Path(printable(os.path.abspath(p))) for p in paths]
    groups: dict[str, list[int]] = {}
    for i, path in enumerate(absolute):
        groups.setdefault(path.stem, []).append(i)
    names = [""] * len(paths)
    for stem, members in groups.items():
        distinct = sorted({absolute[i] for i in members})
        by_path = dict(zip(distinct, _tails(stem, distinct), strict=True))
        seen: Counter[str] = Counter()
        for i in members:
            name = by_path[absolute[i]]
            seen[name] += 1
            names[i] = name if seen[name] == 1 else f"{name}#{seen[name]}"
    return tuple(names)


def _tails(stem: str, paths: Sequence[Path]) -> list[str]:
    if len(paths) == 1:
        return [stem]
    for last in (stem, None):
        for depth in range(1 if last else 0, max(len(p.parts) for p in paths)):
            tails = ["/".join([*p.parent.parts[1:][-depth:][:depth], last or p.name]) for p in paths]
            if len(set(tails)) == len(tails):
                return tails
    return [str(p) for p in paths]


def find_models(
    arguments: Sequence[str],
) -> tuple[tuple[Path, ...], tuple[tuple[Path, GkestimatorError], ...]]:
    """Return the model files that ``arguments`` mean, each once, and the arguments that mean none with the reason.

    An argument is a file (whether it can be read is found out later), a folder (every ``*.onnx`` below it,
    sorted; links to folders are not followed) or a pattern (``*``, ``?``, ``[...]``, ``**``). Folders and
    patterns stop at MAX_FILES.
    """
    models: dict[str, Path] = {}
    failures: list[tuple[Path, GkestimatorError]] = []
    for argument in arguments:
        path = Path(argument)
        try:
            if path.is_dir():
                matches = _below(path)
                reason = f"{path}: found a folder without models, expected *.onnx files in it"
            elif not path.exists() and glob.has_magic(argument):
                matches = _matching(argument)
                reason = f"{argument}: no file matches this pattern"
            else:
                matches = [path]
                reason = ""
            if not matches:
                raise UsageError(reason)
        except GkestimatorError as e:
            failures.append((path, e))
            continue
        except (OSError, ValueError) as e:
            failures.append((path, UsageError(f"{argument}: cannot be looked up: {e}")))
            continue
        for match in matches:
            models.setdefault(os.path.realpath(match), match)
    return tuple(models.values()), tuple(failures)


def _below(folder: Path) -> list[Path]:
    models: list[Path] = []
    seen = 0
    for parent, _, names in os.walk(folder):
        seen += len(names) + 1
        if seen > MAX_FILES:
            raise UsageError(f"{folder}: found more than {MAX_FILES:,} files, expected a smaller folder")
        models += [Path(parent, name) for name in names if name.lower().endswith(".onnx")]
    return sorted(models)


def _matching(pattern: str) -> list[Path]:
    matches: list[Path] = []
    for name in glob.iglob(pattern, recursive=True):
        matches.append(Path(name))
        if len(matches) > MAX_FILES:
            raise UsageError(f"{pattern}: matches more than {MAX_FILES:,} files, expected fewer")
    return sorted(p for p in matches if not p.is_dir())
