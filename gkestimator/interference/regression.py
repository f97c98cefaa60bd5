"""Choose the law of interference that predicts models left out best, among several forms; else a constant.

Candidates are the forms of :class:`gkestimator.documents.interference.FittedWeights`: each with its first terms
alone or with both, of the slowdown itself or of its logarithm (effects that multiply), with weights that are at
least 0 and drawn towards a constant by one of several ridges. They are compared on models left out (each in turn, with
every group that it is in; with more than MOST_FOLDS models several at once). Where none is below the constant both at
the median and at the 90th percentile, the constant itself is the law: a few pairs do not teach a form.

Whoever reports the chosen law's error must leave models out around the choice too (:func:`choose_fitted` on the rest
alone), else the choice has seen them; :mod:`gkestimator.interference.fitting` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.records import frozen
from gkestimator.documents.interference import FORMS, FittedWeights
from gkestimator.interference.fitted import fitted_terms
from gkestimator.interference.laws import FITTED, form_term, slowdown
from gkestimator.interference.pairs import MeasuredSlowdown

Floats: TypeAlias = NDArray[np.float64]
Slowdowns: TypeAlias = Sequence[MeasuredSlowdown]

_WEIGHTS = 7
_FIRST = 4  # the constant and the first terms
_RIDGES = (1e-4, 1e-2, 1e-1)
MOST_FOLDS = 12
# Of a law that was fitted to few: it must be so much better than the constant where it is chosen.
_CLEARLY = 0.98


@frozen
class _Form:
    name: str
    logarithm: bool
    weights: int
    ridge: float


def _forms() -> Iterator[_Form]:
    names = [name for name in FORMS if name != "constant"]
    for name, logarithm, weights, ridge in itertools.product(
        names, (False, True), (_FIRST, _WEIGHTS), _RIDGES
    ):
        yield _Form(name=name, logarithm=logarithm, weights=weights, ridge=ridge)


class _Data:
    """Hold measured slowdowns with every form's columns: each is fitted many times to parts of them."""

    def __init__(self, measured: Slowdowns) -> None:
        self.slowdowns = np.array([m.slowdown for m in measured])
        self.columns: dict[str, Floats] = {}
        features = [(np.array(m.own), np.array(m.others)) for m in measured]
        for name, form in FORMS.items():
            rows = [[form_term(form, k, own, others) for k in range(_WEIGHTS)] for own, others in features]
            self.columns[name] = np.array(rows)


def constant_of(measured: Slowdowns) -> float:
    """Return the mean of the measured slowdowns: the judge of every law."""
    return float(np.mean([m.slowdown for m in measured]))


def choose_fitted(measured: Slowdowns) -> FittedWeights:
    """Return the law for ``measured``: see the module."""
    data = _Data(measured)
    folds = list(_folds(measured))
    everything = np.arange(len(measured))
    best = None
    if folds:
        best = _best(data, folds)
    if best is None:
        values = [constant_of(measured)] + [0.0] * (_WEIGHTS - 1)
        return _weights("constant", False, values)
    return _weights(best.name, best.logarithm, _solved(data, everything, best))


def fitted_guess(weights: FittedWeights, measured: Slowdowns) -> Floats:
    """Return what the law with ``weights`` says of each of ``measured``."""
    terms = np.array(fitted_terms(weights))
    return np.array([slowdown(FITTED, np.array(m.own), np.array(m.others), 1, terms) for m in measured])


def _folds(measured: Slowdowns) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield the numbers of those to fit to and of those left out; none where one of them is empty."""
    models = sorted({name for m in measured for name in m.models})
    count = min(MOST_FOLDS, len(models))
    for fold in range(count):
        left_out = set(models[fold::count])
        out = np.array([not left_out.isdisjoint(m.models) for m in measured])
        if out.any() and not out.all():
            yield np.flatnonzero(~out), np.flatnonzero(out)


def _best(data: _Data, folds: Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]]) -> _Form | None:
    """Return the form with the least error on what is left out, None where that is the constant."""
    true = np.concatenate([data.slowdowns[test] for _, test in folds])
    constant = np.concatenate([np.full(len(test), data.slowdowns[train].mean()) for train, test in folds])
    judge = _errors(constant, true)
    chosen = None
    least = _CLEARLY * judge.sum()
    for form in _forms():
        guessed = [_predicted(data, test, form, _solved(data, train, form)) for train, test in folds]
        errors = _errors(np.concatenate(guessed), true)
        if np.all(errors < judge) and errors.sum() < least:
            chosen = form
            least = errors.sum()
    return chosen


def _errors(guessed: Floats, true: Floats) -> Floats:
    """Return median and 90th percentile of the relative errors."""
    return np.asarray(np.quantile(np.abs(guessed / true - 1), (0.5, 0.9)))


def _predicted(data: _Data, at: NDArray[np.intp], form: _Form, weights: Sequence[float]) -> Floats:
    total = data.columns[form.name][at] @ np.array(weights)
    if form.logarithm:
        total = np.exp(total)
    return np.asarray(np.maximum(1.0, total))


def _solved(data: _Data, at: NDArray[np.intp], form: _Form) -> list[float]:
    """Return the weights of ``form`` by least squares of relative errors (of the logarithms as they are). Those but
    the constant are at least 0, and each is drawn towards 0 by the ridge in the scale of its column."""
    from scipy.optimize import nnls

    columns = data.columns[form.name][at, : form.weights]
    measured = data.slowdowns[at]
    target = np.ones(len(at))
    if form.logarithm:
        target = np.log(measured)
        scaled = columns
    else:
        scaled = columns / measured[:, None]
    strength = np.sqrt(form.ridge * np.square(scaled[:, 1:]).sum(axis=0))
    ridge = np.hstack([np.zeros((form.weights - 1, 1)), np.diag(strength)])
    # The constant may be below 0: it is the difference of two numbers that are not.
    constants = np.hstack([scaled[:, :1], -scaled[:, :1]])
    above = np.hstack([constants, scaled[:, 1:]])
    below = np.hstack([np.zeros((form.weights - 1, 1)), ridge])
    solved, _ = nnls(np.vstack([above, below]), np.concatenate([target, np.zeros(form.weights - 1)]))
    weights = [float(solved[0] - solved[1]), *(float(w) for w in solved[2:])]
    return weights + [0.0] * (_WEIGHTS - form.weights)


def _weights(form: str, logarithm: bool, values: Sequence[float]) -> FittedWeights:
    constant, sm, dram, l2, sm_more, dram_more, l2_more = values
    return FittedWeights(
        form=form,
        logarithm=logarithm,
        constant=constant,
        sm=sm,
        dram=dram,
        l2=l2,
        sm_more=sm_more,
        dram_more=dram_more,
        l2_more=l2_more,
    )
