"""A kernel dataset that follows a known law: what profiling a GPU would give if the GPU obeyed it exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.core.kernels import Kernel
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.kernel_models.launch import LONG_BLOCKS, Launch, occupancy
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.tables import KERNEL_DATASET, KernelMeasurement, write_table

GPU = "L4"
FACTOR = {"linear": 1.4, "elementwise": 1.25, "softmax": 1.3, "conv": 1.5}
"""What this GPU takes over the specification's roofline, by family."""


def tensor(name: str, *shape: int, role: str = "input") -> FragmentTensor:
    return FragmentTensor(name=name, dtype=DType.FLOAT, shape=shape, role=role)


def single(op: str, tensors: Sequence[FragmentTensor], **attributes: object) -> Fragment:
    node = FragmentNode(
        op_type=op,
        domain="",
        attributes=attributes,
        inputs=tuple(t.name for t in tensors),
        outputs=("y",),  # type: ignore[arg-type]
    )
    return Fragment(opsets={"": 17}, nodes=(node,), tensors=tuple(tensors), outputs=("y",))


def linear(m: int, n: int, k: int) -> Fragment:
    return single("MatMul", [tensor("x", m, k), tensor("w", k, n, role="weight")])


def relu(*shape: int) -> Fragment:
    return single("Relu", [tensor("x", *shape)])


def softmax(rows: int, cols: int) -> Fragment:
    return single("Softmax", [tensor("x", rows, cols)], axis=-1)


def conv(batch: int, channels: int, side: int) -> Fragment:
    weight = tensor("w", channels, channels, 3, 3, role="weight")
    return single(
        "Conv", [tensor("x", batch, channels, side, side), weight], pads=(1, 1, 1, 1), kernel_shape=(3, 3)
    )


def roofline_us(fragment: Fragment, family: str, gpu: GpuSpec) -> float:
    """Bytes and FLOPs of these four operators, written down from their definitions."""
    shapes = [t.shape for t in fragment.tensors]
    if family == "linear":
        (m, k), (_, n) = shapes
        flops, moved = 2 * m * n * k, 4 * (m * k + k * n + m * n)
    elif family == "conv":
        (b, c, h, w), _ = shapes
        flops, moved = 2 * b * c * h * w * c * 9, 4 * (2 * b * c * h * w + c * c * 9)
    else:
        elements = int(np.prod(shapes[0]))
        flops, moved = 0, 8 * elements
    return max(flops / gpu.peak("fp32"), moved / gpu.dram_bytes_per_s) * 1e6


def law_us(fragment: Fragment, family: str, gpu: GpuSpec) -> float:
    return FACTOR[family] * roofline_us(fragment, family, gpu) + 3.0


def operators(count: int, rng: np.random.Generator) -> Iterator[tuple[str, Fragment]]:
    def size(low: float, high: float) -> int:
        return int(np.exp(rng.uniform(np.log(low), np.log(high))))

    for _ in range(count):
        yield "linear", linear(size(64, 4096), size(64, 4096), size(64, 4096))
        yield "elementwise", relu(size(1e5, 1e8))
        yield "softmax", softmax(size(1e3, 1e5), size(16, 1024))
        yield "conv", conv(size(1, 16), size(16, 256), size(8, 64))


def achieved(launch: Launch, gpu: GpuSpec, streaming: np.ndarray) -> np.ndarray:
    """The law of the counters: nine tenths of what the rule of ``launch.occupancy`` says, less 3 points."""
    return np.maximum(0.9 * occupancy(launch, gpu, streaming=streaming)[1] - 3.0, 1.0)


def measurements(
    count: int, *, seed: int = 0, noise: float = 0.02, counters: bool = False, runtime: str = "torch"
) -> list[KernelMeasurement]:
    """``count`` operators of each family on ``GPU``; linear products are measured as two launches, a split one and
    what adds its parts up."""
    rng = np.random.default_rng(seed)
    gpu = gpu_catalogue().resolve(GPU)[0]
    rows = []
    distinct = {f"{family}-{f.digest()}": (family, f) for family, f in operators(count, rng)}
    for entry, (family, fragment) in distinct.items():
        total = law_us(fragment, family, gpu) * float(np.exp(rng.normal(0, noise)))
        parts = (
            [("gemm_splitk", 0.9), ("reduce_splits", 0.1)] if family == "linear" else [(f"{family}_k", 1.0)]
        )
        for index, (name, share) in enumerate(parts):
            blocks, threads, registers = int(rng.integers(1, 4000)), int(2 ** rng.integers(5, 10)), 64
            launch = Launch(
                grid_blocks=np.array([float(blocks)]),
                block_threads=np.array([float(threads)]),
                registers_per_thread=np.array([float(registers)]),
                shared_bytes=np.array([0.0]),
            )
            streaming = np.array([family not in {f.value for f in LONG_BLOCKS}])
            rows.append(
                KernelMeasurement(
                    entry_id=entry,
                    gpu=GPU,
                    runtime=runtime,
                    collector="nsys",
                    op_type=fragment.op_type,
                    graph=fragment.text(),
                    dtype="fp32",
                    input_shapes=json.dumps([list(t.shape) for t in fragment.tensors]),
                    kernel_index=index,
                    kernels_in_op=len(parts),
                    kernel_name=name,
                    family=family,
                    grid=f"{blocks},1,1",
                    block=f"{threads},1,1",
                    registers_per_thread=registers,
                    static_smem_bytes=0,
                    dynamic_smem_bytes=0,
                    duration_us=share * total,
                    duration_cv=0.01,
                    repeats=20,
                    quality="ok",
                    achieved_occupancy_pct=float(achieved(launch, gpu, streaming)[0]) if counters else None,
                )
            )
    return rows


def write_dataset(path: Path, rows: Sequence[KernelMeasurement]) -> Path:
    write_table(KERNEL_DATASET, rows, path)
    return path


OPTIONS = LoweringOptions(
    runtime="torch",
    dtype="fp32",
    matmul_precision=Precision.FP32,
    conv_precision=Precision.FP32,
    unfold_batchnorm=False,
)


def kernels_of(fragment: Fragment) -> tuple[Kernel, ...]:
    return tuple(k for step in lower(fragment_graph(fragment), OPTIONS).steps for k in step.kernels)


def unseen(count: int) -> list[tuple[str, Fragment]]:
    return list(operators(count, np.random.default_rng(99)))
