"""Judge memory under TensorRT: Stable Diffusion 1.5, the GPU memory of its pipelines (ONNX Runtime's README).

TensorRT's figures hardly move with the number of images: engines are built for up to 16 (``max_batch_size`` of the
README's script, which is where the one assumption here is from). The native pipeline lets its three engines share one
planned block, the largest of theirs; ONNX Runtime's sessions have one each, and arenas for inputs and outputs. Context
and libraries take what :mod:`.ort_memory` finds on the GPUs of its development group, none of which is in these rows: no
constant is fitted here. The graphs are those of ``benchmarks/export_ort_diffusion.py``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from gkestimator.core.errors import UsageError
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.memory.engines import EngineBytes, engine_bytes
from gkestimator.memory.trace import trace_of

from .lines import Line, line
from .ort_memory import cases as ort_cases
from .ort_memory import fixed_bytes, lowered_graph
from .sections import Section
from .workspace import Workspace

BAR = 15.0
_MOST_IMAGES = 16
_LATENTS: Mapping[str, int] = {"H": 64, "W": 64}
_COMMAND = "python benchmarks/export_ort_diffusion.py .accuracy/ort_graphs"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCase:
    """Hold one measured row beside its estimate, bytes."""

    gpu: str
    runtime: str
    version: str
    provider: str
    batch: int
    measured_bytes: float
    stacks_bytes: int
    weights_bytes: int
    planned_bytes: int
    bindings_bytes: int

    @property
    def engine_bytes(self) -> int:
        """Return what the three engines hold."""
        return self.weights_bytes + self.planned_bytes + self.bindings_bytes


def run(space: Workspace) -> None:
    """Estimate every row of the table that ran under TensorRT."""
    path = space.shared / "data/onnxruntime/onnxruntime_readme.parquet"
    here = Path(__file__).read_text(encoding="utf-8")
    key = ["trt_memory", space.product_key, f"{path.stat().st_size}", here]
    if space.current("trt_memory", key):
        return
    graphs = space.folder / "ort_graphs"
    if not (graphs / "sd_unet.onnx").is_file():
        raise UsageError(f"{graphs}: no sd_unet.onnx; run: {_COMMAND}")
    made = list(_cases(path, graphs))
    space.keep("trt_memory", key, [asdict(case) for case in made])
    space.tell(f"trt_memory: {len(made)} rows")


def _cases(path: Path, graphs: Path) -> Iterator[EngineCase]:
    table = pd.read_parquet(path)
    chosen = table[(table.table == "Stable Diffusion README") & table.second_run_memory_bytes.notna()]
    in_ort = (chosen.engine == "onnxruntime") & chosen.provider.str.startswith("tensorrt")
    engines = {name: _engines(name, graphs) for name in ("tensorrt", "onnxruntime_tensorrt")}
    for row in chosen[in_ort | (chosen.engine == "tensorrt")].itertuples():
        runtime = "tensorrt" if row.engine == "tensorrt" else "onnxruntime_tensorrt"
        profile = load_runtime(runtime)
        gpu = gpu_catalogue().spec(row.gpu)
        planned = [engine.planned for engine in engines[runtime]]
        yield EngineCase(
            gpu=gpu.name,
            runtime=runtime,
            version=row.version,
            provider=row.provider,
            batch=int(row.batch),
            measured_bytes=float(row.second_run_memory_bytes),
            stacks_bytes=(profile.context_bytes(gpu) or 0) - (profile.context_fixed_bytes or 0),
            weights_bytes=sum(engine.weights for engine in engines[runtime]),
            planned_bytes=max(planned) if runtime == "tensorrt" else sum(planned),
            bindings_bytes=sum(engine.bindings for engine in engines[runtime]),
        )


def _engines(runtime: str, graphs: Path) -> list[EngineBytes]:
    """Return what text encoder, U-Net (twice the images, for the guidance without a prompt) and VAE decoder hold."""
    profile = load_runtime(runtime)
    parts = (("sd_text", 1, {}), ("sd_unet", 2, _LATENTS), ("sd_vae", 1, _LATENTS))
    engines = []
    for name, factor, dims in parts:
        graph = lowered_graph(graphs / f"{name}.onnx", factor * _MOST_IMAGES, dims, runtime=runtime)
        # The file holds ONNX Runtime's convolutions, whose scratch memory is cuDNN's.
        engines.append(engine_bytes(trace_of(graph, 0), profile.allocator, profile.allocator_bytes))
    return engines


def estimates(space: Workspace) -> list[tuple[EngineCase, float]]:
    """Return the stored rows of :func:`run` with their estimates, bytes; none where it has not run."""
    fixed = fixed_bytes(ort_cases(space))
    rows = [EngineCase(**row) for row in space.listed("trt_memory") or []]  # type: ignore[arg-type]
    return [(case, fixed + case.stacks_bytes + case.engine_bytes) for case in rows]


def _mean(rows: list[tuple[EngineCase, float]]) -> float | None:
    if not rows:
        return None
    return statistics.fmean(abs(value / case.measured_bytes - 1) * 100 for case, value in rows)


def lines(space: Workspace) -> Iterator[Line]:
    """Yield the bar over all rows."""
    rows = estimates(space)
    more = ""
    if rows:
        alone = [abs(case.weights_bytes / case.measured_bytes - 1) * 100 for case, _ in rows]
        more = f" ({len(rows)} rows; weights alone {statistics.fmean(alone):.0f} %)"
    yield line("memory under TensorRT, mean error", BAR, _mean(rows), more=more)


def page(space: Workspace) -> list[str] | None:
    """Return the page's text: what was counted, and every row."""
    rows = estimates(space)
    if not rows:
        return None
    fixed = fixed_bytes(ort_cases(space)) / 2**20
    made = [
        "Stable Diffusion 1.5, 512 x 512, fp16: device memory of whole pipelines by ONNX Runtime's README, context included.",
        "The measured figures hardly move with the number of images, because engines are built for the largest number,",
        f"taken as {_MOST_IMAGES} (`max_batch_size` of the README's script; the table does not state it, and the block is in",
        "proportion to it: this is a check of the sum's parts, not of the number). Natively three engines share one block;",
        f"in ONNX Runtime each has its own. Context and libraries: {fixed:,.0f} MiB and a stack for every resident thread, as",
        "under [ONNX Runtime](ort_memory.md), found on other GPUs with the CUDA provider: no constant is fitted to these rows.",
        f"Scratch memory of TensorRT's convolutions is unknown and counted as none. Graphs: `{_COMMAND}`.",
        "",
        f"Mean error: {_mean(rows):.1f} % of {len(rows)} rows.",
        "",
        "| GPU | runtime | version | provider | batch | measured MiB | estimate MiB | error % | weights | block | bindings |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, value in rows:
        parts = (case.weights_bytes, case.planned_bytes, case.bindings_bytes)
        cells = " | ".join(f"{nbytes / 2**20:,.0f}" for nbytes in (case.measured_bytes, value))
        signed = (value / case.measured_bytes - 1) * 100
        held = " | ".join(f"{nbytes / 2**20:,.0f}" for nbytes in parts)
        made.append(
            f"| {case.gpu} | {case.runtime} | {case.version} | {case.provider} | {case.batch} | {cells} | {signed:+.1f} | "
            f"{held} |"
        )
    return made


SECTION = Section(title="Memory under TensorRT", jobs={"trt_memory": run}, lines=lines, page=page)
