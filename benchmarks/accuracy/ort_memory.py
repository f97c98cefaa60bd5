"""Judge memory under ONNX Runtime: Stable Diffusion 1.5, the GPU memory of its second run (ONNX Runtime's README).

A pipeline is three sessions in one process: text encoder, U-Net (twice the batch, for the guidance without a prompt)
and VAE decoder, which the pipeline calls image by image. What it takes of the device is their arenas, a stack for every
resident thread, and what the context and the libraries take whatever the GPU: the median of what the development rows
leave over (CUDA 11 loads every kernel of cuDNN at once; the runtime profile's figure is an estimate for today's lazy
loading). The graphs are written by ``benchmarks/export_ort_diffusion.py``. Drawn before tuning: the first two GPUs by
the hash of ``stable_diffusion GPU`` are the development group.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.kernels import KernelGraph
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import EstimateRequest
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.memory import memory_profile

from .lines import Line, line
from .sections import Section
from .workspace import Workspace

BAR = 15.0
_DEVELOPMENT_GPUS = 2
_COMMAND = "python benchmarks/export_ort_diffusion.py .accuracy/ort_graphs"
_LOWERED_FOR = "V100-PCIE-16GB"  # kernels of one precision ask for the same memory on every GPU
_UNLIMITED = 1 << 40
"""Regions of the arena double without end in the table's releases (1.14 to 1.16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCase:
    """Hold one measured row beside its estimate, bytes; ``sessions`` are the arenas of text encoder, U-Net and VAE."""

    group: str
    gpu: str
    version: str
    batch: int
    measured_bytes: float
    stacks_bytes: int
    weights_bytes: int
    sessions: tuple[int, ...]


def development_gpus(names: list[str]) -> frozenset[str]:
    """Return the GPUs of the development group, drawn by hash."""

    def drawn(name: str) -> str:
        return hashlib.sha256(f"stable_diffusion {name}".encode()).hexdigest()

    return frozenset(sorted(names, key=drawn)[:_DEVELOPMENT_GPUS])


def run(space: Workspace) -> None:
    """Estimate every row of the table that ran fully optimised on an NVIDIA GPU."""
    path = space.shared / "data/onnxruntime/onnxruntime_readme.parquet"
    key = [
        "ort_memory",
        space.product_key,
        f"{path.stat().st_size}",
        Path(__file__).read_text(encoding="utf-8"),
    ]
    if space.current("ort_memory", key):
        return
    graphs = space.folder / "ort_graphs"
    if not (graphs / "sd_unet.onnx").is_file():
        raise UsageError(f"{graphs}: no sd_unet.onnx; run: {_COMMAND}")
    cases = list(_cases(path, graphs))
    space.keep("ort_memory", key, [asdict(case) for case in cases])
    space.tell(f"ort_memory: {len(cases)} rows")


def _cases(path: Path, graphs: Path) -> Iterator[MemoryCase]:
    table = pd.read_parquet(path)
    chosen = table[(table.table == "Stable Diffusion README") & (table.engine == "onnxruntime")]
    chosen = chosen[(chosen.provider == "cuda") & chosen.second_run_memory_bytes.notna()]
    development = development_gpus(sorted(set(chosen.gpu)))
    known = set(gpu_catalogue().names())
    for row in chosen.itertuples():
        if row.gpu not in known:
            continue
        batch = int(row.batch)
        latents = {"H": 64, "W": 64}
        lowered = [
            lowered_graph(graphs / "sd_text.onnx", batch, {}),
            lowered_graph(graphs / "sd_unet.onnx", 2 * batch, latents),
            lowered_graph(graphs / "sd_vae.onnx", 1, latents),
        ]
        yield _case(row, "development" if row.gpu in development else "report", lowered)


def _case(row: object, group: str, lowered: list[KernelGraph]) -> MemoryCase:
    profile = load_runtime("onnxruntime")
    gpu = gpu_catalogue().spec(row.gpu)  # type: ignore[attr-defined]
    figures = {**profile.allocator_bytes, "growth_limit": _UNLIMITED}
    reserved = []
    weights = 0
    for graph in lowered:
        memory = memory_profile(
            graph,
            allocator=profile.allocator,
            figures=figures,
            library_workspace_bytes=profile.library_workspace_bytes(gpu),
        )
        reserved.append(memory.reserved_bytes)
        weights += memory.weights_bytes
    return MemoryCase(
        group=group,
        gpu=gpu.name,
        version=row.version,  # type: ignore[attr-defined]
        batch=int(row.batch),  # type: ignore[attr-defined]
        measured_bytes=float(row.second_run_memory_bytes),  # type: ignore[attr-defined]
        stacks_bytes=(profile.context_bytes(gpu) or 0) - (profile.context_fixed_bytes or 0),
        weights_bytes=weights,
        sessions=tuple(reserved),
    )


def lowered_graph(
    path: Path, batch: int, dims: Mapping[str, int], runtime: str = "onnxruntime"
) -> KernelGraph:
    """Return one part of the pipeline at a batch size, in half precision."""
    request = EstimateRequest(
        models=[path],
        gpus=[_LOWERED_FOR],
        batch_sizes=[batch],
        dims=dict(dims),
        runtime=runtime,
        dtype="fp16",
        batch_dim="B",
    )
    for _, outcome in Engine(request).run():
        if isinstance(outcome, GkestimatorError):
            raise outcome
        return outcome[0].lowering.graph
    raise AssertionError("one model gives one outcome")


def cases(space: Workspace) -> list[MemoryCase]:
    """Return the stored rows of :func:`run`; none where it has not run."""
    return [MemoryCase(**row) for row in space.listed("ort_memory") or []]  # type: ignore[arg-type]


def fixed_bytes(rows: list[MemoryCase]) -> float:
    """Return the median of what the development rows of ``rows`` hold beside arenas and stacks; 0 without any."""
    rest = [c.measured_bytes - c.stacks_bytes - sum(c.sessions) for c in rows if c.group == "development"]
    if not rest:
        return 0.0
    return statistics.median(rest)


def estimates(rows: list[MemoryCase]) -> list[tuple[MemoryCase, float]]:
    """Return every row with its estimate, bytes."""
    fixed = fixed_bytes(rows)
    return [(case, fixed + case.stacks_bytes + sum(case.sessions)) for case in rows]


def _mean(rows: list[MemoryCase], group: str) -> tuple[float | None, int]:
    """Return the mean error of a group in percent (None without rows), and its rows."""
    errors = [abs(value / c.measured_bytes - 1) * 100 for c, value in estimates(rows) if c.group == group]
    if not errors:
        return None, 0
    return statistics.fmean(errors), len(errors)


def lines(space: Workspace) -> Iterator[Line]:
    """Yield the bar over the report group."""
    rows = cases(space)
    mean, count = _mean(rows, "report")
    more = ""
    if count:
        weights = [abs(c.weights_bytes / c.measured_bytes - 1) * 100 for c in rows if c.group == "report"]
        more = f" ({count} rows; weights alone {statistics.fmean(weights):.0f} %)"
    yield line("memory under ONNX Runtime, second run, mean error", BAR, mean, more=more)


def page(space: Workspace) -> list[str] | None:
    """Return the page's text: what was counted, and every row."""
    rows = cases(space)
    if not rows:
        return None
    made = [
        "Stable Diffusion 1.5, 512 x 512, fp16, fully optimised, CUDA provider: device memory of the second run by ONNX",
        "Runtime's README, context included, against the replayed arenas of three sessions (text encoder, U-Net at twice",
        "the batch, VAE decoder image by image), a stack for every resident thread, and",
        f"{fixed_bytes(rows) / 2**20:,.0f} MiB for context and libraries, the median of what the development rows leave",
        "over. The table's releases double the arena's regions without end, the profile stops at 1 GiB. What cuDNN's",
        f"exhaustive search chose on each GPU no table tells: Winograd's scratch is taken. Graphs: `{_COMMAND}`.",
        "The rules were found on what the development rows leave over; the other rows' figures had been seen by then, and",
        "some of their errors under constants that were dropped: the report group is not untouched.",
        "",
        f"Mean error: development {_words(rows, 'development')}, report {_words(rows, 'report')}.",
        "",
        "| GPU | ONNX Runtime | batch | group | measured MiB | estimate MiB | error % | stacks | text | U-Net | VAE |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, value in estimates(rows):
        parts = [f"{nbytes / 2**20:,.0f}" for nbytes in (case.stacks_bytes, *case.sessions)]
        signed = (value / case.measured_bytes - 1) * 100
        made.append(
            f"| {case.gpu} | {case.version} | {case.batch} | {case.group} | {case.measured_bytes / 2**20:,.0f} | "
            f"{value / 2**20:,.0f} | {signed:+.1f} | {' | '.join(parts)} |"
        )
    return made


def _words(rows: list[MemoryCase], group: str) -> str:
    mean, count = _mean(rows, group)
    if mean is None:
        return "no rows"
    return f"{mean:.1f} % of {count} rows"


SECTION = Section(title="Memory under ONNX Runtime", jobs={"ort_memory": run}, lines=lines, page=page)
