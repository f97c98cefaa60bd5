"""The laws of interference as one function over numbers, which the engine compiles.

Scalars and small arrays alone, nothing is allocated: the engine asks at every start and end of a batch. What
the numbers mean stands where they are made: ``none.py``, ``gpulet.py``, ``igniter.py``, ``contention.py``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gkestimator.core.compiled import compiled

NONE = 0
GPULET = 1
IGNITER = 2
CONTENTION = 3

# iGniter's clock falls in a line with the power asked for and would reach 0, where a batch would never end. No clock
# falls below this part of the highest.
LEAST_CLOCK = 0.05
# Features between two batch sizes are drawn in a line: a flag that only one of the two has is not there.
_ALL = 0.999


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
        # own: SM, DRAM and L2 demand (parts of 1), SM demand if not confined else 0, 1 if confined, 1 where DRAM is
        # known, 1 where L2 is. Of the SMs a confined batch loses to those alone that are not confined.
        taken = others[3] if own[4] > _ALL else others[0]
        if terms[0] > 0.0:  # fitted: overlap by chance, and what is asked beyond all there is
            factor += terms[1] * own[0] * taken + terms[2] * max(0.0, own[0] + taken - 1.0)
            if own[5] > _ALL:
                factor += terms[3] * own[1] * others[1] + terms[4] * max(0.0, own[1] + others[1] - 1.0)
            if own[6] > _ALL:
                factor += terms[5] * own[2] * others[2] + terms[6] * max(0.0, own[2] + others[2] - 1.0)
        else:
            factor = max(factor, own[0] + taken)
            if own[5] > _ALL:
                factor = max(factor, own[1] + others[1])
            if own[6] > _ALL:
                factor = max(factor, own[2] + others[2])
    elif code == GPULET:
        # own: what it adds to its own slowdown, to another's. terms: the constant.
        factor = terms[0] + own[0] + others[1]
    elif code == IGNITER:
        # own: parts of its time that it is active and that its kernels are scheduled (they sum to 1), kernels over its
        # time (1/ms), alpha_cache, L2 utilisation, power (W), 1 where power is unknown.
        # terms: alpha_sch, beta_sch, F, P, p_idle, alpha_f, 1 where power counts.
        delay = max(0.0, terms[0] * (count + 1) + terms[1])
        factor = own[1] + delay * own[2] + own[0] * (1.0 + own[3] * others[4])
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
    return max(1.0, factor)
