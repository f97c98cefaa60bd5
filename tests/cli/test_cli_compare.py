"""``gkest compare`` as a user runs it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from _specs import results, rows, write_spec

from gkestimator.cli import run
from gkestimator.tables import REQUIREMENTS, write_table

ROOT = Path(__file__).parents[2]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs the command into ``tmp_path``/out; (status, stdout, stderr)."""

    def call(spec: Path, *more: object) -> tuple[int, str, str]:
        status = run([str(a) for a in ("compare", spec, "-o", tmp_path / "out", "--processes", 1, *more)])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


@pytest.mark.slow
def test_the_table_is_on_stdout_and_the_words_on_stderr(tmp_path: Path, command: Command) -> None:
    status, out, err = command(write_spec(tmp_path))
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith(
        "on time, % of the requests that arrived, by load · workload two · cluster pair"
    )
    assert lines[2].split() == ["policy", "x", "0.5", "x", "1"]
    assert [line.split()[0] for line in lines[4:6]] == ["exclusive", "nexus"]
    assert err == f"gkest: 4 cells, 4 computed now; {tmp_path}/out/report.md\n"
    again = command(write_spec(tmp_path))
    assert again == (0, out, f"gkest: 4 cells, 0 computed now, 4 kept; {tmp_path}/out/report.md\n")


@pytest.mark.slow
def test_the_report_has_what_the_rows_have(tmp_path: Path, command: Command) -> None:
    command(
        write_spec(
            tmp_path, clusters=[{"label": "rented", "elastic": [{"type": "V100", "price_per_hour": 2.0}]}]
        )
    )
    text = (tmp_path / "out" / "report.md").read_text()
    (nexus,) = [r for r in results(tmp_path / "out") if r["policy"] == "nexus" and r["rate_scale"] == "1.0"]
    line = next(x for x in text.splitlines() if x.startswith("| nexus") and x.count("|") > 10)
    shown = [c.strip() for c in line.strip("|").split("|")]
    assert float(shown[3]) == pytest.approx(float(nexus["goodput_rps"]), rel=5e-3)
    assert float(shown[12 - 1]) == float(nexus["gpus_used"]) and float(shown[12]) == float(
        nexus["cost_per_hour"]
    )
    for picture in re.findall(r"!\[.*\]\((.*)\)", text):
        assert (tmp_path / "out" / picture).stat().st_size > 5000
    assert text.count("## cost, USD per hour") == 1  # the plan's, whatever arrives


@pytest.mark.slow
def test_what_is_not_all_is_not_shown_as_100(tmp_path: Path, command: Command) -> None:
    """One of 3,500 is late: 99.97 %, which a round figure would hide."""
    command(write_spec(tmp_path, policies=["exclusive"], duration_s=40, slo_scale=[0.5], rate_scale=[1.0]))
    found = results(tmp_path / "out")
    shares = [float(r["on_time_pct"]) for r in found]
    mean = sum(shares) / len(shares)
    assert 99.5 < mean < 100, "the case is to have a few late requests"
    assert f"| exclusive | **{min(mean, 99.99):.2f}** |" in (tmp_path / "out" / "report.md").read_text()


def test_one_line_for_a_bad_spec_and_nothing_written(tmp_path: Path, command: Command) -> None:
    status, out, err = command(write_spec(tmp_path, policies=["best"]))
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("gkest: error: ") and "spec.yaml: policies[0]: name: found 'best'" in err
    assert not (tmp_path / "out").exists()


def test_a_table_that_cannot_be_read_is_one_line(tmp_path: Path, command: Command) -> None:
    spec = write_spec(tmp_path)
    (tmp_path / "table.csv").write_text("x,y\n1,2\n")
    status, out, err = command(spec)
    assert (status, out) == (2, "") and err.count("\n") == 1 and "table.csv: column 'x' is not known" in err


@pytest.mark.parametrize("taken", ["out", "out/cells"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, command: Command, taken: str) -> None:
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("mine")
    status, _, err = command(write_spec(tmp_path))
    assert status == 2 and err.count("\n") == 1 and f"{tmp_path}/out/cells: cannot be made" in err
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.slow
def test_what_is_refused_is_said_with_status_1(tmp_path: Path, command: Command) -> None:
    write_table(REQUIREMENTS, rows(occupancy_max_pct=None), tmp_path / "table.csv")
    status, out, err = command(write_spec(tmp_path, policies=["usher", "nexus"]))
    assert status == 1
    assert "gkest: error: usher refused in 2 cells: " in err
    assert re.search(r"^usher +– +–$", out, re.M) and re.search(r"^nexus +\d", out, re.M)


@pytest.mark.slow
def test_the_example_of_the_docs_runs(tmp_path: Path, command: Command) -> None:
    text = (ROOT / "docs" / "how-to/comparing.md").read_text()
    assert "gkest compare examples/comparing/policies.yaml -o comparison" in text
    spec = (ROOT / "examples" / "comparing" / "policies.yaml").read_text()
    # Another policy than the searching ones, shorter: what is tested is that the files are found and the fields known.
    shutil.copy(ROOT / "datasets" / "published" / "ethz_v100.csv", tmp_path / "a1.csv")
    spec = spec.replace("../../datasets/published/ethz_v100.csv", "a1.csv").replace(
        "duration_s: 30", "duration_s: 3"
    )
    (tmp_path / "policies.yaml").write_text(spec.replace("rate_scale: [0.5, 1, 1.5]", "rate_scale: [1]"))
    status, _, err = command(tmp_path / "policies.yaml")
    assert status == 0, err
    assert len(results(tmp_path / "out")) == 28
