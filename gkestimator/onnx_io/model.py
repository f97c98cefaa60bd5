"""Read a model once, bind it as often as you like."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from gkestimator.core.dtypes import NUMPY_NAMES
from gkestimator.core.errors import (
    GkestimatorError,
    LimitError,
    ModelError,
    NoBatchError,
    UnboundDimensionError,
    UnsupportedOperatorError,
    UsageError,
)
from gkestimator.core.graph import Operator, OperatorGraph, Value
from gkestimator.core.limits import allowed, exceeded
from gkestimator.core.naming import nearest_name
from gkestimator.onnx_io.binding.control import CONTROL
from gkestimator.onnx_io.binding.derived import derived_size
from gkestimator.onnx_io.binding.dims import (
    BatchChoice,
    bind_dims,
    check_size,
    choose_batch,
    lengths_of,
    name_dims,
    symbols_of,
)
from gkestimator.onnx_io.binding.facts import Fact, check_type
from gkestimator.onnx_io.binding.given import given_value
from gkestimator.onnx_io.binding.inference import Inference, unknown_operators
from gkestimator.onnx_io.binding.rebatch import Rebatcher, Reference
from gkestimator.onnx_io.binding.unbatched import leading_batches
from gkestimator.onnx_io.binding.walk import Binder, Statics
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.convert import convert_model
from gkestimator.onnx_io.reading.file import parse_model, read_proto
from gkestimator.onnx_io.reading.program import Block, InputSpec, Node, Program
from gkestimator.onnx_io.reading.wire import strip_values
from gkestimator.operators.registry import DeclaredType, SequenceType, TensorType, ValueType

_CACHE_LIMIT = 400_000
_KEPT_BINDINGS = 8
_NUMPY_TYPES = {np.dtype(name): dtype for dtype, name in NUMPY_NAMES.items()}


def read_model(path: str | os.PathLike[str], *, name: str | None = None) -> Model:
    """Read the ONNX file at ``path``; ``name`` defaults to the file's stem.

    Weight values are not read and external data is never opened. Raises ModelError (LimitError where a bound
    on untrusted input is exceeded) in one line that names the file.
    """
    where = Path(path)
    return _model(lambda: read_proto(where), name if name is not None else where.stem, str(where))


def model_of(content: bytes, *, name: str) -> Model:
    """Return the model that ``content`` is the serialised form of. Raises ModelError in one line that begins with
    ``name``."""
    return _model(lambda: parse_model(content), name, name)


def serialised(model: onnx.ModelProto) -> bytes:
    """Return ``model`` as bytes, without its large weight values. Raises ModelError for one beyond 2 GB."""
    try:
        return strip_values(model.SerializeToString())
    except (EncodeError, ValueError) as e:
        raise ModelError(f"cannot be serialised ({e}): save it with external data, and name the file") from e


def _model(read: Callable[[], onnx.ModelProto], name: str, where: str) -> Model:
    try:
        return Model(convert_model(read()), name=name)
    except GkestimatorError as e:
        raise _named(e, where) from e
    except RecursionError as e:
        raise LimitError(f"{where}: nested too deeply") from e
    except (TypeError, AttributeError, UnicodeError) as e:
        # protobuf hands out a name that is no valid UTF-8 as bytes, which nothing here takes
        raise ModelError(f"{where}: malformed (a name is not UTF-8 text)") from e


def _named(error: GkestimatorError, name: str) -> GkestimatorError:
    """Return the same error with the file's or model's name in front."""
    message = f"{name}: {error}"
    if isinstance(error, UnsupportedOperatorError):
        return UnsupportedOperatorError(message, operators=error.operators)
    return type(error)(message)


class Model:
    """Hold a model read from a file, ready to be bound to batch sizes (from one thread at a time).

    ``name`` names it in messages and tables; ``dims`` are the symbolic dimensions of its inputs (an anonymous
    one is called ``<input>.<axis>``); ``batch_dim`` is the one taken for the batch, None when the batch is a
    fixed number; ``batch_reason`` says how it was found.
    """

    def __init__(self, program: Program, *, name: str) -> None:
        self.name = name
        self._program = program
        self._inputs = name_dims(program.inputs)
        self.dims: tuple[str, ...] = tuple(symbols_of(self._inputs))
        self._leads = leading_batches(program)
        self._batch = choose_batch(self._inputs, leads=self._leads)
        self.batch_dim = self._batch.name
        self.batch_reason = self._batch.reason
        self._inference = Inference()
        try:
            self._statics = Statics(program, self._inference, self._declared)
        except UnsupportedOperatorError as e:
            raise self._unsupported(e) from e
        for slot, constant in program.constants.items():
            dtype, shape, _ = constant.type
            self._statics.storage_bytes[program.names[slot]] = dtype.nbytes(math.prod(shape))
        self._bindings: dict[tuple[object, ...], OperatorGraph] = {}
        self._tensors: dict[tuple[Any, ...], Value] = {}
        self._structures: dict[tuple[str, ...], tuple[object, list[bool]]] = {}

    @property
    def exported_batch(self) -> int | None:
        """Return the batch size that the file was exported at, None where it is symbolic or there is no batch."""
        return self._batch.fixed

    @property
    def producer(self) -> str:
        """Return the program that wrote the file, as the file says."""
        return self._program.producer

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """Return the inputs, every anonymous dimension named ``<input>.<axis>``."""
        return self._inputs

    @property
    def sizes(self) -> tuple[str, ...]:
        """Return the names that numbers may be given for: symbolic dimensions, and lengths of input sequences."""
        return (*self.dims, *lengths_of(self._inputs))

    @property
    def derived_dims(self) -> tuple[str, ...]:
        """Return the symbolic dimensions that follow from others, as their names say."""
        plain = dict.fromkeys(self.dims, 1)
        return tuple(name for name in self.dims if derived_size(name, plain) is not None)

    @property
    def opset(self) -> int | None:
        """Return the version of the standard operators that the file asks for; None where it says none."""
        return self._program.opset

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the names of the outputs."""
        return self._program.output_names

    @property
    def weights(self) -> tuple[TensorType, ...]:
        """Return the types of the tensors that the file holds: weights, and constants of any size."""
        return tuple(constant.type for constant in self._program.constants.values())

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return every node, those inside branches and loops too."""
        return tuple(_nodes_of(self._program.main))

    def _unsupported(self, error: UnsupportedOperatorError) -> UnsupportedOperatorError:
        """Return ``error`` with every operator type of the model that nothing here or in onnx knows."""
        unknown = unknown_operators(self._program.main.nodes)
        if len(unknown) < 2:
            return error
        return UnsupportedOperatorError(
            f"operators {', '.join(unknown)} are unknown; the file does not declare their output shapes",
            operators=unknown,
        )

    def _declared(self, slot: int) -> DeclaredType | None:
        said = self._program.declared[self._program.names[slot]]
        if said.dtype is not None:
            return said
        return None

    def bind(
        self,
        *,
        batch_size: int | None = None,
        dims: Mapping[str, int] | None = None,
        trip_count: int | None = None,
        batch_dim: str | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> OperatorGraph:
        """Give every dimension a number and list the operators that run.

        ``batch_size`` None: as exported, a symbolic batch is 1 (a warning says so). ``dims`` numbers the
        other symbolic dimensions. ``trip_count`` is used for loops whose trip count the file does not fix.
        ``inputs`` gives whole types, or values (arrays, numbers, lists), of inputs that the file leaves open.

        Raises UsageError (a number or name that cannot be), UnboundDimensionError, ShapeError, LimitError,
        UnsupportedOperatorError or ModelError.
        """
        key = (batch_size, tuple(sorted((dims or {}).items())), trip_count, batch_dim)
        if not inputs and key in self._bindings:
            return self._bindings[key]
        try:
            graph = self._bind(batch_size, dict(dims or {}), trip_count, batch_dim, dict(inputs or {}))
            if not inputs:
                if len(self._bindings) >= _KEPT_BINDINGS:
                    self._bindings.clear()
                self._bindings[key] = graph
            return graph
        except UnsupportedOperatorError as e:
            raise _named(self._unsupported(e), self.name) from e
        except GkestimatorError as e:
            raise _named(e, self.name) from e
        except RecursionError as e:
            raise LimitError(f"{self.name}: nested too deeply") from e

    def types(self, dims: Mapping[str, int]) -> dict[str, ValueType]:
        """Return the type of every value by name when each symbolic dimension, the batch among them, is as
        ``dims`` says.

        Values inside subgraphs are called ``<node>/<name>``. Raises as :meth:`bind`.
        """
        try:
            bound, _ = bind_dims(self._inputs, self._batch, None, dims)
            facts = self._walk(bound, None, {}, None, None).facts
        except GkestimatorError as e:
            raise _named(e, self.name) from e
        except RecursionError as e:
            raise LimitError(f"{self.name}: nested too deeply") from e
        return {n: f.type for n, f in zip(self._program.names, facts, strict=True) if f is not None}

    def _bind(
        self,
        batch_size: int | None,
        dims: dict[str, int],
        trip_count: int | None,
        batch_dim: str | None,
        inputs: dict[str, Any],
    ) -> OperatorGraph:
        batch = self._batch
        if batch_dim is not None:
            batch = choose_batch(self._inputs, batch_dim, self._leads)
        _check_numbers(batch_size, trip_count)
        known = [spec.name for spec in self._inputs]
        for name in sorted(set(inputs).difference(known)):
            meant = nearest_name(name, known)
            raise UsageError(f"input {name!r} is not in the model; known: {', '.join(known)}{meant}")
        inputs = {
            spec.name: given_value(spec, inputs[spec.name]) for spec in self._inputs if spec.name in inputs
        }
        bound, warnings = bind_dims(self._inputs, batch, batch_size, dims, frozenset(inputs))
        rebatcher = scale = None
        size = batch.fixed
        if batch.names:
            size = bound[batch.names[0]]
        elif batch_size is not None and batch_size != (batch.fixed or 1):
            if not batch.fixed:
                raise NoBatchError(
                    f"no input has a batch dimension: found batch size {batch_size}, expected 1 or none"
                )
            reference = Reference(batch.fixed)
            self._walk(bound, trip_count, inputs, reference, None)
            rebatcher = Rebatcher(reference, batch_size)
            scale = (batch.fixed, batch_size)
            size = batch_size
        binder = self._walk(bound, trip_count, inputs, rebatcher, scale)
        graph = self._finish(binder, batch, 1 if size is None else size, bound, warnings)
        # A value given for an input makes a weight of it: the operators may be the same, their edges are not.
        if inputs:
            said = f"estimated for given inputs: {', '.join(inputs)}"
            return replace(graph, structure=None, warnings=(*graph.warnings, said))
        return graph

    def _walk(
        self,
        bound: dict[str, int],
        trip_count: int | None,
        inputs: dict[str, ValueType | np.ndarray],
        rebatcher: Rebatcher | Reference | None,
        scale: tuple[int, int] | None,
    ) -> Binder:
        self._inference.trim()
        if len(self._tensors) > _CACHE_LIMIT:
            self._tensors.clear()
        binder = Binder(
            self._program,
            self._statics,
            self._inference,
            self._tensors,
            bound,
            trip_count,
            CONTROL,
            rebatcher,
        )
        for spec in self._inputs:
            fact = self._input_fact(spec, bound, inputs.get(spec.name))
            if scale is not None and isinstance(fact.type, TensorType) and fact.type.shape[:1] == (scale[0],):
                fact = self._inference.pool.intern(
                    check_type(fact.type._replace(shape=(scale[1], *fact.type.shape[1:])))
                )
            binder.set_input(spec.slot, fact)
        binder.run(self._statics.dynamic)
        return binder

    def _input_fact(
        self, spec: InputSpec, bound: Mapping[str, int], given: ValueType | np.ndarray | None
    ) -> Fact:
        intern = self._inference.pool.intern
        if isinstance(given, np.ndarray):
            dtype = _NUMPY_TYPES.get(given.dtype, spec.declared.dtype)
            if dtype is None:
                raise UsageError(
                    f"the value given for input {spec.name!r} has the unknown type {given.dtype}"
                )
            return intern(TensorType(dtype, given.shape), given.copy())
        if given is not None:
            return intern(check_type(given))
        dtype, shape = spec.declared
        if dtype is None:
            raise ModelError(f"input {spec.name!r} declares no element type")
        if shape is None:
            raise UnboundDimensionError(
                f"input {spec.name!r} declares no shape, not even how many dimensions it has"
            )
        try:
            tensor = TensorType(dtype, tuple(bound[d] if isinstance(d, str) else d or 0 for d in shape))
            check_type(tensor)
        except LimitError as e:
            raise LimitError(f"input {spec.name!r}: {e}") from e
        if spec.kind == "tensor":
            return intern(tensor)
        if spec.kind == "sequence":
            count = bound.get(f"{spec.name}.length", 1)
        else:
            count = 1
        limits.check("sequence_tensors", count, f"input {spec.name!r}")
        return intern(SequenceType((tensor,) * count, optional=spec.kind == "optional"))

    def _finish(
        self, binder: Binder, batch: BatchChoice, size: int, bound: Mapping[str, int], warnings: list[str]
    ) -> OperatorGraph:
        outputs = tuple(binder.value(slot) for slot in self._program.main.outputs)
        if isinstance(binder.rebatcher, Rebatcher):
            binder.rebatcher.check_outputs(self._program.output_names, outputs)
        names = tuple([o.name for o in binder.operators])
        known = self._structures.get(names)
        if known is None:
            if len(self._structures) > 64:
                self._structures.clear()
            alive = binder.live(outputs)
            known = self._structures[names] = (_Structure(), alive)
        structure, alive = known
        operators: tuple[Operator, ...] = tuple(
            [o for o, a in zip(binder.operators, alive, strict=True) if a]
        )
        return OperatorGraph(
            name=self.name,
            operators=operators,
            inputs=tuple(binder.value(i.slot) for i in self._inputs),
            outputs=outputs,
            weights=binder.weights(operators),
            batch_size=size,
            dims=tuple(sorted((k, v) for k, v in bound.items() if k not in batch.names)),
            producer=self._program.producer,
            folded=binder.folded,
            warnings=(*warnings, *binder.warnings),
            awaited=tuple(sorted(binder.awaited)),
            structure=structure,
        )


def _check_numbers(batch_size: int | None, trip_count: int | None) -> None:
    if batch_size is not None:
        check_size("batch size", batch_size)
        if batch_size > allowed("batch_size"):
            raise UsageError(f"batch size: {exceeded('batch_size', batch_size)}")
    if trip_count is not None:
        check_size("trip count", trip_count, allow_zero=True)
        limits.check("trip_count", trip_count, "trip count")


class _Structure:
    """Stand for the operator list of one model.

    Bindings with equal lists share one object, so identity is equality, and all that matters.
    """

    __slots__ = ("__weakref__",)


def _nodes_of(block: Block) -> Iterator[Node]:
    for node in block.nodes:
        yield node
        for inner in (node.blocks or {}).values():
            yield from _nodes_of(inner)
