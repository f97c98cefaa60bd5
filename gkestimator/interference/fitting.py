"""Coefficients of interference fitted to measured slowdowns, with their errors on models left out."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.documents.interference import ContentionWeights, GpuletWeights, LawError, SeenRange
from gkestimator.interference.base import TERMS
from gkestimator.interference.gpulet_law import DERIVED
from gkestimator.interference.laws import CONTENTION, slowdown
from gkestimator.interference.pairs import MeasuredSlowdown

Floats: TypeAlias = NDArray[np.float64]
Predict: TypeAlias = Callable[[Sequence[MeasuredSlowdown]], Floats]

# With fewer, leaving one out leaves no pair of different models.
LEAST_MODELS = 3
_NONE = "none"
_GPULET = "gpulet, fitted"
_GPULET_DERIVED = "gpulet, derived"
_CONTENTION = "contention, fitted"
_PROPORTIONAL = "contention, proportional"


@frozen
class Fit:
    """What was fitted. ``gpulet`` may be the derived one; ``contention`` None: proportional sharing was at least as
    good. ``notes``: for each law, in words, what was kept and why."""

    gpulet: GpuletWeights
    contention: ContentionWeights | None
    errors: tuple[LawError, ...]
    ranges: tuple[SeenRange, ...]
    notes: tuple[str, ...]


def fit_interference(found: Sequence[MeasuredSlowdown]) -> Fit:
    """gpulet's and our law fitted to ``found``, and each law's error on models left out.

    Least squares of relative errors, (predicted - measured) / measured, with coefficients of at least 0. Errors:
    each model in turn is left out with every group that it is in; the others are fitted; its groups are
    predicted. A fit is kept where its median error there is below that of the law without it, and its 90th
    percentile not above. gpulet's law, which is one of DRAM and L2 demand, is judged and fitted only where both are
    known throughout; else it stays derived. Raises UsageError: fewer than LEAST_MODELS models; scipy is missing (extra
    ``train``).
    """
    if importlib.util.find_spec("scipy") is None:
        raise UsageError("fitting interference needs scipy: pip install 'gkestimator[train]'")
    models = sorted({name for m in found for name in m.models})
    if len(models) < LEAST_MODELS:
        raise UsageError(
            f"found {len(models)} models in the measured pairs ({', '.join(models)}), expected at least "
            f"{LEAST_MODELS}: the fit is checked on models left out"
        )
    whole = all(m.known for m in found)
    measured: list[float] = []
    guessed: dict[str, list[float]] = {}
    for left_out in models:
        train = [m for m in found if left_out not in m.models]
        test = [m for m in found if left_out in m.models]
        if not train:
            continue  # it is in every group
        measured.extend(m.slowdown for m in test)
        for law, predict in _laws(fit_gpulet(train) if whole else None, fit_contention(train)).items():
            guessed.setdefault(law, []).extend(predict(test).tolist())
    if not measured:
        raise UsageError("every model is in every measured group: leaving one out leaves nothing to fit to")
    truth = np.array(measured)
    errors = tuple(_error(law, np.array(values), truth) for law, values in guessed.items())
    by_law = {e.law: e for e in errors}
    contention = fit_contention(found)
    if whole and _better(by_law[_GPULET], by_law[_GPULET_DERIVED]):
        gpulet = fit_gpulet(found)
    else:
        gpulet = _derived()
    notes = [] if whole else [_not_whole(found)]
    both = ((_GPULET, _GPULET_DERIVED),) if whole else ()
    for fitted, plain in (*both, (_CONTENTION, _PROPORTIONAL)):
        if _better(by_law[fitted], by_law[plain]):
            kept = fitted
        else:
            kept = plain
        notes.append(
            f"{kept} is kept: off by {by_law[kept].median_pct:.1f} % (90th percentile {by_law[kept].p90_pct:.1f} %) on "
            f"models left out, against {_other(kept, fitted, plain, by_law)}"
        )
        none = by_law[_NONE]
        if _better(none, by_law[kept]):
            notes.append(
                f"no interference at all is off by {none.median_pct:.1f} % ({none.p90_pct:.1f} %), less than {kept}"
            )
    unseen = _unseen(_contention_columns(found))
    if unseen and _better(by_law[_CONTENTION], by_law[_PROPORTIONAL]):
        notes.append(
            f"no measurement says anything of {', '.join(unseen)}: there contention is proportional sharing"
        )
    return Fit(
        gpulet=gpulet,
        contention=contention if _better(by_law[_CONTENTION], by_law[_PROPORTIONAL]) else None,
        errors=errors,
        ranges=_ranges(found),
        notes=tuple(notes),
    )


def _not_whole(found: Sequence[MeasuredSlowdown]) -> str:
    count = sum(not m.known for m in found)
    return (
        f"{count:,} of {len(found):,} slowdowns are of models of which DRAM or L2 demand is not "
        f"known: {_GPULET_DERIVED} is kept unjudged, and contention is fitted to what is known"
    )


def _other(kept: str, fitted: str, plain: str, errors: dict[str, LawError]) -> str:
    other = errors[plain if kept == fitted else fitted]
    return f"{other.median_pct:.1f} % ({other.p90_pct:.1f} %) of {other.law}"


def _better(fitted: LawError, plain: LawError) -> bool:
    return fitted.median_pct < plain.median_pct and fitted.p90_pct <= plain.p90_pct


def _error(law: str, guessed: Floats, truth: Floats) -> LawError:
    off = 100 * np.abs(guessed / truth - 1)
    return LawError(law=law, median_pct=float(np.median(off)), p90_pct=float(np.quantile(off, 0.9)))


def _laws(gpulet: GpuletWeights | None, contention: ContentionWeights) -> dict[str, Predict]:
    laws: dict[str, Predict] = {_NONE: lambda found: np.ones(len(found))}
    if gpulet is not None:
        laws[_GPULET_DERIVED] = lambda found: _gpulet_guess(_derived(), found)
        laws[_GPULET] = lambda found: _gpulet_guess(gpulet, found)
    return laws | {
        _PROPORTIONAL: lambda found: _contention_guess(None, found),
        _CONTENTION: lambda found: _contention_guess(contention, found),
    }


def _nonnegative(columns: Floats, target: Floats, measured: Floats) -> Floats:
    """Coefficients of at least 0 that minimise the squared relative errors."""
    from scipy.optimize import nnls

    found, _ = nnls(columns / measured[:, None], target / measured)
    return np.asarray(found, dtype=np.float64)


def _slowdowns(found: Sequence[MeasuredSlowdown]) -> Floats:
    return np.array([m.slowdown for m in found])


# gpulet


def _derived() -> GpuletWeights:
    return GpuletWeights(
        fitted=False, **{f.name: getattr(DERIVED, f.name) for f in fields(GpuletWeights)[1:]}
    )


def _gpulet_columns(found: Sequence[MeasuredSlowdown]) -> Floats:
    return np.array([[1.0, m.own[2], m.others[2], m.own[1], m.others[1]] for m in found])


def fit_gpulet(found: Sequence[MeasuredSlowdown]) -> GpuletWeights:
    """gpulet's five coefficients by non-negative least squares (the paper: linear regression)."""
    constant, l2_own, l2_other, dram_own, dram_other = _nonnegative(
        _gpulet_columns(found), _slowdowns(found), _slowdowns(found)
    ).tolist()
    return GpuletWeights(
        fitted=True,
        constant=constant,
        l2_own=l2_own,
        l2_other=l2_other,
        dram_own=dram_own,
        dram_other=dram_other,
    )


def _gpulet_guess(w: GpuletWeights, found: Sequence[MeasuredSlowdown]) -> Floats:
    weights = np.array([w.constant, w.l2_own, w.l2_other, w.dram_own, w.dram_other])
    return np.asarray(np.maximum(1.0, _gpulet_columns(found) @ weights), dtype=np.float64)


# contention

_COLUMNS = tuple(f.name for f in fields(ContentionWeights))


def _contention_columns(found: Sequence[MeasuredSlowdown]) -> Floats:
    """What the six weights of ``laws.slowdown`` multiply, (measurements, 6)."""
    rows = []
    for m in found:
        if m.own[4] > 0:
            taken = m.others[3]
        else:
            taken = m.others[0]
        # As the law has it: what is not known of a model does not slow it, and is not asked of others.
        each = ((m.own[0], taken, 1.0), (m.own[1], m.others[1], m.own[5]), (m.own[2], m.others[2], m.own[6]))
        rows.append(
            [
                value * known
                for own, others, known in each
                for value in (own * others, max(0.0, own + others - 1.0))
            ]
        )
    return np.array(rows)


def _unseen(columns: Floats) -> list[str]:
    return [name for name, column in zip(_COLUMNS, columns.T, strict=True) if not column.any()]


def fit_contention(found: Sequence[MeasuredSlowdown]) -> ContentionWeights:
    """Our law's six weights by non-negative least squares. A term that is 0 in every measurement is not known by
    them; it keeps the weight of proportional sharing (excess 1, overlap 0)."""
    columns = _contention_columns(found)
    weights = _nonnegative(columns, _slowdowns(found) - 1, _slowdowns(found))
    values = dict(zip(_COLUMNS, weights.tolist(), strict=True))
    for name in _unseen(columns):
        values[name] = 1.0 if name.endswith("_excess") else 0.0
    return ContentionWeights(**values)


def _contention_guess(w: ContentionWeights | None, found: Sequence[MeasuredSlowdown]) -> Floats:
    terms = np.zeros(TERMS)
    if w is not None:
        terms[:7] = [1.0, *(getattr(w, name) for name in _COLUMNS)]
    return np.array([slowdown(CONTENTION, np.array(m.own), np.array(m.others), 1, terms) for m in found])


def _ranges(found: Sequence[MeasuredSlowdown]) -> tuple[SeenRange, ...]:
    values: dict[str, list[float]] = {"slowdown": [m.slowdown for m in found]}
    for name, at in (("sm", 0), ("dram", 1), ("l2", 2)):
        # A demand that is not known of all has no range: 0 would be one.
        if at == 0:
            seen = found
        else:
            seen = [m for m in found if m.known]
        if seen:
            values[f"{name}_own"] = [float(m.own[at]) for m in seen]
            values[f"{name}_others"] = [float(m.others[at]) for m in seen]
    return tuple(SeenRange(name=n, least=min(v), most=max(v)) for n, v in values.items())
