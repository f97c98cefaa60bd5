"""``gkest diff``: models, tables, limits, and the forms of its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from gkestimator.cli import run
from gkestimator.cli.diff import OVER_A_LIMIT
from gkestimator.estimation.changes import AllChanges, FigureChange, KernelChange, RowChange
from gkestimator.estimation.changes_report import change_words, render_changes
from gkestimator.estimation.request import ChangeLimits
from gkestimator.tables import REQUIREMENTS, Requirement, write_table

Outcome = tuple[int, str, str]
Gkest = Callable[..., Outcome]
SMALL = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[N, 256] x, float[256, 256] w) => (float[N, 256] y) { h = MatMul (x, w)  y = Relu (h) }"""
WITH_SOFTMAX = SMALL.replace("y = Relu (h)", "r = Relu (h)  y = Softmax (r)")
UNKNOWN = SMALL.replace("y = Relu (h)", "y = com.example.Odd (h)").replace(
    '["" : 17]', '["" : 17, "com.example" : 1]'
)


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return written(tmp_path / "old" / "net.onnx", SMALL)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return written(tmp_path / "new" / "net.onnx", WITH_SOFTMAX)


@pytest.fixture
def gkest(capsysbinary: pytest.CaptureFixture[bytes]) -> Gkest:
    def call(*arguments: str | Path) -> Outcome:
        status = run([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


def row(**cells: Any) -> Requirement:
    known = {
        "model": "net",
        "gpu": "T4",
        "runtime": "torch",
        "dtype": "fp32",
        "batch_size": 1,
        "latency_ms": 1.0,
        "latency_low_ms": 0.8,
        "latency_high_ms": 1.3,
        "mreq_bytes": 2**30,
        "flops": 1000,
        "source": "analytical",
        "occupancy_source": None,
        "memory_source": "analytical",
    }
    return Requirement(**{**known, **cells})


def table(path: Path, *rows: Requirement) -> Path:
    write_table(REQUIREMENTS, rows, path)
    return path


def test_a_softmax_more(old: Path, new: Path, gkest: Gkest) -> None:
    status, out, err = gkest(
        "diff",
        old,
        new,
        "--gpu",
        "T4,H100",
        "--batch-size",
        "1,64",
        "--runtime",
        "onnxruntime",
        "--format",
        "json",
    )
    assert status == 0, err
    document = json.loads(out)
    assert document["compared"] == "models" and document["within_limits"]
    assert [(r["after"]["gpu"], r["after"]["batch_size"]) for r in document["rows"]] == [
        ("T4", 1), ("H100-SXM", 1), ("T4", 64), ("H100-SXM", 64),
    ]  # fmt: skip
    for changed in document["rows"]:
        assert changed["before"]["model"] == changed["after"]["model"] == "net"
        [kernel] = changed["kernels"]  # product and Relu stand in both
        assert kernel["name"].startswith("softmax")
        assert (kernel["launches_before"], kernel["launches_after"], kernel["before_us"]) == (0, 1, 0)
        assert f"{changed['after']['batch_size']} rows of 256" in kernel["shape"]
        latency = changed["latency_ms"]
        assert latency["change_low"] <= latency["change"] <= latency["change_high"]
        assert latency["change"] == pytest.approx(latency["after"] - latency["before"])
        # What is in both does not count: one small kernel reaches far less than the whole model's interval.
        assert latency["change_high"] < 0.03
        assert changed["flops"]["change"] > 0


def test_a_model_and_itself(old: Path, gkest: Gkest) -> None:
    status, out, _ = gkest("diff", old, old, "--gpu", "T4", "--max-latency-pct", "0", "--format", "json")
    [changed] = json.loads(out)["rows"]
    assert status == 0
    assert changed["kernels"] == []
    assert [changed["latency_ms"][name] for name in ("change", "change_low", "change_high")] == [0, 0, 0]


def test_the_figures_are_those_of_estimates(old: Path, new: Path, gkest: Gkest, tmp_path: Path) -> None:
    """Model against model, and table against table of the same estimates, say the same figures."""
    asked = ("--gpu", "T4", "--batch-size", "8", "--include-copy")
    tables = [tmp_path / "old.csv", tmp_path / "new.json"]
    for model, path in zip((old, new), tables, strict=True):
        assert gkest("estimate", model, *asked, "-o", path)[0] == 0
    of_models, of_tables = (
        json.loads(gkest("diff", *words, "--format", "json")[1])["rows"][0]
        for words in ((old, new, *asked), tables)
    )
    for name in ("latency_ms", "memory_bytes", "flops"):
        for field in ("before", "after", "change", "change_pct"):
            assert of_models[name][field] == of_tables[name][field]
    assert of_tables["kernels"] is None and of_tables["latency_ms"]["change_low"] is None
    assert of_models["latency_ms"]["change_low"] is not None


def test_copies_move_the_change_and_its_interval_alike(old: Path, tmp_path: Path, gkest: Gkest) -> None:
    more_out = SMALL.replace("(float[N, 256] y)", "(float[N, 256] y, float[N, 256] h)")
    new = written(tmp_path / "copying" / "net.onnx", more_out.replace("y = Relu", "y = Tanh"))
    asked = ("diff", old, new, "--gpu", "T4", "--batch-size", "4096", "--format", "json")
    alone, copied = (
        json.loads(gkest(*asked, *more)[1])["rows"][0]["latency_ms"] for more in ((), ("--include-copy",))
    )
    moved_ms = copied["change"] - alone["change"]
    assert moved_ms > 0.1
    for end in ("change_low", "change_high"):
        assert copied[end] - alone[end] == pytest.approx(moved_ms)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ((), 0),
        (("--max-latency-pct", "1000"), 0),
        (("--max-latency-pct", "0"), OVER_A_LIMIT),
        (("--max-flops-pct", "0.001"), OVER_A_LIMIT),
        (("--max-memory-pct", "50", "--max-flops-pct", "1000"), 0),
    ],
)
def test_limits(old: Path, new: Path, gkest: Gkest, words: tuple[str, ...], status: int) -> None:
    got, out, err = gkest("diff", old, new, "--gpu", "T4", *words)
    assert got == status
    assert out.startswith("GPU  batch ") and "softmax" in out
    assert ("Over the limit: " in err) == (status == OVER_A_LIMIT)
    assert "of the kernels that differ alone" in err


def test_tables(tmp_path: Path, gkest: Gkest) -> None:
    before = table(tmp_path / "a.csv", row(), row(gpu="V100-SXM2-16GB"), row(batch_size=8))
    after = table(
        tmp_path / "b.json",
        row(latency_ms=1.1, mreq_bytes=2**29, model="net2"),
        row(batch_size=8, model="net2"),
        row(gpu="L4", model="net2"),
    )
    status, out, err = gkest("diff", before, after, "--max-latency-pct", "5")
    assert status == OVER_A_LIMIT
    assert "+10.0" in out and "-50.0" in out and "net → net2" not in err
    assert "Over the limit: latency on T4, batch 1: +10.0 %, at most +5 % is asked for" in err
    assert "Only in OLD: net on V100-SXM2-16GB, batch 1" in err
    assert "Only in NEW: net2 on L4, batch 1" in err
    assert "interval: not known, for tables do not hold their kernels" in err
    rows = json.loads(gkest("diff", before, after, "--format", "json")[1])["rows"]
    # The second row is equal but for the model's name, so that it changed by nothing.
    assert [changed["latency_ms"]["change_low"] for changed in rows] == [None, 0]


def test_what_is_not_known_passes_no_gate(tmp_path: Path, gkest: Gkest) -> None:
    before = table(tmp_path / "a.csv", row())
    after = table(tmp_path / "b.csv", row(latency_high_ms=None, mreq_bytes=None))
    for flag, what in (("--max-latency-pct", "latency"), ("--max-memory-pct", "memory")):
        status, _, err = gkest("diff", before, after, flag, "1000")
        assert status == OVER_A_LIMIT
        assert f"{what} on T4, batch 1: the change is not known" in err
    assert gkest("diff", before, after, "--max-flops-pct", "0")[0] == 0
    measured = table(tmp_path / "c.csv", row(latency_high_ms=None, source="measured"))
    assert gkest("diff", before, measured, "--max-latency-pct", "0")[0] == 0
    grown = [table(tmp_path / f"flops{count}.csv", row(flops=count)) for count in (0, 5)]
    status, _, err = gkest("diff", *grown, "--max-flops-pct", "10")
    assert status == OVER_A_LIMIT and "grew from nothing" in err


def test_unknown_operators_leave_the_change_unknown(old: Path, tmp_path: Path, gkest: Gkest) -> None:
    odd = written(tmp_path / "odd.onnx", UNKNOWN)
    status, out, _ = gkest(
        "diff", old, odd, "--gpu", "T4", "--allow-unknown", "--max-latency-pct", "900", "--format", "json"
    )
    [changed] = json.loads(out)["rows"]
    assert status == OVER_A_LIMIT
    for name in ("latency_ms", "memory_bytes", "flops"):
        assert changed[name]["before"] is not None
        assert changed[name]["after"] is changed[name]["change"] is changed[name]["change_high"] is None


def test_a_model_that_does_not_fit_any_more_is_said(tmp_path: Path, gkest: Gkest) -> None:
    before = table(tmp_path / "a.csv", row(mreq_pct=90.0))
    after = table(tmp_path / "b.csv", row(mreq_pct=110.0))
    status, _, err = gkest("diff", before, after)
    assert status == 0 and "Fitted before and does not fit now: net on T4, batch 1" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("{old}", "{new}"), "no GPU is named"),
        (("{old}", "{csv}", "--gpu", "T4"), "expected two ONNX files or two tables"),
        (("{csv}", "{csv}", "--gpu", "T4"), "--gpu is for models"),
        (("{csv}", "{csv}", "--dtype", "fp16"), "--dtype is for models"),
        (("{csv}", "{other}"), "found no row in common, expected rows with the same gpu, runtime"),
        (("{text}", "{csv}"), "missing from the requirement table"),
        (
            ("{old}", "{fixed}", "--gpu", "T4"),
            "found batch size 1 in OLD and 4 in NEW: expected --batch-size",
        ),
        (("{old}", "{none}", "--gpu", "T4"), "none.onnx"),
        (("{broken}", "{new}", "--gpu", "T4"), "broken.onnx"),
        (("{old}", "{new}", "--gpu", "T5000"), "T5000"),
        (("{old}", "{new}", "--gpu", "T4", "-o", "x.html"), "found the suffix '.html'"),
        (("{old}", "{new}", "--gpu", "T4", "--format", "markdown", "-o", "{old}"), "also used as"),
        (
            ("{old}", "{new}", "--gpu", "T4", "--max-latency-pct", "nan"),
            "expected a number from -100 to 1000000",
        ),
        (("{old}", "{new}", "--gpu", "T4", "--max-memory-pct", "five"), "--max-memory-pct"),
    ],
)
def test_bad_input_is_one_line_and_2(
    tmp_path: Path, old: Path, new: Path, gkest: Gkest, words: tuple[str, ...], expected: str
) -> None:
    fixed = SMALL.replace("float[N, 256] x", "float[4, 256] x").replace("float[N, 256] y", "float[4, 256] y")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    text = tmp_path / "text.csv"
    text.write_text("model,gpu\nnet,T4\n")
    files = {
        "old": old,
        "new": new,
        "csv": table(tmp_path / "t.csv", row()),
        "other": table(tmp_path / "other.csv", row(gpu="L4")),
        "fixed": written(tmp_path / "fixed.onnx", fixed),
        "none": tmp_path / "none.onnx",
        "broken": broken,
        "text": text,
    }
    status, out, err = gkest("diff", *(word.format(**files) for word in words))
    assert (status, out) == (2, "")
    assert err.startswith("gkest: error: ") and err.count("\n") == 1
    assert expected in err


def change(**more: Any) -> RowChange:
    figure = FigureChange(before=1.0, after=1.1, low=0.05, high=0.2)
    return RowChange(
        before=row(), after=row(latency_ms=1.1), latency=figure, memory=figure, flops=figure, **more
    )


def markdown(*rows: RowChange, limits: ChangeLimits | None = None) -> str:
    return render_changes(AllChanges(rows=rows), limits or ChangeLimits(), "markdown").decode()


def test_markdown_begins_with_the_answer_and_folds_the_kernels(
    tmp_path: Path, old: Path, new: Path, gkest: Gkest
) -> None:
    page = tmp_path / "comment.md"
    status, out, err = gkest("diff", old, new, "--gpu", "T4", "--max-flops-pct", "0.001", "-o", page)
    assert (status, out) == (OVER_A_LIMIT, "") and "wrote" in err
    text = page.read_text(encoding="utf-8")
    assert text.startswith("**Over the limit: latency +")
    assert "| GPU | batch |  | before | after | change % | interval % |" in text
    assert "- `Over the limit: FLOPs on T4, batch 1: +" in text
    folded = text[text.index("<details>") :]
    assert "softmax" in folded and "softmax" not in text[: text.index("<details>")]
    assert text.count("<details>") == text.count("</details>") == 2
    assert markdown(change(kernels=()), limits=ChangeLimits(max_latency_pct=50)).startswith(
        "**Within the limits: "
    )
    assert markdown(change(kernels=())).startswith("**latency +10.0 %, ")


def test_strangers_names_mean_nothing_in_markdown() -> None:
    evil = "` <img src=x> @everyone ` | [a](b)\n# x"
    kernel = KernelChange(
        name=evil, shape=evil, launches_before=0, launches_after=1, before_us=0.0, after_us=1.0
    )
    bad = change(kernels=(kernel,))
    bad = replace(bad, after=replace(bad.after, model=evil, dims=evil, gpu=evil, dtype=evil, mreq_pct=120.0))
    bad = replace(bad, before=replace(bad.before, mreq_pct=20.0))
    page = render_changes(
        AllChanges(rows=(bad,), only_before=(bad.after,)), ChangeLimits(max_latency_pct=1), "markdown"
    ).decode()
    assert "<img" in page
    for line in page.splitlines():
        outside = "".join(line.split("`")[::2])
        assert line.count("`") % 2 == 0
        assert "<img" not in outside and "@everyone" not in outside and "[a]" not in outside
        assert not line.startswith("# x")


def test_a_comment_is_not_longer_than_github_takes() -> None:
    kernels = tuple(
        KernelChange(
            name=f"kernel{i}" * 9,
            shape="x" * 60,
            launches_before=0,
            launches_after=1,
            before_us=0.0,
            after_us=1.0,
        )
        for i in range(50)
    )
    page = markdown(*[change(kernels=kernels)] * 200)
    assert len(page) <= 65_536
    assert "140 more rows" in page and "30 more that differ less" in page
    assert "More kernels than a comment holds" in page
    assert page.count("<details>") == page.count("</details>")


def test_how_sure_a_passed_limit_is() -> None:
    for limit, words in ((2.0, "(over the whole interval)"), (7.0, "(the interval begins at +5.0 %)")):
        lines = change_words(AllChanges(rows=(change(kernels=()),)), ChangeLimits(max_latency_pct=limit))
        assert lines[-1].endswith(f"+10.0 % {words}, at most +{limit:g} % is asked for")


def test_the_page_shows_what_its_command_says(
    old: Path, new: Path, gkest: Gkest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to/diff.md").read_text(encoding="utf-8")
    command, shown = (block.strip() for block in re.findall(r"^```\w*\n(.*?)^```", page, re.S | re.M)[:2])
    old.parent.rename(tmp_path / "before")
    new.parent.rename(tmp_path / "after")
    monkeypatch.chdir(tmp_path)
    status, out, _ = gkest(*command.split()[1:])
    assert status == OVER_A_LIMIT
    assert words_of(out) == words_of(shown)
    assert len(page.split()) < 600


def words_of(text: str) -> list[str]:
    """Return the words of a page without its figures, which move with the bundle."""
    return re.findall(r"[A-Za-z]{2,}", text)
