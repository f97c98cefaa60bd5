"""Runtime profiles: their constants, and what a dtype word means on each GPU."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import SpecError, UsageError
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.hardware.runtimes.profiles import (
    load_runtime,
    load_runtime_file,
    resolve_dtype,
    runtime_names,
)

FOLDER = Path(str(files("gkestimator.datasets"))) / "runtimes"
FP32, TF32, FP16, BF16 = (Precision(p) for p in ("fp32", "tf32", "fp16", "bf16"))


def gpu(name: str) -> GpuSpec:
    return gpu_catalogue().spec(name)


def test_every_profile_loads_and_names_its_sources() -> None:
    assert runtime_names() == tuple(sorted(RUNTIMES))
    for name in runtime_names():
        profile = load_runtime(name)
        assert profile.name == name
        assert profile.streams == 1
        figures = {
            "host_overhead_us",
            "copy_bytes_per_s",
            "context_fixed_bytes",
            "streams",
            "graph_launch_us",
            "auto.0",
            "auto.1",
        }
        assert figures <= set(profile.sources)
        assert {f"allocator_bytes.{key}" for key in profile.allocator_bytes} <= set(profile.sources)
        hash(profile)


def test_torch_constants() -> None:
    torch = load_runtime("torch")
    assert torch.allocator == "caching"
    assert torch.allocator_bytes == {
        "block_rounding": 512,
        "small_limit": 2**20,
        "small_segment": 2 * 2**20,
        "large_segment": 20 * 2**20,
        "large_limit": 10 * 2**20,
        "large_rounding": 2 * 2**20,
        "small_remainder": 512,
        "large_remainder": 2**20,
    }
    assert torch.library_workspace_bytes(gpu("V100")) == 4096 * 1024 * 2 + 16 * 1024 * 8
    assert torch.library_workspace_bytes(gpu("H100")) == 32 * 2**20
    # Blackwell has it only in torch of 2026.
    assert torch.library_workspace_bytes(gpu("B200")) == torch.library_workspace_bytes(gpu("V100"))
    assert load_runtime("onnxruntime").library_workspace_bytes(gpu("B200")) == 32 * 2**20
    assert torch.host_overhead_us == torch.host_overheads["thesis-v100"] == 37
    assert torch.copy_bytes_per_s == 9.5e9


def test_onnxruntime_constants() -> None:
    profile = load_runtime("onnxruntime")
    assert profile.allocator == "arena"
    assert profile.allocator_bytes == {
        "block_rounding": 256,
        "initial_chunk": 2**20,
        "dead_limit": 128 * 2**20,
        "growth_limit": 2**30,
    }
    assert 0 < profile.host_overhead_us < load_runtime("torch").host_overhead_us


def test_context_grows_with_the_threads_that_can_be_resident() -> None:
    torch = load_runtime("torch")
    # 80 SMs x 2,048 threads x 1 KiB of stack, and the fixed part.
    fixed, t4, v100, h100 = (
        torch.context_fixed_bytes,
        *(torch.context_bytes(gpu(n)) for n in ("T4", "V100", "H100")),
    )
    assert fixed is not None and t4 is not None and v100 is not None and h100 is not None
    assert v100 == 160 * 2**20 + fixed
    assert fixed < t4 < v100 < h100


def test_unknown_context_is_none_not_zero(tmp_path: Path) -> None:
    text = (FOLDER / "torch.toml").read_text()
    changed = text.replace("[context_fixed_bytes]\nvalue = 150", '[context_fixed_bytes]\nvalue = "unknown"')
    assert changed != text
    path = tmp_path / "torch.toml"
    path.write_text(changed)
    assert load_runtime_file(path).context_bytes(gpu("V100")) is None


def test_pinned_copies_follow_the_bus() -> None:
    torch = load_runtime("torch")
    assert torch.pinned_copy_bytes_per_s(gpu("V100")) == pytest.approx(12.6e9, rel=0.05)
    assert torch.pinned_copy_bytes_per_s(gpu("A100")) == pytest.approx(25.2e9, rel=0.05)


@pytest.mark.parametrize(
    ("runtime", "dtype", "name", "expected"),
    [
        ("torch", "auto", "V100", (FP32, FP32, None, "fp32")),
        ("torch", "auto", "A100", (FP32, TF32, None, "tf32-conv")),
        ("torch", "auto", "RTX-3090", (FP32, FP32, None, "tf32-conv")),  # one rate: nothing to gain
        ("torch", "auto", "A40", (FP32, TF32, None, "tf32-conv")),
        ("torch", "tf32", "RTX-4090", (FP32, FP32, None, "tf32")),
        ("onnxruntime", "auto", "T4", (FP32, FP32, None, "fp32")),
        ("onnxruntime", "auto", "H100", (TF32, TF32, None, "tf32")),
        ("torch", "fp32", "A100", (FP32, FP32, None, "fp32")),
        ("torch", "tf32", "A100", (TF32, TF32, None, "tf32")),
        ("torch", "fp16", "P100", (FP16, FP16, FP16, "fp16")),
        ("torch", "bf16", "L4", (BF16, BF16, BF16, "bf16")),
        ("torch", "amp", "RTX-3090", (FP16, FP16, FP16, "amp")),
        ("torch", "fp8", "L4", (BF16, BF16, BF16, "fp8")),
        ("onnxruntime", "w4a16", "T4", (FP16, FP16, FP16, "w4a16")),
        # what the file left in float32 stays there: int8 is what it has quantised
        ("onnxruntime", "int8", "T4", (FP32, FP32, None, "int8")),
        ("onnxruntime", "int8", "A100", (TF32, TF32, None, "int8")),
    ],
)
def test_dtype_words(
    runtime: str, dtype: str, name: str, expected: tuple[Precision, Precision, Precision | None, str]
) -> None:
    assert resolve_dtype(load_runtime(runtime), dtype, gpu(name))[:4] == expected


@pytest.mark.parametrize(
    ("runtime", "dtype", "name", "message"),
    [
        (
            "torch",
            "bf16",
            "V100",
            r"dtype bf16 needs bf16 .* V100-SXM2-16GB \(compute capability 7.0\) lacks",
        ),
        ("torch", "tf32", "T4", r"needs tf32 .* T4 \(compute capability 7.5\)"),
        ("torch", "fp16", "K80", r"needs fp16 .* K80"),
        ("onnxruntime", "int8", "P100", r"needs int8 .* P100-PCIE-16GB"),
        ("torch", "int8", "A100", r"torch has no int8"),
        ("onnxruntime", "amp", "A100", r"onnxruntime has no autocast"),
        (
            "torch",
            "fp8",
            "A100",
            r"dtype fp8 needs fp8 .* lacks; .*; w8a16 keeps the weights alone in 8 bits",
        ),
        ("onnxruntime", "fp8", "H100", r"onnxruntime runs FP8 products where the file holds them"),
        ("torch", "fp12", "A100", r"unknown dtype 'fp12'; known: auto, fp32"),
    ],
)
def test_impossible_combinations_are_refused(runtime: str, dtype: str, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        resolve_dtype(load_runtime(runtime), dtype, gpu(name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "tensorflow", "../gpus/T4", "torch.toml"])
def test_unknown_runtime(name: str) -> None:
    with pytest.raises(UsageError, match=rf"unknown runtime .*; known: {', '.join(runtime_names())}"):
        load_runtime(name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'allocator = "caching"',
            'allocator = "slab"',
            r"\[allocator\] is 'slab', expected caching or arena",
        ),
        ('allocator = "caching"', 'allocator = "arena"', r"\[allocator_bytes.small_limit\] is not a field"),
        ("[allocator_bytes.block_rounding]", "[allocator_bytes.rounding]", r"\[allocator_bytes.rounding\]"),
        (
            "[workspace_bytes.hopper]",
            "[workspace_bytes.ampere]",
            r"\[workspace_bytes.ampere\] is not a field",
        ),
        ('conv = "tf32"', 'conv = "tf33"', r"\[auto.1\] .*tf33"),
        ('from_compute_capability = "8.0"', "from_compute_capability = 8.0", r"\[auto.1\] must be a table"),
        ("[host_overhead_us]\nvalue = 37", "[host_overhead_us]\nvalue = 0", r"\[host_overhead_us\] is 0 us"),
        (
            "[host_overhead_us]\nvalue = 37",
            "[host_overhead_us]\nvalue = nan",
            r"\[host_overhead_us\] is nan us",
        ),
        ("[streams]", "[stream]", r"\[streams\] is missing"),
        ("[streams]", "[more]\nvalue = 1\n[streams]", r"\[more\] is not a field of a runtime profile"),
        ("schema_version = 1", "schema_version = 1.0", r"\[schema_version\] is 1.0, expected 1"),
        ("[[auto]]", "[[autos]]", r"\[auto"),
    ],
)
def test_bad_profiles_are_refused_by_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (FOLDER / "torch.toml").read_text()
    assert old in text
    path = tmp_path / "torch.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(SpecError, match=message) as caught:
        load_runtime_file(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
