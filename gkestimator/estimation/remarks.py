"""Say what a model's rows must tell before anybody uses them, whatever the GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Family, KernelGraph, Step
from gkestimator.core.records import Names
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.lowering.decoder_cache import cached_values
from gkestimator.operators.builders import tensors_of

_MOST_NAMED = 4
# Quantised operators that onnxruntime's CUDA provider does not register (docs/OperatorKernels.md of its sources);
# they fall back to the CPU. Eager torch has no int8 kernel for a GPU at all, so the same list holds there.
_NO_GPU_KERNEL = frozenset(
    {
        "QLinearConv",
        "QLinearMatMul",
        "ConvInteger",
        "QGemm",
        "QLinearAdd",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearLeakyRelu",
        "QLinearSoftmax",
        "QLinearConcat",
        "QLinearWhere",
        "QLinearAveragePool",
        "QLinearGlobalAveragePool",
        "QLinearReduceMean",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat",
    }
)

# What ONNX Runtime's transformer optimiser puts in the place of an attention.
_ATTENTION_OPERATORS = frozenset(
    {"Attention", "MultiHeadAttention", "PackedAttention", "PackedMultiHeadAttention", "GroupQueryAttention"}
)


def remarks(bound: OperatorGraph, graph: KernelGraph) -> Iterator[str]:
    """Yield sentences about the bound model and its kernels, in a fixed order, without repetition."""
    yield from _bounded(bound)
    yield from _quantised(graph)
    yield from _lacking(bound, graph)
    yield from _language_pass(bound)
    yield from _decoder(bound)
    yield from _attention_form(bound, graph)


def unfused_lines(graph: KernelGraph) -> Iterator[str]:
    """Yield a line for each of the commonest kinds of kernels that stay apart though users may expect them in another,
    with the reason.
    """
    unfused = Counter(graph.unfused)
    common = unfused.most_common(_MOST_NAMED)
    for (what, reason), count in common:
        yield f"{graph.name}: not fused: {count} x {what} ({reason})"
    left = unfused.total() - sum(count for _, count in common)
    if left:
        yield f"{graph.name}: not fused: {left} x other kernels"


def origins_of_bounded_sizes(bound: OperatorGraph) -> set[str]:
    """Return the types of the operators that make a size which depends on data, and take none."""
    open_ended = [op for op in bound.operators for v in op.outputs if v is not None and v.bounded]
    return {op.op_type for op in open_ended if not any(v is not None and v.bounded for v in op.inputs)}


def _bounded(bound: OperatorGraph) -> Iterator[str]:
    """Yield a remark where the size of a result depends on data: numbers behind it are those of the largest."""
    origins = origins_of_bounded_sizes(bound)
    if origins:
        yield f"sizes that depend on data are taken at their largest: {_named(sorted(origins))}"


def _quantised(graph: KernelGraph) -> Iterator[str]:
    used = {step.op_type for step in graph.steps}
    # Under a runtime that permits 8 bits the pairs stand for them: one that is left quantises for its readers.
    if "QuantizeLinear" in used and not runtime_traits(graph.runtime).permits:
        pairs = "quantised in pairs (QuantizeLinear, DequantizeLinear)"
        yield f"{pairs}: {graph.runtime} calculates between them in floats"
    lacking = sorted(used & _NO_GPU_KERNEL - runtime_traits(graph.runtime).lacking_operators)
    if lacking:
        yield (
            f"{graph.runtime} has no GPU kernel for {_named(lacking)}: estimated as if it had int8 kernels"
        )


def operators_lacking(bound: OperatorGraph, runtime: str) -> list[str]:
    """Return the types of ``bound``'s operators that an engine of ``runtime`` cannot hold, sorted."""
    lacking = runtime_traits(runtime).lacking_operators
    if not lacking:
        return []
    own = {op.op_type for op in bound.operators if op.domain == "com.microsoft"}
    return sorted(own | {op.op_type for op in bound.operators if op.op_type in lacking})


def _lacking(bound: OperatorGraph, graph: KernelGraph) -> Iterator[str]:
    lacking = operators_lacking(bound, graph.runtime)
    if lacking:
        held = f"no engine of {graph.runtime} holds {_named(lacking)}"
        yield f"{held}: natively none is built, ONNX Runtime cuts the model there, the estimate is of one engine"


def _named(op_types: list[str]) -> str:
    named = ", ".join(op_types[:_MOST_NAMED])
    more = len(op_types) - _MOST_NAMED
    if more > 0:
        return f"{named} and {more} more"
    return named


def _language_pass(bound: OperatorGraph) -> Iterator[str]:
    """Yield a remark on which pass of a language model the row is: over a whole text, or on from a past."""
    tensors = tensors_of(bound.inputs)
    tokens = [t.shape[1] for t in tensors if t.name.endswith("input_ids") and len(t.shape) == 2]
    if not tokens:
        return
    words = f"{tokens[0]} token{'s' * (tokens[0] != 1)}"
    # Keys lie as (batch, heads, tokens, size): the names are optimum's, which other exporters took over.
    past = [t.shape[-2] for t in tensors if t.name.startswith("past_key") and len(t.shape) == 4]
    if past and past[0]:
        yield f"language model: one pass over {words} after a past of {past[0]} (decoding step)"
    else:
        yield f"language model: one forward pass over {words} (prefill), no decoding"


def _decoder(bound: OperatorGraph) -> Iterator[str]:
    """Yield a remark that a decoder whose file takes any number of tokens has a command of its own."""
    tensors = tensors_of(bound.inputs)
    lengths = [t.shape[1] for t in tensors if t.name.endswith("input_ids") and len(t.shape) == 2]
    if not lengths or lengths[0] not in dict(bound.dims).values():
        return
    if any(t.name.startswith("past_key") for t in tensors) or cached_values(bound):
        yield "a decoder: gkest llm tells tokens a second, memory with all keys and values, and the largest batch"


def _attention_form(bound: OperatorGraph, graph: KernelGraph) -> Iterator[str]:
    """Yield a remark on which of two forms a file with attention has, under a runtime whose optimiser of files fuses
    them: they differ by up to two times, and nothing else in the row tells them apart.
    """
    optimiser = runtime_traits(graph.runtime).file_optimiser
    if not optimiser:
        return
    fused = [
        op for op in bound.operators if op.domain == "com.microsoft" and op.op_type in _ATTENTION_OPERATORS
    ]
    if fused:
        yield f"optimised file: {len(fused)} attentions are operators of {graph.runtime}'s own"
    apart = _unfused_attentions(graph)
    if apart:
        yield (
            f"file as exported: attention is not fused (runs operator by operator, {apart} times), which "
            f"{optimiser} would do"
        )


def _unfused_attentions(graph: KernelGraph) -> int:
    """Return how many softmaxes feed a batched product."""
    softmaxes: set[str] = set()
    count = 0
    for step in graph.steps:
        if softmaxes & set(step.reads) and _has(step, Family.BMM):
            count += step.repeat
        written = {storage for storage, _ in step.writes}
        softmaxes -= written
        # A softmax that has its products beside it in one step is an operator of its own.
        if _has(step, Family.SOFTMAX) and not _has(step, Family.BMM):
            softmaxes |= written
    return count


def _has(step: Step, family: Family) -> bool:
    return any(kernel.family is family for kernel in step.kernels)


def obstacles(bound: OperatorGraph, graph: KernelGraph) -> Names:
    """Return what keeps a bound model with the kernels of ``graph`` from being captured in a CUDA graph, which the host
    then launches by one call: operator types, sorted.

    A graph is a fixed list of kernels with fixed arguments, so the host must not look at a result in between: a
    condition, a trip count or a size that depends on data, an operator that runs on the CPU. Runtimes that compile a
    model keep a loop as a loop, and capture none. Sources: CUDA programming guide, "Prohibited and Unhandled
    Operations" of stream capture; TensorRT developer guide, "CUDA Graphs"; ONNX Runtime, CUDA execution provider,
    ``enable_cuda_graph`` (no If, Loop and Scan; every node on the GPU).
    """
    held_up = {*graph.unknown_operators, *bound.awaited, *origins_of_bounded_sizes(bound)}
    held_up.update(operators_lacking(bound, graph.runtime))
    unrolls = runtime_traits(graph.runtime).eager
    for step in graph.steps:
        if any(kernel.family is Family.HOST for kernel in step.kernels):
            held_up.add(step.op_type)
        if step.repeat > 1 and not unrolls:
            held_up.add("Loop")
    return tuple(sorted(held_up))


def capture_remark(not_captured: Names) -> str:
    """Return the remark of a row that was asked for as a CUDA graph; ``not_captured`` as :func:`obstacles` says."""
    if not not_captured:
        return "launched as one CUDA graph"
    return f"no CUDA graph can hold it ({_named(list(not_captured))}): launched call by call"
