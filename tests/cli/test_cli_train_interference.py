"""``gkest train --interference``: pairs to coefficients, which the policy and the simulation read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from _pairs import pairs, requirement, written

from gkestimator.cli import run
from gkestimator.documents.interference import FILE_NAME, ContentionWeights, read_interference
from gkestimator.interference.contention import Contention
from gkestimator.tables import REQUIREMENTS, write_table

pytest.importorskip("scipy")
LAW = Contention(
    ContentionWeights(
        sm_overlap=0.3, sm_excess=0.8, dram_overlap=0.5, dram_excess=1.2, l2_overlap=0.2, l2_excess=0.6
    )
)
RUNS = pairs(LAW, noise=0.02)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("pairs") / "pairs.csv", RUNS)


def test_pairs_alone_give_a_file(measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "i.yaml"
    assert run(["train", "--interference", str(measured), "-o", str(out)]) == 0
    done = capsys.readouterr()
    assert done.err == f"gkest: wrote {out}\n"
    lines = done.out.splitlines()
    assert lines[0].startswith("interference: 180 slowdowns in 90 groups of 9 models on V100-SXM2-16GB")
    assert [line.split("  ")[0] for line in lines[4:11]] == [
        "none", "constant", "gpulet, derived", "gpulet, fitted", "contention, derived", "contention, fitted", "fitted"
    ]  # fmt: skip
    assert "contention, fitted is kept" in done.out
    assert "\nthe judge, a constant of " in done.out and "no better than the constant" not in done.out
    found = read_interference(out)
    assert found.contention is not None and found.fit.pairs == "pairs.csv"
    assert found.fitted is not None and found.fitted.form != "constant"
    assert found.fit.constant == pytest.approx(
        sum((r.latency_together_ms or 0.0) / r.latency_alone_ms for r in RUNS) / len(RUNS)
    )
    # The same files, the same bytes.
    again = tmp_path / "again.yaml"
    assert run(["train", "--interference", str(measured), "-o", str(again)]) == 0
    assert again.read_bytes() == out.read_bytes()


def test_demands_from_a_table(measured: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    rows = {(r.model, r.sm_share_pct): requirement(r) for r in RUNS}
    write_table(REQUIREMENTS, list(rows.values()), table)
    names = ("sm_util_mean_pct", "dram_util_mean_pct", "l2_util_mean_pct")
    bare = written(tmp_path / "bare.csv", [replace(r, **dict.fromkeys(names)) for r in RUNS])  # type: ignore[arg-type]
    asked = ["train", "--interference", str(bare), "--table", str(table)]
    assert run([*asked, "-o", str(tmp_path / "a.yaml")]) == 0
    assert run(["train", "--interference", str(measured), "-o", str(tmp_path / "b.yaml")]) == 0
    a, b = (read_interference(tmp_path / f"{n}.yaml") for n in "ab")
    assert a.contention == b.contention and a.fit.tables == ("t.csv",)


def test_the_policy_takes_the_file(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "i.yaml"
    assert run(["train", "--interference", str(measured), "-o", str(out)]) == 0
    table = tmp_path / "t.csv"
    rows = {(r.model, r.sm_share_pct): requirement(r) for r in RUNS}
    write_table(
        REQUIREMENTS,
        [replace(r, throughput_rps=8e3 / (r.latency_ms or 1), mreq_bytes=1 << 30) for r in rows.values()],
        table,
    )
    (tmp_path / "w.yaml").write_text("models: [{name: m0, rate_rps: 50, slo_ms: 500}]\n")
    (tmp_path / "c.yaml").write_text("gpus: [{type: V100-SXM2-16GB, count: 2}]\n")
    asked = [
        "schedule",
        str(table),
        "--workload",
        str(tmp_path / "w.yaml"),
        "--cluster",
        str(tmp_path / "c.yaml"),
    ]
    capsys.readouterr()
    assert run([*asked, "--policy", "gpulet", "--coefficients", str(out)]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_with_a_dataset_they_go_into_the_bundle(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    from measured_law import measurements, write_dataset

    from gkestimator.bundles.bundle import load_bundle

    dataset = write_dataset(tmp_path / "d.parquet", measurements(15))
    out = tmp_path / "bundle"
    assert run(["train", str(dataset), "--interference", str(measured), "-o", str(out)]) == 0
    done = capsys.readouterr()
    assert "L4: 60 measured calls" in done.out and "contention, fitted is kept" in done.out
    assert read_interference(out).contention is not None
    assert (out / FILE_NAME).is_file()
    load_bundle(out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "i.json"], "-o i.json: found the suffix '.json', expected .yaml"),
        (["-o", "folder.yaml"], "found a folder"),
        (["-o", "pairs.yaml"], "is also read as"),
        (["-o", "no/such/i.yaml"], "cannot be written"),
        (["-o", "i.yaml", "--table", "none.csv"], "none.csv: cannot be read"),
        (["-o", "i.yaml", "--gpu-spec", "none.toml"], "none.toml"),
    ],
)
def test_bad_usage_is_one_line(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    asked = measured
    if "pairs.yaml" in arguments:
        asked = tmp_path / "pairs.yaml"
        asked.write_bytes(measured.read_bytes())
    assert run(["train", "--interference", str(asked), *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("gkest: error:") and said in lines[0]
    assert not (tmp_path / "i.yaml").exists()


def test_a_bad_dataset_does_not_hide_bad_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.csv").write_text("group\n")
    asked = ["train", str(tmp_path / "d.parquet"), "--interference", str(tmp_path / "p.csv")]
    assert run([*asked, "-o", str(tmp_path / "b")]) == 2
    assert "p.csv: columns model, gpu" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_fit_that_no_reader_would_take_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Demands a millionth of what they were: the weights of their products grow by 1e12.
    names = ("sm_util_mean_pct", "dram_util_mean_pct", "l2_util_mean_pct")
    small = [replace(r, **{n: getattr(r, n) * 1e-6 for n in names}) for r in RUNS]
    out = tmp_path / "i.yaml"
    path = written(tmp_path / "small.csv", small)
    assert run(["train", "--interference", str(path), "-o", str(out)]) == 2
    assert "small.csv: the fit gives " in capsys.readouterr().err and not out.exists()
