"""Compare our passes of a decoder with the graphs that exporters write of the same configuration.

Run ``python benchmarks/decoders_exported.py FOLDER`` on what ``export_decoders.py`` wrote. Prints two tables: FLOPs and
bytes of weights of a prompt's pass and of a step, and the times of ``gkest llm`` through the configuration and through
the file, in every engine whose operators a file has: ``torch`` for those of torch's exporters, ``paged`` and
``onnxruntime`` for ONNX Runtime GenAI's.

Bytes of weights are compared beside what a file holds twice or more: TorchScript writes a tied output layer as a second,
transposed table, and the builder of GenAI writes tables of cosines and sines for every position. Both are named.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.kernels import KernelGraph
from gkestimator.llm.configs import read_decoder
from gkestimator.llm.decoder import Decoder
from gkestimator.llm.estimating import estimate_llm
from gkestimator.llm.exported import read_exported
from gkestimator.llm.parts import Pass
from gkestimator.llm.request import LlmRequest
from gkestimator.llm.source import DecoderSource, configured
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.onnx_io import read_model
from gkestimator.tables.llm_requirement import LlmRequirement

ENGINES: Mapping[str, tuple[str, ...]] = {
    "dynamo": ("torch",),
    "classic": ("torch",),
    "genai": ("paged", "onnxruntime"),
}
PASSES = ((1, 2048, 0), (8, 1, 2048))  # batch, tokens, past
BATCHES = (1, 8, 64)
GPUS = ("H100-SXM", "A100-SXM4-80GB")
_HALF_BYTES = 2
_OPTIONS = LoweringOptions(
    runtime="torch",
    dtype="fp16",
    half=Precision.FP16,
    matmul_precision=Precision.FP16,
    conv_precision=Precision.FP16,
)


def kernels_of(source: DecoderSource, run: Pass) -> KernelGraph:
    """Return the kernels of a pass under torch in fp16."""
    return lower(source.pass_graph(run), _OPTIONS)


def flops_of(graph: KernelGraph) -> int:
    """Return the FLOPs of a pass."""
    return sum(kernel.flops * step.repeat for step in graph.steps for kernel in step.kernels)


def held_besides(decoder: Decoder, path: Path) -> dict[str, int]:
    """Return the bytes that the file at ``path`` holds beside the parameters, by what they are."""
    table = {decoder.vocabulary, decoder.width}
    tables = 0
    copies = -1 if decoder.tied else -2
    for dtype, shape, *_ in read_model(path).weights:
        copies += len(shape) == 2 and set(shape) == table
        turned = len(shape) == 2 and shape[0] == decoder.most_tokens and 2 * shape[1] == decoder.head_size
        tables += dtype.nbytes(math.prod(shape)) if turned else 0
    besides = {"tied table twice": copies * math.prod(table) * _HALF_BYTES, "tables of positions": tables}
    return {name: size for name, size in besides.items() if size > 0}


def counts(decoder: Decoder, path: Path, exporter: str) -> Iterator[str]:
    """Yield a line for each pass."""
    source = read_exported(path)
    besides = held_besides(decoder, path)
    for batch, tokens, past in PASSES:
        half = DType.FLOAT16
        fused = exporter == "genai"
        run = Pass(batch=batch, tokens=tokens, past=past, dtype=half, cache=half, fused=fused)
        ours = flops_of(kernels_of(configured(decoder), run))
        graph = kernels_of(source, run)
        weights = sum(graph.weights.values()) - sum(besides.values())
        expected = decoder.parameters * _HALF_BYTES
        theirs = flops_of(graph)
        cells = (
            decoder.name,
            exporter,
            f"{batch} x {tokens} after {past}",
            f"{ours / 1e9:.4g}",
            f"{theirs / 1e9:.4g}",
            f"{100 * (theirs / ours - 1):+.2f}",
            f"{expected / 1e6:.2f}",
            f"{weights / 1e6:.2f}",
            f"{100 * (weights / expected - 1):+.2f}",
            ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in besides.items()) or "nothing",
        )
        yield f"| {' | '.join(cells)} |"


def rows_of(model: Path, engine: str) -> list[LlmRequirement]:
    """Return the rows of ``gkest llm`` for a configuration or a file."""
    request = LlmRequest(
        model=model,
        gpus=GPUS,
        input_tokens=(512, 4096),
        output_tokens=(256,),
        batch_sizes=BATCHES,
        engine=engine,
    )
    return estimate_llm(request)


def times(config: Path, path: Path, exporter: str) -> Iterator[str]:
    """Yield a line for each engine: the largest differences over GPUs, prompts and batches."""
    for engine in ENGINES[exporter]:
        pairs = list(zip(rows_of(config, engine), rows_of(path, engine), strict=True))
        cells = [config.stem, exporter, engine]
        for field in ("ttft_ms", "tpot_ms", "mreq_bytes"):
            changes = [100 * (getattr(b, field) / getattr(a, field) - 1) for a, b in pairs]
            cells.append(f"{min(changes):+.1f} to {max(changes):+.1f}")
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    counted = [
        "| model | exporter | pass | GFLOP ours | file | % | MB of parameters | file | % | file holds beside |",
        "|" + "---|" * 10,
    ]
    timed = ["| model | exporter | engine | TTFT % | TPOT % | memory % |", "|" + "---|" * 6]
    for config in sorted(folder.glob("*.json")):
        decoder = read_decoder(config)
        for exporter in ENGINES:
            path = folder / f"{config.stem}.{exporter}.onnx"
            if path.exists():
                counted += counts(decoder, path, exporter)
                timed += times(config, path, exporter)
    print("\n".join([*counted, "", *timed]))


if __name__ == "__main__":
    main()
