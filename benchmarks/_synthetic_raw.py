"""Write raw folders of a GPU that is not at hand, for tests and for ``build_speed.py``.

The tables are those of a genuine export of Nsight Systems 2023.4 (schema 3.7.2), the rows are made up from a stated law.
Nothing here is a measurement.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from gkestimator.core.dtypes import DType
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.profiling.plan import PlanEntry, SweepPlan, plan_of, write_plan
from gkestimator.profiling.raw import (
    RAW_VERSION,
    ChunkInfo,
    DeviceFacts,
    EnvironmentSample,
    RunInfo,
    document_of,
)
from gkestimator.profiling.records import EntryRecord, record_line

H100 = DeviceFacts(
    kind="gpu",
    name="NVIDIA H100 80GB HBM3",
    compute_capability="9.0",
    driver="570.86.15",
    cuda="12.8",
    memory_bytes=85_520_809_984,
    clocks_mhz={"sm": 1980.0, "memory": 2619.0},
    limits={"sms": 132},
)
CPU = DeviceFacts(
    kind="cpu",
    name="Synthetic CPU @ 2.0GHz",
    memory_bytes=8 * 2**30,
    clocks_mhz={"sm": 2000.0},
    limits={
        "sms": 2.0,
        "cuda_cores_per_sm": 8.0,
        "dram_bytes_per_s": 1e10,
        "flops_per_s": 6.4e10,
        "l2_bytes": 8.0 * 2**20,
    },
)
VERSIONS = {"torch": "2.9.0", "cuda": "12.8", "cudnn": "9.10.2", "nsys": "2023.4.4.54"}
START_NS = 1_760_000_000_000_000_000
_PID = 281762353660649 & ~0xFFFFFF
_TABLES = (
    "META_DATA_EXPORT (name TEXT NOT NULL, value TEXT)",
    "StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
    "TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, totalMemory INTEGER, "
    "memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER, l2CacheSize INTEGER, chipName TEXT, "
    "computeMajor INTEGER, computeMinor INTEGER)",
    "NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, "
    "category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, "
    "domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, "
    "int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT)",
    "CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, "
    "callchainId INTEGER)",
    "CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, "
    "globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, "
    "launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, "
    "gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, "
    "blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, "
    "localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, "
    "sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A kernel to be made up: duration of each repeat in ns."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    durations_ns: tuple[int, ...]
    registers: int = 32
    shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """An entry with its kernels, in launch order. ``status``, ``reason``: of its record; ``in_capture``: whether the
    profiler saw its range; ``host_us``: of each call."""

    entry: PlanEntry
    kernels: tuple[Made, ...]
    repeats: int
    status: str = "ok"
    reason: str | None = None
    in_capture: bool = True
    host_us: float = 20.0


def operator(
    op_type: str,
    inputs: Mapping[str, tuple[int, ...]],
    attributes: Mapping[str, object] | None = None,
    *,
    dtype: DType = DType.FLOAT,
    weights: Sequence[str] = (),
) -> Fragment:
    """One ONNX operator as a fragment; the names in ``weights`` are initialisers."""
    tensors = tuple(
        FragmentTensor(name=n, dtype=dtype, shape=s, role="weight" if n in weights else "input")
        for n, s in inputs.items()
    )
    node = FragmentNode(
        op_type=op_type,
        domain="",
        attributes=dict(attributes or {}),  # type: ignore[arg-type]
        inputs=tuple(inputs),
        outputs=("y",),
    )
    return Fragment(opsets={"": 17}, nodes=(node,), tensors=tensors, outputs=("y",))


def conv(n: int, c: int, size: int, k: int, out: int, *, bias: bool = False) -> Fragment:
    """A square convolution of stride 1 that keeps the size."""
    shapes = {"x": (n, c, size, size), "w": (out, c, k, k)} | ({"b": (out,)} if bias else {})
    return operator("Conv", shapes, {"pads": (k // 2,) * 4, "strides": (1, 1)}, weights=("w", "b"))


def matmul(m: int, k: int, n: int) -> Fragment:
    """A matrix product with a weight."""
    return operator("MatMul", {"x": (m, k), "w": (k, n)}, weights=("w",))


def relu(*shape: int) -> Fragment:
    """An activation."""
    return operator("Relu", {"x": shape})


def softmax(*shape: int) -> Fragment:
    """Softmax over the last axis."""
    return operator("Softmax", {"x": shape}, {"axis": -1})


def write_run(
    raw: Path,
    plan: SweepPlan,
    *,
    executor: str = "torch",
    collector: str = "nsys",
    device: DeviceFacts = H100,
    versions: Mapping[str, str] = VERSIONS,
) -> None:
    """``run.json`` and ``plan.json``."""
    (raw / "chunks").mkdir(parents=True, exist_ok=True)
    write_plan(plan, raw / "plan.json")
    run = RunInfo(
        schema_version=RAW_VERSION,
        plan_digest="synthetic",
        executor=executor,
        collector=collector,
        devices=(device,),
        versions=dict(versions),
        started="2026-01-05T10:00:00+00:00",
        host="synthetic",
    )
    (raw / "run.json").write_text(json.dumps(document_of(run)))


def write_chunk(
    raw: Path,
    number: int,
    measured: Sequence[Measured],
    *,
    attempt: int = 1,
    device: DeviceFacts = H100,
    executor: str = "torch",
    collector: str = "nsys",
    samples: Sequence[EnvironmentSample] | None = None,
    pass_name: str = "timeline",
) -> Path:
    """One committed chunk; the folder."""
    folder = raw / "chunks" / f"{number:06d}-cuda0-{pass_name}"
    folder.mkdir(parents=True)
    records, ranges, now = [], [], START_NS + number * 20_000_000_000
    for one in measured:
        start = now
        for i in range(one.repeats):
            now += sum(k.durations_ns[i] + 1000 for k in one.kernels)
        now += 1_000_000
        ranges.append((one, start - START_NS, now - START_NS))
        ok = one.status == "ok"
        records.append(
            EntryRecord(
                entry_id=one.entry.id,
                status=one.status,
                reason=one.reason,
                repeats=one.repeats if ok else None,
                started_unix_ns=start,
                ended_unix_ns=now,
                host_us=(one.host_us,) * one.repeats if ok else None,
                elapsed_us=(now - start) / 1e3 / one.repeats if ok else None,
                output_shapes=None,
                workspace_bytes=0 if ok else None,
            )
        )
        now += 50_000_000
    (folder / "records.jsonl").write_text("".join(record_line(r) for r in records))
    if samples is None:
        first = START_NS + number * 20_000_000_000
        samples = [idle_sample(t) for t in range(first, now, 200_000_000)]
    (folder / "environment.jsonl").write_text("".join(json.dumps(document_of(s)) + "\n" for s in samples))
    files: tuple[str, ...] = ()
    if collector == "nsys":
        files = ("capture.sqlite",)
        write_sqlite(folder / "capture.sqlite", [r for r in ranges if r[0].in_capture])
    info = ChunkInfo(
        number=number,
        pass_name=pass_name,
        attempt=attempt,
        executor=executor,
        collector=collector,
        collector_version="2023.4.4.54" if collector == "nsys" else None,
        device=device,
        clock_control="none",
        entries=tuple(m.entry.id for m in measured),
        files=files,
        started="2026-01-05T10:00:00+00:00",
        ended="2026-01-05T10:00:20+00:00",
    )
    (folder / "chunk.json").write_text(json.dumps(document_of(info)))
    return folder


def idle_sample(unix_ns: int) -> EnvironmentSample:
    """An H100 at work and undisturbed."""
    return EnvironmentSample(
        unix_ns=unix_ns,
        sm_clock_mhz=1980.0,
        memory_clock_mhz=2619.0,
        power_w=400.0,
        temperature_c=50.0,
        throttled=(),
        tenants=0,
        others_bytes=0,
    )


def write_sqlite(path: Path, ranges: Sequence[tuple[Measured, int, int]]) -> None:
    """The export that nsys would make of these ranges (entry, start, end in ns of the capture's clock)."""
    strings: dict[str, int] = {"cudaLaunchKernel": 1}
    nvtx: list[tuple[object, ...]] = [(1, None, 75, "gkestimator", _PID + 1, None, 1)]
    calls, kernels = [], []
    correlation = 0
    for one, start, end in ranges:
        label = strings.setdefault(f"{one.entry.id}#{one.repeats}", len(strings) + 1)
        nvtx.append((start, end, 59, None, _PID + 1, label, 1))
        host = now = start + 100
        for i in range(one.repeats):
            for kernel in one.kernels:
                correlation += 1
                name = strings.setdefault(kernel.name, len(strings) + 1)
                now = max(now, host + 300)
                calls.append((host, host + 200, 0, _PID + 1, correlation, 1, 0))
                kernels.append(
                    (now, now + kernel.durations_ns[i], 0, 1, 7, correlation, _PID, name, name, kernel.registers,
                     *kernel.grid, *kernel.block, kernel.shared, 0, 0, 0, correlation)
                )  # fmt: skip
                now += kernel.durations_ns[i] + 500
                host += 300
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as file:
        for table in _TABLES:
            file.execute(f"CREATE TABLE {table}")
        file.executemany(
            "INSERT INTO META_DATA_EXPORT VALUES (?, ?)",
            [("EXPORT_PRODUCT_VERSION", "2023.4.4.54"), ("EXPORT_SCHEMA_VERSION", "3.7.2")],
        )
        file.executemany("INSERT INTO StringIds VALUES (?, ?)", [(v, k) for k, v in strings.items()])
        file.execute(
            "INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'NVIDIA H100 80GB HBM3', 85520809984, 3352320000000, "
            "1980000000, 132, 52428800, 'GH100', 9, 0)"
        )
        file.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId, domainId) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            nvtx,
        )
        file.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, "
            "returnValue) VALUES (?, ?, ?, ?, ?, ?, ?)",
            calls,
        )
        file.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, contextId, streamId, correlationId, "
            "globalPid, demangledName, shortName, registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, "
            "staticSharedMemory, dynamicSharedMemory, localMemoryPerThread, localMemoryTotal, gridId) VALUES "
            f"({', '.join('?' * 21)})",
            kernels,
        )
        file.commit()


_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::clamp_min_scalar_kernel>(int)"
_BIAS = "void at::native::elementwise_kernel<128, 4, at::native::CUDAFunctor_add<float>>(int)"
_GEMM = "sm90_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_cublas"
_SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*)"
_CONV = (
    "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true, 2>(float*)",
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage3_cudnn",
    "void cudnn::engines_precompiled::nhwcToNchwKernel<float, float, float, true, false, 1>(float*)",
)


def sweep(count: int, *, repeats: int, seed: int = 0, spread: float = 0.02) -> list[Measured]:
    """``count`` distinct operators of four kinds. The law: a launch takes 2.5 us plus 1.7 times its share of bytes at
    3.35 TB/s and of FLOPs at 60 TFLOP/s, times a normal deviate of ``spread``."""
    rng = random.Random(seed)
    made: dict[str, Measured] = {}
    while len(made) < count:
        fragment, flops, moved = _draw(rng)
        entry = plan_of([(fragment, "fp32", "synthetic")], runtime="torch").entries[0]
        if entry.id not in made:
            made[entry.id] = Measured(
                entry=replace(entry, estimated_s=0.3),
                kernels=_kernels(fragment, flops, moved, repeats, rng, spread),
                repeats=repeats,
                host_us=rng.uniform(8, 30),
            )
    return list(made.values())


def _draw(rng: random.Random) -> tuple[Fragment, float, float]:
    """A random operator with its FLOPs and bytes."""
    kind = rng.choice(("conv", "conv", "matmul", "relu", "softmax"))
    if kind == "conv":
        n, c, out = rng.choice((1, 2, 4, 8, 16)), 8 * rng.randint(2, 32), 8 * rng.randint(2, 32)
        size, k = rng.randint(7, 64), rng.choice((1, 3, 5))
        fragment = conv(n, c, size, k, out, bias=rng.random() < 0.3)
        return fragment, 2.0 * n * size * size * out * c * k * k, 4.0 * n * size * size * (c + out)
    if kind == "matmul":
        m, k, n = (8 * rng.randint(4, 256) for _ in range(3))
        return matmul(m, k, n), 2.0 * m * k * n, 4.0 * (m * k + k * n + m * n)
    rows, cols = rng.randint(64, 16384), rng.randint(16, 1024)
    fragment = relu(rows, cols) if kind == "relu" else softmax(rows, cols)
    return fragment, 5.0 * rows * cols, 8.0 * rows * cols


def _kernels(
    fragment: Fragment, flops: float, moved: float, repeats: int, rng: random.Random, spread: float
) -> tuple[Made, ...]:
    def kernel(name: str, share_flops: float, share_bytes: float, block: int, **more: int) -> Made:
        ideal = 2500 + 1.7e9 * max(share_flops / 60e12, share_bytes / 3.35e12)
        durations = tuple(round(ideal * max(0.5, rng.gauss(1, spread))) for _ in range(repeats))
        grid = (max(1, round(moved / 8 / block)), 1, 1)
        return Made(name=name, grid=grid, block=(block, 1, 1), durations_ns=durations, **more)

    if fragment.op_type == "MatMul":
        return (kernel(_GEMM, flops, moved, 256, registers=122, shared=49152),)
    if fragment.op_type == "Relu":
        return (kernel(_ELEMENTWISE, 0, moved, 128),)
    if fragment.op_type == "Softmax":
        return (kernel(_SOFTMAX, 0, moved, 128),)
    before, product, after = _CONV
    parts = [kernel(product, flops, moved, 128, registers=168, shared=73728)]
    if fragment.tensors[1].shape[-1] > 1:  # what needs another layout is brought into it and back
        parts = [kernel(before, 0, moved / 2, 256), *parts, kernel(after, 0, moved / 2, 256)]
    if len(fragment.tensors) == 3:
        parts.append(kernel(_BIAS, 0, moved / 2, 128))
    return tuple(parts)


def fixed(
    *names_and_us: tuple[str, Sequence[float]], shared: int = 0, registers: int = 32
) -> tuple[Made, ...]:
    """Kernels of 1,056 blocks of 256 threads with the given durations in microseconds."""
    return tuple(
        Made(
            name=name,
            grid=(132, 8, 1),
            block=(256, 1, 1),
            durations_ns=tuple(round(us * 1000) for us in durations),
            registers=registers,
            shared=shared,
        )
        for name, durations in names_and_us
    )


def entry_of(fragment: Fragment, dtype: str = "fp32") -> PlanEntry:
    """A plan's entry for the fragment."""
    return plan_of([(fragment, dtype, "synthetic")], runtime="torch").entries[0]


def small_measured() -> list[Measured]:
    """A convolution of three kernels, a matrix product and an activation, three repeats each."""
    before, product, after = _CONV
    return [
        Measured(
            entry=entry_of(conv(8, 64, 56, 3, 64)),
            kernels=fixed((before, (10, 11, 12)), (product, (100, 104, 102)), (after, (9, 9, 9))),
            repeats=3,
        ),
        Measured(
            entry=entry_of(matmul(1024, 512, 768)),
            kernels=fixed((_GEMM, (40, 41, 42)), registers=122, shared=49152),
            repeats=3,
        ),
        Measured(entry=entry_of(relu(4096, 1024)), kernels=fixed((_ELEMENTWISE, (20, 20, 22))), repeats=3),
    ]


def small_run(raw: Path) -> list[Measured]:
    """:func:`small_measured` in one chunk of a whole run."""
    measured = small_measured()
    write_run(raw, SweepPlan(runtime="torch", entries=tuple(m.entry for m in measured)))
    write_chunk(raw, 0, measured)
    return measured
