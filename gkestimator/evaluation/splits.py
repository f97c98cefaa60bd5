"""Say which rows an experiment leaves out of training, and which of those it is tested on."""

from __future__ import annotations

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import Array
from gkestimator.core.records import Names, frozen
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.training.rows import TrainingRows, shape_hash

HELD_OUT = 0.15
"""Share of shapes, by their hash, that the shapes experiment leaves out on every GPU."""
# Boards of one chip differ by the SMs that are switched off.
_SAME_CHIP_SMS = 0.10


@frozen
class Split:
    """Hold ``train`` and ``test``: indices into the rows that were split; no row is in both."""

    train: Array
    test: Array


def hold_out_shapes(rows: TrainingRows, *, share: float = HELD_OUT) -> Split:
    """Leave out every row whose shape hashes below ``share``, on every GPU and from every source."""
    return _split(shape_hash(rows.table) < share)


def hold_out_source(rows: TrainingRows, source: str) -> Split:
    """Leave out everything of one source. Raises UsageError if no row is of it."""
    out = rows.source.astype(str) == source
    if not out.any():
        raise UsageError(f"no row is of source {source!r}; expected one of {', '.join(_words(rows.source))}")
    return _split(out)


def _split(out: Array) -> Split:
    return Split(train=np.flatnonzero(~out), test=np.flatnonzero(out))


def chip_of(name: str, gpus: GpuSpecs) -> frozenset[str]:
    """Return the GPUs of ``gpus`` that are boards of the same chip as ``name`` (itself too).

    They have the same compute capability and, within 10 %, as many SMs. A sibling in training would give the
    answer away.
    """
    chip = gpus[name]
    boards = []
    for other, spec in gpus.items():
        same = tuple(spec.compute_capability) == tuple(chip.compute_capability)
        if same and abs(spec.sms / chip.sms - 1) <= _SAME_CHIP_SMS:
            boards.append(other)
    return frozenset(boards)


def chips(rows: TrainingRows, gpus: GpuSpecs) -> tuple[frozenset[str], ...]:
    """Return the distinct chips that ``rows`` were measured on, each as the set of its boards, sorted."""
    measured = {name: gpus[name] for name in _words(rows.gpu)}
    return tuple(sorted({chip_of(name, measured) for name in measured}, key=sorted))


def hold_out_chip(rows: TrainingRows, boards: frozenset[str]) -> Split:
    """Leave out every row of every board of one chip, whatever its source."""
    out = np.isin(rows.gpu.astype(str), sorted(boards))
    if not out.any():
        raise UsageError(f"no row was measured on {', '.join(sorted(boards))}")
    return _split(out)


def thin(rows: TrainingRows, index: Array, *, most: int, seed: int = 0) -> Array:
    """Return at most ``most`` of the rows ``index`` of each (GPU, source, family, precision).

    They are drawn evenly, and always the same ones for one ``seed``.
    """
    keys: dict[Names, list[int]] = {}
    columns = (rows.gpu, rows.source, rows.table.family, rows.table.precision)
    words = [column[index].astype(str).tolist() for column in columns]
    for key, row in zip(zip(*words, strict=True), index.tolist(), strict=True):
        keys.setdefault(key, []).append(row)
    rng = np.random.default_rng(seed)
    drawn = [np.zeros(0, dtype=index.dtype)]
    for key in sorted(keys, key="|".join):
        mine = np.array(keys[key], dtype=index.dtype)
        drawn.append(mine if len(mine) <= most else rng.choice(mine, most, replace=False))
    return np.sort(np.concatenate(drawn))


def _words(column: Array) -> list[str]:
    return np.unique(column.astype(str)).tolist()  # type: ignore[no-any-return]
