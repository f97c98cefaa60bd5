"""Which rows an experiment leaves out of training, and which of those it is tested on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.training.rows import TrainingRows, shape_hash

HELD_OUT = 0.15
"""Share of shapes, by their hash, that the shapes experiment leaves out on every GPU."""
_SAME_CHIP_SMS = 0.10


@frozen
class Split:
    """``train`` and ``test``: indices into the rows that were split; no row is in both."""

    train: np.ndarray
    test: np.ndarray


def hold_out_shapes(rows: TrainingRows, *, share: float = HELD_OUT) -> Split:
    """Every row whose shape hashes below ``share`` is left out on every GPU and from every source."""
    out = shape_hash(rows.table) < share
    return Split(train=np.flatnonzero(~out), test=np.flatnonzero(out))


def hold_out_source(rows: TrainingRows, source: str) -> Split:
    """Everything of one source is left out. Raises UsageError if no row is of it."""
    out = rows.source.astype(str) == source
    if not out.any():
        raise UsageError(f"no row is of source {source!r}; expected one of {', '.join(_words(rows.source))}")
    return Split(train=np.flatnonzero(~out), test=np.flatnonzero(out))


def chip_of(name: str, gpus: Mapping[str, GpuSpec]) -> frozenset[str]:
    """The GPUs of ``gpus`` that are boards of the same chip as ``name`` (itself too): the same compute capability
    and, within 10 %, as many SMs. A sibling in training would give the answer away."""
    of = gpus[name]
    return frozenset(
        other
        for other, spec in gpus.items()
        if tuple(spec.compute_capability) == tuple(of.compute_capability)
        and abs(spec.sms / of.sms - 1) <= _SAME_CHIP_SMS
    )


def chips(rows: TrainingRows, gpus: Mapping[str, GpuSpec]) -> tuple[frozenset[str], ...]:
    """The distinct chips that ``rows`` were measured on, each as the set of its boards, sorted."""
    measured = {name: gpus[name] for name in _words(rows.gpu)}
    return tuple(sorted({chip_of(name, measured) for name in measured}, key=sorted))


def hold_out_chip(rows: TrainingRows, boards: frozenset[str]) -> Split:
    """Every row of every board of one chip is left out, whatever its source."""
    out = np.isin(rows.gpu.astype(str), sorted(boards))
    if not out.any():
        raise UsageError(f"no row was measured on {', '.join(sorted(boards))}")
    return Split(train=np.flatnonzero(~out), test=np.flatnonzero(out))


def thin(rows: TrainingRows, index: np.ndarray, *, most: int, seed: int = 0) -> np.ndarray:
    """At most ``most`` of the rows ``index`` of each (GPU, source, family, precision), drawn evenly and always the
    same ones for one ``seed``."""
    words = [c[index].astype(str) for c in (rows.gpu, rows.source, rows.table.family, rows.table.precision)]
    keys = words[0]
    for more in words[1:]:
        keys = np.char.add(np.char.add(keys, "|"), more)
    rng = np.random.default_rng(seed)
    kept = []
    for key in np.unique(keys):
        mine = index[keys == key]
        kept.append(mine if len(mine) <= most else rng.choice(mine, most, replace=False))
    if kept:
        return np.sort(np.concatenate(kept))
    return index


def _words(column: np.ndarray) -> Sequence[str]:
    return [str(word) for word in np.unique(column.astype(str))]
