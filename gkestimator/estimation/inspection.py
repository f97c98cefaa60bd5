"""Say what is in a model file before any GPU is named: inputs, dimensions, parameters, operators, work, and what an
estimate will ask for."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import UnboundDimensionError, UnsupportedOperatorError
from gkestimator.core.kernels import Family, KernelGraph
from gkestimator.core.records import Names, frozen
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.onnx_io import read_model
from gkestimator.onnx_io.model import Model
from gkestimator.onnx_io.reading.program import InputSpec, Node
from gkestimator.operators.builders import tensors_of
from gkestimator.tables.units import bytes_text, flops_text, number_text

_OPTIONS = LoweringOptions(
    runtime="onnxruntime", dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
)
_MOST_OPERATORS = 8
_MOST_ALIKE = 3  # inputs of one type and shape, or outputs, that are listed one by one


@frozen
class Dimension:
    """Hold a symbolic dimension: its name, the inputs that it ties together, and whether it follows from others."""

    name: str
    inputs: Names
    derived: bool


@frozen
class Inspection:
    """Hold what a file says. Null is not known.

    ``inputs`` and ``outputs``: name, element type and shape in words. ``batch_dim``: the dimension taken for
    the batch, null where it is a fixed number (``exported_batch``) or there is none; ``batch_reason`` says
    why. ``dimensions``: the others, which an estimate must be told. ``parameters`` and ``parameter_bytes``:
    floating-point and quantised weights as the file stores them. ``nodes`` and ``operators``: how many of
    each type, the most frequent first. ``flops``: of one inference at the batch size in ``batch_size``; null
    while dimensions are open or operators unknown; ``at_most``: sizes that depend on data were taken at their
    largest. ``unknown`` operators have no rule; ``on_host`` run on the
    CPU whatever the runtime; ``runs_on_cpu_alone``: nothing else does, null while that is not known.
    """

    model: str
    producer: str
    opset: int | None
    inputs: tuple[tuple[str, str, str], ...]
    outputs: Names
    batch_dim: str | None
    exported_batch: int | None
    batch_reason: str
    dimensions: tuple[Dimension, ...]
    parameters: int
    parameter_bytes: int
    nodes: int
    operators: tuple[tuple[str, int], ...]
    batch_size: int | None
    flops: int | None
    at_most: bool
    unknown: Names
    on_host: Names
    runs_on_cpu_alone: bool | None


def inspect_model(path: Path, *, dims: Mapping[str, int] | None = None) -> Inspection:
    """Return what is in the file at ``path``; ``dims`` numbers dimensions, so that the work can be counted.

    Raises ModelError, LimitError or UsageError, in one line that names the file.
    """
    model = read_model(path)
    numbers = dict(dims or {})
    flops: int | None = None
    size: int | None = None
    on_host: Names = ()
    unknown: Names = ()
    on_cpu_alone: bool | None = None
    at_most = False
    told = {model.batch_dim, *numbers, *model.derived_dims}
    if told.issuperset(model.dims):
        try:
            bound = model.bind(dims=numbers)
            graph = lower(bound, _OPTIONS, allow_unknown=True)
            size = bound.batch_size
            at_most = any(tensor.bounded for op in bound.operators for tensor in tensors_of(op.outputs))
            unknown = graph.unknown_operators
            on_host = _host_operators(graph)
            if not unknown:
                flops = sum(kernel.flops * step.repeat for step in graph.steps for kernel in step.kernels)
                on_cpu_alone = all(k.family is Family.HOST for step in graph.steps for k in step.kernels)
        except UnboundDimensionError:
            flops = None  # the length of a sequence is open too
        except UnsupportedOperatorError as e:
            unknown = tuple(e.operators)
    counts = Counter(_title(node) for node in model.nodes)
    parameters, parameter_bytes = _parameters(model)
    return Inspection(
        model=path.name,
        producer=model.producer,
        opset=model.opset,
        inputs=tuple(_input_words(spec) for spec in model.inputs),
        outputs=model.outputs,
        batch_dim=model.batch_dim,
        exported_batch=model.exported_batch,
        batch_reason=model.batch_reason,
        dimensions=_dimensions(model),
        parameters=parameters,
        parameter_bytes=parameter_bytes,
        nodes=sum(counts.values()),
        operators=tuple(counts.most_common()),
        batch_size=size,
        flops=flops,
        at_most=at_most,
        unknown=unknown,
        on_host=on_host,
        runs_on_cpu_alone=on_cpu_alone,
    )


def _title(node: Node) -> str:
    if node.domain:
        return f"{node.domain}.{node.op_type}"
    return node.op_type


def _input_words(spec: InputSpec) -> tuple[str, str, str]:
    """Return name, element type and shape of an input in words."""
    dtype = spec.declared.dtype
    word = "of a type that the file does not say" if dtype is None else dtype.value
    if spec.kind != "tensor":
        word = f"{spec.kind} of {word}"
    shape = spec.declared.shape
    if shape is None:
        return spec.name, word, "of any shape"
    return spec.name, word, f"[{', '.join(map(str, shape))}]"


def _parameters(model: Model) -> tuple[int, int]:
    """Return how many weights the file holds, and their bytes; whole numbers of 4 and 8 bytes are sizes and indices."""
    count = sum(_packed_away(node) for node in model.nodes)
    nbytes = 0
    for dtype, shape, *_ in model.weights:
        narrow = dtype.is_integer and dtype.bits <= 16
        if not (dtype.is_floating or narrow):
            continue
        elements = math.prod(shape)
        count += elements
        nbytes += dtype.nbytes(elements)
    return count, nbytes


def _packed_away(node: Node) -> int:
    """Return how many more weights a product by weights of few bits has than the bytes that its file counts."""
    if node.op_type != "MatMulNBits":
        return 0
    sizes = [node.attributes.get(name) for name in ("N", "K", "block_size", "bits")]
    rows, columns, block, bits = (size if isinstance(size, int) and size > 0 else 0 for size in sizes)
    if not block:
        return 0
    stored = rows * math.ceil(columns / block) * (block * bits // 8)
    return rows * columns - stored


def _host_operators(graph: KernelGraph) -> Names:
    names = {step.op_type for step in graph.steps if any(k.family is Family.HOST for k in step.kernels)}
    return tuple(sorted(names))


def _dimensions(model: Model) -> tuple[Dimension, ...]:
    """Return the dimensions beside the batch, each with the inputs that have it."""
    dimensions = []
    for name in model.dims:
        if name != model.batch_dim:
            tied = tuple(spec.name for spec in model.inputs if name in (spec.declared.shape or ()))
            derived = name in model.derived_dims
            dimensions.append(Dimension(name=name, inputs=tied, derived=derived))
    return tuple(dimensions)


def inspection_lines(inspection: Inspection, path: Path, dims: Mapping[str, int]) -> list[str]:
    """Return the inspection for people, a line a fact; ``path`` and ``dims`` as asked, for the command to type next."""
    maker = inspection.producer or "an exporter that does not say"
    if inspection.opset is not None:
        maker += f", opset {inspection.opset}"
    facts: list[tuple[str, str]] = [("made by", maker)]
    for (dtype, shape), alike in groupby(inspection.inputs, key=lambda spec: spec[1:]):
        names = [name for name, *_ in alike]
        if len(names) > _MOST_ALIKE:
            names = [f"{names[0]} to {names[-1]} ({len(names)} inputs)"]
        facts += [("input", f"{name}: {dtype} {shape}") for name in names]
    facts.append(("output", _listed(inspection.outputs)))
    facts.append(("batch", _batch_words(inspection)))
    for dimension in inspection.dimensions:
        words = f"{dimension.name}, of {_listed(dimension.inputs)}"
        facts.append(("dimension", words + " (follows from the others)" * dimension.derived))
    count = _large_number(inspection.parameters)
    facts.append(("parameters", f"{count}, {bytes_text(inspection.parameter_bytes)} in the file"))
    shown = [f"{name} {count}" for name, count in inspection.operators[:_MOST_OPERATORS]]
    more = len(inspection.operators) - _MOST_OPERATORS
    if more > 0:
        shown.append(f"and {more} other kind{'s' * (more > 1)}")
    facts.append(("operators", f"{inspection.nodes:,}: {', '.join(shown)}"))
    facts.append(("work", _work_words(inspection)))
    if inspection.unknown:
        facts.append(("unknown", f"{', '.join(inspection.unknown)}: --allow-unknown gives lower bounds"))
    if inspection.on_host:
        facts.append(("on the CPU", ", ".join(inspection.on_host)))
    head = inspection.model
    if inspection.runs_on_cpu_alone:
        head += " runs on the CPU alone: no GPU would do any of its work"
    else:
        facts.append(("next", _next_words(inspection, path, dims)))
    return [head, *(f"  {name:<12}{fact}" for name, fact in facts)]


def _listed(names: Names) -> str:
    """Return names in a row; of many the first and the last."""
    if len(names) > _MOST_ALIKE:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more up to {names[-1]}"
    return ", ".join(names)


def _large_number(count: int) -> str:
    """Return a count as people say it: 25.6 million."""
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{number_text(count / size)} {word}"
    return f"{count:,}"


def _batch_words(inspection: Inspection) -> str:
    if inspection.batch_dim is not None:
        return f"{inspection.batch_dim} ({inspection.batch_reason})"
    if inspection.exported_batch is not None:
        return (
            f"fixed at {inspection.exported_batch} ({inspection.batch_reason}); --batch-size asks for another"
        )
    return f"no batch dimension ({inspection.batch_reason}): estimated as it is"


def _work_words(inspection: Inspection) -> str:
    if inspection.flops is not None:
        words = f"{'at most ' * inspection.at_most}{flops_text(inspection.flops)} an inference"
        if inspection.batch_size is not None:
            words += f" of batch {inspection.batch_size}"
        if inspection.at_most:
            words += ": sizes that depend on data are taken at their largest"
        return words
    if inspection.unknown:
        return "not known: operators are unknown"
    return f"not known yet: give {_missing(inspection, {})}"


def _missing(inspection: Inspection, dims: Mapping[str, int]) -> str:
    """Return the options that number the open dimensions, with the numbers of ``dims`` where it has them."""
    names = [dimension.name for dimension in inspection.dimensions if not dimension.derived]
    numbered = [f"{name}={dims.get(name, '...')}" for name in names]
    return " ".join(f"--dim {shlex.quote(words)}" for words in numbered)


def _next_words(inspection: Inspection, path: Path, dims: Mapping[str, int]) -> str:
    words = ["gkest estimate", shlex.quote(str(path)), "--gpu NAME"]
    if inspection.batch_dim is not None:
        words.append("--batch-size 1,8,32")
    if inspection.dimensions:
        words.append(_missing(inspection, dims))
    return " ".join(words)


def inspection_json(inspections: Sequence[Inspection]) -> str:
    """Return the inspections as a JSON list."""
    return json.dumps([asdict(inspection) for inspection in inspections], indent=1, allow_nan=False)
