"""Write the closing lines: which GPU is the smallest and the cheapest that fits, and how far to trust the
answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.options import spelled
from gkestimator.core.records import Names
from gkestimator.estimation.rows import answers_within, fits
from gkestimator.estimation.targets import Target
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.tables import Requirement
from gkestimator.tables.requirement import RequirementRows
from gkestimator.tables.units import number_text

# More sentences would bury the table above them.
_MODELS_SPELLED_OUT = 4
_GPUS_SPELLED_OUT = 12


def closing_words(
    rows: RequirementRows,
    targets: Sequence[Target],
    *,
    slo_ms: float | None,
    host_overhead_source: str,
    host_range_us: tuple[float, float],
    searched: bool = False,
) -> Names:
    """Return a few plain sentences about ``rows``; none of models that run on the CPU alone.

    ``searched``: their batches are the largest.
    """
    rows = [r for r in rows if not r.runs_on_cpu_alone]
    if not rows:
        return ()
    gpus = {t.gpu.name: t.gpu for t in targets}
    by_model: dict[str, list[Requirement]] = {}
    for r in rows:
        by_model.setdefault(r.model, []).append(r)
    lines = [t.note for t in targets if t.note]
    for mine in list(by_model.values())[:_MODELS_SPELLED_OUT]:
        lines.append(_fit(mine, gpus, slo_ms, searched))
    if len(by_model) > _MODELS_SPELLED_OUT:
        lines.append(f"... and {len(by_model) - _MODELS_SPELLED_OUT} more models: see the table")
    lines.append(_trust(rows))
    for name in dict.fromkeys(r.runtime for r in rows):
        build = runtime_traits(name).build
        if build:
            lines.append(f"{name}: {build}.")
    bound = [r for r in rows if r.host_bound]
    if bound:
        low, high = host_range_us
        spread = f"span {low:.3g} to {high:.3g} us"
        if low == high:
            spread = "take it as exact"
        lines.append(
            f"Host-bound rows ({len(bound)} of {len(rows)}) are as good as the {bound[0].host_overhead_us:g} us "
            f"assumed per framework call ({host_overhead_source}); their intervals {spread}; "
            f"{spelled('host_overhead_us')} sets yours."
        )
    return tuple(lines)


def _fit(rows: RequirementRows, gpus: dict[str, GpuSpec], slo_ms: float | None, searched: bool) -> str:
    """Return on which GPUs one model fits up to which batch, the smallest of them and the cheapest."""
    model = rows[0].model
    good = [r for r in rows if fits(r)]
    what = "fits"
    if slo_ms is not None:
        good = [r for r in good if answers_within(r, slo_ms)]
        what = f"fits and answers within {slo_ms:g} ms"
    if not good:
        return f"{model}: of no combination here is it known that it {what}."
    largest: dict[str, int] = {}
    for r in good:
        largest[r.gpu] = max(largest.get(r.gpu, 0), r.batch_size or 0)
    sizes = []
    for name, size in largest.items():
        limit = f" up to batch {size}" if size else ""
        sizes.append(f"{name}{limit}")
    where = ", ".join(sizes)
    if len(sizes) > _GPUS_SPELLED_OUT:
        where = f"{len(sizes)} of {len({r.gpu for r in rows})} GPUs (see the table)"
    asked = "" if searched else " (of those asked)"
    text = f"{model}: {what} on {where}{asked}."
    if len(largest) > 1:
        smallest = min(largest, key=lambda name: gpus[name].visible_bytes())
        text += f" Smallest: {smallest}."
    return text + _cheapest(good, gpus)


def _cheapest(rows: RequirementRows, gpus: dict[str, GpuSpec]) -> str:
    """Return the GPU and batch of the least price per sample; nothing where no price is known."""
    best: tuple[float, Requirement] | None = None
    for r in rows:
        cost = gpus[r.gpu].usd_per_million(r.throughput_rps)
        if cost is not None and (best is None or cost < best[0]):
            best = (cost, r)
    if best is None:
        return ""
    per_million, row = best
    return f" Cheapest: {row.gpu}, ${number_text(per_million)} per million samples at batch {row.batch_size}."


def _trust(rows: RequirementRows) -> str:
    parts = []
    covered = [r.coverage_pct for r in rows if r.coverage_pct is not None]
    if covered:
        ends = dict.fromkeys(f"{share:.0f}" for share in (min(covered), max(covered)))
        parts.append(f"{' to '.join(ends)} % of GPU time lies inside the trained range")
    reaches = []
    for r in rows:
        if r.latency_high_ms is not None and r.latency_ms:
            reaches.append(100 * (r.latency_high_ms / r.latency_ms - 1))
    if reaches:
        parts.append(f"90 % intervals reach up to {max(reaches):.0f} % above the estimate")
    if any(r.occupancy_source not in (None, "analytical") for r in rows):
        parts.append("memory is calculated, not learned")
    else:
        parts.append("occupancy and memory are calculated, not learned")
    return f"Trust: {'; '.join(parts)}."
