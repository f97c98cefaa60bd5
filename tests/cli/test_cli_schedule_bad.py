"""``gkest schedule`` given what it should not be given: one line that names file and field, exit status 2, nothing written."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from gkestimator.cli import run

A1 = Path(str(files("gkestimator.datasets") / "published" / "ethz_v100.csv"))
WORKLOAD = "models: [{name: alexnet, rate_rps: 400, slo_ms: 200}]\n"
CLUSTER = "gpus: [{type: V100-SXM2-16GB, count: 2}]\n"
Refuse = Callable[..., str]


def model(**fields: str) -> str:
    found = {"name": "alexnet", "rate_rps": "400", "slo_ms": "200"} | fields
    return "models: [{" + ", ".join(f"{k}: {v}" for k, v in found.items() if v) + "}]\n"


def application(stages: str, head: str = "name: a, rate_rps: 5, slo_ms: 500") -> str:
    return f"applications: [{{{head}, models: [{stages}]}}]\n"


@pytest.fixture
def refuse(tmp_path: Path, first_fit: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Refuse:
    """Runs the command on what it is given and returns its one line, after checking that nothing else happened."""

    def call(
        *arguments: str,
        workload: str | bytes = WORKLOAD,
        cluster: str | bytes = CLUSTER,
        table: object = A1,
        raw: bool = False,
    ) -> str:
        for name, content in (("w.yaml", workload), ("c.yaml", cluster)):
            if not raw:
                (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        before = sorted(tmp_path.iterdir())
        status = run(
            ["schedule", str(table), "--workload", str(tmp_path / "w.yaml"), "--cluster", str(tmp_path / "c.yaml"),
             "--policy", "first-fit", "-o", str(tmp_path / "plan.json"), "--plot", str(tmp_path / "plan.svg"), *arguments]
        )  # fmt: skip
        out, err = capsysbinary.readouterr()
        lines = err.decode().splitlines()
        assert status == 2 and out == b""
        assert len(lines) == 1 and lines[0].startswith("gkest: error: ") and len(lines[0]) < 800
        assert "defect" not in lines[0] and "Traceback" not in lines[0]
        assert sorted(tmp_path.iterdir()) == before
        return lines[0]

    return call


WORKLOADS = {
    "missing model": (model(name="unheard_of"), "no row for model unheard_of"),
    "missing models": (
        "models: [{name: a, rate_rps: 1, slo_ms: 1}, {name: b, rate_rps: 1, slo_ms: 1}]\n",
        "no row for models a, b",
    ),
    "rate zero": (model(rate_rps="0"), "models[0]: rate_rps: found 0, expected a number above 0"),
    "rate negative": (model(rate_rps="-3"), "rate_rps: found -3"),
    "rate nan": (model(rate_rps=".nan"), "rate_rps: found nan"),
    "rate infinite": (model(rate_rps=".inf"), "rate_rps: found inf"),
    "rate absurd": (model(rate_rps="1.0e+13"), "rate_rps: found 10000000000000.0"),
    "rate of 400 digits": (model(rate_rps="9" * 400), "expected a number of at most 64 digits"),
    "rate of 5,000 digits": (model(rate_rps="9" * 5000), "w.yaml: line 1: found '999"),
    "rate a text": (model(rate_rps="fast"), "rate_rps: found 'fast'"),
    "rate true": (model(rate_rps="true"), "rate_rps: found True"),
    "rate a date": (model(rate_rps="2026-11-22"), "rate_rps: found datetime.date(2026, 11, 22)"),
    "a date that is none": (model(rate_rps="2026-13-45"), "cannot be read as YAML: month must be in 1..12"),
    "rate null": (model(rate_rps="null"), "rate_rps: found nothing"),
    "rate missing": (model(rate_rps=""), "rate_rps is missing"),
    "slo zero": (model(slo_ms="0"), "slo_ms: found 0"),
    "slo nan": (model(slo_ms=".NaN"), "slo_ms: found nan"),
    "slo below the fastest latency": (
        model(slo_ms="1"),
        "alexnet: SLO 1 ms is below its fastest latency, 1.4 ms (batch 4 on V100-SXM2-16GB) (--allow-unserved",
    ),
    "weight zero": (model(weight="0"), "weight: found 0"),
    "unknown field": (model(rate="3"), "'rate' is not a field of a model of the workload"),
    "no models": ("models: []\n", "found no models and no applications"),
    "empty file": ("", "found nothing, expected a workload"),
    "a list": ("- 1\n", "found a list, expected a workload"),
    "a text": ("hello\n", "found a text, expected a workload"),
    "models a mapping": ("models: {name: alexnet}\n", "models: found a mapping, expected a list"),
    "a model that is a text": ("models: [alexnet]\n", "models[0]: found a text"),
    "repeated key": (model() + "models: []\n", "models stands twice"),
    "repeated key of numbers": ("1: a\n1: b\n", "expected"),
    "repeated name": (
        "models: [{name: alexnet, rate_rps: 1, slo_ms: 99}, {name: alexnet, rate_rps: 2, slo_ms: 99}]\n",
        "models: alexnet stands twice",
    ),
    "alias": ("models: &a [{name: alexnet, rate_rps: 1, slo_ms: 99}]\napplications: *a\n", "found an anchor or alias"),
    "laughs": ("a: &a [x, x]\nb: &b [*a, *a]\n", "line 1: found an anchor or alias"),
    "tag": ("models: !!python/object/apply:os.system ['true']\n", "found a tag"),
    "merge key": ("models: [{<<: {name: alexnet}, rate_rps: 1}]\n", "slo_ms is missing"),
    "two documents": (WORKLOAD + "---\n" + WORKLOAD, "expected one document"),
    "deep nesting": ("models: " + "[" * 900, "nested at most 20 deep"),
    # libyaml from 0.2.6 refuses these itself, before it says how the document begins.
    "very deep nesting": ("models: " + "[" * 5000, "nested at most 20 deep|exceeded maximum nesting depth"),
    "deep mappings": ("{a: " * 3000, "nested at most 20 deep"),
    "truncated": (WORKLOAD[:30], "cannot be read as YAML"),
    "tabs": ("models:\n\t- x\n", "cannot be read as YAML"),
    "binary": (bytes(range(256)), "w.yaml: cannot be read"),
    "not UTF-8": (b"models: [{name: \xff\xfe}]", "w.yaml: cannot be read: byte 16 is not text in UTF-8"),
    "control character": (b"models: [{name: a\x00b}]", "w.yaml: cannot be read"),
    "another version": ("schema_version: 2\n" + WORKLOAD, "schema_version: found 2"),
    "stage unknown": (application("{model: alexnet, after: [nobody]}"), "after: 'nobody' is not a stage"),
    "circle": (
        application("{model: alexnet, after: [vgg19]}, {model: vgg19, after: [alexnet]}"),
        "follow each other in a circle",
    ),
    "own follower": (application("{model: alexnet, after: [alexnet]}"), "follow each other in a circle"),
    "stage twice": (application("{model: alexnet}, {model: alexnet}"), "alexnet stands twice"),
    "no stages": (application(""), "expected at least one stage"),
    "fan-out zero": (application("{model: alexnet, fan_out: 0}"), "fan_out: found 0"),
    "after a number": (application("{model: alexnet, after: 3}"), "after: found something else"),
}  # fmt: skip


@pytest.mark.parametrize("case", WORKLOADS)
def test_workloads(case: str, refuse: Refuse) -> None:
    text, words = WORKLOADS[case]
    line = refuse(workload=text)
    assert any(word in line for word in words.split("|"))
    assert "w.yaml" in line or "no row" in words


HOSTILE = (
    "../x", "/etc/passwd", "a/../b", "a//b", "$(reboot)", "`id`", "a;b", "a b", "-rf", ".hidden", "a\\nb", "a\\u202eb", "naïve",
    "a" * 201, "", "a'b", "{{a}}", "%s", "~",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("where", ["model", "application", "stage"])
def test_hostile_names(name: str, where: str, refuse: Refuse) -> None:
    quoted = '"' + name + '"'
    workload = {
        "model": model(name=quoted),
        "application": application("{model: alexnet}", f"name: {quoted}, rate_rps: 5, slo_ms: 500"),
        "stage": application(f"{{model: {quoted}}}"),
    }[where]
    line = refuse(workload=workload)
    assert "expected a name" in line and "w.yaml" in line and line.isprintable()


CLUSTERS = {
    "empty": ("", "found nothing, expected a cluster"),
    "no GPUs": ("gpus: []\n", "found no GPUs, expected either gpus or elastic"),
    "nothing": ("{}\n", "found no GPUs"),
    "both": (CLUSTER + "elastic: [{type: T4, price_per_hour: 1}]\n", "found both gpus and elastic"),
    "unknown GPU": ("gpus: [{type: V1000, count: 1}]\n", "gpus[0]: type: "),
    "count zero": ("gpus: [{type: V100, count: 0}]\n", "count: found 0, expected a whole number from 1"),
    "count negative": ("gpus: [{type: V100, count: -1}]\n", "count: found -1"),
    "count a fraction": ("gpus: [{type: V100, count: 1.5}]\n", "count: found 1.5"),
    "count nan": ("gpus: [{type: V100, count: .nan}]\n", "count: found nan"),
    "count huge": ("gpus: [{type: V100, count: 1000000}]\n", "count: found 1000000"),
    "count of 400 digits": (
        f"gpus: [{{type: V100, count: {'9' * 400}}}]\n",
        "expected a number of at most 64 digits",
    ),
    "too many in all": (
        "gpus: [{type: V100, count: 99999}, {type: T4, count: 99999}]\n",
        "more than 100,000 GPUs",
    ),
    "count missing": ("gpus: [{type: V100}]\n", "count is missing"),
    "type a number": ("gpus: [{type: 100, count: 1}]\n", "type: found 100"),
    "type hostile": ('gpus: [{type: "$(id)\\n", count: 1}]\n', "type: found"),
    "twice": (
        "gpus: [{type: V100, count: 1}, {type: V100-SXM2-16GB, count: 1}]\n",
        "V100-SXM2-16GB stands twice",
    ),
    "price zero": ("elastic: [{type: V100, price_per_hour: 0}]\n", "price_per_hour: found 0"),
    "price negative": ("elastic: [{type: V100, price_per_hour: -1}]\n", "price_per_hour: found -1"),
    "price nan": ("elastic: [{type: V100, price_per_hour: .nan}]\n", "price_per_hour: found nan"),
    "limit zero": ("elastic: [{type: V100, price_per_hour: 1, limit: 0}]\n", "limit: found 0"),
    "no rows there": ("gpus: [{type: H200, count: 1}]\n", "alexnet has rows, but none on H200"),
    "alias": ("gpus: &a []\nelastic: *a\n", "found an anchor or alias"),
    "unknown field": ("gpus: [{type: V100, count: 1, price: 3}]\n", "'price' is not a field"),
    "a list": ("[]\n", "found a list, expected a cluster"),
}


@pytest.mark.parametrize("case", CLUSTERS)
def test_clusters(case: str, refuse: Refuse) -> None:
    text, words = CLUSTERS[case]
    line = refuse(cluster=text)
    assert words in line and ("c.yaml" in line or case == "no rows there")


def table_with(tmp_path: Path, change: Callable[[dict[str, str]], object], *, twice: bool = False) -> Path:
    """Table A.1's rows of alexnet, each after ``change``; ``twice``: the originals too."""
    head, *rest = A1.read_text().splitlines()
    names = head.split(",")
    lines = [head]
    for text in rest:
        if ",alexnet," in text:
            row = dict(zip(names, text.split(","), strict=True))
            lines += [text] * twice
            change(row)
            lines.append(",".join(row.values()))
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "t.csv"


TABLES: dict[str, tuple[dict[str, str], str]] = {
    "latency nan": ({"latency_ms": "nan"}, "row 1, column latency_ms: found nan"),
    "latency infinite": ({"latency_ms": "inf"}, "row 1, column latency_ms: found inf"),
    "latency a text": ({"latency_ms": "fast"}, "row 1, column latency_ms: found 'fast'"),
    "latency negative": ({"latency_ms": "-1"}, "row 1, column latency_ms: found -1"),
    "latency null": ({"latency_ms": "", "throughput_rps": ""}, "alexnet has no row with a latency"),
    "latency zero": ({"latency_ms": "0", "throughput_rps": "0"}, "alexnet has no row with a latency"),
    "batch zero": ({"batch_size": "0"}, "row 1, column batch_size: found 0"),
    "another version": ({"schema_version": "2"}, "row 1, column schema_version: found 2"),
    "Creq null": (
        {"sm_util_mean_pct": ""},
        "policy first-fit needs sm_util_mean_pct, which is null in every row of alexnet",
    ),
    "memory null": (
        {"reserved_bytes": ""},
        "policy first-fit needs mreq_bytes (or reserved_bytes), which is null",
    ),
    "memory larger than any GPU": (
        {"reserved_bytes": "40000000000"},
        "alexnet: needs 236.3 % of the memory of V100-SXM2-16GB at batch 4, the least of all GPUs within its SLO",
    ),
    "hostile runtime": (
        {"runtime": "$(id)\x1b[31m"},
        "alexnet: runtime: found '$(id)\\x1b[31m', expected a line of text",
    ),
    "endless dtype": ({"dtype": "f" * 101}, "alexnet: dtype: found"),
    "one row twice": ({"batch_size": "4"}, "rows 1 and 2 both answer model=alexnet, gpu=V100-SXM2-16GB"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables(case: str, refuse: Refuse, tmp_path: Path) -> None:
    changed, words = TABLES[case]
    path = table_with(tmp_path, lambda row: row.update(changed))
    line = refuse(table=path)
    assert words in line and ("t.csv" in line or "alexnet" in line)


def test_two_rows_for_one_question(refuse: Refuse, tmp_path: Path) -> None:
    path = table_with(tmp_path, lambda row: row.update(dtype="fp16"), twice=True)
    line = refuse(table=path)
    assert (
        "two rows answer for alexnet on V100-SXM2-16GB at batch 4" in line
        and "choose with --dtype (fp32 or fp16)" in line
    )
    path = table_with(tmp_path, lambda row: row.update(gpu="V100"), twice=True)
    assert "two rows answer for alexnet" in refuse(table=path)


def test_a_table_that_is_none(refuse: Refuse, tmp_path: Path) -> None:
    for name, content, words in (
        ("empty.csv", b"", "found an empty file"),
        ("cut.csv", A1.read_bytes()[:700], "cells, expected"),
        ("binary.csv", bytes(range(256)) * 9, "binary.csv"),
        ("list.json", b"[1, 2]", "list.json"),
        ("deep.json", b"[" * 100_000, "deep.json: cannot be read as JSON"),
        ("nan.json", b'{"schema_version": 1, "rows": [{"latency_ms": NaN}]}', "found NaN"),
        ("plan.xls", b"x", "plan.xls: found the suffix '.xls'"),
        ("head.csv", A1.read_bytes().splitlines()[0] + b"\n", "no row for model alexnet"),
    ):
        (tmp_path / name).write_bytes(content)
        assert words in refuse(table=tmp_path / name)
    assert "missing.csv: cannot be read" in refuse(table=tmp_path / "missing.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "other than a regular file" in refuse(table=tmp_path / "folder.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    assert "other than a regular file" in refuse(table=tmp_path / "pipe.csv")


@pytest.mark.parametrize("name", ["w.yaml", "c.yaml"])
def test_documents_that_are_no_files(refuse: Refuse, tmp_path: Path, name: str) -> None:
    other = {"w.yaml": ("c.yaml", CLUSTER), "c.yaml": ("w.yaml", WORKLOAD)}[name]
    (tmp_path / other[0]).write_text(other[1])
    assert f"{name}: cannot be read" in refuse(raw=True)
    os.mkfifo(tmp_path / name)
    assert f"{name}: found something other than a regular file" in refuse(raw=True)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert name in refuse(raw=True)


def test_a_yaml_of_100_mb_is_not_read(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    with open(tmp_path / "w.yaml", "wb") as stream:
        stream.write(WORKLOAD.encode())
        stream.truncate(100_000_000)
    assert "w.yaml: found 100,000,000 bytes, expected at most 10,485,760" in refuse(raw=True)


@pytest.mark.slow
def test_a_yaml_of_many_items_is_not_built(refuse: Refuse) -> None:
    assert "found more than 200,000 items" in refuse(workload="models: [" + "1," * 300_000 + "1]")


def test_a_plan_that_cannot_be_written(refuse: Refuse, tmp_path: Path) -> None:
    assert "p.json: cannot be written: No such file" in refuse("-o", str(tmp_path / "none" / "p.json"))
