"""Find the file, GPU, runtime and dtype that a measured row means; what cannot be told fails that row alone."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, UsageError, one_line
from gkestimator.core.naming import distinct_names
from gkestimator.core.options import spelled
from gkestimator.core.records import frozen
from gkestimator.evaluation.truth import Measurement, Truth
from gkestimator.hardware.gpus import GpuCatalogue


@frozen
class Matched:
    """Hold a measurement with everything that an estimate of it needs."""

    measurement: Measurement
    path: Path
    name: str
    gpu: str
    runtime: str
    dtype: str


def match_rows(
    truth: Truth,
    models: Sequence[Path],
    catalogue: GpuCatalogue,
    *,
    gpu: str | None,
    runtime: str,
    dtype: str,
) -> tuple[list[Matched], list[GkestimatorError], list[str]]:
    """Return the rows that can be estimated, one error for each model or GPU that is not found, and messages.

    A ``model`` that ends in ``.onnx`` is a path (relative to the truth's folder, else to the current one);
    any other is looked for among ``models`` by stem, or by the shortest tail that tells equal stems apart.
    ``gpu`` stands in where the truth names none. Raises UsageError where neither does.
    """
    named: dict[str, Path] = {}
    for text in dict.fromkeys(m.model for m in truth.measurements):
        path_named = _as_path(text, truth.path.parent)
        if path_named is not None:
            named[text] = path_named
    files = _ModelFiles(models, named)
    gpus: dict[str, str | GkestimatorError] = {}
    notes: list[str] = []
    matched: list[Matched] = []
    # By text: a thousand rows of one missing model are one line.
    wrong: dict[str, tuple[GkestimatorError, list[int]]] = {}
    if gpu is not None:
        _, note = catalogue.resolve(gpu)  # an unknown option fails the command, not a row
        if note:
            notes.append(note)
    for m in truth.measurements:
        asked = m.gpu or gpu
        if asked is None:
            raise UsageError(
                f"{truth.path}: row {m.row}: names no GPU: expected a column gpu, or "
                f"{spelled('gpu')} for every row"
            )
        try:
            name, path = files.find(m.model)
            # Remembered with its error: looking for names like it takes long in a table of many rows.
            canonical = gpus.get(asked) or gpus.setdefault(asked, _canonical(catalogue, asked))
            if isinstance(canonical, GkestimatorError):
                raise canonical
        except GkestimatorError as e:
            wrong.setdefault(str(e), (e, []))[1].append(m.row)
            continue
        match = Matched(
            measurement=m,
            path=path,
            name=name,
            gpu=canonical,
            runtime=m.runtime or runtime,
            dtype=m.dtype or dtype,
        )
        matched.append(match)
    failures = [type(e)(f"{truth.path.name}: {_rows(rows)}: {e}") for e, rows in wrong.values()]
    return matched, failures, notes


def _as_path(text: str, beside: Path) -> Path | None:
    """Return the file that ``text`` names as a path, None where it is no path or there is none."""
    path = Path(text)
    if path.suffix.lower() != ".onnx":
        return None
    candidates = (beside / path, path)  # the first is the second where the path is absolute
    try:
        return next((candidate for candidate in candidates if candidate.is_file()), None)
    except (OSError, ValueError):
        return None


def _canonical(catalogue: GpuCatalogue, name: str) -> str | GkestimatorError:
    try:
        return catalogue.resolve(name)[0].name
    except GkestimatorError as e:
        return e


def _rows(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"row {numbers[0]}"
    return f"{len(numbers)} rows from row {numbers[0]} on"


class _ModelFiles:
    """Hold model files by every name that a table may call them: by stem or tail, or as the text itself."""

    def __init__(self, paths: Sequence[Path], by_text: Mapping[str, Path]) -> None:
        everything = list(dict.fromkeys([*paths, *by_text.values()]))
        names = dict(zip(everything, distinct_names(everything), strict=True))
        self._by_text = {text: (names[path], path) for text, path in by_text.items()}
        self._by_name: Mapping[str, Path] = {names[path]: path for path in paths}
        self._by_stem: dict[str, list[str]] = {}
        for name, path in self._by_name.items():
            self._by_stem.setdefault(path.stem, []).append(name)

    def find(self, text: str) -> tuple[str, Path]:
        """Return name and path of the model that ``text`` means. Raises UsageError."""
        if text in self._by_name:
            return text, self._by_name[text]
        if text in self._by_text:
            return self._by_text[text]
        path = Path(text)
        if path.suffix.lower() == ".onnx":
            text = path.stem
        names = self._by_stem.get(text, [])
        if len(names) == 1:
            return text, self._by_name[names[0]]
        shown = one_line(path, limit=80)
        if names:
            raise UsageError(f"model {shown} is one of {', '.join(names)}: expected one of these names")
        if not self._by_name:
            raise UsageError(
                f"model {shown}: found no such file; name the folder of the models with {spelled('models')}"
            )
        close = difflib.get_close_matches(text, [*self._by_name, *self._by_stem], n=1, cutoff=0.6)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(
            f"model {shown}: no {one_line(text, limit=80)}.onnx among {len(self._by_name)} models{hint}"
        )
