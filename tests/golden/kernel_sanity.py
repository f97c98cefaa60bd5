"""The same kind of gate for single kernels: every distinct kernel of the golden models, predicted on many GPUs.

``python tests/golden/kernel_sanity.py`` prints violations by rule and kernel family, worst kernels first.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from golden_models import golden_models
from sanity import dominance

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Kernel, KernelTable
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.recall import ModelSource
from gkestimator.estimation.request import EstimateRequest
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.kernel_models.prediction import KernelPredictions

BATCHES = (1, 8, 64)
DTYPES = ("fp32", "tf32", "fp16")
DOMINANCE = 1.25
DOMINANCE_US = 2.0
"""A single kernel may be this much slower on the better GPU, by factor or by microseconds: libraries pick other
kernels there, and a launch costs what it costs."""
WINOGRAD_GAIN = 4.0
"""Multiplications that F(4x4, 3x3) saves (Lavin and Gray 2016): 144 against 36 a tile; cuDNN has it in fp32."""
HALF_WINOGRAD_GAIN = 2.0
"""DeepBench's fastest half-precision convolutions run at 1.7 (V100) to 1.9 (T4, P100) times the direct peak."""
ALLOWED_SHARE = {"dominance": 0.01, "peak": 1e-4, "slow": 1e-4, "tf32": 0.03}
"""The share of predictions that may break a rule before the test fails; a rule that is not here: none."""
SLOWEST = 25.0
"""Times the roofline, where the roofline alone is at least SLOWEST_FROM_US."""
SLOWEST_FROM_US = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelViolation:
    """One kernel whose prediction cannot be; ``excess`` as in :class:`sanity.Violation`."""

    rule: str
    family: str
    gpu: str
    excess: float
    text: str


def golden_kernels(models: Sequence[Path], batches: Sequence[int], dtype: str, gpu: str) -> list[Kernel]:
    """Distinct kernels of ``models`` at ``batches`` as torch launches them on ``gpu``."""
    request = EstimateRequest(models=models, gpus=[gpu], batch_sizes=batches, dtype=dtype)
    engine = Engine(request)
    for path in models:
        source = ModelSource(path, path.stem)
        for batch in batches:
            engine.lower_model(source, batch)
    return engine.pool.kernels


def kernel_violations(
    kernels: Sequence[Kernel], predictions: dict[str, KernelPredictions], specs: dict[str, GpuSpec]
) -> Iterator[KernelViolation]:
    """What no bundle may say of single kernels."""
    for name, p in predictions.items():
        bound = p.compute_us / np.array([_gain(k, specs[name]) for k in kernels])
        good = np.isfinite(p.duration_us) & (p.low_us > 0) & (p.low_us <= p.duration_us)
        yield from _each(
            "interval", ~(good & (p.duration_us <= p.high_us)), p.duration_us, kernels, name, p.low_us
        )
        yield from _each(
            "peak", p.duration_us < bound * (1 - 1e-9), bound / p.duration_us, kernels, name, p.duration_us
        )
        slow = (p.duration_us > SLOWEST * p.roofline_us) & (p.roofline_us >= SLOWEST_FROM_US)
        yield from _each("slow", slow, p.duration_us / p.roofline_us, kernels, name, p.duration_us)
        share_ok = (p.sm_util_pct >= 0) & (p.sm_util_pct <= 100 + 1e-9) & (p.occupancy_pct <= 100 + 1e-9)
        unknown = np.isnan(p.sm_util_pct) | np.isnan(p.occupancy_pct)
        yield from _each("share", ~(share_ok | unknown), p.sm_util_pct, kernels, name, p.duration_us)
    for a in predictions:
        for b in predictions:
            share = dominance(specs[a], specs[b])
            if share:
                mine, theirs = predictions[a].duration_us * share, predictions[b].duration_us
                bad = (mine > DOMINANCE * theirs) & (mine > theirs + DOMINANCE_US)
                yield from _each("dominance", bad, mine / theirs, kernels, f"{a} over {b}", mine)


def tensor_float_violations(
    kernels: Sequence[Kernel], allowed: dict[str, KernelPredictions], strict: dict[str, KernelPredictions]
) -> Iterator[KernelViolation]:
    """TF32 is a permission: the library may still take the fp32 kernel, so allowing it costs nothing."""
    for name, p in allowed.items():
        ratio = p.duration_us / strict[name].duration_us
        bad = (ratio > 1.05) & (p.duration_us > strict[name].duration_us + DOMINANCE_US)
        yield from _each("tf32", bad, ratio, kernels, name, p.duration_us)


def _gain(kernel: Kernel, gpu: GpuSpec) -> float:
    """How far above the peak of a direct calculation ``kernel`` may run: Winograd in fp32, which TF32 allows too, and
    in half precision as far as DeepBench measured it."""
    conv, word = kernel.conv, kernel.precision.value
    small = (
        conv is not None
        and {conv.kernel_h, conv.kernel_w} <= {3, 5}
        and {conv.stride_h, conv.stride_w, conv.dilation_h, conv.dilation_w} == {1}
    )
    if word not in ("fp32", "tf32"):
        return HALF_WINOGRAD_GAIN if small and word in ("fp16", "bf16") else 1.0
    plain = gpu.peak("fp32") / gpu.peak(word)
    return max(1.0, (WINOGRAD_GAIN if small else 1.0) * plain)


def _each(
    rule: str, bad: np.ndarray, excess: np.ndarray, kernels: Sequence[Kernel], gpu: str, us: np.ndarray
) -> Iterator[KernelViolation]:
    for i in np.flatnonzero(bad):
        k = kernels[int(i)]
        text = f"{rule}: {k.name} ({k.family.value}, {k.precision.value}) on {gpu}: {us[i]:.1f} us, factor {excess[i]:.2f}; {k.gemm or k.conv or ''}"
        yield KernelViolation(rule=rule, family=k.family.value, gpu=gpu, excess=float(excess[i]), text=text)


def golden_kernel_violations(
    models: Sequence[Path], gpus: Sequence[str], batches: Sequence[int] = BATCHES
) -> tuple[list[KernelViolation], dict[str, int]]:
    """What is wrong with the kernels of ``models`` on ``gpus`` in every dtype, and how many predictions (pairs of
    GPUs for ``dominance``) each rule looked at."""
    catalogue = gpu_catalogue()
    specs = {spec.name: spec for spec in map(catalogue.spec, gpus)}
    found: list[KernelViolation] = []
    counted: Counter[str] = Counter()
    for dtype in DTYPES:
        able = [n for n, s in specs.items() if dtype in s.peak_flops_per_s]
        kernels = golden_kernels(models, batches, dtype, able[0])
        table = KernelTable.from_kernels(kernels)
        estimator = Engine(EstimateRequest(models=models, gpus=able[:1], dtype=dtype)).estimator
        predictions = {name: estimator.predict(table, specs[name]) for name in able}
        found += kernel_violations(kernels, predictions, specs)
        pairs = sum(dominance(specs[a], specs[b]) > 0 for a in able for b in able)
        counted.update(dict.fromkeys(("interval", "peak", "slow", "share"), len(kernels) * len(able)))
        counted["dominance"] += len(kernels) * pairs
        if dtype == "tf32":
            plain = KernelTable.from_kernels([replace(k, precision=Precision.FP32) for k in kernels])
            strict = {name: estimator.predict(plain, specs[name]) for name in able}
            found += tensor_float_violations(kernels, predictions, strict)
            counted["tf32"] += len(kernels) * len(able)
    return found, dict(counted)


def main() -> int:
    """Print what is wrong over the whole catalogue; exit status 1 if anything is."""
    with tempfile.TemporaryDirectory() as folder:
        found, counted = golden_kernel_violations(
            golden_models(Path(folder)), gpu_catalogue().complete_names()
        )
    for rule, total in counted.items():
        print(f"{rule}: {sum(v.rule == rule for v in found)} of {total} predictions")
    groups: dict[tuple[str, str, str], list[float]] = {}
    for v in found:
        groups.setdefault((v.rule, v.family, v.gpu), []).append(v.excess)
    for key, sizes in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        print(f"  {key[0]:<10}{key[1]:<16}{key[2]:<44}{len(sizes):>5}  worst {max(sizes):.2f}")
    for rule in counted:
        for v in sorted((v for v in found if v.rule == rule), key=lambda v: -v.excess)[:25]:
            print(v.text)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
