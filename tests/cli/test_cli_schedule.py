"""``gkest schedule``: what goes where, statuses, formats, filters; by a third party's policy, so that none of ours decides."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import click
import pytest

from gkestimator.cli import run
from gkestimator.cli.schedule import command
from gkestimator.core.errors import TableError
from gkestimator.core.extras import install_extra
from gkestimator.documents import read_plan
from gkestimator.documents.plan import BATCHINGS
from gkestimator.placement.building import OBJECTIVES
from gkestimator.placement.registry import POLICIES
from gkestimator.placement.report import PLAN_FORMATS
from gkestimator.tables import REQUIREMENTS, read_table
from gkestimator.tables.candidate import CREQ_COLUMNS

A1 = Path(str(files("gkestimator.datasets") / "published" / "ethz_v100.csv"))
WORKLOAD = """models:
- {name: alexnet, rate_rps: 400, slo_ms: 200}
- {name: resnet50, rate_rps: 100, slo_ms: 200}
"""
CLUSTER = "gpus: [{type: V100, count: 2}]\n"
RENTED = "elastic: [{type: V100, price_per_hour: 3.0}]\n"
Outcome = tuple[int, str, list[str]]
Schedule = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "w.yaml").write_text(WORKLOAD)
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "rented.yaml").write_text(RENTED)
    return tmp_path


@pytest.fixture
def schedule(folder: Path, first_fit: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Schedule:
    def call(
        *arguments: str, table: object = A1, workload: str = "w.yaml", cluster: str = "c.yaml"
    ) -> Outcome:
        status = run(
            ["schedule", str(table), "--workload", str(folder / workload), "--cluster", str(folder / cluster),
             "--policy", "first-fit", *arguments]
        )  # fmt: skip
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode().splitlines()

    return call


def test_help_names_every_policy_and_imports_none(
    capsysbinary: pytest.CaptureFixture[bytes], first_fit: Path
) -> None:
    assert run(["schedule", "--help"]) == 0
    text = capsysbinary.readouterr()[0].decode()
    policies = text[text.index("Policies:") :]
    assert {
        line.split()[0] for line in policies.splitlines() if line.startswith("  ") and line[2] != " "
    } >= set(POLICIES)
    assert "first-fit" in policies and "first-fit-policy" in policies and "first_fit" not in sys.modules


def test_the_choices_are_those_of_the_package() -> None:
    """They stand in the command as literals, so that help imports no scheduler."""
    choices = {p.name: tuple(p.type.choices) for p in command.params if isinstance(p.type, click.Choice)}
    assert choices == {
        "creq": tuple(CREQ_COLUMNS),
        "objective": OBJECTIVES,
        "form": PLAN_FORMATS,
        "batching": BATCHINGS,
    }


def test_a_plan_for_late_batching_says_so_and_shows_largest_batches(schedule: Schedule, folder: Path) -> None:
    late = ("--policy", "gkest", "--batching", "late")
    status, out, _ = schedule(*late)
    assert status == 0
    assert "at most" in out and "on time %" in out
    assert "every objective holds on 1 GPU too" in out
    schedule(*late, "-o", str(folder / "late.json"))
    plan = read_plan(folder / "late.json")
    assert plan.batching == "late"
    assert any((r.max_batch_size or 0) > r.batch_size for g in plan.gpus for r in g.replicas)
    _, out, _ = schedule("--policy", "gkest")
    assert "at most" not in out and "every objective holds" not in out


def test_the_plan_alone_is_on_stdout(schedule: Schedule) -> None:
    status, out, err = schedule()
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "policy first-fit · objective goodput · Creq sm-util-mean · seed 0"
    assert max(map(len, lines[:12])) <= 100
    assert any(line.startswith("V100-SXM2-16GB-0") and " alexnet " in line for line in lines)
    assert any(line.startswith("note: GPU 'V100' is taken as") for line in lines)
    assert err[0].startswith(
        "first-fit places 2 of 2 models as 2 replicas on 2 of 2 GPUs (6.12 USD per hour): goodput 500.0 of 500.0 req/s"
    )
    assert err[-1] == "The latencies were measured."


def test_json_is_the_plan_document_and_csv_its_replicas(schedule: Schedule, folder: Path) -> None:
    _, text, _ = schedule("--format", "json")
    (folder / "plan.json").write_text(text)
    plan = read_plan(folder / "plan.json")
    assert plan.totals.goodput_rps == 500.0 and plan.policy == "first-fit"
    _, listing, err = schedule("--format", "csv")
    rows = list(csv.DictReader(io.StringIO(listing)))
    replicas = [(g, r) for g in plan.gpus for r in g.replicas]
    assert [(row["gpu"], row["id"], float(row["latency_ms"]), float(row["creq_pct"])) for row in rows] == [
        (g.id, r.id, r.latency_ms, r.creq_pct) for g, r in replicas
    ]
    assert rows[0]["partition"] == "" and rows[0]["latency_low_ms"] == ""
    assert any(line.startswith("gkest: note:") for line in err)  # what the table and JSON carry themselves


def test_a_file_takes_the_form_of_its_suffix_and_stdout_stays_empty(schedule: Schedule, folder: Path) -> None:
    for name, starts in (("p.json", "{"), ("p.csv", "gpu,gpu_type,id"), ("p.txt", "policy first-fit")):
        status, out, err = schedule("-o", str(folder / name))
        assert (status, out) == (0, "") and err[0] == f"gkest: wrote {folder / name}"
        assert (folder / name).read_text().startswith(starts)
    status, out, err = schedule("-o", str(folder / "p.xlsx"))
    assert status == 2 and len(err) == 1 and "'.xlsx'" in err[0] and not (folder / "p.xlsx").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)  # fmt: skip
def test_the_picture_is_drawn_and_repeats_itself(
    schedule: Schedule, folder: Path, suffix: str, magic: bytes
) -> None:
    pytest.importorskip("matplotlib")
    status, out, err = schedule("--plot", str(folder / f"a.{suffix}"))
    assert status == 0 and out and f"gkest: wrote {folder / f'a.{suffix}'}" in err
    schedule("--plot", str(folder / f"b.{suffix}"))
    data = (folder / f"a.{suffix}").read_bytes()
    assert data.startswith(magic) and data == (folder / f"b.{suffix}").read_bytes()


def test_a_picture_that_cannot_be_written_does_not_cost_the_plan(schedule: Schedule, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    status, out, err = schedule("--plot", str(folder / "none" / "p.svg"))
    assert status == 1 and out.startswith("policy first-fit")
    assert [line for line in err if "error" in line] == [
        f"gkest: error: --plot: {folder / 'none' / 'p.svg'}: cannot be written: No such file or directory"
    ]


def test_no_matplotlib_is_one_line(schedule: Schedule, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, err = schedule("--plot", str(folder / "a.png"))
    assert (status, out) == (2, "") and err == [
        f"gkest: error: a picture needs matplotlib: {install_extra('plot')}"
    ]


def test_lack_of_capacity_is_an_answer(schedule: Schedule, folder: Path) -> None:
    (folder / "much.yaml").write_text(WORKLOAD.replace("400", "40000"))
    status, out, err = schedule(workload="much.yaml")
    assert status == 0
    assert "not served:" in out and "no room" in out
    assert err[1].startswith("Not served: alexnet") and "resnet50" in err[1]


def test_what_no_gpu_here_could_serve_is_refused_or_left_out(schedule: Schedule, folder: Path) -> None:
    (folder / "tight.yaml").write_text(
        WORKLOAD.replace("slo_ms: 200}\n- {name: resnet50", "slo_ms: 1}\n- {name: resnet50")
    )
    status, out, err = schedule(workload="tight.yaml")
    assert (status, out) == (2, "")
    (line,) = err
    assert line.startswith(
        f"gkest: error: {folder / 'tight.yaml'}: alexnet: SLO 1 ms is below its fastest latency, 1.4 ms (batch 4"
    )
    assert line.endswith("(--allow-unserved places the others)")
    status, out, err = schedule("--allow-unserved", "--format", "json", workload="tight.yaml")
    assert status == 1
    document = json.loads(out)
    assert [u["model"] for u in document["unserved"]] == ["alexnet"]
    assert {r["model"] for g in document["gpus"] for r in g["replicas"]} == {"resnet50"}


def test_an_application_that_is_too_fast_has_a_line_for_each_model(schedule: Schedule, folder: Path) -> None:
    stages = "{model: alexnet}, {model: bert, after: [alexnet]}"
    (folder / "app.yaml").write_text(
        f"applications: [{{name: app, rate_rps: 5, slo_ms: 4, models: [{stages}]}}]\n"
    )
    status, out, err = schedule(workload="app.yaml")
    assert (status, out) == (2, "") and len(err) == 2
    for line, model in zip(err, ("alexnet", "bert"), strict=True):
        assert (
            f"app.yaml: {model}: its part " in line
            and "of the SLO 4 ms of app is below its fastest latency" in line
        )


def test_rented_gpus_are_bought_for_cost(schedule: Schedule) -> None:
    status, out, err = schedule("--format", "json", cluster="rented.yaml")
    document = json.loads(out)
    assert status == 0 and document["objective"] == "cost" and not document["unserved"]
    assert document["totals"]["cost_per_hour"] == 3.0 * document["totals"]["gpus_used"]
    assert " of 2 GPUs" not in err[0]


def test_options_reach_the_policy_and_those_it_lacks_are_refused(schedule: Schedule, folder: Path) -> None:
    (folder / "much.yaml").write_text(WORKLOAD.replace("100,", "40000,"))
    _, out, _ = schedule(
        "--option", "limit=1", "--format", "json", workload="much.yaml", cluster="rented.yaml"
    )
    assert sum(len(g["replicas"]) for g in json.loads(out)["gpus"]) == 2
    for arguments, words in (
        (("--no-sort",), "policy first-fit has no option no-sort; it has limit"),
        (("--coefficients", "x.toml"), "policy first-fit has no option coefficients"),
        (("--option", "limit=0"), "policy first-fit does not take limit=0"),
        (("--option", "limit=nan"), "expected a finite number"),
        (("--option", "limit"), "expected NAME=VALUE"),
        (("--option", "limit=1", "--option", "limit=2"), "stands twice"),
        (("--policy", "gkset"), "unknown policy 'gkset'; did you mean gkest? (known: gkest, "),
    ):
        status, out, err = schedule(*arguments)
        assert (status, out) == (2, "") and len(err) == 1 and words in err[0]


def test_rows_are_chosen_by_runtime_dtype_and_dims(schedule: Schedule, folder: Path) -> None:
    lines = A1.read_text().splitlines()
    twice = [*lines, *(line.replace(",torch,fp32,", ",onnxruntime,fp16,") for line in lines[1:])]
    (folder / "two.csv").write_text("\n".join(twice) + "\n")
    status, out, err = schedule(table=folder / "two.csv")
    assert (status, out) == (2, "") and len(err) == 1
    assert (
        "two rows answer for" in err[0]
        and "--runtime (torch or onnxruntime)" in err[0]
        and "--dtype" in err[0]
    )
    _, out, _ = schedule("--runtime", "onnxruntime", "--format", "json", table=folder / "two.csv")
    assert {(r["runtime"], r["dtype"]) for g in json.loads(out)["gpus"] for r in g["replicas"]} == {
        ("onnxruntime", "fp16")
    }
    status, _, err = schedule("--dims", "seq=7", table=folder / "two.csv")
    assert status == 2 and "none under --runtime, --dtype, --dims" in err[0]


def test_several_tables_are_one(schedule: Schedule, folder: Path) -> None:
    lines = A1.read_text().splitlines()
    for name, model in (("one.csv", ",alexnet,"), ("two.csv", ",resnet50,")):
        (folder / name).write_text("\n".join([lines[0], *(x for x in lines if model in x)]) + "\n")
    whole = schedule("--format", "json")[1]
    assert schedule(str(folder / "two.csv"), "--format", "json", table=folder / "one.csv")[1] == whole
    status, _, err = schedule(str(folder / "one.csv"), table=A1)
    assert status == 2 and "two rows answer for alexnet" in err[0]


def test_outputs_do_not_cost_inputs(schedule: Schedule, folder: Path) -> None:
    for arguments in (
        ("-o", str(folder / "c.yaml")),
        ("--plot", str(folder / "w.yaml")),
        ("-o", str(folder / "x.json"), "--plot", str(folder / "x.json")),
    ):
        status, out, err = schedule(*arguments)
        assert (status, out) == (2, "") and len(err) == 1 and "expected a file of its own" in err[0]
    assert (folder / "c.yaml").read_text() == CLUSTER and not (folder / "x.json").exists()


def test_a_large_table_is_read_for_the_models_that_are_asked_for(folder: Path) -> None:
    lines = A1.read_text().splitlines()
    broken = [x.replace(",alexnet,V100", ",other,V100").replace(",69.17,", ",no number,") for x in lines[1:2]]
    (folder / "t.csv").write_text("\n".join([*lines, *broken]) + "\n")
    with pytest.raises(TableError, match=r"row 72, column occupancy_max_pct"):
        read_table(folder / "t.csv", REQUIREMENTS)
    kept = read_table(folder / "t.csv", REQUIREMENTS, where={"model": {"alexnet"}})
    assert kept == tuple(r for r in read_table(A1, REQUIREMENTS) if r.model == "alexnet")


def test_a_quick_workload_stands_for_a_file(
    schedule: Schedule, folder: Path, first_fit: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    _, by_file, _ = schedule("--format", "json")

    def quick(*parts: str) -> Outcome:
        spelt = [word for part in parts for word in ("--quick", part)]
        fixed = ["--cluster", str(folder / "c.yaml"), "--policy", "first-fit", "--format", "json"]
        status = run(["schedule", str(A1), *fixed, *spelt])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode().splitlines()

    for parts in (
        ["alexnet:400rps@200ms,resnet50:100rps@0.2s"],
        ["alexnet:400rps@200ms", "resnet50:100rps@200ms"],
    ):
        assert quick(*parts)[:2] == (0, by_file)
    assert quick("alexnet:400rps@0.001ms")[2][0].startswith("gkest: error: workload: alexnet: ")
    for wrong in ([], ["alexnet"], ["alexnet:1rps@1ms", "alexnet:1rps@1ms"]):
        status, out, err = quick(*wrong)
        assert (status, out, len(err)) == (2, "", 1)
    status, _, err = schedule("--quick", "alexnet:1rps@1ms")
    assert status == 2 and "expected either --workload FILE or --quick" in err[0]
