"""Read and write coefficients of interference: ``gkest train --interference`` writes, ``--coefficients``
reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from gkestimator.core.records import NamedValues, Names, frozen
from gkestimator.documents.checking import Fields, load_yaml

# Its name inside an estimator bundle.
FILE_NAME = "interference.yaml"
_WHAT = "a file of interference coefficients"
# Least and most that a coefficient may be is this, below and above 0.
MOST_WEIGHT = 1e6
_VERSION = 1


@frozen
class GpuletWeights:
    """Hold the weights of gpulet's law.

    slowdown = max(1, constant + l2_own l2 + l2_other l2' + dram_own dram + dram_other dram'), utilisations as
    parts of 1, ' the sum over the neighbours. ``fitted``: False where they are not fitted but derived
    (:data:`gkestimator.interference.gpulet_law.DERIVED`).
    """

    fitted: bool
    constant: float
    l2_own: float
    l2_other: float
    dram_own: float
    dram_other: float


@frozen
class ContentionWeights:
    """Hold the weights of our law, each at least 0.

    slowdown = 1 + sum over SMs, DRAM and L2 bandwidth of overlap x own x others + excess x max(0, own +
    others - 1), demands as parts of 1.
    """

    sm_overlap: float
    sm_excess: float
    dram_overlap: float
    dram_excess: float
    l2_overlap: float
    l2_excess: float


@frozen
class LawError:
    """Say how far a law was off on models that it had not seen: median and 90th percentile of
    |predicted / measured - 1|, in percent."""

    law: str
    median_pct: float
    p90_pct: float


@frozen
class SeenRange:
    """Hold least and most of a measured quantity: ``slowdown``, or a demand such as ``dram_own`` (part of 1)."""

    name: str
    least: float
    most: float


@frozen
class InterferenceFit:
    """Say where fitted coefficients come from.

    ``pairs`` and ``tables``: the files' names, ``pairs_sha256`` of the former's bytes. ``measurements``:
    slowdowns that were measured, in ``groups`` that ran together. ``errors``: each model left out in turn.
    ``ranges`` of what was seen: beyond them the coefficients extrapolate.
    """

    pairs: str
    pairs_sha256: str
    tables: Names
    measurements: int
    groups: int
    models: Names
    gpus: Names
    errors: tuple[LawError, ...]
    ranges: tuple[SeenRange, ...]
    notes: Names = ()

    def elsewhere(self, gpus: Iterable[str]) -> Names:
        """Return what a reader must know who uses them on the GPU types ``gpus``."""
        other = sorted(set(gpus) - set(self.gpus))
        if not other:
            return ()
        return (
            f"the coefficients fitted to {self.pairs} are of pairs on {', '.join(self.gpus)}, none on "
            f"{', '.join(other)}",
        )


@frozen
class InterferenceFile:
    """Hold the coefficients of two laws, fitted to the same measurements.

    ``contention`` None: the law without weights (proportional sharing) was at least as good on models left
    out.
    """

    gpulet: GpuletWeights
    contention: ContentionWeights | None
    fit: InterferenceFit


def fitted_file(path: Path) -> InterferenceFile | None:
    """Return the file or bundle folder at ``path`` where it is of this kind; None where it is not.

    gpulet's own form has five numbers and neither of these fields. Raises DocumentError naming the field.
    """
    # Both kinds of file are given by the same option.
    if not path.is_dir():
        taken = load_yaml(path, what=_WHAT)
        if taken.take("gpulet", None) is None and taken.take("fit", None) is None:
            return None
    return read_interference(path)


def read_interference(path: Path) -> InterferenceFile:
    """Return the file at ``path`` (YAML or JSON), or ``interference.yaml`` in the bundle folder ``path``.

    Raises DocumentError naming the field.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    return interference_from(load_yaml(path, what=_WHAT))


def interference_from(taken: Fields) -> InterferenceFile:
    """Return the coefficients in ``taken``. Raises DocumentError naming the field."""
    taken.whole("schema_version", low=_VERSION, high=_VERSION)
    own = taken.object("gpulet", what="gpulet's coefficients")
    fitted = own.flag("fitted")
    weights = {}
    for f in fields(GpuletWeights)[1:]:
        weights[f.name] = own.number(f.name, low=-MOST_WEIGHT, high=MOST_WEIGHT)
    gpulet = GpuletWeights(fitted=fitted, **weights)
    own.finish()
    contention = None
    own = taken.object("contention", None, what="contention's weights")
    if own is not None:
        weights = {f.name: own.number(f.name, high=MOST_WEIGHT) for f in fields(ContentionWeights)}
        contention = ContentionWeights(**weights)
        own.finish()
    fit = _fit(taken.object("fit", what="where the coefficients come from"))
    taken.finish()
    return InterferenceFile(gpulet=gpulet, contention=contention, fit=fit)


def _fit(own: Fields) -> InterferenceFit:
    """Return where the coefficients come from. Raises DocumentError naming the field."""
    errors = []
    for entry in own.objects("errors", what="the error of one law", limit=100):
        law = entry.text("law", limit=100)
        median = entry.number("median_pct")
        errors.append(LawError(law=law, median_pct=median, p90_pct=entry.number("p90_pct")))
        entry.finish()
    ranges = []
    for entry in own.objects("ranges", what="the range of one quantity", limit=100):
        name = entry.text("name", limit=100)
        least = entry.number("least", low=-MOST_WEIGHT)
        ranges.append(SeenRange(name=name, least=least, most=entry.number("most", low=-MOST_WEIGHT)))
        entry.finish()
    fit = InterferenceFit(
        pairs=own.text("pairs"),
        pairs_sha256=own.text("pairs_sha256", limit=64),
        tables=own.lines("tables", length=1000),
        measurements=own.whole("measurements"),
        groups=own.whole("groups"),
        models=own.lines("models", length=1000),
        gpus=own.lines("gpus", length=1000),
        errors=tuple(errors),
        ranges=tuple(ranges),
        notes=own.lines("notes", length=1000),
    )
    own.finish()
    return fit


def interference_yaml(fitted: InterferenceFile) -> bytes:
    """Return ``fitted`` as the bytes of a file; the same value gives the same bytes."""
    import yaml

    contention = None
    if fitted.contention is not None:
        contention = asdict(fitted.contention)
    document: NamedValues = {
        "schema_version": _VERSION,
        "gpulet": asdict(fitted.gpulet),
        "contention": contention,
        "fit": asdict(fitted.fit),
    }
    for name, value in document["fit"].items():
        if isinstance(value, tuple):  # YAML has lists alone
            document["fit"][name] = list(value)
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    return text.encode("utf-8")
