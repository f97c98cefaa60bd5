"""GPUs by architecture, all of them, or none named: which are estimated for, and which are left out."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

import gkestimator
from gkestimator.cli import run
from gkestimator.core.errors import UsageError
from gkestimator.hardware.gpus import ARCHITECTURES, DEFAULT_GPUS, gpu_catalogue

MODEL = Path(__file__).parents[1] / "data" / "written_by_0_1" / "models" / "small.onnx"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "home"))


def gpus_of(text: str) -> list[str]:
    return [row["gpu"] for row in csv.DictReader(io.StringIO(text))]


def test_a_group_is_every_type_of_it() -> None:
    catalogue = gpu_catalogue()
    for word in ARCHITECTURES:
        if word == "maxwell":
            continue
        members = catalogue.expanded([word.upper()])
        assert members and all(members.values())
        assert all(catalogue.sheet(n)[0].architecture.casefold().startswith(word) for n in members)
    assert list(catalogue.expanded(["all"])) == list(catalogue.names())
    assert sum(len(catalogue.expanded([w])) for w in ARCHITECTURES if w != "maxwell") == len(
        catalogue.names()
    )
    with pytest.raises(UsageError, match="no GPU of architecture maxwell is described"):
        catalogue.expanded(["maxwell"])


def test_names_beside_a_group_stay_named() -> None:
    assert gpu_catalogue().expanded(["turing", "T4", "H100"]) == {
        "QUADRO-RTX-8000": True,
        "RTX-2080-TI": True,
        "TITAN-RTX": True,
        "T4": False,
        "H100": False,
    }


def test_a_cpu_that_stands_in_is_in_no_group() -> None:
    cpu = MODEL.parents[1] / "measured_cpu.CPU-2-cores-AMD-EPYC.toml"
    catalogue = gpu_catalogue([cpu])
    assert set(catalogue.names()) - set(catalogue.expanded(["all"])) == {"CPU-2-cores-AMD-EPYC"}


def test_an_architecture_is_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", str(MODEL), "--gpu", "turing", "--gpu", "T4", "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert sorted(gpus_of(out)) == ["QUADRO-RTX-8000", "RTX-2080-TI", "T4", "TITAN-RTX"]
    assert "left out" not in err


def test_a_short_name_beside_its_group_is_estimated_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", str(MODEL), "--gpu", "volta,V100", "--format", "csv"]) == 0
    assert gpus_of(capsys.readouterr().out).count("V100-SXM2-16GB") == 1


def test_boards_that_lack_a_figure_are_left_out_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", str(MODEL), "--gpu", "all", "--dtype", "bf16", "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    (note,) = [line for line in err.splitlines() if line.startswith("left out")]
    names = note.partition(": ")[2].split(", ")
    assert "T4" in names and "V100-SXM2-16GB" in names
    assert "GPUs (see the table)" in err
    assert sorted([*names, *gpus_of(out)]) == sorted(gpu_catalogue().names())


def test_boards_of_unknown_memory_have_no_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--gpu", "turing", "--max-batch", "--batch-size", "4", "--slo-ms", "100", "--format", "csv"]
    assert run(["estimate", str(MODEL), *arguments]) == 0
    out, err = capsys.readouterr()
    assert "QUADRO-RTX-8000" not in gpus_of(out) and "T4" in gpus_of(out)
    assert "QUADRO-RTX-8000" in next(line for line in err.splitlines() if line.startswith("left out"))


def test_a_figure_that_only_the_model_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate is asked for when kernels are predicted: a board of a group is left out, one that is named is an error."""
    from gkestimator.bundles.bundle import Bundle

    predict = Bundle.predict

    def without_rate(self: Bundle, kernels: object, gpu: object, **more: object) -> object:
        if gpu.name == "TITAN-RTX":  # type: ignore[attr-defined]
            raise UsageError("TITAN-RTX: the int8 rate of this GPU is unknown")
        return predict(self, kernels, gpu, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Bundle, "predict", without_rate)
    assert "TITAN-RTX" not in set(gkestimator.estimate(str(MODEL), "turing")["gpu"])
    with pytest.raises(UsageError, match="int8 rate"):
        gkestimator.estimate(str(MODEL), ["turing", "TITAN-RTX"])


def test_a_group_without_a_fit_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", str(MODEL), "--gpu", "turing", "--dtype", "bf16"]) == 2
    assert "dtype bf16 needs bf16 arithmetic" in capsys.readouterr().err


def test_without_a_name_the_usual_gpus_are_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", str(MODEL), "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert gpus_of(out) == list(DEFAULT_GPUS)
    assert "note: no GPU is named: estimating for T4, L4, A100-SXM4-80GB, H100-SXM" in err


def test_the_list_of_gpus_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gpus", "--format", "json"]) == 0
    records = {record["gpu"]: record for record in json.loads(capsys.readouterr().out)}
    assert list(records) == list(gpu_catalogue().names())
    assert records["L4"]["dram_bytes_per_s"] == 300e9 and records["L4"]["compute_capability"] == "8.9"
    assert not any("w8a16" in name for name in records["L4"])
    assert records["T4"]["peak_flops_per_s_bf16"] is None
    assert records["QUADRO-RTX-8000"]["memory_visible_bytes"] is None
    assert {r["gpu"] for r in records.values() if not r["can_be_estimated"]} == set(records) - set(
        gpu_catalogue().complete_names()
    )
    assert run(["gpus", "l4", "--format", "csv"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["gpu"], row["sms"], row["price_date"]) == ("L4", "58", "2025-01")
