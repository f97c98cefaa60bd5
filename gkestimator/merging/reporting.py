"""The report of what the steps of a merge found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from gkestimator.core.graph import OperatorGraph
from gkestimator.core.records import frozen
from gkestimator.merging.checking import OutputCheck
from gkestimator.merging.editing import EditableModel
from gkestimator.merging.grouping import Grouping
from gkestimator.merging.matching import Matching
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing import MergeDecision, PricedSuper, Pricer
from gkestimator.merging.report import (
    MergedModel,
    MergeReport,
    RefusedOperators,
    ReportedOperator,
    ReportedRegion,
    Settings,
)
from gkestimator.merging.sources import MergeSource


@frozen
class Found:
    """What the steps of one merge left; ``graphs`` are the models bound at their batch sizes."""

    sources: Sequence[MergeSource]
    models: Sequence[EditableModel]
    graphs: Sequence[OperatorGraph]
    grouping: Grouping
    matching: Matching
    decision: MergeDecision
    merged: EditableModel
    pricer: Pricer


def report_of(found: Found, files: Sequence[Path], check: OutputCheck | str) -> MergeReport:
    """The report. ``files``: what was written. ``check``: the comparison of outputs, or why there is none."""
    options = found.pricer.options
    decision = found.decision
    return MergeReport(
        settings=_settings(options, found.pricer.gpu),
        models=_models(found),
        merged=tuple(_operator(s) for s in decision.supers),
        refused=(
            *(
                RefusedOperators(operators=r.names, reason=r.reason, similarity=r.similarity, detail=r.detail)
                for r in found.matching.refused
            ),
            *(
                RefusedOperators(
                    operators=op.names,
                    reason="price",
                    similarity=op.similarity,
                )
                for op in decision.refused
            ),
        ),
        regions=tuple(
            ReportedRegion(
                replaced=len(r.originals),
                operators=len(r.merged),
                pays=r.pays,
                lifted=r.lifted,
                before=r.before,
                after=r.after,
            )
            for r in decision.regions
        ),
        before=decision.before,
        after=decision.after,
        confidence=decision.confidence,
        l2_bytes=decision.l2_bytes,
        nothing=None if decision.kept else _nothing(found),
        stored_bytes=sum(w.nbytes for w in found.merged.weights.values()),
        file_bytes=sum(f.stat().st_size for f in files) if files else None,
        check=None if isinstance(check, str) else check,
        check_reason=check if isinstance(check, str) else None,
        notes=_notes(found),
    )


def _settings(options: MergeOptions, gpu: str) -> Settings:
    return Settings(
        gpu=gpu,
        runtime=options.runtime,
        dtype=options.dtype,
        omega=options.omega,
        tolerance=options.tolerance,
        tau_ms=options.tau_ms if math.isfinite(options.tau_ms) else None,
        group_distance=options.group_distance,
        price=options.price,
        always=options.always,
    )


def _models(found: Found) -> tuple[MergedModel, ...]:
    group_of = {i: number for number, group in enumerate(found.grouping.groups) for i in group}
    return tuple(
        MergedModel(
            name=source.name,
            file=str(source.path),
            group=group_of[i],
            operators=len(graph.operators),
            weight_bytes=sum(w.nbytes for w in model.weights.values()),
            batch_size=graph.batch_size,
            dims=dict(source.dims),
        )
        for i, (source, model, graph) in enumerate(
            zip(found.sources, found.models, found.graphs, strict=True)
        )
    )


def _operator(told: PricedSuper) -> ReportedOperator:
    op = told.op
    first = op.members[0].operator
    return ReportedOperator(
        operators=op.names,
        kind=first.kind,
        rows=op.rows,
        columns=op.columns,
        whole=op.whole,
        similarity=op.similarity,
        merged=told.kept,
        region=told.region,
        block_bytes=told.block_bytes,
        saved_bytes=told.saved_bytes,
        extra_flops=told.extra_flops,
        block_fits_l2=told.block_fits_l2,
        fits_l2=told.fits_l2,
        gpu_before_ms=told.before.gpu_ms,
        gpu_after_ms=None if told.after is None else told.after.gpu_ms,
    )


def _nothing(found: Found) -> str:
    """Why nothing was merged, in words."""
    options = found.pricer.options
    decision = found.decision
    if decision.supers:
        number = len(decision.supers)
        if not any(region.pays for region in decision.regions):
            return f"of {number:,} products with weights in common none pays (--always merges them)"
        return (
            f"{number:,} products with weights in common do not make the whole cheaper (--always merges them)"
        )
    if all(len(group) == 1 for group in found.grouping.groups):
        # What is compared is an upper bound, so it says nothing of how far apart they are at least.
        enough = math.ceil(1000 * min(d.changed for d in found.grouping.distances.values())) / 1000
        return (
            f"the models are of different architectures (--group-distance {options.group_distance:g}; "
            f"from {enough:g} on two of them are alike)"
        )
    if found.matching.refused:
        return "no operators with weights in common can be merged"
    return f"no two operators have weights that are similar enough (--omega {options.omega:g})"


def _notes(found: Found) -> tuple[str, ...]:
    notes = list(found.pricer.notes)
    unknown = found.decision.unknown_operators
    if unknown:
        notes.append(f"Not priced, for the estimator does not know them: {', '.join(unknown)}.")
    if found.matching.unsure:
        notes.append(
            f"Not every place was compared in {found.matching.unsure:,} pairs of weights of few distinct values: "
            "they may have more in common."
        )
    if not found.decision.kept:
        notes.append("The models stand side by side in the merged file; equal weights are stored once.")
    return tuple(notes)
