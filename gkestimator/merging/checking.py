"""Check that the merged file gives what the originals give: both run in ONNX Runtime on the CPU, on the same
random inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gkestimator.core.errors import ModelError, UnboundDimensionError, UsageError, one_line
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.limits import allowed, exceeded
from gkestimator.core.records import frozen
from gkestimator.merging.editing import DimSizes
from gkestimator.merging.random_inputs import index_limits, random_inputs
from gkestimator.onnx_io import read_model

NamedArrays: TypeAlias = "dict[str, np.ndarray]"

MOST_SAMPLES = 1_000_000
_KEPT_BYTES = 256 << 20
_SYMBOLIC_BATCHES = 3
_LOG_ERRORS = 3


class NotComparedError(ModelError):
    """Say that an original does not load or run, or no inputs can be made for it: no fault of the merged
    file.
    """


@frozen
class OutputDifference:
    """Compare one output of one original compared over all samples.

    ``relative_difference``: the largest over the samples of max |merged - original| / max |original|, both
    maxima over the values of one sample's output that are finite in the original. None where ``problem`` says
    why it has no number (another shape or element type, values not finite in only one of the two, an original
    that is zero throughout). ``not_finite``: values that are NaN or infinite in the original.
    ``predictions``: rows of class scores seen, None where the output has none (see :func:`check_outputs`);
    ``changed_predictions``: those whose largest score is in another place.
    """

    model: str
    output: str
    relative_difference: float | None
    problem: str
    not_finite: int
    predictions: int | None
    changed_predictions: int | None


@frozen
class OutputCheck:
    """Hold a merged model against its originals on ``samples`` random inputs of each.

    ``batch_sizes``: of each model's input. ``largest_relative_difference``: over all outputs, None where one
    has none. ``predictions``, ``changed_predictions``, ``class_changed_pct``: over all outputs with class
    scores; the percentage is None where there is none.
    """

    samples: int
    seed: int
    batch_sizes: DimSizes
    largest_relative_difference: float | None
    predictions: int
    changed_predictions: int
    class_changed_pct: float | None
    outputs: tuple[OutputDifference, ...]


def check_outputs(
    merged: Path,
    originals: Mapping[str, Path],
    *,
    samples: int = 16,
    seed: int = 0,
    batch_sizes: Mapping[str, int | None] | None = None,
    dims: Mapping[str, DimSizes] | None = None,
) -> OutputCheck | None:
    """Run ``merged`` and each of ``originals`` on the same random inputs.

    None where onnxruntime is not installed.

    ``originals``: the files by the name that ``merged`` prefixes their inputs and outputs with
    (``<name>/<input>``). ``samples``: how many inputs each gets. ``batch_sizes`` and ``dims``: numbers for
    the symbolic dimensions of each model, by its name (dimensions that it lacks are left out). A batch
    without a number is 1, 2, 3, 1, ... in the order of the models (different batches are the harder test), a
    fixed one stays as it is. Inputs: :func:`gkestimator.merging.random_inputs.random_inputs`.

    Class scores are floating-point outputs of two or three dimensions (batch x classes, batch x positions x
    words) whose last has at least two entries; a prediction is the place of the largest along it.

    One session is open at a time, and at most 256 MB of outputs (or one sample's) are kept, so memory is that
    of the largest file. Raises NotComparedError naming the original that onnxruntime does not load or run, or
    whose inputs cannot be made, or saying why onnxruntime cannot be imported; ModelError where that is the
    merged file; UsageError for an impossible number of samples, UnboundDimensionError for a dimension without
    a number.
    """
    try:
        import onnxruntime
    except ImportError as e:
        # not installed is no fault; installed and broken is one that the user should hear of
        if isinstance(e, ModuleNotFoundError) and e.name == "onnxruntime":
            return None
        raise NotComparedError(
            f"onnxruntime is installed and cannot be imported: {one_line(e, limit=300)}"
        ) from e
    if isinstance(samples, bool) or not isinstance(samples, int) or not 1 <= samples <= MOST_SAMPLES:
        raise UsageError(f"samples is {samples!r}: expected a whole number from 1 to {MOST_SAMPLES}")
    comparison = _Comparison(onnxruntime, merged, samples, seed)
    with _of_an_original():
        for name, path in originals.items():
            comparison.add(name, path, (batch_sizes or {}).get(name), (dims or {}).get(name, {}))
    return comparison.run()


@contextmanager
def _of_an_original() -> Iterator[None]:
    try:
        yield
    except UnboundDimensionError:
        raise
    except ModelError as e:
        raise NotComparedError(e) from e


@frozen
class _Source:
    """Hold an original, and where its inputs come from."""

    path: Path
    graph: OperatorGraph
    limits: DimSizes

    @classmethod
    def of(cls, path: Path, name: str, batch: int, dims: DimSizes) -> _Source:
        """Read the file; ``batch`` counts where ``dims`` does not say it and the file leaves it open."""
        model = read_model(path, name=name)
        plain = {key.removeprefix(f"{name}/"): size for key, size in dims.items()}
        known = {key: size for key, size in plain.items() if key in model.dims}
        size: int | None = None
        if model.batch_dim is not None and model.batch_dim not in known:
            size = batch
        graph = model.bind(batch_size=size, dims=known)
        drawn = sum(value.nbytes for value in graph.inputs)
        if drawn > allowed("check_input_bytes"):
            raise ModelError(f"{path}: {exceeded('check_input_bytes', drawn)}")
        return cls(path=path, graph=graph, limits=index_limits(graph))


class _Comparison:
    """Compare a merged file with its originals, some samples at a time."""

    def __init__(self, onnxruntime: Any, merged: Path, samples: int, seed: int) -> None:
        self._onnxruntime = onnxruntime
        self._merged = merged
        self._samples = samples
        self._seed = seed
        self._sources: dict[str, _Source] = {}
        self._tallies: dict[tuple[str, str], _Tally] = defaultdict(_Tally)

    def add(self, name: str, path: Path, batch: int | None, dims: DimSizes) -> None:
        """Take an original in, at the ``batch`` size (None: the next of 1, 2, 3, 1, ...)."""
        if batch is None:
            batch = 1 + len(self._sources) % _SYMBOLIC_BATCHES
        self._sources[name] = _Source.of(path, name, batch, dims)

    def run(self) -> OutputCheck:
        """Run all files on all samples and sum up."""
        one_sample = 0
        for source in self._sources.values():
            one_sample += sum(value.nbytes for value in source.graph.outputs)
        # the originals' outputs of so many samples are kept until the merged file has run
        at_once = max(1, min(self._samples, _KEPT_BYTES // max(1, one_sample)))
        for first in range(0, self._samples, at_once):
            self._compare(range(first, min(self._samples, first + at_once)))
        return self._summary()

    def _inputs(self, name: str, sample: int) -> NamedArrays:
        """Return one original's inputs, drawn when they are needed: what is drawn again is the same."""
        source = self._sources[name]
        return random_inputs(source.graph, limits=source.limits, seed=self._seed, sample=sample)

    def _all_inputs(self, sample: int) -> NamedArrays:
        together: NamedArrays = {}
        for name in self._sources:
            for key, value in self._inputs(name, sample).items():
                together[f"{name}/{key}"] = value
        return together

    def _compare(self, span: range) -> None:
        expected: dict[str, list[dict[str, Any]]] = {}
        with _of_an_original():
            for name, source in self._sources.items():
                drawn = (self._inputs(name, sample) for sample in span)
                expected[name] = list(_outputs(self._onnxruntime, source.path, drawn))
        together = (self._all_inputs(sample) for sample in span)
        for k, results in enumerate(_outputs(self._onnxruntime, self._merged, together)):
            for name, every in expected.items():
                for output, truth in every[k].items():
                    full_name = f"{name}/{output}"
                    if full_name not in results:
                        raise ModelError(f"{self._merged.name}: output {full_name} of {name} is missing")
                    self._tallies[name, output].add(results[full_name], truth)
                every[k] = {}  # not needed any more

    def _summary(self) -> OutputCheck:
        outputs = [tally.difference(name, output) for (name, output), tally in self._tallies.items()]
        numbers = [o.relative_difference for o in outputs if o.relative_difference is not None]
        largest: float | None = None
        if numbers and len(numbers) == len(outputs):
            largest = max(numbers)
        predictions = sum(output.predictions or 0 for output in outputs)
        changed = sum(output.changed_predictions or 0 for output in outputs)
        changed_pct: float | None = None
        if predictions:
            changed_pct = 100 * changed / predictions
        return OutputCheck(
            samples=self._samples,
            seed=self._seed,
            batch_sizes={name: source.graph.batch_size for name, source in self._sources.items()},
            largest_relative_difference=largest,
            predictions=predictions,
            changed_predictions=changed,
            class_changed_pct=changed_pct,
            outputs=tuple(outputs),
        )


def _outputs(
    onnxruntime: Any, path: Path, inputs: Iterable[Mapping[str, np.ndarray]]
) -> Iterator[dict[str, Any]]:
    """Yield the outputs by name for each of ``inputs``, of one session on the CPU that ends with them.

    Raises ModelError.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS
    # threads that spin would take the cores from the session that runs next
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime's errors have no public base class
        raise ModelError(f"{path.name}: onnxruntime does not load it: {one_line(e, limit=300)}") from e
    taken = [i.name for i in session.get_inputs()]
    names = [o.name for o in session.get_outputs()]
    for feeds in inputs:
        missing = sorted(set(feeds) ^ set(taken))
        if missing:
            raise ModelError(
                f"{path.name}: takes {len(taken)} inputs, {len(feeds)} expected; {missing[0]} is in one only"
            )
        try:
            results = session.run(names, dict(feeds))
        except Exception as e:  # onnxruntime's errors have no public base class
            raise ModelError(f"{path.name}: onnxruntime does not run it: {one_line(e, limit=300)}") from e
        yield dict(zip(names, results, strict=True))


@dataclass(slots=True)
class _Tally:
    """Hold what has been seen of one output."""

    relative: float = 0.0
    problem: str = ""
    not_finite: int = 0
    predictions: int | None = None
    changed: int = 0

    def difference(self, model: str, output: str) -> OutputDifference:
        """Return the sum of all samples."""
        return OutputDifference(
            model=model,
            output=output,
            relative_difference=None if self.problem else self.relative,
            problem=self.problem,
            not_finite=self.not_finite,
            predictions=self.predictions,
            changed_predictions=None if self.predictions is None else self.changed,
        )

    def add(self, result: Any, truth: Any) -> None:
        """Compare one sample's output; tensors one by one where it is a sequence or a map."""
        left = _tensors(result)
        right = _tensors(truth)
        if len(left) != len(right):
            self._note(f"{len(left)} tensors, the original has {len(right)}")
            return
        for a, b in zip(left, right, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                self._note(f"{a.dtype}{list(a.shape)}, the original has {b.dtype}{list(b.shape)}")
            elif b.dtype.kind in "fciub":
                self._numbers(a, b)
            elif not np.array_equal(a, b):
                self._note("text differs from the original's")

    def _note(self, problem: str) -> None:
        """Remember the first problem."""
        self.problem = self.problem or problem

    def _numbers(self, a: np.ndarray, b: np.ndarray) -> None:
        # differences are told relative to what is finite: an infinity would hide all others
        finite = np.isfinite(b)
        self.not_finite += int(b.size - finite.sum())
        alike = np.array_equal(a[~finite], b[~finite], equal_nan=b.dtype.kind in "fc")
        if not (alike and np.isfinite(a[finite]).all()):
            self._note("values are NaN or infinite in only one of the two")
            return
        wide: type[np.complexfloating | np.floating] = np.float64
        if b.dtype.kind == "c":
            wide = np.complex128
        truth = b[finite].astype(wide)
        apart = float(np.abs(a[finite].astype(wide) - truth).max(initial=0.0))
        largest = float(np.abs(truth).max(initial=0.0))
        if apart and not largest:
            self._note(f"the original is zero throughout, the merged model up to {apart:.3g}")
        elif apart:
            self.relative = max(self.relative, apart / largest)
        if b.dtype.kind == "f" and b.ndim in (2, 3) and b.shape[-1] >= 2:
            rows = finite.all(axis=-1)
            self.predictions = (self.predictions or 0) + int(rows.sum())
            self.changed += int((a[rows].argmax(axis=-1) != b[rows].argmax(axis=-1)).sum())


def _tensors(value: Any) -> list[np.ndarray]:
    """Return the tensors of an output: itself, or those of a sequence or a map, in order."""
    if isinstance(value, dict):
        keys = [np.array([key]) for key in value]
        return keys + _tensors(list(value.values()))
    if not isinstance(value, list | tuple):
        return [np.asarray(value)]
    tensors = []
    for item in value:
        tensors += _tensors(item)
    return tensors
