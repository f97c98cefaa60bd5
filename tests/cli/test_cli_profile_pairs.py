"""``gkest profile pairs``: two real processes with a real runtime on the CPU, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_models import mlp, plan

from gkestimator.cli import run
from gkestimator.profiling.plan import write_plan
from gkestimator.tables import COLOCATION, read_table


def made(folder: Path, *names: str, runtime: str = "onnxruntime") -> Path:
    path = folder / "models.json"
    write_plan(plan(*(mlp(n, 64 * (i + 1)) for i, n in enumerate(names)), runtime=runtime), path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_pair_on_the_cpu(tmp_path: Path, runtime: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(runtime)
    models, output = made(tmp_path, "small", "large", runtime=runtime), tmp_path / "pairs.csv"
    asked = [
        "profile",
        "pairs",
        str(models),
        "--device",
        "cpu",
        "--seconds",
        "0.3",
        "--pairs",
        "1",
        "-o",
        str(output),
    ]
    assert run(asked) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{output}: 1 pairs measured, 0 failed, 0 left of 1; slowdown ")
    assert "this tries the command out, and says nothing of a GPU" in said.err
    rows = read_table(output, COLOCATION)
    assert {r.model for r in rows} == {"small", "large"} and len({r.group for r in rows}) == 1
    for row in rows:
        assert (row.runtime, row.dtype, row.batch_size, row.sm_share_pct, row.sharing) == (
            runtime,
            "fp32",
            1,
            100.0,
            "cpu",
        )
        assert row.latency_together_ms is not None and 0 < row.latency_alone_ms < 300
        assert row.sm_util_mean_pct is None
    assert (tmp_path / "pairs.csv.journal.jsonl").exists()
    # A CPU is in no catalogue: the file that tells of it is named where it is written.
    (spec,) = tmp_path.glob("pairs.*.toml")
    assert f"is not in the catalogue: {spec.name} says what the device tells of itself" in said.err
    if runtime == "torch":
        return
    # The next command refuses what a CPU says, and the same command finds nothing left to do.
    pytest.importorskip("scipy")
    assert run(["train", "--interference", str(output), "-o", str(tmp_path / "i.yaml")]) == 2
    assert "row 1, column sharing: found 'cpu', expected mps" in capsys.readouterr().err
    assert not (tmp_path / "i.yaml").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shares", "100"], "found '100', expected two percents such as 20:80"),
        (["--shares", "50:50,a:b"], "found 'a:b'"),
        (["--shares", "nan:50"], "found 'nan:50'"),
        (["--shares", "50:500"], "shares: found 50:500, expected 1 to 100 percent"),
        (["--shares", "50:50"], "shares: found 50:50, expected 100:100 alone: a CPU has no SMs to share"),
        (["--minutes", "0"], "minutes: found 0.0, expected a number above 0"),
        (["--seconds", "nan"], "seconds: found nan"),
        (["--mps", "required"], "mps: found required with device cpu, expected a GPU"),
        (["--pairs", "0"], "--pairs"),
        (["--device", "gpu"], "device"),
        (["-o", "pairs.json"], "found the suffix '.json', expected .parquet or .csv"),
        (["--table", "none.csv"], "none.csv"),
    ],
)
def test_wrong_options_are_one_line(
    tmp_path: Path,
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    models = made(tmp_path, "a", "b")
    assert run(["profile", "pairs", str(models), "--device", "cpu", "-o", "p.csv", *options]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["models.json"]


def test_wrong_plans_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "p.csv"
    for text in ("", "[1]", '{"schema_version": 1}'):
        path = tmp_path / "bad.json"
        path.write_text(text)
        assert run(["profile", "pairs", str(path), "--device", "cpu", "-o", str(output)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "bad.json" in error
    output.write_text("mine")
    journal = tmp_path / "p.csv.journal.jsonl"
    journal.write_text("a shopping list\n")
    assert run(["profile", "pairs", str(made(tmp_path, "a")), "--device", "cpu", "-o", str(output)]) == 2
    assert "line 1: no line of a journal of pairs" in capsys.readouterr().err
    assert (output.read_text(), journal.read_text()) == ("mine", "a shopping list\n")
