"""Estimate by a bundle: trained regressors, where they may be trusted, and the analytical model for everything
else."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path

import numpy as np

from gkestimator.bundles.files import (
    LARGEST_BUNDLE_BYTES,
    bring_back,
    read_card,
    stored_arrays,
    stored_object,
)
from gkestimator.bundles.measured import MeasuredGpu
from gkestimator.bundles.measured_files import read_measured
from gkestimator.bundles.models import SCHEMA_VERSION, BundleModel, model_of
from gkestimator.bundles.rising import VECTOR_STEPS, no_slower_than_more_rows
from gkestimator.bundles.runtime_laws import RuntimeLaw, read_laws
from gkestimator.core.errors import BundleError, UsageError
from gkestimator.core.kernels import TENSORRT, Array, Family, KernelTable, is_listed
from gkestimator.core.records import frozen, map_fields
from gkestimator.core.values import Document
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.kernel_models.analytical import analytical_duration_us, analytical_half_width
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.geometry import Geometry
from gkestimator.kernel_models.launch import (
    Launch,
    bandwidth_pct,
    is_streaming,
    kept_up,
    launch_geometry,
    occupancy,
    sm_utilisation_pct,
)
from gkestimator.kernel_models.least import least_us
from gkestimator.kernel_models.power import PowerModel
from gkestimator.kernel_models.prediction import KernelPredictions
from gkestimator.kernel_models.roofline import Roofline, confined, roofline
from gkestimator.kernel_models.shares import slowdown_on_part

__all__ = ["Bundle", "BundleModel", "load_bundle", "stack_bundles"]

_CONVOLUTIONS = (Family.CONV, Family.DEPTHWISE)
_UNCOPIED = ("fp32", "tf32")  # a single one's images lie as its kernel reads them: no copies are in its time


@frozen
class Bundle:
    """Hold trained models in order of preference; a kernel that none covers is answered analytically.

    ``geometry``: the learned choice of library kernels; None leaves grids and blocks to the rules of ``launch``.
    ``power``: what boards draw; None in bundles that were trained without, whose powers are unknown.
    ``measured``: GPUs that were measured by profiling, which answer for themselves. ``laws``: what whole models showed
    of runtimes that compile them, by the name of the lowering; ``law``: that of the runtime in use.
    """

    name: str
    models: tuple[BundleModel, ...]
    card: Document = field(default_factory=dict)
    geometry: Geometry | None = None
    power: PowerModel | None = None
    measured: tuple[MeasuredGpu, ...] = ()
    laws: Mapping[str, RuntimeLaw] = field(default_factory=dict)
    law: RuntimeLaw | None = None

    def measured_on(self, gpu: GpuSpec) -> MeasuredGpu | None:
        """Return what was measured on this board, else on another board of its chip, else None."""
        same_chip = None
        for measured in self.measured:
            if gpu.name in measured.gpus:
                return measured
            if same_chip is None and measured.knows(gpu):
                same_chip = measured
        return same_chip

    def name_on(self, gpu: GpuSpec) -> str:
        """Return the name of the bundle that answers for ``gpu``."""
        measured = self.measured_on(gpu)
        if measured is None:
            return self.name
        return measured.bundle

    def under(self, runtime: str, version: str | None = None) -> Bundle:
        """Return the same for one runtime, and one version of it where it has a law; None is the newest.

        Measured lowerings are those of a runtime, and so is what whole models showed. Raises UsageError for a version
        that is not known.
        """
        law = self.laws.get(runtime_traits(runtime).lowers_as)
        if law is not None:
            law = law.at(version)
        elif version is not None:
            raise UsageError(
                f"runtime_version is {version!r}; nothing is known of versions of {runtime}: leave it out"
            )
        if not self.measured and law == self.law:
            return self
        measured = tuple(each.under(runtime, version) for each in self.measured)
        return replace(self, measured=measured, law=law)

    @property
    def version_note(self) -> str | None:
        """Return what to say of the runtime's version that is asked for; None where there is nothing."""
        if self.law is None or not self.law.remark:
            return None
        return self.law.remark

    def covering(self, family: str, precision: str, gpu: GpuSpec, variant: str = "") -> BundleModel | None:
        """Return the model that answers: the first covering one that was trained on the GPU's chip, else the first made
        for GPUs that were not, else the first covering one. Models of the ``variant`` come before all others; those of
        a library answer for nothing else."""
        candidates = [m for m in self.models if (family, precision) in m.covers]
        own = [m for m in candidates if is_listed(variant, m.variants)]
        others = [m for m in candidates if not m.of_library]
        return _made_for(own, gpu) or _made_for(others, gpu) or next(iter(others), None)

    def predict(self, table: KernelTable, gpu: GpuSpec, *, sm_share_pct: float = 100.0) -> KernelPredictions:
        """Predict every kernel of ``table`` on ``gpu`` confined to ``sm_share_pct`` percent of its SMs.

        Nothing was measured on a part of a GPU, so below 100 % no kernel counts as inside the training range:
        what the regressors say of the whole GPU is stretched by what follows from its blocks and waves
        (:func:`slowdown_on_part`), and no part is faster than the whole.
        """
        if self.measured:
            measured = self.measured_on(gpu)
        else:
            measured = None
        if measured is not None:
            return measured.predict(table, gpu, sm_share_pct=sm_share_pct)
        part = confined(gpu, sm_share_pct)
        roof = roofline(table, gpu)
        answer = self._answer(table, gpu, roof)
        # TF32 is a permission: the libraries may take the FP32 kernel (Winograd, say) where that is faster.
        index = np.flatnonzero((table.precision == "tf32") & ~_permitting(table))
        if len(index):
            wide = _as_fp32(table.take(index))
            answer = _faster(answer, self._answer(wide, gpu, roofline(wide, gpu)), index)
        if table.permits is not None:
            table, answer = self._fastest_permitted(table, answer, gpu)
            roof = roofline(table, gpu)
        answer = replace(answer, width=np.where(table.family == Family.HOST, 0.0, answer.width))
        if part is not gpu:
            roof = roofline(table, part)
            launch = self._launch(table, gpu)
            slowdown = slowdown_on_part(table, launch, gpu, sm_share_pct, answer.duration_us)
            answer = replace(
                answer,
                duration_us=answer.duration_us * slowdown,
                width=np.maximum(answer.width, answer.beyond),
                inside=np.zeros(len(table), dtype=bool),
            )
        predictions = _complete(table, self._launch(table, part), gpu, part, roof, answer)
        # Whoever else runs on the rest of the GPU, the board has one power.
        if self.power is None or part is not gpu:
            return predictions
        return replace(predictions, power=self.power.predict(table, gpu))

    def _fastest_permitted(
        self, table: KernelTable, answer: _Answer, gpu: GpuSpec
    ) -> tuple[KernelTable, _Answer]:
        """Return ``table`` and what is said of it with each kernel in the fastest precision that it permits."""
        narrow = table
        permits = table.permits
        assert permits is not None
        for precision in sorted({wider for row in permits for wider in row}):
            allowed = [precision in row for row in permits]
            index = np.flatnonzero(np.array(allowed, dtype=bool))
            wide = narrow.take(index).widened(precision)
            other = self._answer(wide, gpu, roofline(wide, gpu))
            better = other.duration_us < answer.duration_us[index]
            answer = _faster(answer, other, index)
            table = table.placed(index[better], wide.take(better))
        return table, answer

    def _launch(self, table: KernelTable, gpu: GpuSpec) -> Launch:
        launch = launch_geometry(table, gpu)
        if self.geometry is None:
            return launch
        return self.geometry.apply(launch, table, gpu)

    def _answer(self, table: KernelTable, gpu: GpuSpec, roof: Roofline) -> _Answer:
        """Return what is said of kernels on a whole GPU, in a model if the runtime compiles it."""
        answer = self._single(table, gpu, roof)
        if self.law is None:
            return answer
        answer = self._without_copies(table, gpu, roof, answer)
        duration, width = self.law.apply(table, gpu, answer.duration_us, answer.width)
        return replace(answer, duration_us=duration, width=width)

    def _without_copies(self, table: KernelTable, gpu: GpuSpec, roof: Roofline, answer: _Answer) -> _Answer:
        """Return ``answer`` with a library's convolutions held to the upper end of what engines let expect of them.

        Those measured alone hold copies between layouts, below single precision, which a compiled model needs once in
        many layers. Judged: no engine was measured on a GPU whose single convolutions were.
        """
        others = tuple(m for m in self.models if not (m.of_library and m.scope == "seen"))
        copied = table.has_word(TENSORRT) & table.is_of(_CONVOLUTIONS) & answer.trained
        index = np.flatnonzero(copied & ~np.isin(table.precision.astype(str), _UNCOPIED))
        if len(others) == len(self.models) or not len(index):
            return answer
        expected = replace(self, models=others)._single(table.take(index), gpu, roof.take(index))
        highest = expected.duration_us * np.exp(expected.width)
        held = map_fields(answer, np.copy)
        held.duration_us[index] = np.minimum(answer.duration_us[index], highest)
        return held

    def _single(self, table: KernelTable, gpu: GpuSpec, roof: Roofline) -> _Answer:
        """Return what the models, or where none covers the analytical one, say of single kernels."""
        width = analytical_half_width(table)
        answer = _Answer(
            duration_us=analytical_duration_us(table, gpu),
            width=width,
            beyond=width.copy(),
            trained=np.zeros(len(table), dtype=bool),
            inside=np.zeros(len(table), dtype=bool),
        )
        kinds = list(
            zip(*(words.tolist() for words in (table.family, table.precision, table.variant)), strict=True)
        )
        answering = {}
        for family, precision, variant in dict.fromkeys(kinds):
            model = self.covering(family, precision, gpu, variant)
            answering[family, precision, variant] = model
        # cuBLAS runs them as matrix-vector kernels; what was measured ran tiles, in batches up to seven times slower.
        vectors = table.unmeasured_vectors()
        for model in self.models:
            chosen = {kind for kind, answers in answering.items() if answers is model}
            if not chosen:
                continue
            index = np.flatnonzero(np.array([kind in chosen for kind in kinds], dtype=bool) & ~vectors)
            rows = table.take(index)
            matrix, names = feature_matrix(model.features, rows, gpu)
            if names != model.feature_names:
                raise BundleError(
                    f"{model.path}: features differ from this version's; train the bundle again"
                )
            within = model.within(rows, matrix)
            known = model.knows_chip(gpu)
            trusted = within & (known or model.scope == "unseen")
            duration, width = model.predict(rows, matrix, gpu, roof.take(index), trusted)
            if not known:
                duration = no_slower_than_more_rows(model, rows, gpu, duration)
            answer.duration_us[index] = duration
            answer.width[index] = width
            answer.beyond[index] = model.beyond
            answer.inside[index] = within & known
            answer.trained[index] = True
            # No vector takes longer than two of them as a matrix, however little is known of vectors.
            thin = np.flatnonzero(np.array([kind in chosen for kind in kinds], dtype=bool) & vectors)
            if thin.size:
                known_us = answer.duration_us[thin]
                held = no_slower_than_more_rows(model, table.take(thin), gpu, known_us, VECTOR_STEPS)
                answer.duration_us[thin] = held
        return answer


def _made_for(models: Sequence[BundleModel], gpu: GpuSpec) -> BundleModel | None:
    """Return the first of ``models`` that knows the chip of ``gpu``, else the first for GPUs that were not measured."""
    for model in models:
        if model.scope == "seen" and model.knows_chip(gpu):
            return model
    return next((model for model in models if model.scope == "unseen"), None)


@frozen
class _Answer:
    """Hold, per kernel: microseconds, 90 % half-width of their logarithm, that of kernels unlike any trained
    on, whether a regressor answered, and whether inside its training range."""

    duration_us: Array
    width: Array
    beyond: Array
    trained: Array
    inside: Array


def _permitting(table: KernelTable) -> Array:
    """Return the mask of the kernels that say themselves which wider precisions they permit."""
    if table.permits is None:
        return np.zeros(len(table), dtype=bool)
    return np.array([bool(row) for row in table.permits], dtype=bool)


def _as_fp32(table: KernelTable) -> KernelTable:
    precision = np.empty(len(table), dtype=object)
    precision[:] = "fp32"
    return replace(table, precision=precision)


def _faster(answer: _Answer, other: _Answer, index: Array) -> _Answer:
    """Return ``answer`` with ``other`` in the rows of ``index`` where that is faster."""
    better = other.duration_us < answer.duration_us[index]
    result = map_fields(answer, np.copy)
    for member in fields(_Answer):
        getattr(result, member.name)[index[better]] = getattr(other, member.name)[better]
    return result


def _complete(
    table: KernelTable,
    launch: Launch,
    gpu: GpuSpec,
    part: GpuSpec,
    roof: Roofline,
    answer: _Answer,
) -> KernelPredictions:
    least = least_us(table, gpu, roof)
    duration = np.maximum(answer.duration_us, least)
    width = answer.width
    _, achieved = occupancy(launch, part, streaming=is_streaming(table), kept=kept_up(launch, table))
    dram, l2 = bandwidth_pct(table, launch, duration, gpu)
    return KernelPredictions(
        duration_us=duration,
        low_us=np.maximum(duration * np.exp(-width), least),
        high_us=duration * np.exp(width),
        trained=answer.trained,
        in_range=answer.inside,
        grid_blocks=launch.grid_blocks,
        block_threads=launch.block_threads,
        registers_per_thread=launch.registers_per_thread,
        shared_bytes=launch.shared_bytes,
        occupancy_pct=achieved,
        sm_util_pct=sm_utilisation_pct(launch, part, of_sms=gpu.sms),
        dram_util_pct=dram,
        l2_util_pct=l2,
        roofline_us=roof.roofline_us,
        compute_us=roof.compute_us,
        memory_us=roof.memory_us,
        least_us=least,
        precision=table.precision,
        moved_bytes=table.total_bytes,
    )


_DEFAULT: list[Bundle] = []


def load_bundle(path: Path | str | None = None) -> Bundle:
    """Return the bundle in folder ``path``; None is the one that comes with the package.

    Raises BundleError, in one line that names the file, for a folder that is missing, incomplete, malformed
    or too large.
    """
    if path is not None:
        return _load(Path(path))
    if not _DEFAULT:
        _DEFAULT.append(_load(Path(str(importlib.resources.files("gkestimator.models") / "default"))))
    return _DEFAULT[0]


def stack_bundles(bundles: Sequence[Bundle]) -> Bundle:
    """Return one estimator of several bundles: the first that measured a GPU answers for it, wholly;
    elsewhere the first that covers a family and precision and knows the chip, of those that measured no GPU
    if there is any.

    Raises BundleError for no bundles.
    """
    if not bundles:
        raise BundleError("no bundles given; expected at least one")
    if len(bundles) == 1:
        return bundles[0]
    public = [b for b in bundles if not b.measured] or bundles
    geometries = [b.geometry for b in public if b.geometry is not None]
    powers = [b.power for b in public if b.power is not None]
    return Bundle(
        name="+".join(dict.fromkeys(b.name for b in public)),
        models=tuple(m for b in public for m in b.models),
        geometry=next(iter(geometries), None),
        power=next(iter(powers), None),
        measured=tuple(measured for b in bundles for measured in b.measured),
        laws={lowering: law for b in reversed(public) for lowering, law in b.laws.items()},
    )


def _load(folder: Path) -> Bundle:
    bring_back(folder)
    if (folder / "measured.json").is_file():
        return _load_measured(folder)
    if not folder.is_dir():
        raise BundleError(
            f"{folder}: no such bundle folder; expected card, stack, ranges and quantiles (.json) in it"
        )
    at = folder / "stack.json"
    stack = stored_object(at)
    ranges = stored_object(folder / "ranges.json")
    quantiles = stored_object(folder / "quantiles.json")
    name, card = read_card(folder)
    stack.version(SCHEMA_VERSION)
    listed = stack.objects("models", least=1, most=64)
    models = tuple(model_of(folder, entry, ranges, quantiles) for entry in listed)
    if len({m.name for m in models}) != len(models):
        raise stack.unfit("models", "a name of its own for each")
    size = sum(m.path.stat().st_size for m in models if m.path.is_file())
    if size > LARGEST_BUNDLE_BYTES:
        raise BundleError(f"{folder}: holds {size} bytes; expected at most {LARGEST_BUNDLE_BYTES}")
    return Bundle(
        name=name,
        models=models,
        card=card,
        geometry=_geometry(folder),
        power=_power(folder),
        laws=_laws(folder),
    )


def _geometry(folder: Path) -> Geometry | None:
    path = folder / "geometry.json"
    if not path.is_file():
        return None
    return Geometry.read(stored_object(path), stored_arrays(path.with_suffix(".npz")))


def _power(folder: Path) -> PowerModel | None:
    path = folder / "power.json"
    if not path.is_file():
        return None
    return PowerModel.read(stored_object(path), stored_arrays(path.with_suffix(".npz")))


def _laws(folder: Path) -> dict[str, RuntimeLaw]:
    path = folder / "runtimes.json"
    if not path.is_file():
        return {}
    return read_laws(stored_object(path))


def _load_measured(folder: Path) -> Bundle:
    """Return a bundle of measured GPUs: its base lies in ``base/``, a bundle of public measurements."""
    if (folder / "base" / "measured.json").exists():
        raise BundleError(f"{folder / 'base'}: is a bundle of measured GPUs; expected one that is not")
    name, card = read_card(folder)
    base = _load(folder / "base")
    return replace(base, name=name, card=card, measured=read_measured(folder, name, base))
