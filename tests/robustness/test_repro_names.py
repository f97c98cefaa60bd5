"""Names from strangers reach every output escaped: terminals, tables, JSON, HTML, Markdown, ONNX, pbtxt and shell words."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gkestimator.cli import run
from gkestimator.core.escaping import is_line, markdown, one_line, printable, safe_cell, utf8

# What a file is called, in bytes, and what its model is called everywhere.
HOSTILE = {
    b"esc\x1b[31m\x07": r"esc\u001b[31m\u0007",
    b"bytes\xff\xfe": r"bytes\xff\xfe",
    b"new\nline\rgkest: error": r"new\nline\rgkest: error",
    b"{{x}}%s{0}": "{{x}}%s{0}",
    b"q'uo\"te`$(x)": "q'uo\"te`$(x)",
    b"=cmd()|'x'!A1": "=cmd()|'x'!A1",
    b"<script>alert(1)<": "<script>alert(1)<",
    "bidi\u202egnp\u200b".encode(): r"bidi\u202egnp\u200b",
    "c1\u009b2J\u2028".encode(): r"c1\u009b2J\u2028",
    b"..": "..",
    b"-o": "-o",
    b"L" * 240: "L" * 240,
}
Gkest = Callable[..., tuple[int, str, str]]


def network(path: bytes | Path, *, node: str = "n", tensor: str = "x") -> None:
    """Write a model of one operator."""
    graph = helper.make_graph(
        [helper.make_node("Relu", [tensor], [f"{tensor}_out"], name=node)],
        "g",
        [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info(f"{tensor}_out", TensorProto.FLOAT, ["N", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with open(path, "wb") as file:
        file.write(model.SerializeToString())


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in HOSTILE:
        network(os.path.join(os.fsencode(folder), name + b".onnx"))
    return folder


@pytest.fixture
def gkest(capfdbinary: pytest.CaptureFixture[bytes]) -> Gkest:
    """Run a command and hold everything that it prints to what a terminal shows as it is."""

    def call(*arguments: str | Path, status: int = 0) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        ended = run([str(a) for a in arguments])
        out, err = (stream.decode("utf-8", "strict") for stream in capfdbinary.readouterr())
        assert ended == status, (ended, err)
        assert "a defect" not in err
        for line in (out + err).split("\n"):
            assert line.isprintable(), line
        return ended, out, err

    return call


@pytest.mark.parametrize("form", ["table", "csv", "json", "markdown", "perfetto"])
def test_files_of_hostile_names_are_estimated(models: Path, gkest: Gkest, form: str) -> None:
    if form == "perfetto":
        models = Path(os.fsdecode(os.path.join(os.fsencode(models), b"bytes\xff\xfe.onnx")))
    _, out, _ = gkest("estimate", models, "--gpu", "T4", "--format", form)
    if form == "csv":
        names = {row["model"] for row in csv.DictReader(io.StringIO(out))}
    elif form == "json":
        names = {row["model"] for row in json.loads(out)["rows"]}
    elif form == "perfetto":
        assert json.loads(out)["traceEvents"]
        return
    else:
        assert form == "table" or "<script" not in out.replace("\\<", "")
        return
    assert names == set(HOSTILE.values())


def test_written_tables_are_read_back_and_draw_a_page_without_their_markup(
    models: Path, gkest: Gkest, tmp_path: Path
) -> None:
    for suffix in ("csv", "json", "parquet"):
        table = tmp_path / f"t.{suffix}"
        gkest("estimate", models, "--gpu", "T4", "-o", table)
        gkest("report", table, "-o", tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        seen = Elements()
        seen.feed(page)
        assert seen.scripts == 3 and not seen.alerts
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
        assert data is not None and set(HOSTILE.values()) <= texts_in(json.loads(data[1]))


class Elements(HTMLParser):
    """Count scripts, and those that only a name could have begun."""

    scripts = 0
    alerts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"

    def handle_data(self, data: str) -> None:
        self.alerts += self.lasttag == "script" and data.startswith("alert(1)")


def texts_in(value: object) -> set[str]:
    """Return every text in a document."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return {text for item in value for text in texts_in(item)}
    return set()


@pytest.mark.parametrize("form", ["table", "json"])
def test_files_of_hostile_names_are_inspected(models: Path, gkest: Gkest, form: str) -> None:
    gkest("inspect", models, "--format", form)


def test_what_cannot_be_read_is_named_in_one_line(tmp_path: Path, gkest: Gkest) -> None:
    for name in HOSTILE:
        path = os.fsdecode(os.path.join(os.fsencode(tmp_path), name + b".x.onnx"))
        Path(path).write_bytes(b"no model")
        _, _, err = gkest("estimate", path, "--gpu", "T4", status=2)
        assert len([line for line in err.splitlines() if line.startswith("gkest: error")]) == 1
        gkest("estimate", path + "-", "--gpu", "T4", status=2)
        gkest("schedule", "--table", path, "--workload", path, "--cluster", path, status=2)
        gkest("simulate", "--plan", path, "--table", path, status=2)
        gkest("export", path, "--to", "mps", status=2)
        gkest("report", path, status=2)
        gkest("compare", path, status=2)
    gkest("--debug", "estimate", path, "--gpu", "esc\x1b[31m", status=2)
    gkest("estimate", path, "--gpu", "T4", "--esc\x1b[31m", status=2)


@pytest.mark.parametrize("name", ["node\x1b[2J\n", "bidi\u202e", "<b>|`"])
def test_names_inside_of_a_model_are_escaped(tmp_path: Path, gkest: Gkest, name: str) -> None:
    network(tmp_path / "m.onnx", node=name, tensor=name)
    for form in ("table", "csv", "json", "markdown"):
        gkest("estimate", tmp_path / "m.onnx", "--gpu", "T4", "--kernels", "--format", form)
    gkest("inspect", tmp_path / "m.onnx")
    gkest("merge", tmp_path / "m.onnx", tmp_path / "m.onnx", "--gpu", "T4")


def test_hostile_files_merge_into_names_that_can_be_printed(
    models: Path, gkest: Gkest, tmp_path: Path
) -> None:
    paths = [os.path.join(os.fsencode(models), name + b".onnx") for name in list(HOSTILE)[:3]]
    merged = tmp_path / "merged.onnx"
    gkest("merge", *map(os.fsdecode, paths), "--gpu", "T4", "--always", "-o", merged, "--report")
    inputs = {value.name.partition("/")[0] for value in onnx.load(merged).graph.input}
    assert inputs <= set(HOSTILE.values()) and len(inputs) == 3


@pytest.mark.parametrize("name", ['a"b', "a: b\n", "a'b $(id)", "-- {", "\u202ea"])
def test_tensors_of_hostile_names_are_read_back_from_tritons_files(
    tmp_path: Path, gkest: Gkest, name: str
) -> None:
    from google.protobuf import text_format

    from gkestimator.exporting.triton_config import new_config

    network(tmp_path / "net.onnx", tensor=name)
    for runtime in ("onnxruntime", "tensorrt"):
        table = tmp_path / f"{runtime}.csv"
        out = tmp_path / runtime
        gkest("estimate", tmp_path / "net.onnx", "--gpu", "T4", "--runtime", runtime, "-o", table)
        gkest("export", table, "--to", "triton", "--models", tmp_path / "net.onnx", "-o", out)
        config = text_format.Parse(
            (out / "triton/net/config.pbtxt").read_text(encoding="utf-8"), new_config()
        )
        assert [tensor.name for tensor in config.input] == [name]
    script = (tmp_path / "tensorrt/triton/build-engines.sh").read_text(encoding="utf-8")
    words = shlex.split(script, comments=True)
    shapes = [word for word in words if word.startswith("--minShapes=")]
    assert shapes and all(name in word for word in shapes) and "id" not in words


@pytest.mark.parametrize("target", ["mps", "triton", "kserve", "ray-serve", "hami", "volcano", "modelmesh"])
def test_a_table_of_hostile_names_becomes_no_path_and_no_manifest(
    models: Path, gkest: Gkest, tmp_path: Path, target: str
) -> None:
    gkest("estimate", models, "--gpu", "T4", "-o", tmp_path / "t.csv")
    out = tmp_path / "out"
    _, _, err = gkest("export", tmp_path / "t.csv", "--to", target, "-o", out, status=2)
    assert "expected a name" in err and not out.exists()


def test_a_name_steers_no_terminal(models: Path, tmp_path: Path) -> None:
    """The closing line, the table and CSV on a pseudo-terminal, which is what escapes are for."""
    target = os.fsdecode(b"out\x1b]0;owned\x07.csv")
    model = os.path.join(os.fsencode(models), b"esc\x1b[31m\x07.onnx")
    estimate = ["estimate", os.fsdecode(model), "--gpu", "T4"]
    commands = [[*estimate, "-o", target], [*estimate, "--format", "csv"], estimate]
    code = f"from gkestimator.cli import run; print([run(command) for command in {commands!r}])"
    mine, theirs = pty.openpty()
    arguments = [sys.executable, "-c", code]
    done = subprocess.Popen(arguments, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, cwd=tmp_path)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that nobody holds the other end
        while part := os.read(mine, 2**16):
            shown += part
    os.close(mine)
    assert done.wait() == 0 and b"[0, 0, 0]" in shown
    assert rb"wrote out\u001b]0;owned\u0007.csv" in shown and shown.count(rb"esc\u001b[31m") >= 3
    assert b"\x1b" not in shown and b"\x07" not in shown
    assert (tmp_path / target).exists()


def test_safe_csv_quotes_what_a_spreadsheet_computes_and_says_so(
    models: Path, gkest: Gkest, tmp_path: Path
) -> None:
    arguments = ("estimate", models, "--gpu", "T4", "--format", "csv")
    _, plain, said = gkest(*arguments)
    assert "CSV:" not in said
    _, safe, said = gkest(*arguments, "--safe-csv")
    assert said.splitlines()[-1] == "CSV: ' was put before texts that a spreadsheet would compute (2)"
    changed = {}
    for before, after in zip(plain.splitlines(), safe.splitlines(), strict=True):
        if before != after:
            changed[before.split(",")[1]] = after.split(",")[1]
    assert changed == {"=cmd()|'x'!A1": "'=cmd()|'x'!A1", "-o": "'-o"}
    (tmp_path / "t.csv").write_text(safe, encoding="utf-8")
    gkest("report", tmp_path / "t.csv", "-o", tmp_path / "p.html")
    _, listing, said = gkest("gpus", "--format", "csv", "--safe-csv")
    assert "nothing was changed" in said and listing == gkest("gpus", "--format", "csv")[1]


def test_numbers_stay_numbers_in_safe_csv() -> None:
    from gkestimator.tables.csv_text import csv_text, safe_cells

    rows = [["-5", -5, -1.5e-9, None, True, "+x", "@y", "\tz", "=1", "a=1", ""]]
    assert csv_text(["a"], rows).splitlines()[1].startswith("-5,-5,-1.5e-09,,True,+x,@y")
    with safe_cells() as changed:
        (cells,) = list(csv.reader(io.StringIO(csv_text(["a"], rows), newline="")))[1:]
    assert cells == ["'-5", "-5", "-1.5e-09", "", "True", "'+x", "'@y", "'\tz", "'=1", "a=1", ""]
    assert changed.count == 5


def test_what_is_escaped_and_what_stays() -> None:
    for raw, safe in HOSTILE.items():
        name = os.fsdecode(raw)
        assert printable(name) == safe and printable(safe) == safe and is_line(safe, 500)
        assert is_line(name, 500) == (name == safe)
        utf8(name).decode()
        assert one_line(f"{name}: x").isprintable()
    assert printable("größe 模型") == "größe 模型" and printable("\U000e0001") == r"\U000e0001"
    assert not is_line("", 5, least=1) and not is_line("x" * 6, 5) and not is_line(None, 5)
    assert markdown("<b>[a](javascript:x)") == r"\<b>[a]\(javascript:x)"
    assert safe_cell("a-b") == "a-b" and safe_cell("\r=") == "'\r="


def test_a_name_is_no_formula_in_the_pictures_of_an_evaluation(tmp_path: Path, gkest: Gkest) -> None:
    network(tmp_path / r"$\frac{a}$.onnx")
    (tmp_path / "t.csv").write_text("model,batch_size,latency_ms\n$\\frac{a}$,1,0.05\n", encoding="utf-8")
    arguments = ("--truth", tmp_path / "t.csv", "--models", tmp_path, "--gpu", "T4")
    gkest("evaluate", *arguments, "--report", tmp_path / "report")
    assert (tmp_path / "report/models.png").exists()


def test_a_table_of_hostile_names_places_nothing_that_is_not_asked_for(
    models: Path, gkest: Gkest, tmp_path: Path
) -> None:
    table = tmp_path / "t.csv"
    gkest("estimate", models, "--gpu", "T4", "-o", table)
    (tmp_path / "c.yaml").write_text("gpus: [{type: T4, count: 1}]\n", encoding="utf-8")
    for name in ("resnet50", "../x", r"esc\x1b[31m"):
        text = f'models: [{{name: "{name}", rate_rps: 1, slo_ms: 100}}]\n'
        (tmp_path / "w.yaml").write_text(text, encoding="utf-8")
        gkest(
            "schedule", table, "--workload", tmp_path / "w.yaml", "--cluster", tmp_path / "c.yaml", status=2
        )
    gkest("diff", table, table)
    gkest("choose", models / "q'uo\"te`$(x).onnx", "--gpu", "T4", "--rate", "1", "--slo-ms", "100", status=1)
