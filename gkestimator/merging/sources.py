"""Tell which files are merged, and at which batch size and lengths each is priced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.errors import UsageError
from gkestimator.core.naming import find_models
from gkestimator.core.records import frozen
from gkestimator.merging.editing import DimSizes, Numbers
from gkestimator.merging.naming import model_names
from gkestimator.merging.options import MOST_MODELS, MergeOptions

Sizes: TypeAlias = "dict[str, int]"


@frozen
class MergeSource:
    """Hold one model of a merge: its file, the prefix of its inputs and outputs, the batch size that it is
    priced at (None: as exported, a symbolic one 1), and numbers for its symbolic dimensions.
    """

    path: Path
    name: str
    batch_size: int | None = None
    dims: DimSizes = field(default_factory=dict)


def files_of(arguments: Sequence[str]) -> tuple[Path, ...]:
    """Return the files that ``arguments`` mean, in their order: a file as often as it is named (a model may
    be merged with itself), a folder or a pattern as for an estimate. Raises UsageError for what means none.
    """
    files: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        try:
            # before patterns: a file may have a bracket in its name
            if path.is_file():
                files.append(path)
                continue
            matches, failures = find_models([argument])
        except (OSError, ValueError) as e:
            raise UsageError(f"{argument}: cannot be looked up: {e}") from e
        if failures:
            raise failures[0][1]
        for match in matches:
            if not match.is_file():
                if match.exists():
                    what = "something other than a regular file"
                else:
                    what = "no such file"
                raise UsageError(f"{match}: found {what}, expected an ONNX file, a folder or a pattern")
        files += matches
    return tuple(files)


def sources_of(paths: Sequence[Path], options: MergeOptions) -> tuple[MergeSource, ...]:
    """Return ``paths`` with their names and the batch sizes of ``options``.

    Raises UsageError: fewer than two models, more than ``MOST_MODELS``, batch sizes that are neither one for
    all nor one each.
    """
    count = len(paths)
    if count < 2:
        ending = "s"
        if count == 1:
            ending = ""
        raise UsageError(f"found {count} model{ending}, expected at least two to merge")
    if count > MOST_MODELS:
        raise UsageError(f"found {count:,} models, expected at most {MOST_MODELS} in one file")
    batches = _batches(options.batch_sizes, count)
    names = model_names(paths)
    sources = []
    for path, name, batch in zip(paths, names, batches, strict=True):
        dims = _dims(options.dims, name, names)
        sources.append(MergeSource(path=path, name=name, batch_size=batch, dims=dims))
    return tuple(sources)


def _dims(dims: DimSizes, name: str, names: Sequence[str]) -> Sizes:
    """Return the numbers for one model: ``seq`` is for every model, ``bert/seq`` for that of the name, and
    goes before.
    """
    every: Sizes = {}
    own: Sizes = {}
    prefixes = tuple(f"{other}/" for other in names)
    for key, size in dims.items():
        if key.startswith(f"{name}/"):
            own[key.removeprefix(f"{name}/")] = size
        elif not key.startswith(prefixes):
            every[key] = size
    return every | own


def _batches(sizes: Numbers | None, models: int) -> tuple[int | None, ...]:
    if sizes is None:
        return (None,) * models
    if len(sizes) not in (1, models):
        raise UsageError(f"found {len(sizes)} batch sizes for {models} models, expected one, or one for each")
    if len(sizes) == 1:
        return sizes * models
    return sizes
