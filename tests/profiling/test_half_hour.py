"""``examples/profiling/half-hour.sh``: what it asks of ``gkest`` (a stand-in that writes down how it was called), what it
leaves behind, and that the real commands know every option it gives."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "profiling" / "half-hour.sh"
GKEST = """#!/bin/bash
printf '%s\\n' "$*" >> "$CALLS"
status=${FAIL_RUN:-0}
while [ $# -gt 0 ]; do
  if [ "$1" = -o ]; then target=$2; fi
  last=$1; shift
done
case "$target" in
  *raw-own) [ -z "${FAIL_OWN:-}" ] || exit "$FAIL_OWN"; mkdir -p "$target"; touch "$target/run.json" "$target/capture" ;;
  *raw-*) mkdir -p "$target"; head -c "${TRACE_BYTES:-10}" /dev/urandom > "$target/trace.json.gz"; head -c "${RAW_BYTES:-1000}" /dev/urandom > "$target/capture"; exit $status ;;
  '') ;;
  *) printf '%s' 'table' > "$target" ;;
esac
"""
Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a step in a folder of its own with the stand-in for gkest; further words are variables."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "gkest").write_text(GKEST, encoding="utf-8")
    (tools / "gkest").chmod(0o755)
    (tmp_path / ".measure").mkdir()
    for name in ("models", "operators", "counters"):
        (tmp_path / ".measure" / f"{name}.json").write_text("{}", encoding="utf-8")

    def step(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "CALLS": str(tmp_path / "calls"),
            "WORK": str(tmp_path / "work"),
            "OUT": str(tmp_path / "out"),
            **variables,
        }
        for name in ("CARRY", "FROM_WHEEL", "DEVICE", "COLLECTOR", "EXECUTOR", "MINUTES", "OWN_MINUTES"):
            if name not in variables:
                environment.pop(name, None)
        return subprocess.run(
            ["bash", str(SCRIPT), *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return step


def calls(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "calls").read_text(encoding="utf-8").splitlines()]


def option(call: list[str], name: str) -> str:
    return call[call.index(name) + 1]


def refuse_unknown_options(call: list[str]) -> None:
    """The real command has every option of ``call``."""
    name = call[1] if call[0] == "profile" else ""
    module = f"profiling.{name}" if name else call[0]
    command: click.Command = importlib.import_module(f"gkestimator.cli.{module}").command
    known = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    assert {word for word in call if word.startswith("-")} <= known, call


@pytest.mark.parametrize(
    ("step", "plan", "after"),
    [
        ("models", "models.json", "table"),
        ("operators", "operators.json", "build"),
        ("counters", "counters.json", "build"),
    ],
)
def test_a_step_measures_then_builds_then_packs(
    run: Run, tmp_path: Path, step: str, plan: str, after: str
) -> None:
    done = run(step, MINUTES="5", DEVICE="cuda:1")
    assert done.returncode == 0, done.stderr
    measured, made = [call for call in calls(tmp_path) if call[0] == "profile"]
    assert measured[:3] == ["profile", "run", f".measure/{plan}"] and made[1] == after
    assert (option(measured, "--minutes"), option(measured, "--device")) == ("5", "cuda:1")
    raw = tmp_path / "work" / f"raw-{step}"
    assert option(measured, "-o") == made[2] == str(raw)
    with tarfile.open(tmp_path / "out" / f"{step}.tar.gz.aa") as packed:
        assert f"raw-{step}/capture" in packed.getnames()
    for call in calls(tmp_path):
        refuse_unknown_options(call)


@pytest.mark.parametrize("status", ["", "2"])
def test_the_models_own_operators_come_second_and_cost_nothing_where_they_fail(
    run: Run, tmp_path: Path, status: str
) -> None:
    (tmp_path / ".measure" / "own.json").write_text("{}", encoding="utf-8")
    assert run("operators", FAIL_OWN=status).returncode == 0
    first, own, built = [call for call in calls(tmp_path) if call[0] == "profile"]
    assert (first[2], own[2]) == (".measure/operators.json", ".measure/own.json")
    raws = ["raw-operators"] if status else ["raw-operators", "raw-own"]
    assert built[2 : 2 + len(raws)] == [str(tmp_path / "work" / raw) for raw in raws]
    assert (tmp_path / "out" / "operators.parquet").is_file()


def test_pairs_take_the_table_of_the_models(run: Run, tmp_path: Path) -> None:
    assert run("models").returncode == 0
    assert run("pairs", PAIR_OPTIONS="--mps off --seconds 1").returncode == 0
    last = calls(tmp_path)[-1]
    assert last[:3] == ["profile", "pairs", ".measure/models.json"]
    assert option(last, "--table") == str(tmp_path / "work" / "measured.parquet")
    assert (option(last, "--mps"), option(last, "--seconds")) == ("off", "1")
    refuse_unknown_options(last)


def test_pairs_go_on_from_the_journal_that_came_home(run: Run, tmp_path: Path) -> None:
    name = "pairs.parquet.journal.jsonl"
    (tmp_path / ".measure" / name).write_text("home", encoding="utf-8")
    assert run("pairs").returncode == 0
    assert (tmp_path / "out" / name).read_text(encoding="utf-8") == "home"
    assert option(calls(tmp_path)[-1], "--pairs") == "16"
    (tmp_path / "out" / name).write_text("newer", encoding="utf-8")
    assert run("pairs").returncode == 0
    assert (tmp_path / "out" / name).read_text(encoding="utf-8") == "newer"


def test_large_recordings_come_in_pieces_or_stay(run: Run, tmp_path: Path) -> None:
    assert run("operators", RAW_BYTES="70000", PIECE="20000").returncode == 0
    pieces = sorted((tmp_path / "out").glob("operators.tar.gz.*"))
    assert len(pieces) == 4 and all(p.stat().st_size <= 20_000 for p in pieces)
    joined = tmp_path / "joined.tar.gz"
    joined.write_bytes(b"".join(p.read_bytes() for p in pieces))
    with tarfile.open(joined) as packed:
        assert packed.getmember("raw-operators/capture").size == 70_000
    done = run("models", TRACE_BYTES="90000", PIECE="20000")
    assert done.returncode == 0 and "without the traces" in done.stderr
    with tarfile.open(tmp_path / "out" / "models.tar.gz.aa") as packed:
        assert packed.getnames() == ["raw-models", "raw-models/capture"]
    done = run("counters", RAW_BYTES="90000", PIECE="20000")
    assert done.returncode == 0 and "too large to take along" in done.stderr
    assert not list((tmp_path / "out").glob("counters.tar.gz.*"))
    assert (tmp_path / "out" / "counters.parquet").is_file()


def test_a_run_that_had_to_stop_is_built_of_what_there_is(run: Run, tmp_path: Path) -> None:
    assert run("operators", FAIL_RUN="1").returncode == 0
    assert calls(tmp_path)[-1][1] == "build"
    (tmp_path / "calls").unlink()
    done = run("operators", FAIL_RUN="2")
    assert done.returncode == 2 and "nothing could be measured" in done.stderr
    assert [call[1] for call in calls(tmp_path)] == ["run"]


def test_own_operators_join_those_of_the_catalogue(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".measure" / "own.json").write_text("{}", encoding="utf-8")
    assert run("operators", MINUTES="4", OWN_MINUTES="2").returncode == 0
    catalogue, own, build = calls(tmp_path)
    assert (catalogue[2], own[2]) == (".measure/operators.json", ".measure/own.json")
    assert (option(catalogue, "--minutes"), option(own, "--minutes")) == ("4", "2")
    assert build[2:4] == [str(tmp_path / "work" / name) for name in ("raw-operators", "raw-own")]
    with tarfile.open(tmp_path / "out" / "operators.tar.gz.aa") as packed:
        assert {"raw-operators/capture", "raw-own/capture"} <= set(packed.getnames())
    (tmp_path / "calls").unlink()
    assert run("operators", OWN_MINUTES="0").returncode == 0
    assert [call[1] for call in calls(tmp_path)] == ["run", "build"]


@pytest.mark.slow
def test_plans_at_home(run: Run, tmp_path: Path) -> None:
    done = run("prepare", "a.onnx", "more", GPU="H200", SOURCE="/nowhere")
    assert done.returncode != 0  # no wheel of a folder that is not there; the plans are made before it
    whole, operators, own, counters = calls(tmp_path)
    assert "--whole" in whole and whole.count("--models") == 2
    assert "--models" not in operators and "--models" not in counters and "--no-catalogue" in own
    assert [option(call, "--counters") for call in (operators, own, counters)] == ["0", "0", "1"]
    for call in (whole, operators, own, counters):
        assert option(call, "--gpu") == "H200"
        refuse_unknown_options(call)
    (tmp_path / "calls").unlink()
    run("prepare", "a.onnx", SOURCE="/nowhere", GPU="")
    assert [option(call, "-o").rpartition("/")[2] for call in calls(tmp_path)] == [
        "models.json",
        "operators.json",
        "own.json",
    ]
    assert all("--cpu" in call for call in calls(tmp_path))


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        ((), {}, "expected prepare, models, operators, counters or pairs"),
        (("everything",), {}, "everything: expected prepare, models"),
        (("models",), {"CARRY": "elsewhere"}, "elsewhere: no such folder"),
        (("prepare",), {}, "expected model files or folders"),
    ],
)
def test_wrong_words_are_one_line(
    run: Run, tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], said: str
) -> None:
    done = run(*words, **variables)
    assert done.returncode in (1, 2) and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "calls").exists()


def test_nothing_to_count(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".measure" / "counters.json").unlink()
    done = run("counters")
    assert done.returncode == 2 and "nothing to count" in done.stderr
