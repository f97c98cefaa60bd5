"""Read and write coefficients of interference: ``gkest train --interference`` writes, ``--coefficients``
reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
# What the judge of every law is called in ``InterferenceFit.errors``.
CONSTANT_LAW = "constant"


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


# Forms of a fitted law by name, each with its number in gkestimator.interference.laws.
FORMS: Mapping[str, int] = {"constant": 1, "overlap": 2, "linear": 3, "saturating": 4, "power": 5}


@frozen
class FittedWeights:
    """Hold the law that was chosen among several forms (:mod:`gkestimator.interference.regression`).

    slowdown = max(1, constant + sum over SMs, DRAM and L2 of weight x first term + weight x second term
    (``_more``)), or with ``logarithm`` e to that sum. The terms of a resource of which a batch asks d and its
    neighbours d': ``overlap`` d d' and max(0, d + d' - 1); ``linear`` d' and d; ``saturating`` d p and p, p = d' /
    (d + d' + 0.1); ``power`` the logarithm of contention's factor by that resource and (``sm_more``) by all;
    ``constant`` has none. Weights but the constant are at least 0.
    """

    form: str
    logarithm: bool
    constant: float
    sm: float
    dram: float
    l2: float
    sm_more: float
    dram_more: float
    l2_more: float

    @property
    def numbers(self) -> tuple[float, ...]:
        """Return the constant and the six weights, in the order of the law's terms."""
        return (self.constant, self.sm, self.dram, self.l2, self.sm_more, self.dram_more, self.l2_more)


@frozen
class LawError:
    """Say how far a law was off on models that it had not seen: median and 90th percentile of
    |predicted / measured - 1|, in percent."""

    law: str
    median_pct: float
    p90_pct: float

    def __str__(self) -> str:
        """Return both figures in words."""
        return f"{self.median_pct:.1f} % (90th percentile {self.p90_pct:.1f} %)"

    def beats(self, other: LawError) -> bool:
        """Return whether its median is below that of ``other``, and its 90th percentile too."""
        return self.median_pct < other.median_pct and self.p90_pct < other.p90_pct


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
    ``constant``: the mean of the measured slowdowns, by which every law is judged (None: a file of before).
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
    constant: float | None = None

    def against_constant(self, law: str) -> Names:
        """Return in words that ``law`` does not beat a constant on models left out; nothing where it does, or where
        either's error is not known."""
        errors = {e.law: e for e in self.errors}
        if law not in errors or CONSTANT_LAW not in errors or self.constant is None:
            return ()
        own = errors[law]
        constant = errors[CONSTANT_LAW]
        if own.beats(constant):
            return ()
        return (
            f"{law} does not beat a constant of {self.constant:.3g} (the mean slowdown of the pairs) on models left "
            f"out: off by {own}, the constant by {constant}",
        )

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
    """Hold the coefficients of three laws, fitted to the same measurements.

    ``contention`` None: the law without weights was at least as good on models left out. ``fitted`` None: a file
    of before that law.
    """

    gpulet: GpuletWeights
    contention: ContentionWeights | None
    fit: InterferenceFit
    fitted: FittedWeights | None = None


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
    chosen = None
    own = taken.object("fitted", None, what="the weights of the chosen form")
    if own is not None:
        chosen = _fitted(own)
    fit = _fit(taken.object("fit", what="where the coefficients come from"))
    taken.finish()
    return InterferenceFile(gpulet=gpulet, contention=contention, fit=fit, fitted=chosen)


def _fitted(own: Fields) -> FittedWeights:
    """Return the weights of the chosen form. Raises DocumentError naming the field."""
    form = own.choice("form", None, tuple(FORMS))
    if form is None:
        raise own.fail("form", f"missing, expected one of {', '.join(FORMS)}")
    logarithm = own.flag("logarithm")
    constant = own.number("constant", low=-MOST_WEIGHT, high=MOST_WEIGHT)
    weights = {f.name: own.number(f.name, high=MOST_WEIGHT) for f in fields(FittedWeights)[3:]}
    own.finish()
    return FittedWeights(form=form, logarithm=logarithm, constant=constant, **weights)


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
        constant=own.number("constant", None, null=True),
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
    }
    if fitted.fitted is not None:
        document["fitted"] = asdict(fitted.fitted)
    document["fit"] = asdict(fitted.fit)
    for name, value in document["fit"].items():
        if isinstance(value, tuple):  # YAML has lists alone
            document["fit"][name] = list(value)
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    return text.encode("utf-8")
