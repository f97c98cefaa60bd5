"""``gkest evaluate`` as a user runs it: statuses, streams, formats, the report folder, the host profile."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from gkestimator.cli import run
from gkestimator.core.extras import install_extra
from gkestimator.estimation import estimate_rows
from gkestimator.evaluation.compared import COMPARED

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = ("light_densenet121", "light_squeezenet")
GKEST = [sys.executable, "-c", "from gkestimator.cli import main; main()"]
Outcome = tuple[int, str, str]


@pytest.fixture(autouse=True)
def no_user_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "gkest-home"))


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    """Two networks on an L4 whose host takes 60 us a call, three batch sizes."""
    rows = estimate_rows(
        [LIGHT / f"{n}.onnx" for n in NAMES], gpus=["L4"], batch_sizes=[1, 2, 32], host_overhead_us=60
    ).rows
    path = tmp_path / "measured.csv"
    lines = [f"{r.model},{r.batch_size},{r.latency_ms},{r.reserved_bytes}" for r in rows]
    path.write_text(
        "\n".join(["model,batch_size,latency_ms,reserved_bytes", *lines]) + "\n", encoding="utf-8"
    )
    return path


@pytest.fixture
def gkest(capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    def call(*arguments: object) -> Outcome:
        status = run([str(a) for a in arguments])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


@pytest.mark.slow
def test_result_on_stdout_words_on_stderr(truth: Path, gkest: Callable[..., Outcome]) -> None:
    status, out, err = gkest("evaluate", "--truth", truth, "--models", LIGHT, "--gpu", "L4")
    assert status == 0
    assert "measured.csv: 6 rows of 2 models beside their estimates" in out
    assert "Latency: absolute error in % of the measurement" in out and "reserved memory" in out
    assert all(name in out for name in NAMES)
    assert "latency is off by" in err and "gkest: error" not in err and "latency is off by" not in out


def test_formats(truth: Path, gkest: Callable[..., Outcome]) -> None:
    ask = ("evaluate", "--truth", truth, "--models", LIGHT, "--gpu", "L4", "--host-overhead-us", 60)
    rows = list(csv.DictReader(io.StringIO(gkest(*ask, "--format", "csv")[1])))
    assert [abs(float(r["error_pct"])) < 1e-9 for r in rows] == [
        True
    ] * 6  # the truth's own host: its own estimates
    assert {r["inside"] for r in rows} == {"true"} and {r["measured_mreq_bytes"] for r in rows} == {""}
    document = json.loads(gkest(*ask, "--format", "json")[1])
    assert document["schema_version"] == COMPARED.version and len(document["rows"]) == 6
    assert document["rows"][0]["row"] == 1 and document["rows"][0]["measured_mreq_bytes"] is None
    whole = next(s for s in document["summary"] if s["scope"] == "gpu" and s["measure"] == "latency_ms")
    assert whole["n"] == 6 and whole["worst"] == pytest.approx(0, abs=1e-9) and whole["inside_pct"] == 100
    markdown = gkest(*ask, "--format", "markdown")[1]
    assert "## Rows" in markdown and "|---|" in markdown


def test_partly_failed_is_1_all_failed_is_2(truth: Path, gkest: Callable[..., Outcome]) -> None:
    text = truth.read_text()
    truth.write_text(text + "nobody,1,2,\nnobody,2,2,\n")
    status, out, err = gkest("evaluate", "--truth", truth, "--models", LIGHT, "--gpu", "L4")
    assert status == 1 and "6 rows" in out
    (line,) = [line for line in err.splitlines() if line.startswith("gkest: error: ")]
    assert "2 rows from row 7 on: model nobody: no nobody.onnx among" in line
    truth.write_text("model,batch_size,latency_ms\nnobody,1,2\n")
    status, out, err = gkest("evaluate", "--truth", truth, "--models", LIGHT, "--gpu", "L4")
    assert (status, out) == (2, "") and err.count("gkest: error: ") == 1


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--truth", "absent.csv"], "absent.csv: cannot be read"),
        ([], "--truth"),
        (["--truth", "bad.csv"], "expected latency_ms (milliseconds a batch)"),
        (["--truth", "measured.csv", "--models", "absent"], "absent"),
        (["--truth", "measured.csv", "--models", str(LIGHT), "--gpu", "L4", "--host-overhead-us", "-1"], "found -1.0, expected a number from 0"),
        (["--truth", "measured.csv", "--models", str(LIGHT), "--gpu", "L4", "--bundle", "."], "stack.json"),
        (["--truth", "measured.csv", "--models", str(LIGHT), "--gpu", "L4", "--runtime", "mxnet"], "mxnet"),
        (["--truth", "measured.csv", "--models", "."], "found a folder without models"),
        (["--truth", "measured.csv", "--models", str(LIGHT), "--gpu", "V199"], "V199"),
        (["--truth", "measured.csv", "--models", str(LIGHT)], "names no GPU"),
        (["--truth", "measured.csv", "--models", str(LIGHT), "--gpu", "L4", "--host", "no.toml"], "no.toml"),
        (["--truth", "measured.csv", "--models", str(LIGHT), "--gpu", "L4", "--write-host", "measured.csv"], "is also used"),
        (["--truth", "rows.csv", "--models", str(LIGHT), "--gpu", "L4", "--report", "."], "is also used"),
    ],
)  # fmt: skip
def test_bad_usage_is_one_line(
    truth: Path,
    gkest: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(truth.parent)
    Path("bad.csv").write_text("model,batch_size,latency_s\nm,1,2\n")
    Path("rows.csv").write_bytes(truth.read_bytes())
    before = truth.read_bytes()
    status, out, err = gkest("evaluate", *arguments)
    assert (status, out) == (2, "")
    assert words in err and err.count("gkest: error: ") == 1 and "Traceback" not in err
    assert truth.read_bytes() == before


@pytest.mark.slow
def test_the_host_of_a_truth_serves_the_next_estimate(
    truth: Path, gkest: Callable[..., Outcome], tmp_path: Path
) -> None:
    host = tmp_path / "host.toml"
    ask = ("evaluate", "--truth", truth, "--models", LIGHT, "--gpu", "L4", "--format", "csv")
    status, before, err = gkest(*ask, "--write-host", host)
    assert status == 0 and f"gkest: wrote {host}" in err
    assert "torch: launch overhead 60.0 us a call" in err and "with models left out one at a time" in err
    after = gkest(*ask, "--host", host)[1]

    def errors(text: str) -> list[float]:
        return [abs(float(r["error_pct"])) for r in csv.DictReader(io.StringIO(text))]

    assert max(errors(after)) < 1 < max(errors(before))
    model = LIGHT / "light_densenet121.onnx"
    asked = ("estimate", model, "--gpu", "L4", "--batch-size", 1, "--format", "json")
    used = json.loads(gkest(*asked, "--host", host)[1])["rows"][0]
    assert used["host_overhead_us"] == pytest.approx(60, rel=0.01)
    won = json.loads(gkest(*asked, "--host", host, "--host-overhead-us", 40)[1])["rows"][0]
    assert won["host_overhead_us"] == 40


@pytest.mark.slow
def test_a_host_that_cannot_be_told_or_written_is_partly_failed(
    truth: Path, gkest: Callable[..., Outcome], tmp_path: Path
) -> None:
    ask = ("evaluate", "--truth", truth, "--models", LIGHT, "--gpu", "L4")
    status, out, err = gkest(*ask, "--write-host", "/dev/full")
    assert (
        status == 1 and "6 rows" in out and "gkest: error: --write-host: /dev/full: cannot be written" in err
    )
    lines = truth.read_text().splitlines()
    truth.write_text("\n".join([lines[0], lines[3]]) + "\n")
    status, out, err = gkest(*ask, "--write-host", tmp_path / "host.toml", "--report", tmp_path / "report")
    assert status == 1 and "do not tell the host's launch overhead" in err
    assert not (tmp_path / "host.toml").exists() and (tmp_path / "report" / "report.md").exists()


@pytest.mark.slow
def test_the_report_folder(truth: Path, gkest: Callable[..., Outcome], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "deep" / "report"
    status, _, err = gkest("evaluate", "--truth", truth, "--models", LIGHT, "--gpu", "L4", "--report", folder)
    assert status == 0 and f"to {folder}" in err
    assert sorted(p.name for p in folder.iterdir()) == [
        "latency.png", "models.png", "report.md", "rows.csv", "summary.csv",
    ]  # fmt: skip
    for name in ("latency.png", "models.png"):
        data = (folder / name).read_bytes()
        assert data.startswith(b"\x89PNG") and 3_000 < len(data) < 100_000
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert (
        text.startswith("# measured.csv against estimates") and "](latency.png)" in text and "## Rows" in text
    )
    assert len(list(csv.DictReader(io.StringIO((folder / "rows.csv").read_text())))) == 6
    status, _, err = gkest(
        "evaluate", "--truth", truth, "--models", LIGHT, "--gpu", "L4", "--report", truth / "x"
    )
    assert status == 2 and "cannot be written" in err


def test_without_matplotlib_the_rest_is_written(
    truth: Path, gkest: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = tmp_path / "report"
    status, _, err = gkest("evaluate", "--truth", truth, "--models", LIGHT, "--gpu", "L4", "--report", folder)
    assert status == 0 and install_extra("plot") in err
    assert sorted(p.name for p in folder.iterdir()) == ["report.md", "rows.csv", "summary.csv"]
    assert ".png" not in (folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_full_device_is_one_line(truth: Path) -> None:
    ask = ["evaluate", "--truth", str(truth), "--models", str(LIGHT), "--gpu", "L4"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*GKEST, *ask], stdout=full, stderr=subprocess.PIPE, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.decode().count("gkest: error: ") == 1 and b"Traceback" not in done.stderr


@pytest.mark.shared
def test_the_published_v100_table(gkest: Callable[..., Outcome], tmp_path: Path) -> None:
    """The ETH thesis' table as a truth: the printed summary is that of its rows, and the fit finds the figures that
    the runtime profile has from the same machine."""
    shared = os.environ.get("GKEST_SHARED")
    if not shared:
        pytest.skip("GKEST_SHARED names no folder with the public measurements")
    names = {"mem": "reserved_bytes", "sm": "sm_util_mean_pct"}
    with open(Path(shared) / "data/ethz/v100_profile.csv", newline="") as stream:
        rows = [r for r in csv.DictReader(stream) if r["status"] == "clean" and r["model"] != "t5"]
    truth = tmp_path / "ethz.csv"
    lines = [f"model,batch_size,throughput_rps,{','.join(names.values())}"]
    for r in rows:
        reserved = f"{float(r['mem_cap_pct']) / 100 * 16144 * 2**20:.0f}" if r["mem_cap_pct"] else ""
        lines.append(f"{r['model']},{r['batch']},{r['throughput_rps']},{reserved},{r['wavg_sm_util_pct']}")
    truth.write_text("\n".join(lines) + "\n")
    ask = ("evaluate", "--truth", truth, "--models", Path(shared) / "models/ethz", "--gpu", "V100-SXM2-16GB",
           "--include-copy", "--dtype", "fp32")  # fmt: skip
    host = tmp_path / "host.toml"
    status, out, err = gkest(*ask, "--write-host", host, "--format", "json")
    assert status == 0, err
    document = json.loads(out)
    assert len(document["rows"]) == len(rows) >= 50
    whole = {s["measure"]: s for s in document["summary"] if s["scope"] == "gpu"}
    errors = sorted(abs(r["error_pct"]) for r in document["rows"])
    assert whole["latency_ms"]["mean"] == pytest.approx(sum(errors) / len(errors))
    assert whole["latency_ms"]["worst"] == errors[-1]
    assert whole["latency_ms"]["median"] < whole["latency_ms"]["roofline_mean"]
    assert whole["reserved_bytes"]["unit"] == "%" and whole["sm_util_mean_pct"]["unit"] == "points"
    text = host.read_text()
    assert "[host_overhead_us.torch]" in text and "[copy_bytes_per_s.torch]" in text
