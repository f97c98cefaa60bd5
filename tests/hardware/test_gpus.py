"""GPU specifications: figures agree with each other and with the vendor's tables; bad files are refused."""

from __future__ import annotations

import math
import os
import re
import time
from importlib.resources import files
from pathlib import Path

import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import SpecError, UsageError
from gkestimator.core.specfiles import MAX_SPEC_BYTES
from gkestimator.hardware.gpu_reading import load_gpu_sheet
from gkestimator.hardware.gpus import GpuSheet, GpuSpec, gpu_catalogue, load_gpu_file

FOLDER = Path(str(files("gkestimator.datasets"))) / "gpus"
FILES = sorted(FOLDER.glob("*.toml"))
RATES = ("peak_flops_per_s", "vector_flops_per_s")
FLAT = Path(__file__).parents[1] / "data" / "flat_gpus"
# CUDA programming guide, "Technical Specifications per Compute Capability", typed in apart from the files:
# fp32 cores, registers, shared KiB per SM and per block, warps, blocks.
PER_CAPABILITY = {
    (3, 7): (192, 131072, 112, 48, 64, 16),
    (6, 0): (64, 65536, 64, 48, 64, 32),
    (6, 1): (128, 65536, 96, 48, 64, 32),
    (7, 0): (64, 65536, 96, 96, 64, 32),
    (7, 5): (64, 65536, 64, 64, 32, 16),
    (8, 0): (64, 65536, 164, 163, 64, 32),
    (8, 6): (128, 65536, 100, 99, 48, 16),
    (8, 7): (128, 65536, 164, 163, 48, 16),
    (8, 9): (128, 65536, 100, 99, 48, 24),
    (9, 0): (128, 65536, 228, 227, 64, 32),
    (10, 0): (128, 65536, 228, 227, 64, 32),
    (10, 3): (128, 65536, 228, 227, 64, 32),
    (12, 0): (128, 65536, 100, 99, 48, 24),
}
# Data sheets: SMs, fp32 TFLOP/s of the CUDA cores, peak TFLOP/s of fp16 (fp32 accumulation), bandwidth GB/s.
DATA_SHEET = {
    "K80": (13, 4.37, None, 240),
    "P4": (20, 5.5, None, 192),
    "P100-PCIE-16GB": (56, 9.3, 18.7, 732),
    "P100-SXM2": (56, 10.6, 21.2, 732),
    "V100-PCIE-32GB": (80, 14, 112, 900),
    "V100-SXM2-16GB": (80, 15.7, 125, 900),
    "T4": (40, 8.1, 65, 320),
    "GTX-1080-TI": (28, 11.3, None, 484),
    "RTX-2080-TI": (68, 13.4, 53.8, 616),
    "RTX-3090": (82, 35.6, 71, 936),
    "RTX-4090": (128, 82.6, 165.2, 1008),
    "RTX-5090": (170, 104.8, 209.5, 1792),
    "A10G": (80, 35, 70, 600),
    "A40": (84, 37.4, 149.7, 696),
    "A100-PCIE-40GB": (108, 19.5, 312, 1555),
    "A100-SXM4-80GB": (108, 19.5, 312, 2039),
    "L4": (58, 30.3, 121, 300),
    "L40S": (142, 91.6, 362, 864),
    "H100-PCIE": (114, 51, 756, 2039),
    "H100-SXM": (132, 67, 989, 3352),
    "H200": (132, 67, 989, 4800),
    "B200": (148, 75, 2250, 8000),
    "RTX-PRO-6000": (188, 120, None, 1597),
}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "home"))


def has_rate(sheet: GpuSheet, precision: str) -> bool:
    """Say whether the hardware calculates in ``precision``, at a rate that is known or not."""
    known = precision in sheet.values["peak_flops_per_s"]
    return known or f"peak_flops_per_s.{precision}" in sheet.unknown


def spec(name: str) -> GpuSpec:
    return load_gpu_file(FOLDER / f"{name}.toml")


def test_every_type_is_there_and_named_after_its_file() -> None:
    stems = {path.stem for path in FILES}
    assert set(DATA_SHEET) <= stems
    assert {load_gpu_sheet(path).name for path in FILES} == stems
    assert set(gpu_catalogue().names()) == stems


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures_agree_with_each_other_and_the_capability_table(path: Path) -> None:
    sheet = load_gpu_sheet(path)
    cores, registers, shared, per_block, warps, blocks = PER_CAPABILITY[sheet.values["compute_capability"]]
    assert sheet.values["cuda_cores_per_sm"] == cores
    assert sheet.values["registers_per_sm"] == registers
    per_sm = (sheet.values["shared_bytes_per_sm"], sheet.values["shared_bytes_per_block_max"])
    assert per_sm == (shared * 1024, per_block * 1024)
    resident = [sheet.values[name] for name in ("warps_per_sm", "blocks_per_sm", "threads_per_block_max")]
    assert resident == [warps, blocks, 1024]
    assert sheet.values["peak_flops_per_s"]["fp32"] == sheet.values["vector_flops_per_s"]["fp32"]
    assert (sheet.values["price_per_hour_usd"] is None) == (sheet.values["price_date"] is None)
    assert (
        has_rate(sheet, "tf32") == has_rate(sheet, "bf16") == (sheet.values["compute_capability"] >= (8, 0))
    )
    with_fp8 = sheet.values["compute_capability"] >= (8, 9)
    assert has_rate(sheet, "fp8") == with_fp8


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_figure_known_or_not_has_a_source(path: Path) -> None:
    sheet = load_gpu_sheet(path)
    rates = {f"{name}.{key}" for name in RATES for key in sheet.values[name]}
    figures = set(sheet.values) - set(RATES) - {"price_date"}
    # Stated only where somebody published them.
    optional = {
        *("dram_sustained_bytes_per_s", "nvlink_bytes_per_s"),
        *("tensor_clock_mhz", "memory_bus_bits", "memory_pin_rate"),
    }
    assert set(sheet.sources) - optional == (figures | rates | sheet.unknown) - optional
    assert all(len(source) > 5 for source in sheet.sources.values())
    assert not any("text index" in source for source in sheet.sources.values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_board_is_complete_or_refused_by_the_names_of_what_it_lacks(path: Path) -> None:
    missing = load_gpu_sheet(path).missing()
    if missing:
        with pytest.raises(UsageError, match=f"^{path.stem}: nothing can be estimated.*{', '.join(missing)}"):
            gpu_catalogue().spec(path.stem)
        return
    gpu = gpu_catalogue().spec(path.stem)
    vector = 2 * gpu.sms * gpu.cuda_cores_per_sm * gpu.boost_clock_mhz * 1e6
    assert gpu.vector_flops_per_s["fp32"] == pytest.approx(vector, rel=1e-3)
    if gpu.memory_visible_bytes is not None:
        assert 0.85 < gpu.memory_visible_bytes / gpu.memory_bytes < 1


@pytest.mark.parametrize("name", DATA_SHEET)
def test_data_sheet(name: str) -> None:
    sms, fp32, fp16, bandwidth = DATA_SHEET[name]
    gpu = spec(name)
    assert gpu.sms == sms
    assert gpu.vector("fp32") / 1e12 == pytest.approx(fp32, rel=0.02)
    assert gpu.dram_bytes_per_s / 1e9 == pytest.approx(bandwidth, rel=0.01)
    if fp16 is not None:
        assert gpu.peak(Precision.FP16) / 1e12 == pytest.approx(fp16, rel=0.02)


def test_the_thesis_v100() -> None:
    assert spec("V100-SXM2-16GB").memory_visible_bytes == 16144 * 2**20


def test_peak_that_the_hardware_lacks_is_an_error_and_vector_work_is_converted() -> None:
    v100 = spec("V100-SXM2-16GB")
    with pytest.raises(UsageError, match=r"V100-SXM2-16GB has no bf16 .*fp16"):
        v100.peak("bf16")
    assert v100.vector("bf16") == v100.vector("fp32")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("v100_sxm2 16gb", "V100-SXM2-16GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla V100-PCIE-32GB", "V100-PCIE-32GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("Tesla P100-PCIE-16GB", "P100-PCIE-16GB"),
        ("Tesla P4", "P4"),
        ("Tesla T4", "T4"),
        ("1080Ti", "GTX-1080-TI"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("rtx4090", "RTX-4090"),
        ("h100_sxm", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("nvidia h200", "H200"),
        ("rtx_pro_6000_server", "RTX-PRO-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000-WORKSTATION"),
    ],
)
def test_full_names_resolve_without_a_note(text: str, name: str) -> None:
    found, note = gpu_catalogue().resolve(text)
    assert (found.name, note) == (name, None)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("V100", "V100-SXM2-16GB"),
        ("a100", "A100-SXM4-80GB"),
        ("a100_sxm", "A100-SXM4-80GB"),
        ("H100", "H100-SXM"),
        ("P100", "P100-PCIE-16GB"),
    ],
)
def test_short_names_take_a_default_and_say_so(text: str, name: str) -> None:
    found, note = gpu_catalogue().resolve(text)
    assert found.name == name
    assert note is not None and name in note and text in note


@pytest.mark.parametrize(
    ("text", "closest"),
    [
        ("A100-SMX4-80GB", "A100-SXM4-80GB"),
        ("V10", "V100-SXM2-16GB"),
        ("H10", "H100"),
        ("H1OO", "H100-SXM"),
    ],
)
def test_near_miss_names_the_closest(text: str, closest: str) -> None:
    with pytest.raises(UsageError, match=f"unknown GPU '{text}'; did you mean .*{closest}"):
        gpu_catalogue().resolve(text)


@pytest.mark.parametrize("text", ["", "  ", "-", "x" * 100_000, "../../etc/passwd", "T4\x00", "💥\n"])
def test_nonsense_names_are_one_line_errors(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpu_catalogue().resolve(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_one_packaged_name_is_found_without_reading_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_catalogue().resolve("T4")  # the list of files, once per process
    load = load_gpu_file
    load(FOLDER / "L40S.toml")
    started = time.perf_counter()
    for _ in range(5):
        load(FOLDER / "L40S.toml")
    assert (time.perf_counter() - started) / 5 < 0.02

    def fail(*_: object) -> None:
        raise AssertionError("a header of another file was read")

    monkeypatch.setattr("gkestimator.hardware.gpus._entry", fail)
    assert gpu_catalogue().resolve("rtx 5090")[0].name == "RTX-5090"


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def edited(old: str, new: str, base: str = "T4") -> str:
    text = (FLAT / f"{base}.toml").read_text()
    assert old in text
    return text.replace(old, new, 1)


def test_own_file_by_option_goes_before_the_home_folder_and_the_package(tmp_path: Path) -> None:
    home = write(tmp_path / "home" / "gpus", edited('name = "T4"', 'name = "Home-1"'))
    assert gpu_catalogue().resolve("home 1")[0].name == "Home-1"
    assert gpu_catalogue().resolve("Tesla T4")[0].name == "Home-1"  # its aliases are the user's wish
    option = write(tmp_path, edited('name = "T4"', 'name = "Option-1"'))
    assert gpu_catalogue([option]).resolve("Tesla T4")[0].name == "Option-1"
    assert {"Home-1", "Option-1", "T4"} <= set(gpu_catalogue([option]).names())
    home.write_text(edited('name = "T4"', 'name = "Home-22"'))
    assert gpu_catalogue().resolve("home-22")[0].name == "Home-22"  # a changed file is read again


def test_two_files_that_claim_one_name_are_refused(tmp_path: Path) -> None:
    first, second = (write(tmp_path, edited('name = "T4"', 'name = "Same"'), n) for n in ("a.toml", "b.toml"))
    with pytest.raises(SpecError, match=r"b\.toml: its name or alias .*a\.toml"):
        gpu_catalogue([first, second]).resolve("same")


SMS = "[sms]\nvalue = 40\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (SMS, "[sms]\nvalue = 0\n", r"\[sms\] is 0 1, expected 1 to 4096"),
        (SMS, "[sms]\nvalue = -40\n", r"\[sms\] is -40"),
        (SMS, "[sms]\nvalue = 40.5\n", r"\[sms\] is 40.5 1, expected a whole number"),
        (SMS, "[sms]\nvalue = true\n", r"\[sms\] has the value True, expected a number"),
        (SMS, "[sms]\nvalue = nan\n", r"\[sms\] is nan"),
        (SMS, "[sms]\nvalue = inf\n", r"\[sms\] is inf"),
        (SMS, f"[sms]\nvalue = 1{'0' * 400}\n", r"\[sms\] is an integer of more than 200 bits"),
        (SMS, f"[sms]\nvalue = 1{'0' * 5000}\n", r"line \d+ has 5009 characters, at most 1024"),
        (SMS, '[sms]\nvalue = "40"\n', r"\[sms\] has the value '40', expected a number"),
        (
            "value = 65536",
            'value = "unknown"',
            r"\[registers_per_sm\] has the value 'unknown', expected a number",
        ),
        (SMS, "[sms]\nvalue = 80\n", r"\[vector_flops_per_s.fp32\] is .*2 x SMs x cores x boost clock"),
        (SMS, "[sms]\n", r"\[sms\] has no value"),
        (SMS, SMS + "vaule = 1\n", r"\[sms.vaule\] is not a field"),
        ("[sms]", "[smss]", r"\[sms\] is missing"),
        ("[sms]", "[extra]\nvalue = 1\n[sms]", r"\[extra\] is not a field of a GPU specification"),
        (
            'value = 320\nunit = "GB/s"',
            'value = 320\nunit = "GiB/s"',
            r"\[dram_bytes_per_s\] has the unit 'GiB/s'",
        ),
        (
            'value = 320\nunit = "GB/s"',
            'value = 640\nunit = "GB/s"',
            r"\[dram_bytes_per_s\] .*bus width x pin rate",
        ),
        (
            'value = 320\nunit = "GB/s"',
            'value = 320\nunit = ["GB/s"]',
            r"\[dram_bytes_per_s\] has the unit a list",
        ),
        ("value = 15102", "value = 17000", r"\[memory_visible_bytes\] is more than memory_bytes"),
        ('value = "7.5"', "value = 7.5", r"\[compute_capability\] has no value of the form '8.0'"),
        ('date = "2025-01"', 'date = "2025-13"', r"\[price_per_hour_usd.date\] is '2025-13'"),
        ("schema_version = 1", "schema_version = 3", r"\[schema_version\] is 3, expected 1"),
        ('name = "T4"', 'name = "../T4"', r"\[name\] is '../T4'"),
        ('name = "T4"', 'name = ""', r"name"),
        ('name = "T4"', "name = 4", r"name"),
        ("[peak_flops_per_s.fp64]", "[peak_flops_per_s.fp65]", r"\[peak_flops_per_s.fp65\] is not a field"),
    ],
)
def test_bad_figures_are_refused_by_name(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write(tmp_path, edited(old, new))
    with pytest.raises(SpecError, match=message) as caught:
        load_gpu_file(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_figure_without_a_source_is_refused(tmp_path: Path) -> None:
    text = (FLAT / "T4.toml").read_text()
    without = re.sub(r'(\[sms\]\nvalue = 40\nunit = "1"\n)source = .*\n', r"\1", text)
    assert without != text
    with pytest.raises(SpecError, match=r"\[sms\] has no source"):
        load_gpu_file(write(tmp_path, without))
    empty = re.sub(r'(\[sms\]\nvalue = 40\nunit = "1"\n)source = .*\n', r'\1source = " "\n', text)
    with pytest.raises(SpecError, match=r"\[sms.source\] is empty"):
        load_gpu_file(write(tmp_path, empty))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff\xfe" * 100,
        b"name = ",
        b"[" * 50_000,
        b"a=" + b"[" * 100_000,
        b"x" * (MAX_SPEC_BYTES + 1),
    ],
    ids=["empty", "nul", "binary", "truncated", "brackets", "deep", "large"],
)
def test_files_that_are_no_specification(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    for use in (load_gpu_file, lambda p: gpu_catalogue([p])):
        with pytest.raises(SpecError, match=r"bad\.toml") as caught:
            use(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "a" + ".a" * 500 + "=1\n",
        "[a" + ".a" * 400 + "]\n",
        "[[a]]\n",
        "[" + "a." * 60 + "b{}]\n",
        "a.b.c{}=1\n",
    ],
    ids=["dotted key", "dotted table", "list of tables", "deep tables", "many keys"],
)
def test_hostile_toml_takes_bounded_time(tmp_path: Path, line: str) -> None:
    lines = [line.replace("{}", str(i)) for i in range(MAX_SPEC_BYTES // len(line.replace("{}", "12345")))]
    path = write(tmp_path, "".join(lines))
    started = time.perf_counter()
    with pytest.raises(SpecError, match=r"mine\.toml"):
        load_gpu_file(path)
    assert time.perf_counter() - started < 3


def test_a_line_that_would_take_the_parser_hours_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a" + ".a" * (MAX_SPEC_BYTES // 2 - 4) + "=1")
    with pytest.raises(SpecError, match=r"line 1 has \d+ characters, at most 1024"):
        load_gpu_file(path)


def test_paths_that_are_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path, tmp_path / "absent.toml", tmp_path / "pipe.toml", Path("/dev/zero")):
        with pytest.raises(SpecError, match=re.escape(str(path))):
            load_gpu_file(path)


def test_specifications_are_hashable_and_finite() -> None:
    for path in FILES:
        if load_gpu_sheet(path).missing():
            continue
        gpu = load_gpu_file(path)
        assert hash(gpu) == hash(load_gpu_file(path))
        assert all(map(math.isfinite, (*gpu.peak_flops_per_s.values(), *gpu.vector_flops_per_s.values())))


def test_one_wrong_letter_of_a_short_name_is_answered_with_names() -> None:
    with pytest.raises(UsageError, match="unknown GPU 'L5'; .*L4"):
        gpu_catalogue().resolve("L5")


def test_a_bundle_adds_gpus_and_never_changes_those_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "home"))
    folder = tmp_path / "bundle" / "gpus"
    folder.mkdir(parents=True)
    text = (FLAT / "T4.toml").read_text(encoding="utf-8")
    slower = text.replace("[power_limit_w]\nvalue = 70", "[power_limit_w]\nvalue = 60")
    assert slower != text
    (folder / "T4.toml").write_text(slower, encoding="utf-8")
    header, _, rest = text.partition("\n[")
    own = "\n".join(
        'name = "MY-GPU"' if line.startswith("name =") else line
        for line in header.splitlines()
        if not line.startswith(("aliases", "short_names"))
    )
    (folder / "MY-GPU.toml").write_text(f"{own}\n\n[{rest}", encoding="utf-8")
    catalogue = gpu_catalogue(bundles=[tmp_path / "bundle"])
    assert catalogue.spec("T4").power_limit_w == 70
    assert catalogue.spec("my gpu").name == "MY-GPU"
    assert "MY-GPU" in catalogue.names()
