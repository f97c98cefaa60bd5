"""Coefficients of interference fitted to measured slowdowns, with their errors on models left out."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra
from gkestimator.core.records import frozen
from gkestimator.documents.interference import (
    CONSTANT_LAW,
    ContentionWeights,
    FittedWeights,
    GpuletWeights,
    LawError,
    SeenRange,
)
from gkestimator.interference import contention, gpulet
from gkestimator.interference.base import TERMS
from gkestimator.interference.fitted import FITTED_LAW
from gkestimator.interference.gpulet_law import DERIVED
from gkestimator.interference.laws import CONTENTION, slowdown
from gkestimator.interference.pairs import MeasuredSlowdown
from gkestimator.interference.regression import choose_fitted, constant_of, fitted_guess

Floats: TypeAlias = NDArray[np.float64]
Slowdowns: TypeAlias = Sequence[MeasuredSlowdown]

# With fewer, leaving one out leaves no pair of different models.
LEAST_MODELS = 3
_NONE = "none"
_GPULET = gpulet.FITTED_LAW
_GPULET_DERIVED = gpulet.DERIVED_LAW
_CONTENTION = contention.FITTED_LAW
_CONTENTION_DERIVED = contention.DERIVED_LAW


@frozen
class Fit:
    """Hold what was fitted. ``gpulet`` may be the derived one; ``contention`` None: the law without weights was
    at least as good. ``fitted``: the form that was chosen. ``constant``: the mean slowdown, the judge of every
    law. ``notes``: for each law, in words, what was kept and why, and whether it beats the constant."""

    gpulet: GpuletWeights
    contention: ContentionWeights | None
    fitted: FittedWeights
    constant: float
    errors: tuple[LawError, ...]
    ranges: tuple[SeenRange, ...]
    notes: tuple[str, ...]


def fit_interference(found: Slowdowns) -> Fit:
    """Fit gpulet's law, ours and a chosen form to the measured slowdowns ``found``; return them with each law's
    error on models left out, and that of a constant, the mean slowdown of those fitted to, which judges them all.

    Least squares of relative errors, (predicted - measured) / measured, with coefficients of at least 0. Errors:
    each model in turn is left out with every group that it is in; the others are fitted; its groups are predicted.
    A fit of gpulet's law or ours is kept where its median error there is below that of the law without it, and its
    90th percentile not above. The form is chosen anew for each model left out, by models left out of the rest, so
    its error is that of a law that has not seen it. gpulet's law, which is one of DRAM and L2 demand, is judged and
    fitted only where both are known throughout; else it stays derived. Raises UsageError: fewer than LEAST_MODELS
    models; scipy is missing (extra ``train``)."""
    if importlib.util.find_spec("scipy") is None:
        raise UsageError(f"fitting interference needs scipy: {install_extra('train')}")
    models = sorted({name for m in found for name in m.models})
    if len(models) < LEAST_MODELS:
        raise UsageError(
            f"found {len(models)} models in the measured pairs ({', '.join(models)}), expected at least "
            f"{LEAST_MODELS}: the fit is checked on models left out"
        )
    whole = all(m.known for m in found)
    fitted = choose_fitted(found)
    constant = constant_of(found)
    errors = _errors(found, models, whole)
    contention_better = _better(errors[_CONTENTION], errors[_CONTENTION_DERIVED])
    gpulet_weights = _derived()
    if whole and _better(errors[_GPULET], errors[_GPULET_DERIVED]):
        gpulet_weights = fit_gpulet(found)
    notes = []
    if whole:
        notes += _notes(_GPULET, _GPULET_DERIVED, errors)
    else:
        notes.append(_not_whole(found))
    notes += _notes(_CONTENTION, _CONTENTION_DERIVED, errors)
    unseen = _unseen(_contention_columns(found))
    if unseen and contention_better:
        notes.append(
            f"no measurement says anything of {', '.join(unseen)}: there contention is the law without weights"
        )
    contention_weights = None
    if contention_better:
        contention_weights = fit_contention(found)
    notes += _chosen_notes(fitted, errors)
    notes += _constant_notes(errors, constant)
    return Fit(
        gpulet=gpulet_weights,
        contention=contention_weights,
        fitted=fitted,
        constant=constant,
        errors=tuple(errors.values()),
        ranges=_ranges(found),
        notes=tuple(notes),
    )


def _errors(found: Slowdowns, models: Sequence[str], whole: bool) -> dict[str, LawError]:
    """Return each law's error on the groups of models that were left out of its fit."""
    measured: list[float] = []
    guessed: dict[str, list[float]] = {}
    for left_out in models:
        train = [m for m in found if left_out not in m.models]
        test = [m for m in found if left_out in m.models]
        if not train:
            continue  # it is in every group
        measured += [m.slowdown for m in test]
        for law, guess in _guesses(train, test, whole).items():
            guessed.setdefault(law, []).extend(guess.tolist())
    if not measured:
        raise UsageError("every model is in every measured group: leaving one out leaves nothing to fit to")
    errors = {}
    for law, values in guessed.items():
        off = 100 * np.abs(np.array(values) / np.array(measured) - 1)
        median = float(np.median(off))
        errors[law] = LawError(law=law, median_pct=median, p90_pct=float(np.quantile(off, 0.9)))
    return errors


def _guesses(train: Slowdowns, test: Slowdowns, whole: bool) -> dict[str, Floats]:
    """Return what each law, fitted to ``train``, says of ``test``."""
    guesses = {_NONE: np.ones(len(test)), CONSTANT_LAW: np.full(len(test), constant_of(train))}
    if whole:
        guesses[_GPULET_DERIVED] = _gpulet_guess(_derived(), test)
        guesses[_GPULET] = _gpulet_guess(fit_gpulet(train), test)
    guesses[_CONTENTION_DERIVED] = _contention_guess(None, test)
    guesses[_CONTENTION] = _contention_guess(fit_contention(train), test)
    guesses[FITTED_LAW] = fitted_guess(choose_fitted(train), test)
    return guesses


def _notes(fitted: str, plain: str, errors: Mapping[str, LawError]) -> list[str]:
    """Return in words which form of a law is kept, and whether it is worth more than no interference at
    all."""
    law, other = (fitted, plain) if _better(errors[fitted], errors[plain]) else (plain, fitted)
    notes = [f"{law} is kept: off by {errors[law]} on models left out, against {errors[other]} of {other}"]
    none = errors[_NONE]
    if _better(none, errors[law]):
        notes.append(
            f"no interference at all is off by {none.median_pct:.1f} % ({none.p90_pct:.1f} %), less than {law}"
        )
    return notes


def _chosen_notes(fitted: FittedWeights, errors: Mapping[str, LawError]) -> list[str]:
    """Return in words which form was chosen."""
    if fitted.form == "constant":
        return [f"{FITTED_LAW} is a constant: no form predicted models left out better"]
    of = "the logarithm of the slowdown" if fitted.logarithm else "the slowdown"
    return [
        f"{FITTED_LAW} is the form {fitted.form}, of {of}: off by {errors[FITTED_LAW]} on models left out of the "
        "choice too"
    ]


def _constant_notes(errors: Mapping[str, LawError], constant: float) -> list[str]:
    """Return in words which laws beat the constant, and which do not."""
    judge = errors[CONSTANT_LAW]
    others = [error for law, error in errors.items() if law not in (_NONE, CONSTANT_LAW)]
    beaten = [error.law for error in others if not error.beats(judge)]
    notes = [f"the judge, a constant of {constant:.3g} (the mean slowdown of the pairs), is off by {judge}"]
    if beaten:
        notes.append(
            f"no better than the constant at the median and the 90th percentile: {'; '.join(beaten)}"
        )
    return notes


def _not_whole(found: Slowdowns) -> str:
    count = sum(not m.known for m in found)
    return (
        f"{count:,} of {len(found):,} slowdowns are of models of which DRAM or L2 demand is not "
        f"known: {_GPULET_DERIVED} is kept unjudged, and contention is fitted to what is known"
    )


def _better(fitted: LawError, plain: LawError) -> bool:
    return fitted.median_pct < plain.median_pct and fitted.p90_pct <= plain.p90_pct


def _nonnegative(columns: Floats, target: Floats, measured: Floats) -> list[float]:
    """Return the coefficients of at least 0 that minimise the squared relative errors."""
    from scipy.optimize import nnls

    weights, _ = nnls(columns / measured[:, None], target / measured)
    return [float(weight) for weight in weights]


def _slowdowns(found: Slowdowns) -> Floats:
    return np.array([m.slowdown for m in found])


# gpulet


def _derived() -> GpuletWeights:
    return GpuletWeights(fitted=False, **asdict(DERIVED))


def _gpulet_columns(found: Slowdowns) -> Floats:
    return np.array([[1.0, m.own[2], m.others[2], m.own[1], m.others[1]] for m in found])


def fit_gpulet(found: Slowdowns) -> GpuletWeights:
    """Return gpulet's five coefficients by non-negative least squares (the paper: linear regression)."""
    measured = _slowdowns(found)
    weights = _nonnegative(_gpulet_columns(found), measured, measured)
    constant, l2_own, l2_other, dram_own, dram_other = weights
    return GpuletWeights(
        fitted=True,
        constant=constant,
        l2_own=l2_own,
        l2_other=l2_other,
        dram_own=dram_own,
        dram_other=dram_other,
    )


def _gpulet_guess(w: GpuletWeights, found: Slowdowns) -> Floats:
    weights = np.array([w.constant, w.l2_own, w.l2_other, w.dram_own, w.dram_other])
    return np.asarray(np.maximum(1.0, _gpulet_columns(found) @ weights), dtype=np.float64)


# contention

_COLUMNS = tuple(f.name for f in fields(ContentionWeights))
# The weights with which the form with weights is the law without: SMs shared in space, memory in time.
_UNSEEN = dict.fromkeys(_COLUMNS, 0.0) | {"sm_excess": 1.0, "dram_overlap": 1.0, "l2_overlap": 1.0}


def _contention_columns(found: Slowdowns) -> Floats:
    """Return what the six weights of ``laws.slowdown`` multiply, (measurements, 6)."""
    rows = []
    for m in found:
        sm, dram, l2, _, confined, dram_known, l2_known, *_ = m.own
        sm_others, dram_others, l2_others, unconfined_others, *_ = m.others
        if confined > 0:
            taken = unconfined_others
        else:
            taken = sm_others
        row = []
        # As the law has it: what is not known of a model does not slow it, and is not asked of others.
        for own, others, known in (
            (sm, taken, 1.0),
            (dram, dram_others, dram_known),
            (l2, l2_others, l2_known),
        ):
            row.append(own * others * known)
            row.append(max(0.0, own + others - 1.0) * known)
        rows.append(row)
    return np.array(rows)


def _unseen(columns: Floats) -> list[str]:
    return [name for name, column in zip(_COLUMNS, columns.T, strict=True) if not column.any()]


def fit_contention(found: Slowdowns) -> ContentionWeights:
    """Return our law's six weights by non-negative least squares. A term that is 0 in every measurement is
    not known by them; it keeps the weight of the law without weights."""
    columns = _contention_columns(found)
    measured = _slowdowns(found)
    weights = _nonnegative(columns, measured - 1, measured)
    values = dict(zip(_COLUMNS, weights, strict=True))
    for name in _unseen(columns):
        values[name] = _UNSEEN[name]
    return ContentionWeights(**values)


def _contention_guess(w: ContentionWeights | None, found: Slowdowns) -> Floats:
    terms = np.zeros(TERMS)
    if w is not None:
        terms[:7] = [1.0, *(getattr(w, name) for name in _COLUMNS)]
    return np.array([slowdown(CONTENTION, np.array(m.own), np.array(m.others), 1, terms) for m in found])


def _ranges(found: Slowdowns) -> tuple[SeenRange, ...]:
    values: dict[str, list[float]] = {"slowdown": [m.slowdown for m in found]}
    for name, at in (("sm", 0), ("dram", 1), ("l2", 2)):
        # A demand that is not known of all has no range: 0 would be one.
        seen = [m for m in found if at == 0 or m.known]
        if seen:
            values[f"{name}_own"] = [float(m.own[at]) for m in seen]
            values[f"{name}_others"] = [float(m.others[at]) for m in seen]
    return tuple(SeenRange(name=n, least=min(v), most=max(v)) for n, v in values.items())
