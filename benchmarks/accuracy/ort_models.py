"""Judge BERT under ONNX Runtime: Triton's tables (T4, A100, fp16) and ONNX Runtime's own of release 1.4 (V100).

The graphs are written by ``benchmarks/export_ort_models.py`` into ``.accuracy/ort_graphs``. Drawn before tuning: of
Triton's rows the 6-layer model is the development group; of the README's, three of seven lengths by the hash of
``bert_base_uncased LENGTH``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.rows import requirement_row

from .lines import Expected, Line, expected_of_models, line
from .sections import Section
from .workspace import Workspace

TRITON_BAR = 12.0
README_BAR = 10.0
README_HOST_US = 8.7
"""Host time a launch on the README's machine: its fp16 rows of 16 tokens (development) take 1.29 and 1.35 ms for 151
launches, whatever the batch. Triton's rows are estimated with the runtime profile's own figure."""
_DEVELOPMENT_LENGTHS = 3
_TRITON_MODELS = ("bert_dist4l", "bert_dist6l", "bert_large")
_TRITON_DEVELOPMENT = frozenset({"bert_dist6l"})
_FORMS = ("exported", "dynamo", "nvidia", "optimised")
_COMMAND = "python benchmarks/export_ort_models.py .accuracy/ort_graphs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Hold what is estimated: a graph's file and the options that say how it was run."""

    file: str
    gpu: str
    dtype: str
    length: int
    batches: tuple[int, ...]
    graph_level: str = "extended"
    attention: str = "fused"
    host_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtCase:
    """Hold one measured row beside its estimate, milliseconds; ``measured_ms`` is None in the table of forms."""

    table: str
    group: str
    model: str
    gpu: str
    dtype: str
    batch: int
    length: int
    measured_ms: float | None
    latency_ms: float
    low_ms: float
    high_ms: float
    roofline_ms: float
    kernels: int
    host_bound: bool
    warnings: str


def development_lengths(lengths: Sequence[int]) -> frozenset[int]:
    """Return the lengths of the development group, drawn by hash."""

    def drawn(length: int) -> str:
        return hashlib.sha256(f"bert_base_uncased {length}".encode()).hexdigest()

    return frozenset(sorted(lengths, key=drawn)[:_DEVELOPMENT_LENGTHS])


def run(space: Workspace) -> None:
    """Estimate every row of both tables, and the 6-layer model in every form."""
    files = [space.shared / "data/triton/triton_offline.parquet"]
    files.append(space.shared / "data/onnxruntime/onnxruntime_readme.parquet")
    key = ["ort_models", space.product_key, *(f"{p.name} {p.stat().st_size}" for p in files)]
    key.append(Path(__file__).read_text(encoding="utf-8"))
    if space.current("ort_models", key):
        return
    graphs = space.folder / "ort_graphs"
    if not graphs.is_dir():
        raise UsageError(f"{graphs}: no such folder of graphs; run: {_COMMAND}")
    cases = [*_triton(files[0], graphs), *_readme(files[1], graphs), *_forms(graphs)]
    space.keep("ort_models", key, [asdict(case) for case in cases])
    space.tell(f"ort_models: {len(cases)} rows")


def _triton(path: Path, graphs: Path) -> Iterator[OrtCase]:
    table = pd.read_parquet(path)
    chosen = table[(table.backend == "onnxruntime_cuda") & table.model.isin(_TRITON_MODELS)]
    for (model, gpu), rows in chosen.groupby(["model", "gpu"]):
        # On the 6-layer rows the extended fusions would make these files 34 to 49 % faster than they were.
        setting = Setting(
            file=f"{model}.nvidia.fp16",
            gpu=gpu,
            dtype="fp16",
            length=int(rows.sequence_length.iloc[0]),
            batches=tuple(int(n) for n in rows.batch),
            graph_level="basic",
        )
        group = "development" if model in _TRITON_DEVELOPMENT else "report"
        measured = dict(zip(rows.batch, rows.compute_infer_ms, strict=True))
        yield from _cases(graphs, setting, "triton", group, measured)


def _readme(path: Path, graphs: Path) -> Iterator[OrtCase]:
    table = pd.read_parquet(path)
    chosen = table[(table.table == "transformers README") & (table.engine == "onnxruntime")]
    development = development_lengths(sorted({int(n) for n in chosen.sequence_length}))
    for (dtype, length), rows in chosen.groupby(["precision", "sequence_length"]):
        # Release 1.4 had no fused attention kernel yet; inputs were bound on the GPU.
        setting = Setting(
            file=f"bert_base.optimised.{dtype}",
            gpu="V100-PCIE-16GB",
            dtype=dtype,
            length=int(length),
            batches=tuple(int(n) for n in rows.batch),
            attention="eager",
            host_us=README_HOST_US,
        )
        group = "development" if int(length) in development else "report"
        measured = dict(zip(rows.batch, rows.latency_ms, strict=True))
        yield from _cases(graphs, setting, "readme", group, measured)


def _forms(graphs: Path) -> Iterator[OrtCase]:
    for form in _FORMS:
        for gpu in ("A100-SXM4-80GB", "T4"):
            setting = Setting(
                file=f"bert_dist6l.{form}.fp16", gpu=gpu, dtype="fp16", length=384, batches=(16,)
            )
            yield from _cases(graphs, setting, "forms", form, {})


def _cases(
    graphs: Path, setting: Setting, table: str, group: str, measured: dict[int, float]
) -> Iterator[OrtCase]:
    engine, answers = estimated(graphs, setting)
    for answer in answers:
        row = requirement_row(engine, answer)
        program = answer.lowering.program
        roofline = answer.predictions.roofline_us[program.kernel] * program.repeat
        if row.latency_ms is None or row.latency_low_ms is None or row.latency_high_ms is None:
            raise UsageError(f"{setting.file}: no latency known")
        yield OrtCase(
            table=table,
            group=group,
            model=setting.file.partition(".")[0],
            gpu=setting.gpu,
            dtype=setting.dtype,
            batch=int(row.batch_size or 0),
            length=setting.length,
            measured_ms=measured.get(int(row.batch_size or 0)),
            latency_ms=row.latency_ms,
            low_ms=row.latency_low_ms,
            high_ms=row.latency_high_ms,
            roofline_ms=float(roofline.sum()) / 1e3,
            kernels=int(row.kernels or 0),
            host_bound=bool(row.host_bound),
            warnings=row.warnings or "",
        )


def estimated(graphs: Path, setting: Setting) -> tuple[Engine, list[Estimated]]:
    """Return what the shipped bundle says of one graph at every batch size."""
    request = EstimateRequest(
        models=[graphs / f"{setting.file}.onnx"],
        gpus=[setting.gpu],
        batch_sizes=list(setting.batches),
        dims={"S": setting.length},
        runtime="onnxruntime",
        dtype=setting.dtype,
        graph_level=setting.graph_level,
        attention=setting.attention,
        host_overhead_us=setting.host_us,
    )
    engine = Engine(request)
    for _, outcome in engine.run():
        if isinstance(outcome, GkestimatorError):
            raise outcome
        return engine, outcome
    raise AssertionError("one model gives one outcome")


def cases(space: Workspace) -> list[OrtCase]:
    """Return the stored rows of :func:`run`; none where it has not run."""
    return [OrtCase(**row) for row in space.listed("ort_models") or []]  # type: ignore[arg-type]


def _errors(chosen: Sequence[OrtCase], *, roofline: bool = False) -> np.ndarray:
    errors = []
    for case in chosen:
        if case.measured_ms is None:
            continue
        value = case.latency_ms
        if roofline:
            value = case.roofline_ms
        errors.append(abs(value / case.measured_ms - 1) * 100)
    return np.array(errors)


def _inside(chosen: Sequence[OrtCase]) -> float:
    hits = [c.low_ms <= c.measured_ms <= c.high_ms for c in chosen if c.measured_ms is not None]
    return 100 * float(np.mean(hits))


def _of(rows: Sequence[OrtCase], table: str, group: str) -> list[OrtCase]:
    return [case for case in rows if (case.table, case.group) == (table, group)]


def lines(space: Workspace) -> Iterator[Line]:
    """Yield the two bars on latency, over the report groups."""
    rows = cases(space)
    for table, what, bar in (
        ("triton", "ONNX Runtime, BERT on T4 and A100 (Triton), mean error", TRITON_BAR),
        ("readme", "ONNX Runtime, BERT-base on V100 (README), mean error", README_BAR),
    ):
        chosen = _of(rows, table, "report")
        if not chosen:
            yield line(what, bar, None)
            continue
        rooflines = float(_errors(chosen, roofline=True).mean())
        more = f" ({len(chosen)} rows; roofline {rooflines:.0f} %; {_inside(chosen):.0f} % inside)"
        yield line(what, bar, float(_errors(chosen).mean()), more=more)


def expected(space: Workspace) -> Iterator[Expected]:
    """Yield the first page's rows of the report groups."""
    rows = cases(space)
    for table, what, where in (
        ("triton", "BERT models under ONNX Runtime, fp16", "T4, A100"),
        ("readme", "BERT-base under ONNX Runtime, fp32 and fp16", "V100"),
    ):
        chosen = _of(rows, table, "report")
        if chosen:
            yield expected_of_models(
                what,
                where,
                _errors(chosen).tolist(),
                _errors(chosen, roofline=True).tolist(),
                _inside(chosen),
            )


def page(space: Workspace) -> list[str] | None:
    """Return the page's text: groups, every row, and what each form of a file costs."""
    rows = cases(space)
    if not rows:
        return None
    return [*_introduction(), *_group_table(rows), "", *_row_table(rows), "", *_form_table(rows)]


def _introduction() -> list[str]:
    return [
        "BERT under ONNX Runtime with the CUDA provider, against two public tables. **triton**: DeepLearningExamples'",
        "BERT large and two distilled models, fp16, 384 tokens, `compute_infer`, container 21.10 (ONNX Runtime 1.9).",
        "**readme**: ONNX Runtime 1.4's own table of BERT base through its transformer optimiser, V100-PCIE-16GB.",
        "",
        f"The graphs are exported by `{_COMMAND}`. The development rows decided that Triton's files ran with",
        "`graph_level=basic`: with the extended fusions all six would be estimated too fast. The README's rows use",
        f"`attention=eager`, as 1.4 had no fused kernel, and {README_HOST_US} us of host time a launch (its 16-token rows).",
        "The defaults of the product describe releases from 1.16 on: extended fusions, fused attention where a kernel fits.",
        "",
    ]


def _group_table(rows: Sequence[OrtCase]) -> list[str]:
    made = [
        "| table | group | GPU | rows | mean error % | worst | roofline % | inside % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for table in ("triton", "readme"):
        for group in ("development", "report"):
            whole = _of(rows, table, group)
            for gpu in sorted({case.gpu for case in whole}):
                chosen = [case for case in whole if case.gpu == gpu]
                errors = _errors(chosen)
                rooflines = _errors(chosen, roofline=True).mean()
                made.append(
                    f"| {table} | {group} | {gpu} | {len(chosen)} | {errors.mean():.1f} | {errors.max():.1f} | "
                    f"{rooflines:.1f} | {_inside(chosen):.0f} |"
                )
    return made


def _row_table(rows: Sequence[OrtCase]) -> list[str]:
    made = [
        "| model | GPU | dtype | tokens | batch | group | measured ms | estimate ms | interval | launches | host binds |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in rows:
        if case.measured_ms is None:
            continue
        binds = "yes" if case.host_bound else "no"
        made.append(
            f"| {case.model} | {case.gpu} | {case.dtype} | {case.length} | {case.batch} | {case.group} | "
            f"{case.measured_ms:.2f} | {case.latency_ms:.2f} | {case.low_ms:.2f}-{case.high_ms:.2f} | {case.kernels} | {binds} |"
        )
    return made


def _form_table(rows: Sequence[OrtCase]) -> list[str]:
    made = [
        "The 6-layer model at batch 16 in every form of its file, at the default level `extended`:",
        "",
        "| form | GPU | estimate ms | launches | what the row says |",
        "|---|---|---|---|---|",
    ]
    for case in rows:
        if case.table == "forms":
            made.append(
                f"| {case.group} | {case.gpu} | {case.latency_ms:.2f} | {case.kernels} | {case.warnings} |"
            )
    return made


SECTION = Section(
    title="BERT under ONNX Runtime", jobs={"ort_models": run}, lines=lines, page=page, expected=expected
)
