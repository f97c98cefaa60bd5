"""Clock, power and tenants while one entry ran."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.profiling.raw import EnvironmentSample


class Meanwhile(tuple[float | None, float | None, int | None]):
    """(SM clock in MHz, power in W, other processes); None where no sample tells."""

    __slots__ = ()


def meanwhile(samples: Sequence[EnvironmentSample]) -> Meanwhile:
    """Means of clock and power, and the most tenants, of the samples that tell. An entry shorter than the interval
    between samples has its neighbours': those of an idle GPU, which lowers its clocks, tell nothing of it."""
    at_work = [s for s in samples if "gpu_idle" not in (s.throttled or ())]
    clocks = [s.sm_clock_mhz for s in at_work if s.sm_clock_mhz is not None]
    powers = [s.power_w for s in at_work if s.power_w is not None]
    tenants = [s.tenants for s in samples if s.tenants is not None]
    return Meanwhile(
        (
            sum(clocks) / len(clocks) if clocks else None,
            sum(powers) / len(powers) if powers else None,
            max(tenants) if tenants else None,
        )
    )
