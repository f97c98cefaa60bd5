"""Fitted coefficients of interference: what ``gkest train --interference`` writes and ``--coefficients`` reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.documents.checking import Fields, load_yaml

# Its name inside an estimator bundle.
FILE_NAME = "interference.yaml"
_WHAT = "a file of interference coefficients"
# Least and most that a coefficient may be is this, below and above 0.
MOST_WEIGHT = 1e6
_VERSION = 1


@frozen
class GpuletWeights:
    """Of gpulet's law: slowdown = max(1, constant + l2_own l2 + l2_other l2' + dram_own dram + dram_other dram'),
    utilisations as parts of 1, ' the sum over the neighbours. ``fitted``: False where they are not fitted but derived
    (:data:`gkestimator.interference.gpulet_law.DERIVED`)."""

    fitted: bool
    constant: float
    l2_own: float
    l2_other: float
    dram_own: float
    dram_other: float


@frozen
class ContentionWeights:
    """Of our law with weights: slowdown = 1 + sum over SMs, DRAM and L2 bandwidth of overlap x own x others + excess x
    max(0, own + others - 1), demands as parts of 1. Each at least 0."""

    sm_overlap: float
    sm_excess: float
    dram_overlap: float
    dram_excess: float
    l2_overlap: float
    l2_excess: float


@frozen
class LawError:
    """How far a law was off on models that it had not seen: median and 90th percentile of
    |predicted / measured - 1|, in percent."""

    law: str
    median_pct: float
    p90_pct: float


@frozen
class SeenRange:
    """Least and most of a measured quantity: ``slowdown``, or a demand such as ``dram_own`` (part of 1)."""

    name: str
    least: float
    most: float


@frozen
class InterferenceFit:
    """Where fitted coefficients come from. ``pairs`` and ``tables``: the files' names, ``pairs_sha256`` of
    the former's bytes. ``measurements``: slowdowns that were measured, in ``groups`` that ran together.
    ``errors``: each model left out in turn. ``ranges`` of what was seen: beyond them the coefficients extrapolate."""

    pairs: str
    pairs_sha256: str
    tables: tuple[str, ...]
    measurements: int
    groups: int
    models: tuple[str, ...]
    gpus: tuple[str, ...]
    errors: tuple[LawError, ...]
    ranges: tuple[SeenRange, ...]
    notes: tuple[str, ...] = ()

    def elsewhere(self, gpus: Iterable[str]) -> tuple[str, ...]:
        """What a reader must know who uses them on the GPU types ``gpus``."""
        other = sorted(set(gpus) - set(self.gpus))
        if not other:
            return ()
        return (
            f"the coefficients fitted to {self.pairs} are of pairs on {', '.join(self.gpus)}, none on "
            f"{', '.join(other)}",
        )


@frozen
class InterferenceFile:
    """Coefficients of two laws, fitted to the same measurements. ``contention`` None: the law without weights
    (proportional sharing) was at least as good on models left out."""

    gpulet: GpuletWeights
    contention: ContentionWeights | None
    fit: InterferenceFit


def fitted_file(path: Path) -> InterferenceFile | None:
    """The file or bundle folder at ``path`` where it is of this kind; None where it is not (gpulet's own form has five
    numbers and neither of these fields). Raises DocumentError naming the field."""
    if not path.is_dir():
        taken = load_yaml(path, what=_WHAT)
        if taken.take("gpulet", None) is None and taken.take("fit", None) is None:
            return None
    return read_interference(path)


def read_interference(path: Path) -> InterferenceFile:
    """The file at ``path`` (YAML or JSON), or ``interference.yaml`` in the bundle folder ``path``. Raises DocumentError
    naming the field."""
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    taken = load_yaml(path, what=_WHAT)
    taken.whole("schema_version", low=_VERSION, high=_VERSION)
    own = taken.object("gpulet", what="gpulet's coefficients")
    gpulet = GpuletWeights(
        fitted=_truth(own, "fitted"),
        **{f.name: own.number(f.name, low=-MOST_WEIGHT, high=MOST_WEIGHT) for f in fields(GpuletWeights)[1:]},
    )
    own.finish()
    contention = None
    own = taken.object("contention", None, what="contention's weights")
    if own is not None:
        contention = ContentionWeights(
            **{f.name: own.number(f.name, high=MOST_WEIGHT) for f in fields(ContentionWeights)}
        )
        own.finish()
    fit = _fit(taken.object("fit", what="where the coefficients come from"))
    taken.finish()
    return InterferenceFile(gpulet=gpulet, contention=contention, fit=fit)


def _truth(own: Fields, name: str) -> bool:
    value = own.take(name)
    if not isinstance(value, bool):
        raise own.fail(name, f"found {value!r}, expected true or false")
    return value


def _fit(own: Fields) -> InterferenceFit:
    def texts(name: str) -> tuple[str, ...]:
        found = own.items(name, limit=10_000)
        for text in found:
            if not isinstance(text, str) or not text.isprintable() or len(text) > 1000:
                raise own.fail(name, "found something other than lines of text, expected a list of them")
        return tuple(found)

    errors = []
    for entry in own.objects("errors", what="the error of one law", limit=100):
        errors.append(
            LawError(
                law=entry.text("law", limit=100),
                median_pct=entry.number("median_pct"),
                p90_pct=entry.number("p90_pct"),
            )
        )
        entry.finish()
    ranges = []
    for entry in own.objects("ranges", what="the range of one quantity", limit=100):
        ranges.append(
            SeenRange(
                name=entry.text("name", limit=100),
                least=entry.number("least", low=-MOST_WEIGHT),
                most=entry.number("most", low=-MOST_WEIGHT),
            )
        )
        entry.finish()
    found = InterferenceFit(
        pairs=own.text("pairs"),
        pairs_sha256=own.text("pairs_sha256", limit=64),
        tables=texts("tables"),
        measurements=own.whole("measurements"),
        groups=own.whole("groups"),
        models=texts("models"),
        gpus=texts("gpus"),
        errors=tuple(errors),
        ranges=tuple(ranges),
        notes=texts("notes"),
    )
    own.finish()
    return found


def interference_yaml(found: InterferenceFile) -> bytes:
    """``found`` as the bytes of a file; the same value gives the same bytes."""
    import yaml

    fit: dict[str, Any] = {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(found.fit).items()
    }
    document = {
        "schema_version": _VERSION,
        "gpulet": asdict(found.gpulet),
        "contention": None if found.contention is None else asdict(found.contention),
        "fit": fit,
    }
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    return text.encode("utf-8")
