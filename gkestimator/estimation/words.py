"""The closing lines: which GPU is the smallest and the cheapest that fits, and how far to trust the answer."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.estimation.engine import Target
from gkestimator.estimation.rows import answers_within, fits
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.tables import Requirement

_MODELS_SPELLED_OUT = 4


def closing_words(
    rows: Sequence[Requirement],
    targets: Sequence[Target],
    *,
    slo_ms: float | None,
    host_overhead_source: str,
    host_range_us: tuple[float, float],
    searched: bool = False,
) -> tuple[str, ...]:
    """A few plain sentences about ``rows``; empty when there are none. ``searched``: their batches are the largest."""
    if not rows:
        return ()
    gpus = {t.gpu.name: t.gpu for t in targets}
    models = list(dict.fromkeys(r.model for r in rows))
    lines = [t.note for t in targets if t.note]
    for model in models[:_MODELS_SPELLED_OUT]:
        lines.append(_fit([r for r in rows if r.model == model], gpus, slo_ms, searched))
    if len(models) > _MODELS_SPELLED_OUT:
        lines.append(f"... and {len(models) - _MODELS_SPELLED_OUT} more models: see the table")
    lines.append(_trust(rows))
    bound = [r for r in rows if r.host_bound]
    if bound:
        low, high = host_range_us
        lines.append(
            f"Host-bound rows ({len(bound)} of {len(rows)}) are as good as the {bound[0].host_overhead_us:g} us "
            f"assumed per framework call ({host_overhead_source}); their intervals "
            + ("take it as exact" if low == high else f"span {low:.3g} to {high:.3g} us")
            + "; --host-overhead-us sets yours."
        )
    return tuple(lines)


def _fit(rows: Sequence[Requirement], gpus: dict[str, GpuSpec], slo_ms: float | None, searched: bool) -> str:
    model = rows[0].model
    good = [r for r in rows if fits(r) and (slo_ms is None or answers_within(r, slo_ms))]
    what = "fits" if slo_ms is None else f"fits and answers within {slo_ms:g} ms"
    if not good:
        return f"{model}: of no combination here is it known that it {what}."
    largest: dict[str, int] = {}
    for r in good:
        largest[r.gpu] = max(largest.get(r.gpu, 0), r.batch_size or 0)
    sizes = ", ".join(f"{name} up to batch {n}" if n else name for name, n in largest.items())
    text = f"{model}: {what} on {sizes}{'' if searched else ' (of those asked)'}."
    smallest = min(largest, key=lambda name: gpus[name].memory_visible_bytes)
    if len(largest) > 1:
        text += f" Smallest: {smallest}."
    cost: dict[str, tuple[float, int | None]] = {}
    for r in good:
        price = gpus[r.gpu].price_per_hour_usd
        if price is not None and r.throughput_rps:
            per_million = price / 3600 / r.throughput_rps * 1e6
            if r.gpu not in cost or per_million < cost[r.gpu][0]:
                cost[r.gpu] = (per_million, r.batch_size)
    if cost:
        cheapest = min(cost, key=lambda name: cost[name][0])
        value, batch = cost[cheapest]
        text += f" Cheapest: {cheapest}, ${value:.2g} per million samples at batch {batch}."
    return text


def _trust(rows: Sequence[Requirement]) -> str:
    covered = sorted(r.coverage_pct for r in rows if r.coverage_pct is not None)
    widths = sorted(
        100 * (r.latency_high_ms / r.latency_ms - 1)
        for r in rows
        if r.latency_high_ms is not None and r.latency_ms
    )
    parts = []
    if covered:
        least = f"{covered[0]:.0f}"
        most = f"{covered[-1]:.0f}"
        span = least if least == most else f"{least} to {most}"
        parts.append(f"{span} % of GPU time lies inside the trained range")
    if widths:
        parts.append(f"90 % intervals reach up to {widths[-1]:.0f} % above the estimate")
    learned = any(r.occupancy_source not in (None, "analytical") for r in rows)
    parts.append(
        "memory is calculated, not learned" if learned else "occupancy and memory are calculated, not learned"
    )
    return "Trust: " + "; ".join(parts) + "."
