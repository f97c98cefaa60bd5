"""The command line's manners, against a stand-in for the engine: statuses, streams, one-line errors,
parsing."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gkestimator.estimation
from gkestimator.cli import run
from gkestimator.cli.group import COMMANDS
from gkestimator.cli.progress import Progress
from gkestimator.core.errors import ModelError
from gkestimator.tables import Requirement

Asked = dict[str, Any]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Replaces the engine: estimates every file whose name does not begin with ``bad`` and remembers its
    arguments."""
    asked: Asked = {}

    def estimate_rows(models: Any, **options: Any) -> SimpleNamespace:
        asked.update(options, models=models)
        if options["batch_dim"] == "broken":
            raise RuntimeError("two\nlines")
        good = [m for m in models if not m.name.startswith("bad")]
        rows = [
            Requirement(
                model=m.stem, gpu=gpu, runtime=options["runtime"], dtype="fp32", batch_size=batch, latency_ms=1.0,
                source="analytical", occupancy_source=None, memory_source=None,
            )
            for m in good for gpu in options["gpus"] for batch in options["batch_sizes"] or (1,)
        ]  # fmt: skip
        failures = tuple((m, ModelError(f"{m}: found text, expected ONNX")) for m in models if m not in good)
        return SimpleNamespace(
            rows=tuple(rows),
            kernel_rows=(),
            failures=failures,
            messages=("T4 is the smallest.",),
            documents={},
        )

    monkeypatch.setattr(gkestimator.estimation, "estimate_rows", estimate_rows, raising=False)
    return asked


Outcome = tuple[int, str, str]


@pytest.fixture
def gkest(capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    def call(*arguments: str) -> Outcome:
        status = run(arguments)
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


def one_error(err: str) -> str:
    lines = [line for line in err.splitlines() if line.startswith("gkest: error: ")]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


def test_result_on_stdout_words_on_stderr(engine: Asked, gkest: Callable[..., Outcome]) -> None:
    status, out, err = gkest(
        "estimate", "m.onnx", "--gpu", "V100,T4", "--gpu", "H100", "--batch-size", "1, 8,8", "--dim", "seq=128",
        "--dim", "past=1", "--sm-share", "20,100", "--format", "json", "--include-copy", "--trip-count", "0",
    )  # fmt: skip
    assert status == 0
    assert len(json.loads(out)["rows"]) == 6
    assert err == "T4 is the smallest.\n"
    assert engine["gpus"] == ("V100", "T4", "H100")
    assert engine["batch_sizes"] == (1, 8)
    assert engine["dims"] == {"seq": (128,), "past": (1,)}
    assert engine["sm_shares"] == (20.0, 100.0)
    assert engine["include_copy"] is True
    assert engine["trip_count"] == 0
    assert engine["host_overhead_us"] is None


def test_partly_failed_is_1_all_failed_is_2(engine: Asked, gkest: Callable[..., Outcome]) -> None:
    status, out, err = gkest("estimate", "bad.onnx", "m.onnx", "--gpu", "T4", "--format", "csv")
    assert (status, len(out.splitlines())) == (1, 2)
    assert "bad.onnx: found text" in one_error(err)
    status, out, err = gkest("estimate", "bad.onnx", "--gpu", "T4")
    assert (status, out) == (2, "")
    one_error(err)


def test_a_folder_without_models(engine: Asked, gkest: Callable[..., Outcome], tmp_path: Path) -> None:
    status, out, err = gkest("estimate", str(tmp_path), "--gpu", "T4")
    assert (status, out) == (2, "")
    assert "without models" in one_error(err)
    assert gkest("estimate", str(tmp_path), "m.onnx", "--gpu", "T4")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["estimate"], "Missing argument"),
        (
            ["estimate", "m.onnx", "--gpu", "T4", "--batch-size", "0"],
            "found 0, expected whole numbers from 1",
        ),
        (["estimate", "m.onnx", "--gpu", "T4", "--batch-size", "-4"], "found -4"),
        (["estimate", "m.onnx", "--gpu", "T4", "--batch-size", "1,,2"], "separated by commas"),
        (["estimate", "m.onnx", "--gpu", "T4", "--batch-size", "9" * 19], "expected whole numbers"),
        (["estimate", "m.onnx", "--gpu", "T4", "--dim", "seq"], "expected name=number"),
        (["estimate", "m.onnx", "--gpu", "T4", "--dim", "s=-1"], "found s=-1, expected whole numbers from 0"),
        (["estimate", "m.onnx", "--gpu", "T4", "--dim", "s=1", "--dim", "s=2"], "found s=1 and s=2"),
        (["estimate", "m.onnx", "--gpu", "T4", "--sm-share", "nan"], "expected numbers"),
        (["estimate", "m.onnx", "--gpu", "T4", "--format", "xml"], "xml"),
        (["estimate", "m.onnx", "--gpu", "T4", "--format", "parquet"], "expected -o"),
        (["estimate", "m.onnx", "--gpu", "T4", "-o", "x.xls"], "suffix"),
        (["estimate", "m.onnx", "--gpu", "T4", "-o", "/dev/null/x.csv"], "cannot be written"),
        (["estimate", "m.onnx", "--gpu", "T4", "--batch-dim", "broken"], "RuntimeError: two lines"),
        (["nosuch"], "No such command"),
        (["simulat"], "No such command 'simulat'; did you mean simulate?"),
        (["estimate", "m.onnx", "--gpu", "T4", "-o", "."], ".: found a folder, expected .csv"),
        (["train"], "Missing option"),
        (["train", "-o", "b"], "neither a DATASET nor --interference PAIRS"),
        (["train", "d", "--table", "t.csv", "-o", "b"], "without --interference PAIRS"),
    ],
)
def test_bad_usage_is_one_line_and_2(
    engine: Asked, gkest: Callable[..., Outcome], arguments: list[str], expected: str
) -> None:
    status, out, err = gkest(*arguments)
    assert (status, out) == (2, "")
    assert expected in one_error(err)


def test_debug_shows_the_traceback(engine: Asked, gkest: Callable[..., Outcome]) -> None:
    for arguments in (
        ("--debug", "estimate", "m.onnx", "--gpu", "T4", "--batch-dim", "broken"),
        ("estimate", "m.onnx", "--gpu", "T4", "--batch-dim", "broken", "--debug"),
    ):
        assert "Traceback" in gkest(*arguments)[2]


def test_output_file_by_suffix(engine: Asked, gkest: Callable[..., Outcome], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    status, out, err = gkest("estimate", "m.onnx", "--gpu", "T4", "-o", str(path))
    assert (status, out) == (0, "")
    assert str(path) in err
    assert path.read_text().startswith("schema_version,model,gpu")


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, gkest: Callable[..., Outcome]) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(gkestimator.estimation, "estimate_rows", interrupted, raising=False)
    status, out, err = gkest("estimate", "m.onnx", "--gpu", "T4")
    assert (status, out) == (130, "")
    assert "interrupted" in err


def test_train_passes_its_arguments(monkeypatch: pytest.MonkeyPatch, gkest: Callable[..., Outcome]) -> None:
    asked: list[Any] = []
    module = types.ModuleType("gkestimator.training")
    module.train = lambda sources, out, **options: asked.append((sources, out, options["seed"])) or "trained"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gkestimator.training", module)
    status, out, _ = gkest("train", "a.parquet", "b", "-o", "bundle", "--seed", "7")
    assert (status, out) == (0, "trained\n")
    assert asked == [((Path("a.parquet"), Path("b")), Path("bundle"), 7)]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_has_help(gkest: Callable[..., Outcome], name: str) -> None:
    status, out, err = gkest(name, "--help")
    assert (status, err) == (0, "")
    assert f"gkest {name}" in out


def test_doctor_reads_only_and_never_fails(
    gkest: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GKEST_NSIGHT", raising=False)
    monkeypatch.setenv("GKEST_HOME", str(tmp_path / "home"))
    status, out, err = gkest("doctor")
    assert (status, err) == (0, "")
    assert "not found on PATH" in out
    assert "nsys was not found" in out
    assert str(tmp_path / "home") in out
    # ONNX Runtime makes a folder of its own when it is first imported.
    assert {path.name for path in tmp_path.iterdir()} <= {"Microsoft"}


class _Terminal:
    def __init__(self, tty: bool) -> None:
        self.tty, self.text = tty, ""

    def isatty(self) -> bool:
        return self.tty

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(("tty", "seconds", "shown"), [(True, 3, True), (True, 1, False), (False, 3, False)])
def test_progress_waits_two_seconds_and_needs_a_terminal(tty: bool, seconds: float, shown: bool) -> None:
    now = iter([0.0, seconds])
    terminal = _Terminal(tty)
    with Progress(terminal, clock=lambda: next(now)) as progress:  # type: ignore[arg-type]
        progress("m", 1, 2)
    assert ("1/2 m" in terminal.text) is shown
