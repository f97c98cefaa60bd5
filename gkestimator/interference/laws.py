"""The laws of interference as one function over numbers, which the engine compiles.

Scalars and small arrays alone, nothing is allocated: the engine asks at every start and end of a batch. What
the numbers mean stands where they are made: ``none.py``, ``gpulet.py``, ``igniter.py``, ``contention.py``,
``fitted.py``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.compiled import compiled

NONE = 0
GPULET = 1
IGNITER = 2
CONTENTION = 3
FITTED = 4

# iGniter's clock falls in a line with the power asked for and would reach 0, where a batch would never end. No clock
# falls below this part of the highest.
LEAST_CLOCK = 0.05
# Forms of a fitted law (terms[0]); 0 would have no sign.
CONSTANT = 1
OVERLAP = 2
LINEAR = 3
SATURATING = 4
POWER = 5
# Beside a demand this small nobody takes half of what is shared: keeps the quotient of two zeros a number.
SATURATION = 0.1
# Of a factor's logarithm: no batch takes longer than e^7, about a thousand times, whatever a fit extrapolates.
MOST_LOGARITHM = 7.0
# Features between two batch sizes are drawn in a line: a flag that only one of the two has is not there.
_ALL = 0.999


@compiled
def memory_slowdown(own: float, others: float) -> float:
    """Return the factor by one shared memory (DRAM, L2) of which a batch asks a part ``own`` and those
    beside it ``others``; derived in :class:`gkestimator.interference.contention.Contention`."""
    return 1.0 + own * others


@compiled
def _sms_taken(own: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return what the others ask of the SMs that ``own`` asks: a confined batch loses to those alone that are not
    confined."""
    if own[4] > _ALL:
        return float(others[3])
    return float(others[0])


@compiled
def _contention(own: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return contention's factor without weights, of the features that
    :meth:`gkestimator.interference.contention.Contention.features` describes."""
    factor: float = own[0] + _sms_taken(own, others)
    if own[5] > _ALL:
        factor = max(factor, memory_slowdown(own[1], others[1]))
    if own[6] > _ALL:
        factor = max(factor, memory_slowdown(own[2], others[2]))
    return factor


@compiled
def _weighted(own: NDArray[np.float64], others: NDArray[np.float64], terms: NDArray[np.float64]) -> float:
    """Return contention's factor with weights: overlap by chance, and what is asked beyond all there is."""
    taken = _sms_taken(own, others)
    factor: float = 1.0 + terms[1] * own[0] * taken + terms[2] * max(0.0, own[0] + taken - 1.0)
    if own[5] > _ALL:
        factor += terms[3] * own[1] * others[1] + terms[4] * max(0.0, own[1] + others[1] - 1.0)
    if own[6] > _ALL:
        factor += terms[5] * own[2] * others[2] + terms[6] * max(0.0, own[2] + others[2] - 1.0)
    return factor


@compiled
def _igniter(
    own: NDArray[np.float64], others: NDArray[np.float64], count: int, terms: NDArray[np.float64]
) -> float:
    """Return iGniter's factor.

    own: parts of its time that it is active and that its kernels are scheduled (they sum to 1), kernels over its
    time (1/ms), alpha_cache, L2 utilisation, power (W), 1 where power is unknown. terms: alpha_sch, beta_sch, F, P,
    p_idle, alpha_f, 1 where power counts."""
    delay = max(0.0, terms[0] * (count + 1) + terms[1])
    factor: float = own[1] + delay * own[2] + own[0] * (1.0 + own[3] * others[4])
    if terms[6] > 0.0:
        alone = terms[2]
        beside = terms[2]
        if own[6] == 0.0:
            alone += terms[5] * max(0.0, terms[4] + own[5] - terms[3])
            if others[6] == 0.0:
                beside += terms[5] * max(0.0, terms[4] + own[5] + others[5] - terms[3])
            else:
                beside = alone
        least = LEAST_CLOCK * terms[2]
        factor *= max(alone, least) / max(beside, least)
    return factor


@compiled
def form_term(form: int, number: int, own: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return what the weight ``number`` of a fitted ``form`` multiplies: 0 the constant, 1 to 3 the first term of SMs,
    DRAM and L2, 4 to 6 their second; ``own`` and ``others`` are contention's features."""
    if number == 0:
        return 1.0
    resource = (number - 1) % 3
    mine = own[resource]
    theirs = others[resource]
    if resource == 0:
        theirs = _sms_taken(own, others)
    elif own[4 + resource] <= _ALL:
        return 0.0  # not known
    value = 0.0
    if form == OVERLAP:
        value = mine * theirs if number <= 3 else max(0.0, mine + theirs - 1.0)
    elif form == LINEAR:
        value = theirs if number <= 3 else mine
    elif form == SATURATING:
        # The neighbours' part of a cache or a queue, and with it what the batch itself has there to lose.
        value = theirs / (mine + theirs + SATURATION)
        if number <= 3:
            value *= mine
    elif form == POWER:
        value = _power_term(number, own, others)
    return value


@compiled
def _power_term(number: int, own: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the logarithm of contention's factor: by one resource (numbers 1 to 3), by all (4); else 0."""
    if number == 1:
        return math.log(max(1.0, own[0] + _sms_taken(own, others)))
    if number < 4:
        return math.log(memory_slowdown(own[number - 1], others[number - 1]))
    if number == 4:
        return math.log(max(1.0, _contention(own, others)))
    return 0.0


@compiled
def _fitted(own: NDArray[np.float64], others: NDArray[np.float64], terms: NDArray[np.float64]) -> float:
    """Return a fitted form's factor. terms: the form (below 0: the sum is of the factor's logarithm), its seven
    weights."""
    form = int(abs(terms[0]))
    total = 0.0
    for number in range(7):
        if terms[number + 1] != 0.0:
            total += terms[number + 1] * form_term(form, number, own, others)
    if terms[0] < 0.0:
        total = math.exp(min(total, MOST_LOGARITHM))
    return total


@compiled
def slowdown(
    code: int,
    own: NDArray[np.float64],
    others: NDArray[np.float64],
    count: int,
    terms: NDArray[np.float64],
) -> float:
    """Return the factor (1 or more) on a batch with features ``own`` beside ``count`` others whose features
    sum to ``others``, on a GPU with ``terms``. All three are arrays of FEATURES, FEATURES and TERMS numbers;
    ``code`` is an :class:`~gkestimator.interference.base.Interference`'s. An unknown code gives 1."""
    if count <= 0:
        return 1.0
    factor = 1.0
    if code == CONTENTION:
        if terms[0] > 0.0:
            factor = _weighted(own, others, terms)
        else:
            factor = _contention(own, others)
    elif code == GPULET:
        # own: what it adds to its own slowdown, to another's. terms: the constant.
        factor = terms[0] + own[0] + others[1]
    elif code == IGNITER:
        factor = _igniter(own, others, count, terms)
    elif code == FITTED:
        factor = _fitted(own, others, terms)
    return max(1.0, factor)
