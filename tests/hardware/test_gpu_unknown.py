"""Figures that no source states: nothing is made of them, and what needs them says so in one line."""

from __future__ import annotations

import csv
import re
from importlib.resources import files
from pathlib import Path

import pytest

from gkestimator.bundles.models import chip_of
from gkestimator.core.errors import UsageError
from gkestimator.hardware.gpu_reading import load_gpu_sheet
from gkestimator.hardware.gpu_report import describe, overview
from gkestimator.hardware.gpu_suggestions import generation, gpu_key, known_names
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes.profiles import load_runtime, resolve_dtype
from gkestimator.kernel_models.roofline import peak_rate

FOLDER = Path(str(files("gkestimator.datasets"))) / "gpus"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
SHEETS = {name: load_gpu_sheet(FOLDER / f"{name}.toml") for name in NAMES}
PEAKS = [
    (name, entry.removeprefix("peak_flops_per_s."))
    for name, sheet in SHEETS.items()
    for entry in sorted(sheet.unknown)
    if entry.startswith("peak_flops_per_s.") and not sheet.missing()
]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(("name", "precision"), PEAKS)
def test_an_unknown_peak_is_refused_and_never_taken_from_another_precision(name: str, precision: str) -> None:
    gpu = gpu_catalogue().spec(name)
    for ask in (gpu.peak, lambda p: peak_rate(gpu, p, matrix=True)):
        with pytest.raises(
            UsageError, match=f"^{name}: the {precision} rate of this GPU is unknown"
        ) as caught:
            ask(precision)
        assert "\n" not in str(caught.value)


def test_a_dtype_of_unknown_rate_is_refused_and_one_of_known_rate_is_not() -> None:
    gpu = gpu_catalogue().spec("RTX-3060")
    profile = load_runtime("torch")
    with pytest.raises(UsageError, match=r"RTX-3060: the fp16 rate .* unknown .*known: .*fp32"):
        resolve_dtype(profile, "fp16", gpu)
    assert resolve_dtype(profile, "fp32", gpu).matmul_precision == "fp32"


def test_an_unknown_vector_rate_is_that_of_the_wider_type_it_is_converted_to() -> None:
    h20 = gpu_catalogue().spec("H20")
    assert "vector_flops_per_s.fp16" in h20.unknown
    assert h20.vector("fp16") == h20.vector("fp32") == peak_rate(h20, "fp16", matrix=False)


def test_a_chip_of_unknown_rate_is_none_that_was_trained_on() -> None:
    nvl = gpu_catalogue().spec("H100-NVL")
    assert "peak_flops_per_s.fp16" in nvl.unknown and chip_of(nvl)[3] == 0


def test_the_boost_clock_that_sources_dispute_is_shown_as_unknown_beside_the_clock_in_use() -> None:
    h20 = gpu_catalogue().spec("H20")
    assert h20.boost_clock_mhz == 1830 and "boost_clock_mhz" in h20.unknown
    shown = describe(SHEETS["H20"])
    assert re.search(r"^boost_clock_mhz +unknown", shown, re.MULTILINE)
    assert re.search(r"^tensor_clock_mhz +1,830 MHz", shown, re.MULTILINE)


def test_the_overview_shows_every_type_once_under_its_capability() -> None:
    shown = overview(list(SHEETS.values()))
    lines = shown.splitlines()
    listed = [line.split()[0] for line in lines if line.split() and line.split()[0] in SHEETS]
    assert sorted(listed) == NAMES
    groups = [line for line in lines if ", compute capability " in line]
    capabilities = [SHEETS[name].values["compute_capability"] for name in listed]
    assert capabilities == sorted(capabilities)
    assert len(groups) == len(set(groups)) >= len(set(capabilities))
    assert max(map(len, lines)) <= 110
    b300 = next(line for line in lines if line.startswith("B300"))
    assert b300.split()[2:4] == ["unknown", "unknown"]


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_of_every_type_can_be_shown(name: str) -> None:
    shown = describe(SHEETS[name])
    assert shown.startswith(f"{name}, ") and "None" not in shown
    for figure in SHEETS[name].missing():
        assert figure in shown.split("\n\n")[0]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("RTX-4060", "RTX-4060-TI"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "RTX-4060-TI"),
        ("RTX 4070 Ti", "RTX-4070"),
        ("RTX 3080 Ti", "RTX-3090"),
        ("RTX 5070 Ti", "RTX-5080"),
        ("RTX 2060", "T4"),
        ("A16", "A2"),
        ("A800 SXM4", "A100-SXM4-80GB"),
        ("V100S-PCIe", "V100-PCIE-16GB"),
        ("H200 NVL", "H200"),
        ("M40", "P100-PCIE-16GB"),
    ],
)
def test_an_unknown_product_gets_the_nearest_of_its_architecture(text: str, first: str) -> None:
    with pytest.raises(UsageError) as caught:
        gpu_catalogue().resolve(text)
    message = str(caught.value)
    nearest = message.rpartition(": ")[2].split(", ")
    assert f"unknown GPU '{text}'; no file describes it" in message and nearest[0] == first
    capability = SHEETS[first].values["compute_capability"]
    assert all(SHEETS[name].values["compute_capability"][0] == capability[0] for name in nearest)


@pytest.mark.parametrize("text", ["MI300X", "Instinct MI250", "gaudi2", "RX 7900 XTX"])
def test_other_makers_get_no_nvidia_board(text: str) -> None:
    with pytest.raises(UsageError, match="only NVIDIA GPUs are described"):
        gpu_catalogue().resolve(text)


def test_a_type_without_what_estimates_need_names_the_nearest_complete_one() -> None:
    with pytest.raises(UsageError, match=r"^B300: nothing .*l2_bytes.*nearest by architecture: B200$"):
        gpu_catalogue().resolve("B300 SXM")
    assert gpu_catalogue().canonical("b300") == "B300"


def test_no_product_of_the_table_has_a_file() -> None:
    names = [name for sheet in SHEETS.values() for name in (sheet.name, *sheet.aliases, *sheet.short_names)]
    assert not {gpu_key(name) for name in names} & set(known_names(FOLDER))


def test_the_table_of_names_has_no_name_twice_and_plausible_figures() -> None:
    with (FOLDER / "known_names.csv").open(encoding="utf-8", newline="") as file:
        keys = [gpu_key(row["name"]) for row in csv.DictReader(file)]
    assert len(keys) == len(set(keys)) > 80
    for product in known_names(FOLDER).values():
        assert 1 <= product.sms <= 200 and 20 <= product.gb_per_s <= 5000


def test_names_of_shipped_types_tell_their_generation() -> None:
    """The patterns that place unlisted products place the listed ones rightly, apart from names that tell nothing."""
    wrong = {}
    for name, sheet in SHEETS.items():
        told = generation(gpu_key(name))
        if told is not None and told != sheet.values["compute_capability"]:
            wrong[name] = told
    assert wrong == {}


def test_an_alias_of_ones_own_that_takes_over_a_shipped_name_says_so(tmp_path: Path) -> None:
    text = (FOLDER / "L4.toml").read_text(encoding="utf-8")
    own = tmp_path / "own.toml"
    own.write_text(
        re.sub(r'name = "L4"\naliases = .*', 'name = "OWN-1"\naliases = ["H100"]', text), encoding="utf-8"
    )
    gpu, note = gpu_catalogue([own]).resolve("h100")
    assert gpu.name == "OWN-1"
    assert note == f"GPU 'h100' is taken as OWN-1 of {own}, not as the shipped H100-SXM"
    assert gpu_catalogue([own]).resolve("OWN-1")[1] is None
