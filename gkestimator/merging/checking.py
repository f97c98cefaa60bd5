"""Does the merged file give what the originals give? Both run in ONNX Runtime on the CPU, on the same random inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.errors import ModelError, UnboundDimensionError, UsageError, one_line
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.records import frozen
from gkestimator.merging.editing import DimSizes
from gkestimator.merging.random_inputs import index_limits, random_inputs
from gkestimator.onnx_io import read_model

MOST_SAMPLES = 1_000_000
_KEPT_BYTES = 256 << 20
_SYMBOLIC_BATCHES = 3
_LOG_ERRORS = 3


class NotComparedError(ModelError):
    """An original does not load or run, or no inputs can be made for it: no fault of the merged file."""


@frozen
class OutputDifference:
    """One output of one original, compared over all samples.

    ``relative_difference``: the largest over the samples of max |merged - original| / max |original|, both maxima over
    the values of one sample's output that are finite in the original. None where ``problem`` says why it has no number
    (another shape or element type, values not finite in only one of the two, an original that is zero throughout).
    ``not_finite``: values that are NaN or infinite in the original.
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
    """A merged model against its originals on ``samples`` random inputs of each.

    ``batch_sizes``: of each model's input. ``largest_relative_difference``: over all outputs, None where one has none.
    ``predictions``, ``changed_predictions``, ``class_changed_pct``: over all outputs with class scores; the
    percentage is None where there is none.
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
    """Run ``merged`` and each of ``originals`` on the same random inputs. None where onnxruntime is not installed.

    ``originals``: the files by the name that ``merged`` prefixes their inputs and outputs with (``<name>/<input>``).
    ``samples``: how many inputs each gets. ``batch_sizes`` and ``dims``: numbers for the symbolic dimensions of each
    model, by its name (dimensions that it lacks are left out). A batch without a number is 1, 2, 3, 1, ... in the
    order of the models (different batches are the harder test), a fixed one stays as it is. Inputs:
    :func:`gkestimator.merging.random_inputs.random_inputs`.

    Class scores are floating-point outputs of two or three dimensions (batch x classes, batch x positions x
    words) whose last has at least two entries; a prediction is the place of the largest along it.

    One session is open at a time, and at most 256 MB of outputs (or one sample's) are kept, so memory is that of the
    largest file. Raises NotComparedError naming the original that onnxruntime does not load or run, or whose inputs
    cannot be made, or saying why onnxruntime cannot be imported; ModelError where that is the merged file;
    UsageError for an impossible number of samples, UnboundDimensionError for a dimension without a number.
    """
    try:
        import onnxruntime
    except ImportError as e:
        if isinstance(e, ModuleNotFoundError) and e.name == "onnxruntime":
            return None
        raise NotComparedError(
            f"onnxruntime is installed and cannot be imported: {one_line(e, limit=300)}"
        ) from e
    if isinstance(samples, bool) or not isinstance(samples, int) or not 1 <= samples <= MOST_SAMPLES:
        raise UsageError(f"samples is {samples!r}: expected a whole number from 1 to {MOST_SAMPLES}")
    with _of_an_original():
        sources = {
            name: _Source.of(path, name, k, (batch_sizes or {}).get(name), (dims or {}).get(name, {}), seed)
            for k, (name, path) in enumerate(originals.items())
        }
    one_sample = sum(value.nbytes for source in sources.values() for value in source.graph.outputs)
    at_once = max(1, min(samples, _KEPT_BYTES // max(1, one_sample)))
    tallies: dict[tuple[str, str], _Tally] = {}
    for first in range(0, samples, at_once):
        span = range(first, min(samples, first + at_once))
        with _of_an_original():
            expected = {
                name: list(_outputs(onnxruntime, source.path, (source.inputs(sample) for sample in span)))
                for name, source in sources.items()
            }
        together = (
            {
                f"{name}/{key}": value
                for name, source in sources.items()
                for key, value in source.inputs(s).items()
            }
            for s in span
        )
        for k, found in enumerate(_outputs(onnxruntime, merged, together)):
            for name, outputs in expected.items():
                for output, truth in outputs[k].items():
                    if f"{name}/{output}" not in found:
                        raise ModelError(f"{merged.name}: output {name}/{output} of {name} is missing")
                    tallies.setdefault((name, output), _Tally()).add(found[f"{name}/{output}"], truth)
                outputs[k] = {}
    compared = tuple(tally.said(name, output) for (name, output), tally in tallies.items())
    return _summary(compared, samples, seed, {name: s.graph.batch_size for name, s in sources.items()})


@contextmanager
def _of_an_original() -> Iterator[None]:
    try:
        yield
    except UnboundDimensionError:
        raise
    except ModelError as e:
        raise NotComparedError(e) from e


def _summary(
    outputs: tuple[OutputDifference, ...], samples: int, seed: int, batches: DimSizes
) -> OutputCheck:
    numbers = [output.relative_difference for output in outputs if output.relative_difference is not None]
    predictions = sum(output.predictions or 0 for output in outputs)
    changed = sum(output.changed_predictions or 0 for output in outputs)
    return OutputCheck(
        samples=samples,
        seed=seed,
        batch_sizes=batches,
        largest_relative_difference=max(numbers) if numbers and len(numbers) == len(outputs) else None,
        predictions=predictions,
        changed_predictions=changed,
        class_changed_pct=100 * changed / predictions if predictions else None,
        outputs=outputs,
    )


@frozen
class _Source:
    """An original, and where its inputs come from."""

    path: Path
    graph: OperatorGraph
    limits: DimSizes
    seed: int

    @classmethod
    def of(cls, path: Path, name: str, place: int, batch: int | None, dims: DimSizes, seed: int) -> _Source:
        model = read_model(path, name=name)
        plain = {key.removeprefix(f"{name}/"): size for key, size in dims.items()}
        known = {key: size for key, size in plain.items() if key in model.dims}
        if model.batch_dim is None or model.batch_dim in known:
            batch = None
        elif batch is None:
            batch = 1 + place % _SYMBOLIC_BATCHES
        graph = model.bind(batch_size=batch, dims=known)
        return cls(path=path, graph=graph, limits=index_limits(graph), seed=seed)

    def inputs(self, sample: int) -> dict[str, np.ndarray]:
        """Drawn when they are needed: what is drawn again is the same."""
        return random_inputs(self.graph, limits=self.limits, seed=self.seed, sample=sample)


def _outputs(
    onnxruntime: Any, path: Path, inputs: Iterable[Mapping[str, np.ndarray]]
) -> Iterator[dict[str, Any]]:
    """The outputs by name for each of ``inputs``, of one session on the CPU that ends with them. Raises ModelError."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime's errors have no public base class
        raise ModelError(f"{path.name}: onnxruntime does not load it: {one_line(e, limit=300)}") from e
    taken = [i.name for i in session.get_inputs()]
    names = [o.name for o in session.get_outputs()]
    for given in inputs:
        missing = sorted(set(given) ^ set(taken))
        if missing:
            raise ModelError(
                f"{path.name}: takes {len(taken)} inputs, {len(given)} expected; {missing[0]} is in one only"
            )
        try:
            found = session.run(names, dict(given))
        except Exception as e:  # onnxruntime's errors have no public base class
            raise ModelError(f"{path.name}: onnxruntime does not run it: {one_line(e, limit=300)}") from e
        yield dict(zip(names, found, strict=True))


@dataclass(slots=True)
class _Tally:
    """What has been seen of one output."""

    relative: float = 0.0
    problem: str = ""
    not_finite: int = 0
    predictions: int | None = None
    changed: int = 0

    def said(self, model: str, output: str) -> OutputDifference:
        return OutputDifference(
            model=model,
            output=output,
            relative_difference=None if self.problem else self.relative,
            problem=self.problem,
            not_finite=self.not_finite,
            predictions=self.predictions,
            changed_predictions=None if self.predictions is None else self.changed,
        )

    def add(self, found: Any, truth: Any) -> None:
        """Compare one sample's output; tensors one by one where it is a sequence or a map."""
        left = _tensors(found)
        right = _tensors(truth)
        if len(left) != len(right):
            self.problem = self.problem or f"{len(left)} tensors, the original has {len(right)}"
            return
        for a, b in zip(left, right, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                self.problem = self.problem or (
                    f"{a.dtype}{list(a.shape)}, the original has {b.dtype}{list(b.shape)}"
                )
            elif b.dtype.kind in "fciub":
                self._numbers(a, b)
            elif not np.array_equal(a, b):
                self.problem = self.problem or "text differs from the original's"

    def _numbers(self, a: np.ndarray, b: np.ndarray) -> None:
        finite = np.isfinite(b)
        self.not_finite += int(b.size - finite.sum())
        alike = np.array_equal(a[~finite], b[~finite], equal_nan=b.dtype.kind in "fc")
        if not (alike and np.isfinite(a[finite]).all()):
            self.problem = self.problem or "values are NaN or infinite in only one of the two"
            return
        if b.dtype.kind == "c":
            wide = np.complex128
        else:
            wide = np.float64
        apart = float(np.abs(a[finite].astype(wide) - b[finite].astype(wide)).max(initial=0.0))
        largest = float(np.abs(b[finite].astype(wide)).max(initial=0.0))
        if apart and not largest:
            self.problem = (
                self.problem or f"the original is zero throughout, the merged model up to {apart:.3g}"
            )
        elif apart:
            self.relative = max(self.relative, apart / largest)
        if b.dtype.kind == "f" and b.ndim in (2, 3) and b.shape[-1] >= 2:
            rows = finite.all(axis=-1)
            self.predictions = (self.predictions or 0) + int(rows.sum())
            self.changed += int((a[rows].argmax(axis=-1) != b[rows].argmax(axis=-1)).sum())


def _tensors(value: Any) -> list[np.ndarray]:
    """The tensors of an output: itself, or those of a sequence or a map, in order."""
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    if isinstance(value, dict):
        return [np.array([key]) for key in value] + [
            tensor for item in value.values() for tensor in _tensors(item)
        ]
    return [np.asarray(value)]
