"""Facts of a device, and the GPU file of one that the catalogue lacks: read back by the catalogue's own reader."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from gkestimator.core.errors import SpecError, UsageError
from gkestimator.hardware.gpu_capabilities import packaged_capabilities
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue, load_gpu_file
from gkestimator.profiling import cuda_driver
from gkestimator.profiling.chip_rates import architecture_of, chip_rates
from gkestimator.profiling.cuda_driver import CudaDevice, cuda_device
from gkestimator.profiling.device import DeviceError, device_facts, facts_of, parse_device
from gkestimator.profiling.gpu_files import gpu_name, gpu_toml, known_gpu
from gkestimator.profiling.raw import DeviceFacts

FIELDS = ("sms", "l2_bytes", "memory_visible_bytes", "registers_per_sm", "shared_bytes_per_sm", "warps_per_sm",
          "shared_bytes_per_block_max", "blocks_per_sm", "threads_per_block_max", "pcie_bytes_per_s", "power_limit_w",
          "dram_bytes_per_s")  # fmt: skip
CATALOGUE = gpu_catalogue()

COMPLETE = CATALOGUE.complete_names()
CUT = ("A10G", "L20", "L40", "H20")
"""Boards sold with a part of their chip's tensor rate, which a device does not tell."""


def as_device(spec: GpuSpec, name: str | None = None) -> DeviceFacts:
    """What a device of this type would tell of itself."""
    words = spec.name.replace("-", " ")
    maker = "NVIDIA GeForce " if re.match(r"[RG]TX \d+(?! ADA)\b", words) else "NVIDIA "
    major, minor = spec.compute_capability
    limits = {field: float(getattr(spec, field) or _visible(spec)) for field in FIELDS}
    return DeviceFacts(
        kind="gpu",
        name=name or maker + words,
        compute_capability=f"{major}.{minor}",
        memory_bytes=_visible(spec),
        clocks_mhz={"sm": spec.boost_clock_mhz},
        limits=limits,
    )


def _visible(spec: GpuSpec) -> int:
    """Return the memory that programs see, where it is unknown what is left after the driver's 3 %."""
    return spec.memory_visible_bytes or round(0.97 * spec.memory_bytes)


def loaded(facts: DeviceFacts, folder: Path) -> GpuSpec:
    path = folder / "gpu.toml"
    path.write_text(gpu_toml(facts))
    return load_gpu_file(path)


@pytest.mark.parametrize("name", COMPLETE)
def test_a_file_made_from_a_known_device_says_what_the_catalogue_says(name: str, tmp_path: Path) -> None:
    spec = CATALOGUE.spec(name)
    made = loaded(as_device(spec), tmp_path)
    assert made.compute_capability == spec.compute_capability
    assert made.cuda_cores_per_sm == spec.cuda_cores_per_sm
    for field in FIELDS:
        if getattr(spec, field) is not None:
            assert getattr(made, field) == pytest.approx(getattr(spec, field), rel=1e-6), field
    assert made.memory_bytes == pytest.approx(spec.memory_bytes, rel=0.06)
    for kind in ("peak_flops_per_s", "vector_flops_per_s"):
        of_catalogue, of_device = getattr(spec, kind), getattr(made, kind)
        for precision in of_catalogue.keys() & of_device.keys():
            # Tensor clocks differ from the boost clock by up to 8 %.
            on_tensor_cores = kind.startswith("peak") and precision not in ("fp32", "fp64")
            if name in CUT and on_tensor_cores:
                assert of_device[precision] > 1.5 * of_catalogue[precision]
                continue
            assert of_device[precision] == pytest.approx(of_catalogue[precision], rel=0.09), (kind, precision)
    assert {"fp32", "fp16"} <= made.peak_flops_per_s.keys()
    assert made.peak_flops_per_s.keys() >= spec.peak_flops_per_s.keys() - {"int8"}
    assert made.price_per_hour_usd is None


@pytest.mark.parametrize("name", COMPLETE)
def test_a_known_device_is_recognised(name: str) -> None:
    found = known_gpu(as_device(CATALOGUE.spec(name)))
    assert found is not None and found.name == name


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce GTX 1080 Ti", "GTX-1080-TI"),
    ],
)
def test_names_as_drivers_say_them(said: str, name: str) -> None:
    found = known_gpu(as_device(CATALOGUE.spec(name), said))
    assert found is not None and found.name == name


def test_memory_decides_between_variants() -> None:
    large = as_device(CATALOGUE.spec("V100-SXM2-32GB"), "Tesla V100-SXM2")
    assert getattr(known_gpu(large), "name", None) == "V100-SXM2-32GB"
    small = as_device(CATALOGUE.spec("V100-SXM2-16GB"), "Tesla V100-SXM2")
    assert getattr(known_gpu(small), "name", None) == "V100-SXM2-16GB"


def test_a_part_of_a_gpu_is_not_the_gpu() -> None:
    whole = as_device(CATALOGUE.spec("H200"))
    slice_ = replace(
        whole,
        limits={**whole.limits, "sms": 16.0},
        memory_bytes=whole.memory_bytes and whole.memory_bytes // 8,
    )
    assert known_gpu(slice_) is None
    assert known_gpu(replace(whole, memory_bytes=90 * 2**30)) is None


def test_an_unknown_gpu_gets_a_name_of_its_own_and_is_found_again(tmp_path: Path) -> None:
    facts = as_device(CATALOGUE.spec("RTX-4090"), "NVIDIA GeForce RTX 4070")
    facts = replace(
        facts,
        memory_bytes=12 * 2**30 - 2**28,
        limits={**facts.limits, "memory_visible_bytes": 12 * 2**30 - 2**28},
    )
    assert known_gpu(facts) is None
    spec = loaded(facts, tmp_path)
    assert (spec.name, spec.memory_bytes) == ("RTX-4070-12GB", 12 * 2**30)
    found = known_gpu(facts, (str(tmp_path / "gpu.toml"),))
    assert found is not None and found.name == spec.name
    assert all(
        "device" in spec.sources[field] for field in ("sms", "l2_bytes", "dram_bytes_per_s", "power_limit_w")
    )
    assert "Guide" in spec.sources["cuda_cores_per_sm"]


def test_a_chip_newer_than_the_table(tmp_path: Path) -> None:
    facts = replace(as_device(CATALOGUE.spec("H200"), "NVIDIA X900"), compute_capability="13.0")
    with pytest.raises(SpecError, match="NVIDIA X900: cuda_cores_per_sm: the device does not tell it"):
        gpu_toml(facts)
    spec = loaded(replace(facts, limits={**facts.limits, "cuda_cores_per_sm": 128.0}), tmp_path)
    assert spec.architecture == "compute capability 13.0"
    assert spec.peak("fp16") == spec.peak("fp32")  # nothing is known of its tensor cores


@pytest.mark.parametrize("field", ["l2_bytes", "dram_bytes_per_s", "power_limit_w", "pcie_bytes_per_s"])
def test_what_the_device_does_not_tell_is_named(field: str) -> None:
    facts = as_device(CATALOGUE.spec("T4"))
    with pytest.raises(SpecError, match=rf"NVIDIA T4: {field}: the device does not tell it .* --gpu-spec"):
        gpu_toml(replace(facts, limits={k: v for k, v in facts.limits.items() if k != field}))


def test_a_measured_rate_of_streaming_is_taken_up(tmp_path: Path) -> None:
    facts = as_device(CATALOGUE.spec("T4"))
    (tmp_path / "g.toml").write_text(gpu_toml(facts, {"dram_sustained_bytes_per_s": 2.4e11}))
    assert load_gpu_file(tmp_path / "g.toml").dram_sustained_bytes_per_s == pytest.approx(2.4e11)


@pytest.mark.parametrize(
    "name", ['x"]\nnote = "', "NVIDIA \\u0022 [sms]", "GPU\x00\x1b[31m", "日本" * 60, "-", "a" * 500]
)
def test_a_hostile_name_stays_a_name(name: str, tmp_path: Path) -> None:
    spec = loaded(as_device(CATALOGUE.spec("T4"), name), tmp_path)
    assert re.fullmatch(r"[A-Za-z0-9.+-]{2,64}", spec.name)
    assert spec.note == ""


@pytest.mark.slow
def test_the_cpu(tmp_path: Path) -> None:
    facts = device_facts("cpu")
    assert (facts.kind, facts.driver, facts.compute_capability) == ("cpu", None, None)
    assert facts.limits["sms"] >= 1
    assert 1e8 < facts.limits["dram_bytes_per_s"] < 1e13
    assert 1e8 < facts.limits["flops_per_s"] < 1e15
    spec = loaded(facts, tmp_path)
    assert spec.architecture == "CPU" and spec.name.startswith(f"CPU-{facts.limits['sms']:.0f}-cores")
    assert spec.peak("fp32") >= facts.limits["flops_per_s"]  # the roofline is above what was measured
    assert "mean nothing" in spec.note
    assert known_gpu(facts) is None
    found = known_gpu(facts, (str(tmp_path / "gpu.toml"),))
    assert found is not None and found.name == spec.name


def test_half_precision_on_a_cpu_goes_by_its_instructions(tmp_path: Path) -> None:
    facts = DeviceFacts(
        kind="cpu",
        name="X",
        memory_bytes=2**34,
        clocks_mhz={"sm": 2000.0},
        limits={
            "sms": 4.0,
            "cuda_cores_per_sm": 32.0,
            "dram_bytes_per_s": 1e11,
            "flops_per_s": 1e11,
            "bf16_per_fp32": 16.0,
        },
    )
    spec = loaded(facts, tmp_path)
    assert spec.peak("fp32") == pytest.approx(2 * 4 * 32 * 2e9)
    assert (spec.peak("bf16") / spec.peak("fp32"), spec.peak("fp16") / spec.peak("fp32")) == (16.0, 1.0)
    quick = loaded(replace(facts, limits={**facts.limits, "flops_per_s": 1e12}), tmp_path)
    assert quick.peak("fp32") == pytest.approx(1e12 / 0.9)  # it did more than its stated clock allows


def test_a_cpu_is_named_without_its_marketing() -> None:
    facts = DeviceFacts(kind="cpu", name="AMD EPYC 7763 64-Core Processor", limits={"sms": 8.0})
    assert gpu_name(facts) == "CPU-8-cores-AMD-EPYC-7763"
    facts = replace(facts, name="Intel(R) Xeon(R) CPU @ 2.20GHz")
    assert gpu_name(facts) == "CPU-8-cores-Intel-Xeon"


@pytest.mark.parametrize("text", ["gpu", "cuda:", "cuda:-1", "cuda:1;ls", "", "cuda:9999"])
def test_other_devices_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected cpu or cuda:N"):
        parse_device(text)


def test_names_of_devices() -> None:
    assert [parse_device(t) for t in ("cpu", "cuda", "cuda:3")] == [None, 0, 3]


class FakeDriver:
    """libcuda of an H200, or of a MIG instance of one."""

    VALUES: ClassVar[dict[int, int]] = {1: 1024, 8: 49152, 10: 32, 13: 1980000, 16: 132, 36: 3201000, 37: 6144, 38: 62914560, 39: 2048,
              75: 9, 81: 233472, 82: 65536, 97: 232448, 106: 32}  # fmt: skip

    def __init__(self, *, mig: bool = False, devices: int = 1) -> None:
        self.mig, self.devices = mig, devices

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self.devices
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:  # noqa: N802
        out._obj.value = index
        return 0 if index < self.devices else 101

    def cuDeviceGetName(self, out: Any, size: int, device: Any) -> int:  # noqa: N802
        out.value = b"NVIDIA H200"
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, device: Any) -> int:  # noqa: N802
        out._obj.value = 143165 * 2**20
        return 0

    def cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802
        out._obj.value = 13010
        return 0

    def cuDeviceGetAttribute(self, out: Any, number: int, device: Any) -> int:  # noqa: N802
        out._obj.value = self.VALUES.get(number, 0)
        return 0

    def cuDeviceGetUuid(self, out: Any, device: Any) -> int:  # noqa: N802
        ctypes.memmove(out, bytes(range(16)), 16)
        return 0

    def cuDeviceGetUuid_v2(self, out: Any, device: Any) -> int:  # noqa: N802
        ctypes.memmove(out, bytes(range(16, 32)) if self.mig else bytes(range(16)), 16)
        return 0


def test_what_the_driver_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_driver, "_library", FakeDriver)
    found = cuda_device(0)
    assert isinstance(found, CudaDevice)
    assert (found.uuid, found.driver_cuda) == ("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "13.1")
    assert cuda_device(3) == "no device cuda:3; CUDA sees 1"
    facts = facts_of(found, None, index=0, driver="580.1")
    assert (facts.compute_capability, facts.driver) == ("9.0", "580.1")
    assert facts.limits["warps_per_sm"] == 64
    assert facts.limits["dram_bytes_per_s"] == pytest.approx(4.917e12, rel=1e-3)
    assert getattr(known_gpu(facts), "name", None) == "H200"
    with pytest.raises(SpecError, match="pcie_bytes_per_s"):  # without NVML
        gpu_toml(facts)


def test_a_mig_instance_has_an_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_library", lambda: FakeDriver(mig=True))
    found = cuda_device(0)
    assert isinstance(found, CudaDevice) and found.uuid == "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f"


def test_nvml_adds_what_cuda_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cuda_driver, "_library", FakeDriver)
    answers = {
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetNumGpuCores": 16896,
    }
    clocks: Callable[..., float] = lambda kind, maximum: {"SM": 1980.0, "MEM": 3201.0}[kind]  # noqa: E731
    gpu = SimpleNamespace(ask=lambda f, *a: answers.get(f), power_limit_w=lambda: 700.0, clock_mhz=clocks)
    found = cuda_device(0)
    assert isinstance(found, CudaDevice)
    facts = facts_of(found, gpu, index=0, driver=None)  # type: ignore[arg-type]
    assert facts.limits["cuda_cores_per_sm"] == 128
    spec = loaded(facts, tmp_path)
    assert spec.pcie_bytes_per_s == pytest.approx(63.015e9, rel=1e-4)
    assert (spec.power_limit_w, spec.name) == (700.0, "H200-141GB")


def test_a_gpu_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_library", lambda: None)
    with pytest.raises(DeviceError, match="cuda:0: no CUDA driver"):
        device_facts("cuda:0")


def test_geforce_cards_accumulate_at_half_rate() -> None:
    pro, game = chip_rates((8, 9), "NVIDIA L40S"), chip_rates((8, 9), "NVIDIA GeForce RTX 4090")
    assert pro is not None and game is not None
    assert (pro.tensor["fp16"], game.tensor["fp16"]) == (1024, 512)
    assert pro.tensor["int8"] == game.tensor["int8"]


def test_rates_are_those_of_the_capability_files() -> None:
    for capability in packaged_capabilities():
        rates = chip_rates(capability.version, "any")
        assert rates is not None
        assert rates.cores == capability.limits["cuda_cores_per_sm"]
        assert dict(rates.tensor) == dict(capability.tensor)
        assert rates.vector == {name: rate.ratio for name, rate in capability.vector.items()}
    assert chip_rates((5, 3), "any") is None
    assert (architecture_of((5, 3)), architecture_of((8, 7))) == ("Maxwell", "Ampere")
    assert architecture_of((13, 0)) == "compute capability 13.0"
