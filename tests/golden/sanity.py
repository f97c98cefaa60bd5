"""What must hold of any bundle's estimates, without a fixed number: violations as readable lines.

Times are GPU times (a host that costs nothing), so that the host does not hide what the regressors say.
``python tests/golden/sanity.py`` prints every violation on every GPU of the catalogue.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from golden_models import golden_models

from gkestimator.estimation import estimate_rows
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.tables import Requirement

BATCHES = (1, 2, 8, 32, 64)
DTYPES = ("fp32", "tf32", "amp", "fp16")
MONOTONE_TOLERANCE = 0.02
SEGMENTS_BYTES = 40 * 2**20
"""Two of torch's 20 MiB segments: a tensor that outgrows them gets one of its own size, which may be less."""
PER_SAMPLE = 1.5
"""A sample of a larger batch may take longer: its activations no longer fit in L2 (L4, L40S, RTX have a large one)."""
NEARLY = 0.9
DOMINANCE_TOLERANCE = 0.05
HALF_TOLERANCE = 0.05
WINOGRAD_GAIN = 2.25
"""Multiplications that F(2x2, 3x3) saves (Lavin and Gray 2016): cuDNN runs it in fp32 on the CUDA cores."""
ALLOWED: Mapping[str, float] = {"batch": 1.08, "bandwidth": 1.2, "dominance": 1.15, "precision": 1.3}
"""How far beyond its bound a rule may be broken before the test fails; a rule that is not here: not at all. What the
regressors of today's bundle still say, and no bundle may say worse."""
Point = tuple[str, str, str, int]  # model, GPU, dtype as asked, batch size


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One estimate that cannot be. ``excess`` says by how much (1.3: 30 % beyond the bound)."""

    rule: str
    gpu: str
    excess: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Rows by point, and the specifications of their GPUs."""

    rows: Mapping[Point, Requirement]
    gpus: Mapping[str, GpuSpec]

    def dtypes_of(self, gpu: str) -> list[str]:
        """Dtypes estimated on ``gpu``, in DTYPES' order."""
        found = {point[2] for point in self.rows if point[1] == gpu}
        return [d for d in DTYPES if d in found]


def estimates(models: Sequence[Path], gpus: Sequence[str], batches: Sequence[int] = BATCHES) -> Estimates:
    """GPU times of ``models`` under torch in every dtype that a GPU has, on a host that costs nothing."""
    catalogue = gpu_catalogue()
    specs = {spec.name: spec for spec in (catalogue.spec(name) for name in gpus)}
    rows: dict[Point, Requirement] = {}
    for dtype in DTYPES:
        able = [name for name, spec in specs.items() if _has(spec, dtype)]
        if not able:
            continue
        result = estimate_rows(models, gpus=able, batch_sizes=batches, dtype=dtype, host_overhead_us=0)
        for path, error in result.failures:
            raise AssertionError(f"{path.name} {dtype}: {error}")
        for row in result.rows:
            assert row.batch_size is not None
            rows[row.model, row.gpu, dtype, row.batch_size] = row
    return Estimates(rows=rows, gpus=specs)


def _has(spec: GpuSpec, dtype: str) -> bool:
    return {"amp": "fp16"}.get(dtype, dtype) in spec.peak_flops_per_s


def _ms(row: Requirement) -> float:
    assert row.latency_ms is not None
    return row.latency_ms


def interval_holds_estimate(e: Estimates) -> Iterator[Violation]:
    """low <= latency <= high, all positive."""
    for point, row in e.rows.items():
        low, high = row.latency_low_ms or 0.0, row.latency_high_ms or 0.0
        if not 0 < low <= _ms(row) <= high:
            yield _violation("interval", point, 1.0, f"{low:g} <= {_ms(row):g} <= {high:g} ms does not hold")


def shares_are_shares(e: Estimates) -> Iterator[Violation]:
    """Percentages between 0 and 100, means at most the maximum, weights within the reserved memory."""
    for point, row in e.rows.items():
        for mean, most in (
            (row.occupancy_mean_pct, row.occupancy_max_pct), (row.sm_util_mean_pct, row.sm_util_max_pct),
            (row.coverage_pct, 100.0), (row.sm_util_max_pct, 100.0), (row.occupancy_max_pct, 100.0),
            (row.dram_util_mean_pct, 100.0),
        ):  # fmt: skip
            if mean is None or most is None or not 0 <= mean <= most * (1 + 1e-9):
                yield _violation("share", point, 1.0, f"found {mean} %, expected 0 to {most} %")
        if (row.reserved_bytes or 0) < (row.weights_bytes or 0):
            yield _violation("memory", point, 1.0, "reserved memory below the weights")


def grows_with_batch(e: Estimates) -> Iterator[Violation]:
    """A larger batch takes no less time and reserves no less memory; a sample of it takes at most half as long again."""
    for (point, small), (_, large) in _consecutive(e):
        ratio = _ms(small) / _ms(large)
        assert small.batch_size and large.batch_size
        if ratio > 1 + MONOTONE_TOLERANCE:
            yield _violation(
                "batch",
                point,
                ratio,
                f"{_ms(small):.3g} ms, but batch {large.batch_size} {_ms(large):.3g} ms",
            )
        per_sample = _ms(large) / large.batch_size / (_ms(small) / small.batch_size)
        if per_sample > PER_SAMPLE:
            text = f"a sample of batch {large.batch_size} takes {per_sample:.2f} times as long"
            yield _violation("throughput", point, per_sample, text)
        if (large.reserved_bytes or 0) < (small.reserved_bytes or 0) - SEGMENTS_BYTES:
            yield _violation("memory", point, 1.0, f"batch {large.batch_size} reserves less")


def within_the_hardware(e: Estimates) -> Iterator[Violation]:
    """No faster than the FLOPs at the peak (fp32: times Winograd's gain) or than streaming weights larger than L2."""
    for point, row in e.rows.items():
        spec = e.gpus[row.gpu]
        word = "fp16" if point[2] == "amp" else point[2]
        peak = max(spec.peak(word), spec.vector(word))
        if word in ("fp32", "tf32"):  # TF32 is a permission: the library may take fp32's Winograd
            peak = max(peak, WINOGRAD_GAIN * spec.vector("fp32"))
        compute = (row.flops or 0) / peak * 1e3
        if compute > _ms(row):
            text = f"{_ms(row):.3g} ms for work that takes {compute:.3g} ms at the peak"
            yield _violation("roofline", point, compute / _ms(row), text)
        weights = row.weights_bytes or 0
        streamed = weights / spec.dram_bytes_per_s * 1e3
        if weights > 4 * spec.l2_bytes and streamed > _ms(row):
            text = f"{_ms(row):.3g} ms, but its weights take {streamed:.3g} ms to read"
            yield _violation("bandwidth", point, streamed / _ms(row), text)


def better_gpus_are_no_slower(e: Estimates) -> Iterator[Violation]:
    """A GPU that is at least as good in every figure of its specification is at most 5 % slower; one that is up to a
    tenth worse in some figure (L4 in bandwidth against T4) is slower by that much more."""
    better = [(a, b, share) for a in e.gpus for b in e.gpus if (share := dominance(e.gpus[a], e.gpus[b]))]
    for point, row in e.rows.items():
        for good, poor, share in better:
            other = e.rows.get((point[0], good, *point[2:]))
            if row.gpu != poor or other is None:
                continue
            excess = _ms(other) / _ms(row) * share
            if excess > 1 + DOMINANCE_TOLERANCE:
                text = f"{_ms(other):.3g} ms, but {_ms(row):.3g} ms on {poor}, which is worse in every figure"
                yield _violation("dominance", (point[0], good, *point[2:]), excess, text)


def dominance(a: GpuSpec, b: GpuSpec) -> float:
    """The least share, at most 1, that a figure of ``a`` is of that of ``b``, where it is at least 0.9 in all of them
    and ``a`` is the better in compute or bandwidth; 0 where not."""
    if a.name == b.name:
        return 0.0
    figures = ("sms", "boost_clock_mhz", "dram_bytes_per_s", "l2_bytes", "cuda_cores_per_sm", "power_limit_w")
    shares = [getattr(a, name) / getattr(b, name) for name in figures]
    for mine, theirs in (
        (a.peak_flops_per_s, b.peak_flops_per_s),
        (a.vector_flops_per_s, b.vector_flops_per_s),
    ):
        shares += [mine.get(p, 0.0) / rate for p, rate in theirs.items()]
    better = a.dram_bytes_per_s > b.dram_bytes_per_s or a.vector("fp32") > b.vector("fp32")
    least = min(1.0, *shares)
    return least if better and least >= NEARLY else 0.0


def lower_precision_is_no_slower(e: Estimates) -> Iterator[Violation]:
    """From batch 32 on, TF32 is no slower than fp32 and fp16 no slower than either, where tensor cores do it."""
    for (model, gpu, dtype, batch), row in e.rows.items():
        if batch < 32 or e.gpus[gpu].compute_capability < (7, 0):
            continue
        for lower in {"fp32": ("tf32", "fp16", "amp"), "tf32": ("fp16",)}.get(dtype, ()):
            other = e.rows.get((model, gpu, lower, batch))
            if other is not None and _ms(other) > _ms(row) * (1 + HALF_TOLERANCE):
                text = f"{_ms(other):.3g} ms, but {_ms(row):.3g} ms in {dtype}"
                yield _violation("precision", (model, gpu, lower, batch), _ms(other) / _ms(row), text)


RULES: Mapping[str, Callable[[Estimates], Iterable[Violation]]] = {
    "interval": interval_holds_estimate,
    "share": shares_are_shares,
    "batch": grows_with_batch,
    "roofline": within_the_hardware,
    "dominance": better_gpus_are_no_slower,
    "precision": lower_precision_is_no_slower,
}


def _consecutive(e: Estimates) -> Iterator[tuple[tuple[Point, Requirement], tuple[Point, Requirement]]]:
    batches = sorted({point[3] for point in e.rows})
    after = dict(pairwise(batches))
    for point, row in e.rows.items():
        if point[3] in after:
            larger = (*point[:3], after[point[3]])
            yield (point, row), (larger, e.rows[larger])


def _violation(rule: str, point: Point, excess: float, text: str) -> Violation:
    model, gpu, dtype, batch = point
    return Violation(
        rule=rule, gpu=gpu, excess=excess, text=f"{rule}: {model} on {gpu}, {dtype}, batch {batch}: {text}"
    )


def violations(e: Estimates) -> list[Violation]:
    """Everything that breaks a rule, the largest excess of each rule first."""
    found = [v for rule in RULES.values() for v in rule(e)]
    return sorted(found, key=lambda v: (v.rule, -v.excess))


def main() -> int:
    """Print the violations over the whole catalogue, counted by rule and GPU; exit status 1 if there are any."""
    with tempfile.TemporaryDirectory() as folder:
        found = estimates(golden_models(Path(folder)), gpu_catalogue().complete_names())
    bad = violations(found)
    counts: dict[tuple[str, str], list[Violation]] = {}
    for v in bad:
        counts.setdefault((v.rule, v.gpu), []).append(v)
    print(f"{len(found.rows)} estimates, {len(bad)} violations")
    for (rule, gpu), group in sorted(counts.items(), key=lambda item: (item[0][0], -len(item[1]))):
        print(f"  {rule:<11}{gpu:<24}{len(group):>5}  worst {max(v.excess for v in group):.2f}")
    for v in bad:
        print(v.text)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
