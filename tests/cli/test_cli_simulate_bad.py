"""``gkest simulate`` given what it should not be given: one line that names file and field, exit status 2, nothing written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _plans import plan, replica, row, rows

from gkestimator.cli import run
from gkestimator.cli.simulate import COMPILING
from gkestimator.documents import plan_document
from gkestimator.tables import REQUIREMENTS, Requirement, write_table

Refuse = Callable[..., str]
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def refuse(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Refuse:
    """Runs the command on what it is given and returns its one line, after checking that nothing else happened."""

    def call(
        *arguments: str,
        change: Change | None = None,
        raw: bytes | None = None,
        table: list[Requirement] | None = None,
    ) -> str:
        placed = plan([replica("a"), replica("b")], models=[("a", 40.0, 100.0), ("b", 40.0, 100.0)])
        document = json.loads(json.dumps(plan_document(placed)))
        if change is not None:
            change(document)
        (tmp_path / "plan.json").write_bytes(json.dumps(document).encode() if raw is None else raw)
        write_table(REQUIREMENTS, rows() if table is None else table, tmp_path / "table.csv")
        for name in ("cluster.yaml", "net.toml", "trace.csv"):
            if not (tmp_path / name).exists():
                (tmp_path / name).write_text("gpus: [{type: V100-SXM2-16GB, count: 2}]\n")
        before = sorted(tmp_path.iterdir())
        status = run(
            ["simulate", str(tmp_path / "plan.json"), "--table", str(tmp_path / "table.csv"), "--duration-s", "2",
             "-o", str(tmp_path / "report.json"), *(a.replace("{}", str(tmp_path)) for a in arguments)]
        )  # fmt: skip
        out, err = capsysbinary.readouterr()
        lines = [line for line in err.decode().splitlines() if line != COMPILING]
        assert status == 2 and out == b""
        assert len(lines) == 1 and lines[0].startswith("gkest: error: ") and len(lines[0]) < 800
        assert "defect" not in lines[0] and "Traceback" not in lines[0]
        assert sorted(tmp_path.iterdir()) == before
        return lines[0]

    return call


def first(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["gpus"][0]["replicas"][0]
    return found


PLANS: dict[str, tuple[Change, str]] = {
    "version": (lambda d: d.update(schema_version=2), "schema_version: found 2"),
    "unknown field": (lambda d: first(d).update(speed=3), "'speed' is not a field of a replica"),
    "batch 0": (lambda d: first(d).update(batch_size=0), "batch_size: found 0"),
    "batch beyond the table": (
        lambda d: first(d).update(batch_size=64),
        "at batch 64, 100 % of the SMs, by which a-0",
    ),
    "another dtype": (
        lambda d: first(d).update(dtype="int8"),
        "it has this model there as torch, fp32, 100 %",
    ),
    "another GPU": (lambda d: d["gpus"][0].update(type="H200"), "for a on H200 (torch, fp32) at batch 4"),
    "unknown GPU": (
        lambda d: d["gpus"][0].update(type="Z9000"),
        "nothing is known of GPU Z9000, which interference needs",
    ),
    "no time-out": (
        lambda d: first(d).update(max_wait_ms=None),
        "a-0 of the plan has no max_wait_ms: give one",
    ),
    "time-out negative": (lambda d: first(d).update(max_wait_ms=-1), "max_wait_ms: found -1"),
    "model not asked for": (lambda d: d["workload"]["models"].pop(0), "a is not in the plan's workload"),
    "replica twice": (lambda d: first(d).update(id="b-0"), "two replicas have one id"),
    "rate 0": (lambda d: d["workload"]["models"][0].update(rate_rps=0), "rate_rps: found 0"),
    "rate infinite": (
        lambda d: d["workload"]["models"][0].update(rate_rps=float("inf")),
        "cannot be read as JSON",
    ),
    "goodput null": (lambda d: first(d).update(goodput_rps=None), "goodput_rps: found nothing"),
    "gpus a text": (lambda d: d.update(gpus="four"), "gpus: found a text, expected a list"),
}


@pytest.mark.parametrize("case", PLANS)
def test_plans(case: str, refuse: Refuse) -> None:
    change, words = PLANS[case]
    assert words in refuse(change=change)


RAW = {
    "empty": (b"", "plan.json: cannot be read as JSON"),
    "a list": (b"[]", "found a list, expected a plan"),
    "truncated": (b'{"schema_version": 1, "gpus": [', "plan.json: cannot be read as JSON"),
    "a table": (b"model,gpu\na,V100\n", "plan.json: cannot be read as JSON"),
    "a simulation": (b'{"schema_version": 1, "settings": {}, "totals": {}}', "gpus is missing from a plan"),
    "binary": (bytes(range(256)), "plan.json: cannot be read: byte 128 is not text in UTF-8"),
    "nesting": (b"[" * 100_000, "plan.json: cannot be read as JSON"),
}


@pytest.mark.parametrize("case", RAW)
def test_plan_files(case: str, refuse: Refuse) -> None:
    raw, words = RAW[case]
    assert words in refuse(raw=raw)


TABLES = {
    "without the model": (rows("b"), "it has no row of this model"),
    "without a latency": ([*rows("b"), row("a", 4, None)], "no row with a latency for a"),
    "without utilisation": (
        [*rows("b"), row("a", 4, 25.0, sm_util_mean_pct=None)],
        "contention needs sm_util_mean_pct, which is null for a on V100-SXM2-16GB at batch 4; expected a number, or "
        "interference none",
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables(case: str, refuse: Refuse) -> None:
    table, words = TABLES[case]
    assert words in refuse(table=table)


OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "duration 0": (("--duration-s", "0"), "'--duration-s': found 0.0, expected a number above 0 to 1000000000"),
    "duration nan": (("--duration-s", "nan"), "--duration-s"),
    "duration infinite": (("--duration-s", "inf"), "--duration-s"),
    "duration a text": (("--duration-s", "long"), "found 'long', expected a number above 0"),
    "warm-up beyond": (("--warmup-s", "2"), "warm-up of 2 s, expected less than the duration, 2 s"),
    "warm-up negative": (("--warmup-s", "-1"), "--warmup-s"),
    "rate scale 0": (("--rate-scale", "0"), "--rate-scale"),
    "rate scale nan": (("--rate-scale", "nan"), "--rate-scale"),
    "time-out negative": (("--max-wait-ms", "-3"), "--max-wait-ms"),
    "time-out nan": (("--max-wait-ms", "nan"), "--max-wait-ms"),
    "window 0": (("--window-s", "0"), "--window-s"),
    "windows beyond memory": (("--window-s", "1e-9", "--duration-s", "1e6"), "expected at most 100,000 windows"),
    "seed": (("--seed", "-1"), "--seed"),
    "service": (("--service", "slow"), "found 'slow', expected one of deterministic, exponential, interval"),
    "interference": (("--interference", "magic"), "found 'magic', expected one of"),
    "coefficients of none": (("--interference", "none", "--coefficients", "{}/net.toml"), "net.toml: interference none has none"),
    "coefficients missing": (("--interference", "gpulet", "--coefficients", "{}/no.yaml"), "no.yaml"),
    "igniter without coefficients": (("--interference", "igniter"), "igniter"),
    "copy": (("--copy", "yes"), "found 'yes', expected one of none, serial, overlap"),
    "routing": (("--routing", "random"), "found 'random', expected one of"),
    "drop": (("--drop", "early"), "found 'early', expected one of none, late"),
    "admission": (("--admission", "some"), "found 'some', expected one of"),
    "network missing": (("--network", "{}/no.toml"), "no.toml: cannot read this file of a network's delay"),
    "network wrong": (("--network", "{}/net.toml"), "net.toml: not a file of a network's delay"),
    "arrivals missing": (("--arrivals", "{}/no.csv"), "no.csv"),
    "arrivals misspelt": (("--arrivals", "poison"), "poison"),
    "arrivals a folder": (("--arrivals", "{}"), "{}"),
    "arrivals no trace": (("--arrivals", "{}/trace.csv"), "trace.csv"),
    "bursts without mmpp": (("--bursts", "3,0.2,2"), "bursts are those of arrivals mmpp, found arrivals poisson"),
    "bursts of two": (("--arrivals", "mmpp", "--bursts", "3,0.2"), "bursts: found 2 numbers, expected factor, share and seconds"),
    "bursts of words": (("--arrivals", "mmpp", "--bursts", "a,b,c"), "found 'a', expected numbers from 0 to 1000000000"),
    "trace's options without one": (("--trace-loop",), "options of a trace: found arrivals poisson"),
    "bursts beyond the rate": (("--arrivals", "mmpp", "--bursts", "9,0.5,2"), "burst"),
    "table missing": (("--table", "{}/no.csv"), "no.csv"),
    "format": (("--format", "xml"), "'xml' is not one of"),
    "suffix": (("-o", "{}/report.xlsx"), "-o {}/report.xlsx: found the suffix '.xlsx', expected .json, .csv, .txt"),
    "plot's suffix": (("--plot", "{}/p.gif"), "--plot {}/p.gif: found the suffix '.gif'"),
    "requests' suffix": (("--requests", "{}/r.json"), "--requests {}/r.json: found the suffix '.json', expected .csv, .parquet"),
    "over the plan": (("-o", "{}/plan.json"), "-o {}/plan.json: is also used as {}/plan.json"),
    "over the table": (("--requests", "{}/table.csv"), "--requests {}/table.csv: is also used as"),
    "one file for two": (("--plot", "{}/x.svg", "--requests", "{}/x.svg"), "is also used as"),
    "cluster without replan": (("--cluster", "{}/cluster.yaml"), "cluster.yaml: has no use with --replan none"),
    "policy without replan": (("--policy", "usher"), "--policy usher: has no use with --replan none"),
    "replan without cluster": (("--replan", "usher"), "--replan usher: --cluster is missing"),
    "replan with requests": (
        ("--replan", "usher", "--cluster", "{}/cluster.yaml", "--policy", "exclusive", "--requests", "{}/r.csv"),
        "--requests: requests are not kept where the policy runs again",
    ),
    "replan by nobody": (("--replan", "usher", "--cluster", "{}/cluster.yaml"), "by-hand"),
    "replan's cluster": (("--replan", "gpulet", "--cluster", "{}/no.yaml", "--policy", "exclusive"), "no.yaml"),
    "GPU file": (("--gpu-spec", "{}/net.toml"), "net.toml"),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_options(case: str, refuse: Refuse, tmp_path: Path) -> None:
    arguments, words = OPTIONS[case]
    assert words.replace("{}", str(tmp_path)) in refuse(*arguments)


def test_a_pipe_is_not_waited_for(refuse: Refuse, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    assert "pipe.toml: not a regular file" in refuse("--network", "{}/pipe.toml")


def test_no_table_and_no_plan(capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    assert run(["simulate", str(tmp_path / "plan.json")]) == 2
    assert b"Missing option '--table'" in capsysbinary.readouterr().err
    assert run(["simulate", str(tmp_path / "plan.json"), "--table", "t.csv"]) == 2
    assert b"plan.json: cannot be read" in capsysbinary.readouterr().err
