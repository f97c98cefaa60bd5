"""What a merge found, decided and expects: the document behind ``--report``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from gkestimator.core.errors import one_line
from gkestimator.core.records import frozen
from gkestimator.merging.checking import OutputCheck
from gkestimator.merging.pricing import Price
from gkestimator.tables.units import bytes_text, number_text, percent_text

REPORT_VERSION = 1
_CONFIDENCE = {
    "apart": "the 90 % intervals{of} do not overlap",
    "alike": "the 90 % intervals{of} overlap, so it pays if the estimate errs alike for both",
    "open": "that it pays cannot be told for sure from the 90 % intervals{of}",
}
_REASONS = {
    "start": "start at other times (--tau-ms inf merges them too)",
    "cycle": "would make the merged graph go in a circle",
    "emission": "cannot be written as one operator",
    "price": "would not pay (--always merges them too)",
}


@frozen
class Settings:
    """What was asked for, as the options say it; ``gpu`` by its canonical name."""

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
    """One model. ``name``: its inputs and outputs are ``<name>/<theirs>`` in the merged file. ``group``: models of
    one number are of one architecture. ``batch_size`` and ``dims``: what it is priced at. ``weight_bytes``: of all its
    weights in the file."""

    name: str
    file: str
    group: int
    operators: int
    weight_bytes: int
    batch_size: int
    dims: dict[str, int]


@frozen
class ReportedOperator:
    """Operators that multiply by one block of weights.

    ``operators``: names of the nodes, one of each model. ``rows`` x ``columns`` is the block, ``whole`` whether it is
    all of every weight. ``similarity``: 2 |block| / (|Wa| + |Wb|), of more than two the least. ``merged``: whether it
    was kept; ``region``: number of the region that decided on it. ``saved_bytes``: the block as often as it is read
    once instead of once a model (of one that was not kept: would be). ``extra_flops``: what the merged product
    and the sums around it calculate beyond the originals (null: not merged). ``block_fits_l2``: whether the block fits
    the GPU's second-level cache; ``fits_l2``: the block with all inputs and results of the merged product (null: not
    merged).
    ``gpu_before_ms``, ``gpu_after_ms``: the products' kernels, without the copies around them, which are the region's.
    """

    operators: tuple[str, ...]
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
        """Whether one of the operators is of the model that is called so."""
        return any(name.startswith(f"{model}/") for name in self.operators)


@frozen
class RefusedOperators:
    """Operators whose weights are similar enough and that were not merged. ``reason``: ``start``, ``cycle``,
    ``emission`` (``detail`` says why), ``price``."""

    operators: tuple[str, ...]
    reason: str
    similarity: float
    detail: str = ""


@frozen
class ReportedRegion:
    """Merged operators that follow each other without leaving the merged part: the unit of the decision.

    ``replaced`` original operators became ``operators``. Costs are of these alone: ``before`` as they stand in their
    models, ``after`` merged. ``lifted``: operators that follow the products alike were run once too.
    """

    replaced: int
    operators: int
    pays: bool
    lifted: bool
    before: Price
    after: Price


@frozen
class MergeReport:
    """A merge in figures.

    ``confidence``: ``apart`` (the 90 % intervals of before and after do not overlap), ``alike`` (they do, but after is
    below before at both ends: it pays wherever the estimator errs alike for both), ``open`` (cannot be told, or it does
    not fall), null (nothing merged). ``nothing``: why nothing was merged, in words (null: something was).
    ``stored_bytes``: weights in the merged graph, each distinct one once. ``file_bytes``: of the written file with its
    weights (null: none written). ``check`` null: outputs were not compared, ``check_reason`` says why.
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
    notes: tuple[str, ...] = ()

    @property
    def saved_bytes(self) -> int:
        """Weights that the merged version reads once and the originals once each."""
        return sum(o.saved_bytes for o in self.merged if o.merged)

    @property
    def pairs(self) -> int:
        """Operators that a merged product stands for, less that product itself: 1 for two models, 2 for three."""
        return sum(len(o.operators) - 1 for o in self.merged if o.merged)

    def document(self) -> dict[str, Any]:
        """The report as the mapping that its JSON holds; unknown figures are null, never 0."""
        totals = {"pairs": self.pairs, "saved_bytes": self.saved_bytes}
        return {"schema_version": REPORT_VERSION} | dataclasses.asdict(self) | totals

    def words(self) -> tuple[str, ...]:
        """What closes a run, on stderr: what was merged and what is expected of it, or why nothing was; what was
        left although the weights are alike; notes."""
        lines = [f"Nothing was merged: {self.nothing}." if self.nothing else self._gain()]
        merged = self._merged_models()
        left = [m.name for m in self.models if m not in merged]
        if left and not self.nothing:
            lines.append(f"Merged with none, beside the others in the file: {', '.join(left)}.")
        counts = Counter(r.reason for r in self.refused if not (self.nothing and r.reason == "price"))
        if counts:
            some = "; ".join(f"{n:,} {_REASONS.get(reason, reason)}" for reason, n in sorted(counts.items()))
            lines.append(f"Alike but not merged: {some}.")
        return tuple(one_line(line, limit=2000) for line in (*lines, *self.notes))

    def _merged_models(self) -> list[MergedModel]:
        """The models of which an operator was merged."""
        return [m for m in self.models if any(o.merged and o.of(m.name) for o in self.merged)]

    def _gain(self) -> str:
        operators = sum(len(o.operators) for o in self.merged if o.merged)
        products = sum(o.merged for o in self.merged)
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
            return "it does not pay, and was merged because --always says so"
        if self.confidence is None or self.before.latency_high_ms is None:
            return "how far to trust this is not known"
        of = " of the latency" if which == "gpu" else ""  # the kernels' sum has no interval
        return _CONFIDENCE[self.confidence].format(of=of)

    def _price(self, cost: Price) -> str:
        what = " of the GPU" if self.settings.price == "gpu" else ""
        return f"{number_text(cost.measure(self.settings.price))} ms{what}"

    def _change(self) -> str:
        old, new = (cost.measure(self.settings.price) for cost in (self.before, self.after))
        change = 100 * (new / old - 1) if old else None
        if change is None or change < 0:
            return percent_text(change)
        return f"+{percent_text(change)}"
