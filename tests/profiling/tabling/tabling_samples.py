"""A whole model of three operators that an H100 might have measured: every number below can be checked by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from _synthetic_raw import H100, START_NS, Made, Measured, idle_sample, write_chunk, write_run

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.onnx_io.fragment_models import fragment_model
from gkestimator.profiling.plan import ModelPoint, PlanEntry, SweepPlan, entry_id
from gkestimator.profiling.raw import ChunkInfo, DeviceFacts, EnvironmentSample, document_of
from gkestimator.profiling.records import EntryRecord, MemoryUse, record_line
from gkestimator.profiling.tabling import TableResult, build_table
from gkestimator.tables import Requirement

GEMM = "sm90_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_cublas"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::relu<float>>(int)"
MIB = 2**20
LATENCIES = tuple(float(us) for us in range(90, 111))
"""21 repeats, microseconds: the median 100, 5th and 95th percentile 91 and 109."""
MEMORY = MemoryUse(reserved_bytes=64 * MIB, allocated_bytes=40 * MIB, device_bytes=600 * MIB)


def mlp(rows: int = 256, width: int = 1024, hidden: int = 512, name: str = "mlp") -> Fragment:
    """Two products with an activation between them."""

    def tensor(which: str, shape: tuple[int, ...], role: str) -> FragmentTensor:
        return FragmentTensor(name=which, dtype=DType.FLOAT, shape=shape, role=role)

    def node(op_type: str, inputs: tuple[str, ...], output: str) -> FragmentNode:
        return FragmentNode(op_type=op_type, domain="", attributes={}, inputs=inputs, outputs=(output,))

    return Fragment(
        opsets={"": 17},
        nodes=(
            node("MatMul", ("x", "w1"), "a"),
            node("Relu", ("a",), "b"),
            node("MatMul", ("b", "w2"), "y"),
        ),
        tensors=(
            tensor("x", (rows, width), "input"),
            tensor("w1", (width, hidden), "weight"),
            tensor("w2", (hidden, width), "weight"),
        ),
        outputs=("y",),
        pattern=f"model:{name}",
    )


def model_entry(
    fragment: Fragment | None = None, dtype: str = "fp32", name: str = "mlp", batch_size: int | None = 256
) -> PlanEntry:
    """The plan's entry of a whole model."""
    fragment = fragment or mlp(name=name)
    return PlanEntry(
        id=entry_id(fragment, dtype),
        fragment=fragment,
        dtype=dtype,
        source=f"model:{name}",
        model=ModelPoint(name=name, batch_size=batch_size),
    )


def write_onnx(folder: Path, fragment: Fragment, name: str) -> Path:
    """The fragment as the ONNX file that it was planned from."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.onnx"
    onnx.save(fragment_model(fragment), str(path))
    return path


def launches(repeats: int = 3) -> tuple[Made, ...]:
    """Three kernels, 20, 10 and 20 us in every repeat.

    On an H100 (132 SMs of 64 warps) 256 threads of 122 registers and 48 KiB: 2 blocks an SM; the first product's 66
    blocks need 33 SMs (25 %) and lie on 66, one each, 8 of 64 warps (12.5 %); the second's 528 are two whole waves: all
    SMs, 16 warps (25 %). 1,320 blocks of 128 threads: 16 an SM, so 83 SMs; 10 on each, 40 warps (62.5 %), of which
    short blocks keep up 0.94 x 1 / (1 + 1/2).
    """
    product = {"name": GEMM, "block": (256, 1, 1), "registers": 122, "shared": 49152}
    return (
        Made(grid=(66, 1, 1), durations_ns=(20_000,) * repeats, **product),
        Made(name=RELU, grid=(1320, 1, 1), block=(128, 1, 1), durations_ns=(10_000,) * repeats),
        Made(grid=(528, 1, 1), durations_ns=(20_000,) * repeats, **product),
    )


SM_UTIL = (25.0, 100 * 83 / 132, 100.0)
OCCUPANCY = (12.5, 62.5 * 0.94 / 1.5, 25.0)


def latency_record(entry: PlanEntry, *, chunk: int = 0, **fields: object) -> EntryRecord:
    """The record of a whole model's calls without a profiler."""
    start = START_NS + chunk * 20_000_000_000 + 400_000_000
    values: dict[str, object] = {
        "entry_id": entry.id,
        "status": "ok",
        "repeats": len(LATENCIES),
        "started_unix_ns": start,
        "ended_unix_ns": start + 500_000_000,
        "host_us": (30.0,) * len(LATENCIES),
        "latency_us": LATENCIES,
        "memory": MEMORY,
    }
    if "latency_us" in fields:
        values |= {"repeats": len(fields["latency_us"]), "host_us": None}  # type: ignore[arg-type]
    return EntryRecord(**(values | fields))  # type: ignore[arg-type]


def write_latency(
    raw: Path,
    number: int,
    records: Sequence[EntryRecord],
    *,
    device: DeviceFacts = H100,
    executor: str = "torch",
    samples: Sequence[EnvironmentSample] | None = None,
) -> Path:
    """One committed chunk of the latency pass; the folder."""
    folder = raw / "chunks" / f"{number:06d}-cuda0-latency"
    folder.mkdir(parents=True)
    (folder / "records.jsonl").write_text("".join(record_line(r) for r in records))
    first = START_NS + number * 20_000_000_000
    if samples is None:
        samples = [idle_sample(first + i * 200_000_000) for i in range(6)]
    (folder / "environment.jsonl").write_text("".join(json.dumps(document_of(s)) + "\n" for s in samples))
    info = ChunkInfo(
        number=number,
        pass_name="latency",
        attempt=1,
        executor=executor,
        collector="none",
        collector_version=None,
        device=device,
        clock_control=None,
        entries=tuple(r.entry_id for r in records),
        files=(),
        started="2026-01-05T10:00:00+00:00",
        ended="2026-01-05T10:00:20+00:00",
    )
    (folder / "chunk.json").write_text(json.dumps(document_of(info)))
    return folder


def whole_run(raw: Path, *others: PlanEntry, **record: object) -> PlanEntry:
    """A run that measured the model: its latency in chunk 0, its timeline in chunk 1."""
    entry = model_entry()
    write_run(raw, SweepPlan(runtime="torch", entries=(entry, *others)))
    write_latency(raw, 0, [latency_record(entry, **record)])
    write_chunk(raw, 1, [Measured(entry=entry, kernels=launches(), repeats=3)])
    return entry


def trace_of_gpu(path: Path, entry_id: str, *, registers: int | None = 32) -> Path:
    """A trace as torch.profiler writes it. One call: a product (stream 7, 20 us), beside it an activation (stream 20, 10 us), then a copy and a fill.
    ``registers``: of the activation; None: the trace does not tell."""

    def event(
        category: str, name: str, start: float, length: float, *, pid: int, tid: int, **args: Any
    ) -> Any:
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": start,
            "dur": length,
            "args": args,
        }

    def launched(
        number: int, category: str, name: str, start: float, length: float, stream: int, **args: Any
    ) -> Any:
        call = event(
            "cuda_runtime", "cudaLaunchKernel", 100 + number, 0.5, pid=9, tid=9, correlation=number, cbid=211
        )
        work = event(
            category,
            name,
            start,
            length,
            pid=0,
            tid=stream,
            device=0,
            context=1,
            stream=stream,
            correlation=number,
            **args,
        )
        return [call, work]

    product = {"registers per thread": 122, "shared memory": 49152, "grid": [66, 1, 1], "block": [256, 1, 1]}
    activation = {"shared memory": 0, "grid": [1320, 1, 1], "block": [128, 1, 1]}
    if registers is not None:
        activation["registers per thread"] = registers
    events = [
        event("user_annotation", f"gkestimator:{entry_id}#1", 100, 50, pid=9, tid=9),
        *launched(1, "kernel", GEMM, 120, 20, 7, **product),
        *launched(2, "kernel", RELU, 125, 10, 20, **activation),
        *launched(3, "gpu_memcpy", "Memcpy DtoD (Device -> Device)", 141, 5, 7, bytes=4096),
        *launched(4, "gpu_memset", "Memset (Device)", 147, 5, 7, bytes=4096),
    ]
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
    }
    path.write_text(json.dumps({**head, "traceEvents": events}))
    return path


def table_of(raw: Path, suffix: str = "csv") -> TableResult:
    """The table of the raw folder at ``raw``, written beside it."""
    return build_table([raw], raw.parent / f"measured.{suffix}")


def row_of(raw: Path) -> Requirement:
    """The only row of that table."""
    (row,) = table_of(raw).rows
    return row
