"""Fit what whole models show of a runtime that compiles them: factors of its kernels, of its versions, and their error.

Models of one GPU, size and precision err alike, whatever their batch, and there are few GPUs. So a group of such
models counts as one observation, and factors are drawn towards 1 (what single kernels say), the more so the less of the
models' time they move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias

import numpy as np

from gkestimator.bundles.bundle import Bundle
from gkestimator.bundles.measured_lowering import signatures
from gkestimator.bundles.models import WIDEST
from gkestimator.bundles.runtime_laws import RuntimeLaw
from gkestimator.core.errors import TableError
from gkestimator.core.kernels import LIBRARY_FAMILIES, Array, Family, KernelTable
from gkestimator.core.records import NamedNumbers, NamedValues, frozen
from gkestimator.estimation.intervals import widen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.prediction import KernelPredictions
from gkestimator.kernel_models.roofline import Roofline
from gkestimator.kernel_models.steady import sustained

LEVEL = 0.9
_MODEL_ERROR = 0.1
"""Standard deviation of log(time) of a group of models that err alike. Judged."""
_FACTOR_ERROR = 0.3
"""Standard deviation of log(factor) about 0. Judged: two libraries of one vendor differ by a third on one kernel."""
_ADDED_US = 1.0
"""Standard deviation of what starting a kernel adds: the gap of kernels that wait for one another. Judged."""
_SCORES_PER_CYCLE = 4.0
"""An SM evaluates 16 exponentials a clock (CUDA C++ Programming Guide, arithmetic throughput), and about as many other
instructions a score again and again; where the search begins, with a factor of e either way."""
_OWN_KERNELS = LIBRARY_FAMILIES | {Family.LAYERNORM, Family.SOFTMAX, Family.COPY}
"""Families of which a compiled runtime brings kernels of its own kind; others move bytes at the pace of the memory.
Copies between types do so too, but how many there are is the compiler's choice, and that is what their factor says."""
_LEAST_SHARE = 0.02
"""Of a group's time: kernels with less show no factor."""
_FEWEST_GPUS = 2
_LEAST_FACTOR = 0.02
"""A version that differs less than this from the newest has no factor: rows of versions with the same kernels differ so
much."""
_HALF_WIDTHS = tuple(number / 50 for number in range(30))
_WIDEST = tuple(number / 20 for number in range(2, 40))

Pair: TypeAlias = tuple[str, str]
Figures: TypeAlias = "tuple[tuple[Pair, ...], Array]"


@frozen
class MeasuredModels:
    """Hold whole models that were timed on one GPU.

    ``table``: their distinct kernels; ``launches``: (models, kernels) how often each runs; ``measured_us`` and
    ``group`` (equal where models err alike): (models,).
    """

    gpu: GpuSpec
    table: KernelTable
    launches: Array
    measured_us: Array
    group: Array


@frozen
class VersionTimes:
    """Hold times of the same models in several versions: arrays of one length. ``model`` is equal where everything but
    the version is, the GPU included; ``version`` is ``major.minor``."""

    gpu: Array
    precision: Array
    model: Array
    version: Array
    time: Array


@frozen
class Predicted:
    """Hold estimates of :class:`MeasuredModels`: microseconds and the ends of their 90 % intervals."""

    us: Array
    low_us: Array
    high_us: Array

    def held(self, measured_us: Array) -> Array:
        """Return which intervals hold the measurement."""
        return np.asarray((self.low_us <= measured_us) & (measured_us <= self.high_us))


@frozen
class _RememberingBundle(Bundle):
    """Estimate single kernels once, however often they are asked for under another law."""

    memory: dict[tuple[str, int], Any] = field(default_factory=dict, compare=False)

    def _single(self, table: KernelTable, gpu: GpuSpec, roof: Roofline) -> Any:
        key = (gpu.name, hash(tuple(signatures(table))))
        if key not in self.memory:
            self.memory[key] = Bundle._single(self, table, gpu, roof)
        return self.memory[key]


def fit_law(measured: Sequence[MeasuredModels], versions: VersionTimes, bundle: Bundle) -> RuntimeLaw:
    """Return the law of a runtime from whole models on some GPUs, those of ``measured``, each of which is timed in its
    newest version.

    ``bundle`` estimates single kernels. Half-widths are set on each of the GPUs in turn while it is left out. Raises
    TableError for no models.
    """
    if not measured:
        raise TableError("no whole models to learn a runtime's law from; expected those of at least one GPU")
    bundle = _RememberingBundle(name=bundle.name, models=bundle.models)
    law = replace(_fit(measured, bundle), **fit_versions(versions, [models.gpu for models in measured]))
    if len(measured) == 1:
        return law
    trials = []
    for left_out in measured:
        others = [models for models in measured if models is not left_out]
        trials.append((_fit(others, bundle), left_out))

    def held(half_width: float, widest: float) -> float:
        """Return the share of models on GPUs left out whose interval holds."""
        inside = []
        for without, models in trials:
            wide = replace(without, half_width=half_width, widest=widest)
            inside.append(predict_models(wide, models, bundle).held(models.measured_us))
        return float(np.concatenate(inside).mean())

    # As little as need be is added to what the kernels' intervals say, then as much taken from the widest as may be.
    half_width = next((w for w in _HALF_WIDTHS if held(w, WIDEST) >= LEVEL), _HALF_WIDTHS[-1])
    widest = next((w for w in _WIDEST if w > half_width and held(half_width, w) >= LEVEL), WIDEST)
    return replace(law, half_width=half_width, widest=widest)


def predict_models(law: RuntimeLaw, models: MeasuredModels, bundle: Bundle) -> Predicted:
    """Return the estimates of ``models`` under ``law``: kernels one after the other, as a CUDA graph runs them."""
    kernels = _kernels(law, models, bundle)
    duration = kernels.duration_us
    half_width = np.log(kernels.high_us / np.maximum(duration, 1e-9))
    rows = np.arange(len(duration))
    total = models.launches @ duration
    low = np.empty(len(total))
    high = np.empty(len(total))
    for at, launches in enumerate(models.launches):
        spans = launches * duration
        reach = half_width * widen(spans, rows, half_width, kernels.in_range, kernels.trained)
        low[at] = np.dot(spans, np.exp(-reach))
        high[at] = np.dot(spans, np.exp(reach))
    return Predicted(us=total, low_us=low, high_us=high)


def _kernels(law: RuntimeLaw, models: MeasuredModels, bundle: Bundle) -> KernelPredictions:
    under = replace(bundle, law=law)
    return sustained(under.predict(models.table, models.gpu), models.table, models.gpu, 100.0)


def _fit(measured: Sequence[MeasuredModels], bundle: Bundle) -> RuntimeLaw:
    """Return the law of the newest versions."""
    from scipy.optimize import least_squares

    queries = max(_longest(models.table) for models in measured)
    blank = RuntimeLaw(
        factors={},
        added_us=0.0,
        cycles_per_score=0.0,
        longest=queries,
        half_width=0.0,
        widest=WIDEST,
        versions={},
    )
    pairs = _pairs(measured, blank, bundle)
    weights = np.concatenate([_weights(models.group) for models in measured])
    actual = np.log(np.concatenate([models.measured_us for models in measured]))

    def residuals(x: Array) -> Array:
        law = _law(blank, pairs, x)
        times = [models.launches @ _kernels(law, models, bundle).duration_us for models in measured]
        errors = (np.log(np.concatenate(times)) - actual) * weights
        return np.concatenate([errors, x[:-2] / _FACTOR_ERROR, [x[-2] / _ADDED_US, x[-1]]])

    solved = least_squares(residuals, np.zeros(len(pairs) + 2), loss="soft_l1", diff_step=1e-3)
    return _law(blank, pairs, solved.x, digits=4)


def _law(blank: RuntimeLaw, pairs: Sequence[Pair], x: Array, digits: int = 12) -> RuntimeLaw:
    """Return the law that ``x`` stands for: log(factor) of each pair, what a kernel adds, log of a score's cycles."""
    factors: dict[str, dict[str, float]] = {}
    for (family, precision), value in zip(pairs, x, strict=False):
        factors.setdefault(family, {})[precision] = round(float(np.exp(value)), digits)
    cycles = float(np.exp(x[-1])) / _SCORES_PER_CYCLE
    return replace(
        blank,
        factors=factors,
        added_us=round(float(x[-2]), digits),
        cycles_per_score=round(cycles, digits),
    )


def _longest(table: KernelTable) -> int:
    attention = table.family == Family.ATTENTION
    return int(table.size("gemm_m")[attention].max(initial=1.0))


def _weights(group: Array) -> Array:
    """Return one over the standard deviation of each model, so that a group counts as one model."""
    _, place, count = np.unique(group.astype(str), return_inverse=True, return_counts=True)
    return np.asarray(1 / (_MODEL_ERROR * np.sqrt(count[place])))


def _pairs(measured: Sequence[MeasuredModels], blank: RuntimeLaw, bundle: Bundle) -> tuple[Pair, ...]:
    """Return family and precision of the kernels that take a share of some group's time, in order."""
    pairs = set()
    for models in measured:
        duration = _kernels(blank, models, bundle).duration_us
        spans = models.launches * duration
        shares = spans / spans.sum(axis=1, keepdims=True)
        kinds = list(zip(models.table.family.tolist(), models.table.precision.tolist(), strict=True))
        for kind in dict.fromkeys(kinds):
            rows = np.array([other == kind for other in kinds])
            if kind[0] in _OWN_KERNELS and shares[:, rows].sum(axis=1).max() >= _LEAST_SHARE:
                pairs.add(kind)
    return tuple(sorted(pairs))


def fit_versions(times: VersionTimes, gpus: Sequence[GpuSpec]) -> dict[str, Any]:
    """Return the fields ``versions`` and ``measured_versions`` of a law from the times on ``gpus``.

    A version has a factor on a GPU where its median is not within the noise, and everywhere where several GPUs knew it
    before their newest one, agree on the sign, and their mean is not within the noise.
    """
    known = sorted(set(times.version.tolist()), key=_numbers)
    shared: dict[str, NamedNumbers] = {version: {} for version in known}
    measured: dict[str, dict[str, NamedNumbers]] = {}
    for precision in np.unique(times.precision.astype(str)).tolist():
        logs: dict[str, list[float]] = {}
        for gpu in gpus:
            major, minor = gpu.compute_capability
            mine = measured.setdefault(f"{major}.{minor}", {})
            ratios = version_ratios(times, (times.gpu == gpu.name) & (times.precision == precision))
            for version, ratio in ratios.items():
                log = float(np.log(ratio))
                logs.setdefault(version, []).append(log)
                mine.setdefault(version, {}).update(_shown(precision, [log]))
        for version, values in logs.items():
            if len(values) >= _FEWEST_GPUS:
                shared[version].update(_shown(precision, values))
    return {"versions": shared, "measured_versions": measured}


def _shown(precision: str, logs: Sequence[float]) -> NamedNumbers:
    """Return the factor of a version, by its precision; empty where its logarithms on some GPUs show none."""
    mean = float(np.mean(logs))
    signs = {float(np.sign(value)) for value in logs}
    if abs(mean) < _LEAST_FACTOR or signs not in ({1.0}, {-1.0}):
        return {}
    return {precision: round(float(np.exp(mean)), 3)}


def version_ratios(times: VersionTimes, rows: Array) -> NamedNumbers:
    """Return the median of time over that of the same model in the newest version there is, by version."""
    places = np.flatnonzero(rows)
    if not len(places):
        return {}
    last = max(set(times.version[places].tolist()), key=_numbers)
    newest_time = {}
    for at in places:
        if times.version[at] == last:
            newest_time[times.model[at]] = times.time[at]
    ratios: dict[str, list[float]] = {}
    for at in places:
        model = times.model[at]
        if model in newest_time:
            ratio = times.time[at] / newest_time[model]
            ratios.setdefault(times.version[at], []).append(ratio)
    return {version: float(np.median(values)) for version, values in ratios.items()}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def law_card(measured: Sequence[MeasuredModels], versions: VersionTimes) -> NamedValues:
    """Return what the bundle's card says of the law: what it was fitted on."""
    return {
        "models": {each.gpu.name: len(each.measured_us) for each in measured},
        "rows_of_versions": len(versions.time),
        "target": "log(time of a whole model), kernels one after the other; factors drawn towards 1; half-width "
        "on each GPU left out",
    }
