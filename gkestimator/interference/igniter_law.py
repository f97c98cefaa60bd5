"""iGniter's latency model: how long a batch takes beside its neighbours on a GPU, and the coefficients it
needs.

Source: F. Xu, J. Xu, J. Chen, L. Chen, R. Shang, Z. Zhou, F. Liu, "iGniter: Interference-Aware GPU Resource
Provisioning for Predictable DNN Inference in the Cloud", IEEE TPDS 34(3), 2023, section 3. In its notation,
for model i with batch b on a share r of a GPU that n models share:

- t = t_load + t_gpu + t_feedback; t_load, t_feedback = bytes of the inputs, outputs / PCIe bandwidth
- t_gpu = (t_sch + t_act) F / f
- t_sch = (k_sch + D) n_k, D = alpha_sch n + beta_sch where n > 1, else 0
- t_act = k_act (1 + alpha_cache sum c') over the neighbours' L2 utilisations c'
- k_act = (k1 b^2 + k2 b + k3) / (r + k4) + k5
- f = F + alpha_f (p - P) where p = p_idle + sum of the models' powers > P, else F
- power and L2 utilisation of a model: linear in its processing ability b / k_act

What the table knows replaces what a user would have to fit: k_act is the row's latency at its share less
k_sch n_k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gkestimator.core.records import frozen


@frozen
class GpuTerms:
    """Hold what iGniter knows of a GPU type. Each of None is a term that is not counted.

    ``pcie_bytes_per_s``: one direction. ``schedule_ms_per_model`` and ``schedule_offset_ms``: alpha_sch and
    beta_sch, the delay of one kernel beside n models. ``clock_mhz``, ``power_limit_w``, ``idle_power_w``:
    F, P, p_idle. ``clock_mhz_per_w``: alpha_f, at most 0.
    """

    pcie_bytes_per_s: float
    clock_mhz: float
    power_limit_w: float
    idle_power_w: float | None = None
    clock_mhz_per_w: float | None = None
    schedule_ms_per_model: float | None = None
    schedule_offset_ms: float | None = None


@frozen
class IgniterLoad:
    """Hold one way to run a model on a GPU type (batch and SM share), in the model's terms.

    ``batch_size``: b. ``input_bytes``, ``output_bytes``: of the whole batch (None: moving them is not
    counted). ``schedule_ms``: k_sch n_k, the delay of its ``kernels`` (n_k) alone. ``active_ms``: k_act.
    ``cache_slowdown``: alpha_cache. ``l2_util``: c, 0 to 1. (Both may be None for a model that has no
    neighbours.) ``power_w``: what it adds to an idle GPU (None: not counted).
    """

    batch_size: int
    input_bytes: float | None
    output_bytes: float | None
    kernels: float | None
    schedule_ms: float
    active_ms: float
    cache_slowdown: float | None
    l2_util: float | None
    power_w: float | None


def active_ms(k: tuple[float, float, float, float, float], batch_size: int, share: float) -> float:
    """Return k_act of a fit: (k1 b^2 + k2 b + k3) / (r + k4) + k5, ``share`` r from 0 to 1. Infinite where
    the fit has no value (r + k4 not above 0, or a time not above 0)."""
    below = share + k[3]
    if below <= 0:
        return math.inf
    active = (k[0] * batch_size**2 + k[1] * batch_size + k[2]) / below + k[4]
    if active > 0:
        return active
    return math.inf


def linear(slope: float, offset: float, batch_size: int, active: float) -> float:
    """Return a model's power or L2 utilisation: slope x b / k_act + offset (b / k_act in samples per ms), at
    least
    0."""
    return max(0.0, slope * batch_size / active + offset)


def latency_ms(gpu: GpuTerms, loads: Sequence[IgniterLoad], which: int) -> float:
    """Return t of ``loads[which]`` while all ``loads`` run on one GPU. Infinite where the clock would fall to
    0."""
    load = loads[which]
    copied = (load.input_bytes or 0.0) + (load.output_bytes or 0.0)
    return 1e3 * copied / gpu.pcie_bytes_per_s + gpu_ms(gpu, loads, which)


def service_ms(gpu: GpuTerms, loads: Sequence[IgniterLoad], which: int) -> float:
    """Return t_gpu + t_feedback: what a batch keeps the model busy, since loading the next overlaps with it
    (equation 2)."""
    return 1e3 * (loads[which].output_bytes or 0.0) / gpu.pcie_bytes_per_s + gpu_ms(gpu, loads, which)


def gpu_ms(gpu: GpuTerms, loads: Sequence[IgniterLoad], which: int) -> float:
    """Return t_gpu of ``loads[which]``."""
    load = loads[which]
    schedule = load.schedule_ms
    if len(loads) > 1 and load.kernels is not None and gpu.schedule_ms_per_model is not None:
        delay = gpu.schedule_ms_per_model * len(loads) + (gpu.schedule_offset_ms or 0.0)
        schedule += max(0.0, delay) * load.kernels
    active = load.active_ms
    if len(loads) > 1:
        utils = [other.l2_util for i, other in enumerate(loads) if i != which]
        if load.cache_slowdown is None or None in utils:
            raise ValueError("the L2 utilisation of a model with neighbours is unknown")
        active *= 1 + load.cache_slowdown * sum(u for u in utils if u is not None)
    clock = clock_mhz(gpu, loads)
    if clock > 0:
        return (schedule + active) * gpu.clock_mhz / clock
    return math.inf


def clock_mhz(gpu: GpuTerms, loads: Sequence[IgniterLoad]) -> float:
    """Return f: the clock while ``loads`` run; F where the power of one is unknown or the GPU's terms are."""
    powers = [load.power_w for load in loads]
    if gpu.idle_power_w is None or gpu.clock_mhz_per_w is None or None in powers:
        return gpu.clock_mhz
    demand = gpu.idle_power_w + sum(p for p in powers if p is not None)
    return gpu.clock_mhz + gpu.clock_mhz_per_w * max(0.0, demand - gpu.power_limit_w)
