"""What a plan holds, in words: entries by family, source and precision, how long it takes, what was left out."""

from __future__ import annotations

from collections import Counter

from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.sweep.cost import GENERIC_GPU
from gkestimator.profiling.type_names import CountByName, Names


def duration_words(seconds: float) -> str:
    """Say ``40 s``, ``12 min``, ``3.2 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def expected_words(plan: SweepPlan, *, cpu: bool) -> str:
    """Say how long the plan should take, and on what: ``about 12 min on A100-PCIE-40GB``."""
    on = plan.gpu or ("this CPU, guessed" if cpu else f"an unknown GPU, taken as an {GENERIC_GPU}")
    return f"about {duration_words(plan.estimated_s or 0.0)} on {on}"


def _listed(counts: CountByName, most: int = 12) -> str:
    # The most frequent first: what does not fit into the line is the least of it.
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = ", ".join(f"{name} {count}" for name, count in ordered[:most])
    if len(ordered) > most:
        return f"{shown} and {len(ordered) - most} more"
    return shown


def messages_of(
    plan: SweepPlan,
    *,
    note: str | None,
    cpu: bool,
    candidates: int,
    cut_models: int,
    left_out: CountByName,
) -> Names:
    """Return lines for people, the most important one last."""
    lines = []
    if note is not None and plan.gpu is not None:
        lines.append(note)
    operators = Counter(e.fragment.op_type for e in plan.entries)
    precisions = Counter(e.dtype for e in plan.entries)
    sources: Counter[str] = Counter()
    for entry in plan.entries:
        is_model = entry.source.startswith("model")
        sources[entry.source.partition(":")[0] if is_model else entry.source] += 1
    lines.append(f"operators: {_listed(operators)}")
    lines.append(f"sources: {_listed(sources)}; precisions: {_listed(precisions)}")
    if left_out:
        lines.append(f"left out: {_listed(left_out, 6)}")
    if cut_models:
        lines.append(
            f"the budget ends before {cut_models} entries of the models: more --minutes (or --entries) has them all"
        )
    counted = sum(e.counters for e in plan.entries)
    lines.append(
        f"{len(plan.entries):,} entries of {candidates:,} candidates, {counted} with counters; "
        f"{expected_words(plan, cpu=cpu)}"
    )
    return tuple(lines)
