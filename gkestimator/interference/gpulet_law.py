"""gpulet's model of what two gpu-lets of a GPU do to each other: linear in their use of L2 and DRAM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from gkestimator.core.records import frozen
from gkestimator.documents.checking import load_yaml
from gkestimator.documents.interference import fitted_file
from gkestimator.tables.candidate import Candidate

_LIMIT = 1e6


@frozen
class Pressure:
    """Say what a gpu-let contributes to the sum: to its ``own`` slowdown and to that of the ``other`` gpu-let
    (each the worst of the models that take turns in it)."""

    own: float = 0.0
    other: float = 0.0


@frozen
class GpuletCoefficients:
    """Hold the coefficients of slowdown = max(1, constant + l2_own l2 + l2_other l2' + dram_own dram +
    dram_other dram'), with the utilisations of the L2 cache and of DRAM bandwidth as parts of 1, ' of the
    other gpu-let.

    Source: Choi et al., USENIX ATC 2022 (interference model, fitted by linear regression on
    pairs).
    """

    constant: float
    l2_own: float
    l2_other: float
    dram_own: float
    dram_other: float

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the requirement table that these coefficients multiply."""
        columns = []
        if self.l2_own or self.l2_other:
            columns.append("l2_util_mean_pct")
        if self.dram_own or self.dram_other:
            columns.append("dram_util_mean_pct")
        return tuple(columns)

    def pressure(self, candidates: Sequence[Candidate]) -> Pressure:
        """Return the pressure of a gpu-let in which ``candidates`` take turns; their columns are known."""
        own = []
        other = []
        for c in candidates:
            l2 = (c.row.l2_util_mean_pct or 0.0) / 100
            dram = (c.row.dram_util_mean_pct or 0.0) / 100
            own.append(self.l2_own * l2 + self.dram_own * dram)
            other.append(self.l2_other * l2 + self.dram_other * dram)
        return Pressure(own=max(own, default=0.0), other=max(other, default=0.0))

    def slowdown(self, mine: Pressure, neighbour: Pressure | None) -> float:
        """Return the factor (1 or more) on the latencies of a gpu-let; 1 where its GPU has no other."""
        if neighbour is None:
            return 1.0
        return max(1.0, self.constant + mine.own + neighbour.other)


# The paper's coefficients are fitted on its machine and not printed. These are derived: each resource serves
# two gpu-lets in proportion to what they ask (slowdown max(1, l2 + l2', dram + dram')), and this is its
# least-squares linear function for utilisations that are independent and uniform on 0..1. Mean 77/60;
# covariance with each utilisation 11/360, over the variance 1/12: slope 11/30; constant 77/60 - 4 (11/30) / 2
# = 11/20.
DERIVED = GpuletCoefficients(
    constant=11 / 20, l2_own=11 / 30, l2_other=11 / 30, dram_own=11 / 30, dram_other=11 / 30
)


def read_coefficients(path: Path) -> GpuletCoefficients:
    """Return the coefficients in the YAML (or JSON) file at ``path``: the five names of
    :class:`GpuletCoefficients`, each a number; or what ``gkest train --interference`` wrote (a file, or a
    bundle's folder). Raises DocumentError naming the field."""
    names = [f.name for f in fields(GpuletCoefficients)]
    fitted = fitted_file(path)
    if fitted is not None:
        return GpuletCoefficients(**{name: getattr(fitted.gpulet, name) for name in names})
    taken = load_yaml(path, what="gpulet's interference coefficients")
    weights = {name: taken.number(name, low=-_LIMIT, high=_LIMIT) for name in names}
    taken.finish()
    return GpuletCoefficients(**weights)
