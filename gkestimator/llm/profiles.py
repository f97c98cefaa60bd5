"""Name the engines that run a decoder, and what each adds to the kernels.

A new one is an entry of :data:`ENGINES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gkestimator.core.records import frozen


@frozen
class ServingEngine:
    """Hold what is said of an engine beside its kernels.

    ``runtime`` is the runtime whose rules lower its operators. ``fused`` says that its operators are those that engines
    fuse (:mod:`.parts`), else a module's own; ``merged`` that they make one product of a gated layer's first two.
    ``graph`` says that a decoding step is launched as one CUDA graph, so that the host does not wait between kernels
    but adds ``step_host_ms`` to a step, within ``step_host_range_ms``.
    ``paged`` says that keys and values lie in pages that are filled in place; otherwise every step writes all of them
    anew, behind each other in memory. ``chunk_tokens`` is the most tokens that one pass of a prompt takes (0: all).
    """

    name: str
    runtime: str
    fused: bool
    merged: bool = False
    graph: bool = False
    paged: bool
    chunk_tokens: int = 0
    step_host_ms: float = 0.0
    step_host_range_ms: tuple[float, float] = (0.0, 0.0)
    page_tokens: int = 1
    source: str


ENGINES: Mapping[str, ServingEngine] = MappingProxyType(
    {
        engine.name: engine
        for engine in (
            ServingEngine(
                name="paged",
                runtime="torch",
                fused=True,
                merged=True,
                graph=True,
                paged=True,
                chunk_tokens=8192,
                step_host_ms=0.5,
                step_host_range_ms=(0.0, 2.0),
                page_tokens=16,
                source="What vLLM, SGLang and TensorRT-LLM share. Host time of a step: assumed, not measured; as we "
                "recall their blogs, SGLang 0.4 (December 2024) reports none that the GPU waits for, vLLM 0.6 "
                "(September 2024) more than half of a step of an 8B model on an H100. Pages of 16 tokens and passes of "
                "8,192: vLLM's defaults (block_size, max_num_batched_tokens).",
            ),
            ServingEngine(
                name="torch",
                runtime="torch",
                fused=False,
                paged=False,
                source="Modules of transformers, eager PyTorch, DynamicCache: keys and values are concatenated.",
            ),
            ServingEngine(
                name="onnxruntime",
                runtime="onnxruntime",
                fused=True,
                paged=True,
                source="ONNX Runtime with decoders as ONNX Runtime GenAI writes them (GroupQueryAttention): past and "
                "present keys and values are one buffer.",
            ),
        )
    }
)
"""Every engine by name, the default one first."""
