"""Plans of language models: the law of a table's rows, the closed form beside the simulator, files end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gkestimator.cli import run
from gkestimator.core.errors import DocumentError, TableError, UsageError
from gkestimator.documents import PlacementPlan, read_cluster, read_plan, read_workload
from gkestimator.llm.lengths import read_lengths
from gkestimator.llm.steps import serving_of
from gkestimator.placement.languages import demand_of, load_of, plan_languages
from gkestimator.simulation.running import FileRun, Simulated, simulate_files
from gkestimator.tables.llm_requirement import LLM_TABLE, LlmRequirement
from gkestimator.tables.writing import encode_csv

VISIBLE = 80_000_000_000
TOKEN_BYTES = 131_072
WEIGHTS = 16_000_000_000
BATCHES = (1, 8, 64, 256)
INPUTS = (128, 512, 2048, 8192)


def row(batch: int, tokens: int, **fields: Any) -> LlmRequirement:
    """Return a row by a roofline: weights read in 5 ms, 0.02 ms a token of a prompt, 40 ns a cached token."""
    answer = 256
    cache = batch * (tokens + answer) * TOKEN_BYTES
    total = WEIGHTS + cache + 10**9
    values: dict[str, Any] = {
        "model": "lm",
        "gpu": "A100-SXM4-80GB",
        "gpus": 1,
        "engine": "paged",
        "dtype": "fp16",
        "kv_dtype": "float16",
        "batch_size": batch,
        "input_tokens": tokens,
        "output_tokens": answer,
        "ttft_ms": max(6.0, 0.02 * batch * tokens),
        "tpot_ms": 6.0 + 0.02 * batch + 4e-5 * batch * (tokens + answer / 2),
        "mreq_bytes": total,
        "mreq_pct": 100 * total / VISIBLE,
        "weights_bytes": WEIGHTS,
        "kv_bytes": cache,
        "activations_bytes": 5 * 10**8,
        "context_bytes": 5 * 10**8,
        "gpus_needed": 1,
        "source": "test",
    }
    return LlmRequirement(**{**values, **fields})


def rows(**fields: Any) -> list[LlmRequirement]:
    return [row(batch, tokens, **fields) for batch in BATCHES for tokens in INPUTS]


def workload(
    rate: float, prompt: int, answer: int, ttft_ms: float = 600.0, tpot_ms: float = 30.0
) -> dict[str, Any]:
    entry = {
        "name": "lm",
        "rate_rps": rate,
        "input_tokens": prompt,
        "output_tokens": answer,
        "slo_ttft_ms": ttft_ms,
        "slo_tpot_ms": tpot_ms,
    }
    return {"language_models": [entry]}


RENTED = {"elastic": [{"type": "A100-SXM4-80GB", "price_per_hour": 3.0}]}


def plan(asked: dict[str, Any], cluster: dict[str, Any] = RENTED, **options: Any) -> PlacementPlan:
    return plan_languages(rows(), read_workload(asked), read_cluster(cluster), **options)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "llm.csv"
    path.write_bytes(encode_csv(LLM_TABLE, rows()))
    return path


def served(made: PlacementPlan, table: Path, **options: Any) -> Simulated:
    return simulate_files(made, [table], FileRun(duration_s=300, warmup_s=40, **options))


def test_the_law_is_the_table_at_its_points_and_straight_between() -> None:
    law = serving_of(rows()).law
    for entry in rows():
        assert law.prompt(entry.batch_size, entry.input_tokens) == entry.ttft_ms
        assert law.step(entry.batch_size, entry.input_tokens + 127) == entry.tpot_ms
    assert law.step(36, 639) == pytest.approx((law.step(8, 639) + law.step(64, 639)) / 2)
    assert law.prompt(1, 5) == law.prompt(1, 128)


def test_the_cache_holds_what_the_rows_leave() -> None:
    serving = serving_of(rows())
    left = VISIBLE - WEIGHTS - 10**9
    assert serving.pages == left // (16 * TOKEN_BYTES)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        (rows()[:-1], "none at batch 256, input 8192"),
        ([replace(r, tpot_ms=None) for r in rows()], "both ttft_ms and tpot_ms"),
        ([replace(r, mreq_pct=None) for r in rows()], "memory is unknown"),
        ([replace(r, weights_bytes=VISIBLE) for r in rows()], "does not fit"),
    ],
)
def test_rows_that_lack_something_are_refused(changed: list[LlmRequirement], match: str) -> None:
    with pytest.raises(TableError, match=match):
        serving_of(changed)


def test_longer_requests_than_the_table_are_refused() -> None:
    with pytest.raises(TableError, match="requests of up to 8,200 tokens"):
        demand_of(((8000, 200),), serving_of(rows()), True)


@pytest.mark.parametrize("prefill", ["chunked", "first"])
@pytest.mark.parametrize(
    ("rate", "prompt", "answer"), [(20, 1024, 256), (30, 128, 512), (6, 4096, 64), (40, 512, 128)]
)
def test_what_the_closed_form_promises_the_simulator_keeps(
    table: Path, prefill: str, rate: float, prompt: int, answer: int
) -> None:
    made = plan(workload(rate, prompt, answer), chunked=prefill == "chunked")
    assert made.totals.goodput_rps == pytest.approx(rate) and not made.unserved
    report = served(made, table).report
    (language,) = report.languages
    assert (report.models[0].on_time_pct or 0) >= 90
    # Sequences under way, by Little's law, and those whose prompts run: bursts make them more than the closed form's.
    replica = made.gpus[0].replicas[0]
    serving = serving_of(rows())
    demand = demand_of(((prompt, answer),), serving, prefill == "chunked")
    load = load_of(serving, demand, replica.goodput_rps)
    assert load is not None
    inside = load.sequences + replica.goodput_rps * demand.prompt_ms / 1e3
    came = report.models[0].arrived_rps / rate
    assert language.sequences_mean == pytest.approx(inside * len(made.gpus) * came, rel=0.2)


def test_more_load_takes_more_gpus_and_tighter_objectives_too() -> None:
    def gpus(asked: dict[str, Any]) -> int:
        return plan(asked).totals.gpus_used

    assert gpus(workload(10, 1024, 256)) < gpus(workload(100, 1024, 256))
    assert gpus(workload(40, 1024, 256, tpot_ms=12.0)) > gpus(workload(40, 1024, 256, tpot_ms=40.0))


def test_what_a_cluster_has_no_room_for_is_said() -> None:
    made = plan(workload(100, 1024, 256), {"gpus": [{"type": "A100-SXM4-80GB", "count": 2}]})
    assert made.totals.gpus_used == 2 and "no GPUs for more" in made.unserved[0].reason
    never = plan(workload(1, 1024, 256, tpot_ms=2.0))
    assert not never.gpus and "no copy keeps its objectives" in never.unserved[0].reason


def test_gpus_that_hold_a_replica_together_are_busy_together(tmp_path: Path) -> None:
    path = tmp_path / "llm.csv"
    path.write_bytes(encode_csv(LLM_TABLE, rows(gpus=2)))
    made = plan_languages(rows(gpus=2), read_workload(workload(5, 512, 128)), read_cluster(RENTED))
    assert made.languages[0].beside == ("A100-SXM4-80GB-1",) and made.totals.cost_per_hour == 6.0
    report = served(made, path).report
    assert report.gpus[0].busy_pct == report.gpus[1].busy_pct > 0


def test_files_from_the_table_to_the_report(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for k in range(200):
        trace += f"2023-11-16 18:15:{k * 0.25:010.7f},{100 + 7 * k},{10 + k % 50}\n"
    Path("trace.csv").write_text(trace)
    asked = workload(4, 1, 1)
    asked["language_models"][0] |= {"lengths": "trace.csv", "input_tokens": None, "output_tokens": None}
    Path("workload.yaml").write_text(json.dumps(asked))
    Path("cluster.yaml").write_text(json.dumps(RENTED))
    command = ["schedule", str(table), "--workload", "workload.yaml", "--cluster", "cluster.yaml"]
    assert run([*command, "-o", "plan.json"]) == 0
    assert "95 in 100 get the first token" in capsys.readouterr().err
    assert read_plan(Path("plan.json")).languages
    command = [
        "simulate",
        "plan.json",
        "--table",
        str(table),
        "--arrivals",
        "trace.csv",
        "--trace-rates",
        "trace",
    ]
    assert run(command) == 0
    assert "TTFT and TPOT" in capsys.readouterr().out
    assert run([*command, "-o", "served.json", "--prefill", "first"]) == 0
    (language,) = json.loads(Path("served.json").read_text())["languages"]
    assert 0 < language["ttft_mean_ms"] < 600
    assert run(["export", "plan.json", "--to", "csv", "-o", "out"]) == 2
    assert not Path("out").exists()
    for option in (["--copy", "serial"], ["--service", "exponential"], ["--drop", "late"]):
        assert run([*command, *option]) == 2


def test_lengths_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    for text, match in (
        ("a,b\n1,2\n", "line 1: found columns a,b"),
        ("input_tokens,output_tokens\n", "found no request"),
        ("input_tokens,output_tokens\n1,x\n", "line 2: output_tokens: found 'x'"),
        ("input_tokens,output_tokens\n1\n", "line 2: output_tokens: found None"),
    ):
        path.write_text(text)
        with pytest.raises(DocumentError, match=match):
            read_lengths(path)


def test_other_models_beside_are_refused() -> None:
    mixed = {**workload(1, 10, 10), "models": [{"name": "resnet50", "rate_rps": 1, "slo_ms": 10}]}
    with pytest.raises(UsageError, match="placed by themselves"):
        plan(mixed)
