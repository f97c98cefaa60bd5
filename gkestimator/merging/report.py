"""Report what a merge found, decided and expects: the document behind ``--report``."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gkestimator.core.errors import one_line
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.options import spelled
from gkestimator.core.records import frozen
from gkestimator.merging.checking import OutputCheck
from gkestimator.merging.editing import EditableModel, Names
from gkestimator.merging.grouping import Grouping
from gkestimator.merging.matching import Matching, RefusedOperators
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing import MergeDecision, Price, PricedSuper, Pricer
from gkestimator.merging.sources import MergeSource
from gkestimator.tables.units import bytes_text, number_text, percent_text

REPORT_VERSION = 1
_CONFIDENCE = {
    "apart": "the 90 % intervals{of} do not overlap",
    "alike": "the 90 % intervals{of} overlap, so it pays if the estimate errs alike for both",
    "open": "that it pays cannot be told for sure from the 90 % intervals{of}",
}
_REASONS = {
    "start": "start at other times (option tau_ms inf merges them too)",
    "cycle": "would make the merged graph go in a circle",
    "emission": "cannot be written as one operator",
    "price": "would not pay (option always merges them too)",
}


@frozen
class Settings:
    """Hold what was asked for, as the options say it; ``gpu`` by its canonical name."""

    gpu: str
    runtime: str
    dtype: str
    omega: float
    tolerance: float
    tau_ms: float | None
    group_distance: float
    price: str
    always: bool


@frozen
class MergedModel:
    """Hold one model.

    ``name``: its inputs and outputs are ``<name>/<theirs>`` in the merged file. ``group``: models of one
    number are of one architecture. ``batch_size`` and ``dims``: what it is priced at. ``weight_bytes``: of
    all its weights in the file.
    """

    name: str
    file: str
    group: int
    operators: int
    weight_bytes: int
    batch_size: int
    dims: dict[str, int]


@frozen
class ReportedOperator:
    """Hold operators that multiply by one block of weights.

    ``operators``: names of the nodes, one of each model. ``rows`` x ``columns`` is the block, ``whole``
    whether it is all of every weight. ``similarity``: 2 |block| / (|Wa| + |Wb|), of more than two the least.
    ``merged``: whether it was kept; ``region``: number of the region that decided on it. ``saved_bytes``: the
    block as often as it is read once instead of once a model (of one that was not kept: would be).
    ``extra_flops``: what the merged product and the sums around it calculate beyond the originals (null: not
    merged). ``block_fits_l2``: whether the block fits the GPU's second-level cache; ``fits_l2``: the block
    with all inputs and results of the merged product (null: not merged). ``gpu_before_ms``, ``gpu_after_ms``:
    the products' kernels, without the copies around them, which are the region's.
    """

    operators: Names
    kind: str
    rows: int
    columns: int
    whole: bool
    similarity: float
    merged: bool
    region: int
    block_bytes: int
    saved_bytes: int
    extra_flops: int | None
    block_fits_l2: bool
    fits_l2: bool | None
    gpu_before_ms: float
    gpu_after_ms: float | None

    def of(self, model: str) -> bool:
        """Return True where one of the operators is of the model that is called so."""
        return any(name.startswith(f"{model}/") for name in self.operators)


@frozen
class ReportedRegion:
    """Hold merged operators that follow each other without leaving the merged part: the unit of the decision.

    ``replaced`` original operators became ``operators``. Costs are of these alone: ``before`` as they stand
    in their models, ``after`` merged. ``lifted``: operators that follow the products alike were run once too.
    """

    replaced: int
    operators: int
    pays: bool
    lifted: bool
    before: Price
    after: Price


@frozen
class MergeReport:
    """Hold a merge in figures.

    ``confidence``: ``apart`` (the 90 % intervals of before and after do not overlap), ``alike`` (they do, but
    after is below before at both ends: it pays wherever the estimator errs alike for both), ``open`` (cannot
    be told, or it does not fall), null (nothing merged). ``nothing``: why nothing was merged, in words (null:
    something was). ``stored_bytes``: weights in the merged graph, each distinct one once. ``file_bytes``: of
    the written file with its weights (null: none written). ``check`` null: outputs were not compared,
    ``check_reason`` says why.
    """

    settings: Settings
    models: tuple[MergedModel, ...]
    merged: tuple[ReportedOperator, ...]
    refused: tuple[RefusedOperators, ...]
    regions: tuple[ReportedRegion, ...]
    before: Price
    after: Price
    confidence: str | None
    l2_bytes: int
    nothing: str | None
    stored_bytes: int
    file_bytes: int | None
    check: OutputCheck | None
    check_reason: str | None
    notes: Names = ()

    @property
    def saved_bytes(self) -> int:
        """Return the bytes of weights that the merged version reads once and the originals once each."""
        return sum(operator.saved_bytes for operator in self.merged if operator.merged)

    @property
    def pairs(self) -> int:
        """Return the operators that a merged product stands for, less that product itself: 1 for two models,
        2 for three.
        """
        return sum(len(operator.operators) - 1 for operator in self.merged if operator.merged)

    def document(self) -> dict[str, Any]:
        """Return the report as the mapping that its JSON holds; unknown figures are null, never 0."""
        totals = {"pairs": self.pairs, "saved_bytes": self.saved_bytes}
        return {"schema_version": REPORT_VERSION} | dataclasses.asdict(self) | totals

    def words(self) -> Names:
        """Return what closes a run, on stderr: what was merged and what is expected of it, or why nothing
        was; what was left although the weights are alike; notes.
        """
        lines = [f"Nothing was merged: {self.nothing}." if self.nothing else self._gain()]
        merged = self._merged_models()
        left = [model.name for model in self.models if model not in merged]
        if left and not self.nothing:
            lines.append(f"Merged with none, beside the others in the file: {', '.join(left)}.")
        counts = Counter(
            refusal.reason for refusal in self.refused if not (self.nothing and refusal.reason == "price")
        )
        if counts:
            some = "; ".join(f"{n:,} {_REASONS.get(reason, reason)}" for reason, n in sorted(counts.items()))
            lines.append(f"Alike but not merged: {some}.")
        return tuple(one_line(line, limit=2000) for line in (*lines, *self.notes))

    def _merged_models(self) -> list[MergedModel]:
        """Return the models of which an operator was merged."""
        return [
            model
            for model in self.models
            if any(operator.merged and operator.of(model.name) for operator in self.merged)
        ]

    def _gain(self) -> str:
        operators = sum(len(operator.operators) for operator in self.merged if operator.merged)
        products = sum(operator.merged for operator in self.merged)
        models = len(self._merged_models())
        among = len(self.models)
        return (
            f"Merged {operators:,} operators of {f'{models} of the ' if models < among else ''}{among} models "
            f"into {products:,}: "
            f"{bytes_text(self.saved_bytes)} less of weights to read; expected {self._price(self.after)} instead of "
            f"{self._price(self.before)} on {self.settings.gpu} ({self._change()} %); "
            f"{self._trust()}."
        )

    def _trust(self) -> str:
        which = self.settings.price
        if self.after.measure(which) >= self.before.measure(which):
            return f"it does not pay, and was merged because {spelled('always')} says so"
        if self.confidence is None:
            return "how far to trust this is not known"
        if self.before.latency_high_ms is None:
            return "how far to trust this is not known"
        of = " of the latency" if which == "gpu" else ""  # the kernels' sum has no interval
        return _CONFIDENCE[self.confidence].format(of=of)

    def _price(self, cost: Price) -> str:
        if self.settings.price == "gpu":
            what = " of the GPU"
        else:
            what = ""
        return f"{number_text(cost.measure(self.settings.price))} ms{what}"

    def _change(self) -> str:
        old = self.before.measure(self.settings.price)
        new = self.after.measure(self.settings.price)
        if old:
            change = 100 * (new / old - 1)
        else:
            change = None
        if change is None or change < 0:
            return percent_text(change)
        return f"+{percent_text(change)}"


@frozen
class MergeSteps:
    """Hold what the steps of one merge left; ``graphs`` are the models bound at their batch sizes."""

    sources: Sequence[MergeSource]
    models: Sequence[EditableModel]
    graphs: Sequence[OperatorGraph]
    grouping: Grouping
    matching: Matching
    decision: MergeDecision
    merged: EditableModel
    pricer: Pricer


def report_of(steps: MergeSteps, files: Sequence[Path], check: OutputCheck | str) -> MergeReport:
    """Return the report.

    ``files``: what was written. ``check``: the comparison of outputs, or why there is none.
    """
    decision = steps.decision
    refused = list(steps.matching.refused)
    for op in decision.refused:
        refused.append(RefusedOperators(operators=op.names, reason="price", similarity=op.similarity))
    regions: list[ReportedRegion] = []
    for region in decision.regions:
        regions.append(
            ReportedRegion(
                replaced=len(region.originals),
                operators=len(region.merged),
                pays=region.pays,
                lifted=region.lifted,
                before=region.before,
                after=region.after,
            )
        )
    outputs: OutputCheck | None = None
    reason: str | None = None
    if isinstance(check, str):
        reason = check
    else:
        outputs = check
    return MergeReport(
        settings=_settings(steps.pricer.options, steps.pricer.gpu),
        models=_models(steps),
        merged=tuple(map(_operator, decision.supers)),
        refused=tuple(refused),
        regions=tuple(regions),
        before=decision.before,
        after=decision.after,
        confidence=decision.confidence,
        l2_bytes=decision.l2_bytes,
        nothing=None if decision.kept else _nothing(steps),
        stored_bytes=steps.merged.weight_bytes,
        file_bytes=sum(file.stat().st_size for file in files) or None,
        check=outputs,
        check_reason=reason,
        notes=_notes(steps),
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


def _models(steps: MergeSteps) -> tuple[MergedModel, ...]:
    group_of: dict[int, int] = {}
    for number, group in enumerate(steps.grouping.groups):
        group_of.update(dict.fromkeys(group, number))
    models = []
    for i, source in enumerate(steps.sources):
        graph = steps.graphs[i]
        models.append(
            MergedModel(
                name=source.name,
                file=str(source.path),
                group=group_of[i],
                operators=len(graph.operators),
                weight_bytes=steps.models[i].weight_bytes,
                batch_size=graph.batch_size,
                dims=dict(source.dims),
            )
        )
    return tuple(models)


def _operator(priced: PricedSuper) -> ReportedOperator:
    op = priced.op
    after: float | None = None
    if priced.after is not None:
        after = priced.after.gpu_ms
    return ReportedOperator(
        operators=op.names,
        kind=op.members[0].operator.kind,
        rows=op.rows,
        columns=op.columns,
        whole=op.whole,
        similarity=op.similarity,
        merged=priced.kept,
        region=priced.region,
        block_bytes=priced.block_bytes,
        saved_bytes=priced.saved_bytes,
        extra_flops=priced.extra_flops,
        block_fits_l2=priced.block_fits_l2,
        fits_l2=priced.fits_l2,
        gpu_before_ms=priced.before.gpu_ms,
        gpu_after_ms=after,
    )


def _nothing(steps: MergeSteps) -> str:
    """Say why nothing was merged, in words."""
    options = steps.pricer.options
    decision = steps.decision
    # the reasons in the order in which the steps could have ended the merge
    if decision.supers:
        number = len(decision.supers)
        if not any(region.pays for region in decision.regions):
            return (
                f"of {number:,} products with weights in common none pays ({spelled('always')} merges them)"
            )
        return (
            f"{number:,} products with weights in common do not make the whole cheaper "
            f"({spelled('always')} merges them)"
        )
    if all(len(group) == 1 for group in steps.grouping.groups):
        # What is compared is an upper bound, so it says nothing of how far apart they are at least.
        enough = math.ceil(1000 * min(d.changed for d in steps.grouping.distances.values())) / 1000
        return (
            f"the models are of different architectures ({spelled('group_distance')} {options.group_distance:g}; "
            f"from {enough:g} on two of them are alike)"
        )
    if steps.matching.refused:
        return "no operators with weights in common can be merged"
    return f"no two operators have weights that are similar enough ({spelled('omega')} {options.omega:g})"


def _notes(steps: MergeSteps) -> Names:
    notes = list(steps.pricer.notes)
    unknown = steps.decision.unknown_operators
    if unknown:
        notes.append(f"Not priced, for the estimator does not know them: {', '.join(unknown)}.")
    if steps.matching.unsure:
        notes.append(
            f"Not every place was compared in {steps.matching.unsure:,} pairs of weights of few distinct values: "
            "they may have more in common."
        )
    if not steps.decision.kept:
        notes.append("The models stand side by side in the merged file; equal weights are stored once.")
    return tuple(notes)
