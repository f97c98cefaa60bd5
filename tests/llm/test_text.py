"""What ``gkest llm`` says: nothing that is not known, nothing wider than the terminal, and what was left out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import gkestimator
from gkestimator.cli import run
from gkestimator.core.errors import GkestimatorWarning, UsageError
from gkestimator.estimation.engine import Engine
from gkestimator.llm.estimating import estimate_llm
from gkestimator.llm.objectives import Objectives
from gkestimator.llm.request import LlmRequest
from gkestimator.llm.text import llm_words, render_llm
from gkestimator.tables.layout import TERMINAL_COLUMNS, width
from gkestimator.tables.llm_requirement import LlmRequirement

FOLDER = Path(__file__).parents[1] / "data" / "decoders"
LLAMA = FOLDER / "llama-3.1-8b.json"
UNKNOWN_MEMORY = "RTX-3080"


def rows(path: Path = LLAMA, **options: Any) -> list[LlmRequirement]:
    options = {"gpus": ("H100", "L4"), "batch_sizes": (1, 64), **options}
    return estimate_llm(LlmRequest(model=path, **options))


def text(shown: list[LlmRequirement]) -> str:
    return render_llm(shown, "table").decode()


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    shown = rows(FOLDER / "mixtral-8x7b.json", tensor_parallel=(1, 2))
    token = TERMINAL_COLUMNS.set(columns)
    try:
        lines = text(shown).splitlines()
    finally:
        TERMINAL_COLUMNS.reset(token)
    assert max(map(width, lines)) <= columns
    assert all(heading in "".join(lines) for heading in ("GPU", "batch", "TTFT", "TPOT", "fits"))


def test_notes_stand_once_and_mark_the_rows_that_they_are_of() -> None:
    shown = text(rows(FOLDER / "mixtral-8x7b.json", tensor_parallel=(1, 2), batch_sizes=(1,)))
    assert "all rows: each expert is taken as equally likely" in shown
    assert "1: what GPUs exchange is calculated, not learned" in shown
    table = [line for line in shown.splitlines() if line.startswith(("H100", "L4"))]
    assert [line.endswith("  1") for line in table] == [False, False, True, True]


def test_one_token_of_answer_is_bound_by_nothing_known() -> None:
    assert "None" not in text(rows(output_tokens=(1,)))


def test_a_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[2Jb"
    folder.mkdir()
    path = Path(shutil.copy(LLAMA, folder / "config.json"))
    shown = text(rows(path))
    assert "\x1b" not in shown and r"a\u001b[2Jb" in shown


def test_whether_it_fits_where_the_memory_is_unknown_is_not_known() -> None:
    alone = rows(gpus=(UNKNOWN_MEMORY,))
    (first, _) = llm_words(alone, Objectives(ttft_ms=None, tpot_ms=None))
    assert first.startswith("Whether anything fits is not known")
    assert "unknown" in text(alone) and "does not fit" not in text(alone)
    assert all("does not fit" not in row.warnings and "is not known" in row.warnings for row in alone)
    assert all(row.gpus_needed is None and row.largest_batch is None for row in alone)


def test_what_cannot_be_written_is_refused_before_anything_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gkestimator.llm.estimating.estimate_llm", None)
    for words, said in (
        (["--format", "parquet"], "--format parquet needs a file to write to"),
        (["-o", str(tmp_path / "a.html")], "found the suffix '.html'"),
        (["--plot", str(tmp_path / "a.gif")], "found the suffix '.gif'"),
    ):
        assert run(["llm", str(LLAMA), "--gpu", "H100", *words]) == 2
        assert said in capsys.readouterr().err


def test_gpus_that_nobody_named_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["llm", str(LLAMA), "--batch", "1"]) == 0
    assert "gkest: note: no GPU is named: estimating for T4, L4" in capsys.readouterr().err


def test_gpus_of_a_group_that_are_left_out_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["llm", str(LLAMA), "--gpu", "turing,ada", "--dtype", "fp8", "--batch", "1"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if line.startswith("left out") and "T4" in line]) == 1
    with pytest.warns(GkestimatorWarning, match=r"left out, .*T4"):
        table = gkestimator.estimate_llm(LLAMA, ["turing", "ada"], dtypes="fp8", batch_sizes=1)
    assert "T4" not in set(table["gpu"])


def test_times_stay_with_their_gpu_where_one_is_left_out_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that a GPU of a group lacks shows when kernels are predicted."""
    expected = {row.gpu: row.tpot_ms for row in rows(gpus=("volta",), batch_sizes=(1,))}
    predict = Engine._predict

    def without_one(self: Engine, table: Any, used: Any, gpu: Any, share: float) -> Any:
        if gpu.name == next(iter(expected)):
            raise UsageError("lacks a figure")
        return predict(self, table, used, gpu, share)

    monkeypatch.setattr(Engine, "_predict", without_one)
    others = {row.gpu: row.tpot_ms for row in rows(gpus=("volta",), batch_sizes=(1,))}
    assert others == dict(list(expected.items())[1:])


def test_heads_that_gpus_would_hold_unevenly_are_refused(tmp_path: Path) -> None:
    document = json.loads(LLAMA.read_text(encoding="utf-8"))
    sizes = {"hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 10}
    path = tmp_path / "phi.json"
    path.write_text(json.dumps({**document, **sizes}), encoding="utf-8")
    assert rows(path, tensor_parallel=(2,), batch_sizes=(1,))
    with pytest.raises(UsageError, match="10 key heads cannot be shared by 8 GPUs"):
        rows(path, tensor_parallel=(8,))


def test_more_experts_than_there_are_cannot_be_taken(tmp_path: Path) -> None:
    document = json.loads((FOLDER / "mixtral-8x7b.json").read_text(encoding="utf-8"))
    path = tmp_path / "mixtral.json"
    path.write_text(json.dumps({**document, "num_experts_per_tok": 9}), encoding="utf-8")
    with pytest.raises(gkestimator.errors.DocumentError, match="num_experts_per_tok: found 9"):
        rows(path)
