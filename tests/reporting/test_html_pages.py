"""HTML pages: one file, safe with strangers' names, small, and drawn without an error in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from gkestimator.cli import run
from gkestimator.onnx_io.demo import write_resnet50
from gkestimator.onnx_io.reading.modules import module_paths
from gkestimator.reporting import html
from gkestimator.reporting.html import html_page
from gkestimator.simulation.saved_pages import saved_page

SAVED = Path(__file__).parents[1] / "data/written_by_0_1"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def data_of(page: bytes) -> dict[str, Any]:
    """The document inside a page, read as a browser would."""
    found = re.search(rb'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    document: dict[str, Any] = json.loads(found[1])
    return document


def test_a_hostile_name_stays_text() -> None:
    name = "</script><script>alert(1)</script><!--"
    page = html_page(
        {"kind": "plan", "title": name, "subtitle": "", "closing": "", "model": [name, float("nan")]}
    )
    assert name.encode() not in page
    assert data_of(page)["model"] == [name, None]
    assert b"<title>&lt;/script&gt;" in page
    # Nothing is fetched from anywhere.
    head = page.split(b"<script")[0]
    assert b"http" not in head


@pytest.mark.parametrize("name", ["requirements.csv", "requirements.json", "plan.json", "simulation.json"])
def test_every_saved_document_has_a_page(name: str) -> None:
    document = data_of(saved_page(SAVED / name))
    assert document["kind"] == {"requirements": "models"}.get(name.split(".")[0], name.split(".")[0])
    assert document["title"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "found none of the documents"),
        ("[1]", "a mapping of named fields"),
        ('{"workload": {}, "gpus": [], "totals": {}}', "plan.json"),
        ('{"rows": [{"policy": "x", "status": "ok"}]}', "not those of a comparison"),
        ("", "plan.json"),
    ],
)
def test_another_file_is_refused_in_one_line(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert run(["report", str(path)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "plan.html").exists()


def test_a_report_does_not_overwrite_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shutil.copy(SAVED / "plan.json", tmp_path)
    assert run(["report", str(path), "-o", str(path)]) == 2
    assert json.loads(Path(path).read_text())["gpus"]


@pytest.fixture(scope="module")
def model_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that ``gkest estimate --report`` writes for a ResNet-50 on two GPUs at three batch sizes."""
    folder = tmp_path_factory.mktemp("page")
    model = write_resnet50(folder)
    page = folder / "resnet50.html"
    words = ["estimate", str(model), "--gpu", "V100,L4", "--batch-size", "1,8,64", "--format", "csv"]
    assert run([*words, "-o", str(folder / "table.csv"), "--report", str(page)]) == 0
    return page


def test_a_models_page_holds_its_kernels_and_stays_small(model_page: Path) -> None:
    page = model_page.read_bytes()
    assert len(page) < 2_000_000
    document = data_of(page)
    assert [row["gpu"] for row in document["rows"]] == ["V100-SXM2-16GB", "L4"] * 3
    row = document["rows"][0]
    detail = document["details"]["0"]
    program = document["programs"][detail["program"]]
    launches = list(zip(program["kernel"], program["repeat"], strict=True))
    # The kernels' times add up to what the GPU works, the last call to what the host needs.
    busy_us = sum(detail["us"][k] * n for k, n in launches)
    flops = sum(program["kernels"]["flops"][k] * n for k, n in launches)
    assert busy_us / 1e3 == pytest.approx(row["gpu_ms"], rel=1e-3)
    assert sum(program["calls"]) * detail["host_us"] / 1e3 == pytest.approx(row["host_ms"], rel=1e-3)
    assert flops == row["flops"]
    peak = program["peak"]
    assert max(program["live"]) == row["activations_bytes"]
    alive = sum(nbytes for _, nbytes in peak["alive"])
    assert alive + peak["others_bytes"] == row["activations_bytes"]
    # The exporter's modules are in the names here, so that nothing is told twice.
    assert program["paths"] == []


def test_colours_stand_out_from_the_page() -> None:
    """At least 3 to 1, as WCAG 2 (1.4.11) asks of graphics, in light and in dark."""
    code = data_file("base.js")
    hues = re.findall(r'\["(#[0-9a-f]{6})", "(#[0-9a-f]{6})"\]', code)
    assert len(hues) == 7
    for light, dark in hues:
        assert contrast(light, "#ffffff") >= 3
        assert contrast(dark, "#0d1117") >= 3


def data_file(name: str) -> str:
    return (Path(html.__file__).parent / "page" / name).read_text()


def contrast(colour: str, paper: str) -> float:
    levels = sorted((luminance(colour), luminance(paper)))
    return (levels[1] + 0.05) / (levels[0] + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.fixture(scope="module")
def scoped_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three operators named as torch's exporter of today names them: their modules stand in the metadata."""
    nodes = []
    scopes = (
        "['', 'encoder', 'encoder.layer.0', 'relu']",
        "['', 'encoder', 'encoder.layer.1', 'relu_1']",
        "",
    )
    for number, scope in enumerate(scopes):
        node = helper.make_node("Relu", [f"x{number}"], [f"x{number + 1}"], name=f"node_relu_{number}")
        if scope:
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scope)
        nodes.append(node)
    ends = [helper.make_tensor_value_info(name, 1, ["N", 64, 56, 56]) for name in ("x0", "x3")]
    path = tmp_path_factory.mktemp("scoped") / "scoped.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])), path)
    return path


@pytest.fixture(scope="module")
def scoped_page(scoped_model: Path) -> Path:
    page = scoped_model.with_suffix(".html")
    words = ["estimate", str(scoped_model), "--gpu", "L4", "--sm-share", "5,100", "--include-copy"]
    assert run([*words, "--report", str(page)]) == 0
    return page


def test_modules_of_todays_exporter_are_read(scoped_model: Path, scoped_page: Path) -> None:
    paths = ["encoder/layer.0", "encoder/layer.1"]
    assert list(module_paths(scoped_model).values()) == paths
    assert module_paths(scoped_model.with_name("missing.onnx")) == {}
    document = data_of(scoped_page.read_bytes())
    (program,) = document["programs"].values()
    assert program["paths"] == [*paths, ""]
    # Both shares are told by one program, each with its own times.
    assert [detail["program"] for detail in document["details"].values()] == list(document["programs"]) * 2
    assert document["copy_counts"] is True


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``gkest diff`` writes of two models."""
    saved = tmp_path_factory.mktemp("changes") / "changes.json"
    models = [str(SAVED / "models" / name) for name in ("small.onnx", "large.onnx")]
    assert run(["diff", *models, "--gpu", "L4,T4", "--max-flops-pct", "1", "-o", str(saved)]) == 3
    return saved


def test_changes_have_a_page(changes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = data_of(saved_page(changes))
    assert document["kind"] == "changes"
    assert [row["after"]["gpu"] for row in document["rows"]] == ["L4", "T4"]
    broken = json.loads(changes.read_text())
    broken["rows"][1]["latency_ms"] = 3
    path = tmp_path / "changes.json"
    path.write_text(json.dumps(broken))
    assert run(["report", str(path)]) == 2
    assert "rows[1] is not what gkest diff" in capsys.readouterr().err


@dataclass
class Looked:
    """A page in a browser, what its console said, and what it asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium without a window."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright drives the browser: pip install playwright"
    )
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser installed: expected one of {', '.join(BROWSERS)}")
    with api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def look(browser: Any, path: Path, *, width: int = 1100, scheme: str = "light") -> Looked:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    looked = Looked(page=context.new_page())
    looked.page.on("console", lambda message: looked.said.append(message.text))
    looked.page.on("pageerror", lambda error: looked.said.append(str(error)))
    looked.page.on("request", lambda request: looked.asked.append(request.url))
    looked.page.goto(path.as_uri())
    looked.page.wait_for_selector("canvas")
    return looked


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1100])
def test_the_page_draws_without_an_error_at_any_width(browser: Any, model_page: Path, width: int) -> None:
    looked = look(browser, model_page, width=width)
    assert looked.said == []
    assert looked.asked == [model_page.as_uri()]  # no network
    assert looked.page.evaluate("document.documentElement.scrollWidth") <= width
    assert looked.page.locator("canvas").count() >= 6
    assert "ResNet" in looked.page.inner_text("h1") or "resnet50" in looked.page.inner_text("h1")
    # Every picture has words: a caption for those who look, a label for those who listen.
    assert looked.page.locator("figure").count() == looked.page.locator("figure canvas").count()
    for figure in looked.page.locator("figure").all():
        assert len(figure.locator("figcaption").inner_text()) > 40
        assert figure.locator(".chart").get_attribute("aria-label")
    # Pictures that stand beside others fit their places.
    spills = "[...document.querySelectorAll('.chart')].filter(c => c.querySelector('canvas').clientWidth !== c.clientWidth)"
    looked.page.wait_for_function(f"{spills}.length === 0")
    for heading in (
        "Verdict",
        "Where the time goes",
        "Timeline",
        "Roofline",
        "Batch sizes",
        "Memory",
        "Layers",
    ):
        assert looked.page.locator("h2", has_text=heading).count() == 1


@pytest.mark.slow
def test_the_keyboard_reaches_everything(browser: Any, model_page: Path) -> None:
    looked = look(browser, model_page)
    page = looked.page
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"theme", "SELECT", "BUTTON"} <= reached
    # Choose the other GPU by its card, as a keyboard does.
    page.locator(".card", has_text="L4").focus()
    page.keyboard.press("Enter")
    assert page.locator(".card[aria-pressed=true] b").inner_text() == "L4"
    # Zoom into the timeline.
    box = page.locator("section", has=page.locator("h2", has_text="Timeline")).locator(".chart")
    box.focus()
    span = (
        "box => { const z = echarts.getInstanceByDom(box).getOption().dataZoom[0]; return [z.start, z.end]; }"
    )
    for key, ends in (
        ("+", [25, 75]),
        ("ArrowRight", [37.5, 87.5]),
        ("-", [0, 100]),
        ("+", [25, 75]),
        ("Home", [0, 100]),
    ):
        page.keyboard.press(key)
        assert box.evaluate(span) == ends
    # Open the first layer: its operators appear.
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("details[open] > .leaf, details[open] > details")
    assert looked.said == []


@pytest.mark.slow
def test_every_case_can_be_chosen(browser: Any, scoped_page: Path) -> None:
    """Rows that differ by their share of the SMs alone are cases; the tree shows the exporter's modules."""
    looked = look(browser, scoped_page)
    page = looked.page
    assert page.locator("label", has_text="Case").locator("option").all_inner_texts() == [
        "5 % of the SMs",
        "100 % of the SMs",
    ]
    half = page.locator("section p", has_text="the GPU works").inner_text()
    page.locator("label", has_text="Case").locator("select").select_option("1")
    assert page.locator("section p", has_text="the GPU works").inner_text() != half
    assert "the latency holds" in page.inner_text("main")
    page.locator("summary", has_text="encoder").click()
    names = page.locator("details[open] > details > summary .name").all_inner_texts()
    assert names == ["0", "1"]
    assert page.locator("summary .name").first.inner_text() == "encoder/layer"
    assert looked.said == []


@pytest.mark.slow
def test_a_changes_page(browser: Any, changes: Path, tmp_path: Path) -> None:
    path = tmp_path / "changes.html"
    path.write_bytes(saved_page(changes))
    looked = look(browser, path, width=400)
    assert looked.said == []
    assert looked.page.evaluate("document.documentElement.scrollWidth") <= 400
    said = looked.page.inner_text("main")
    assert "small → large" in said
    assert "passed" in said


@pytest.mark.slow
def test_a_replica_that_takes_turns_uses_its_part_of_the_cycle(browser: Any, tmp_path: Path) -> None:
    plan = json.loads((SAVED / "plan.json").read_text())
    replica = plan["gpus"][0]["replicas"][0]
    replica |= {"creq_pct": 80.0, "latency_ms": 10.0, "duty_cycle_ms": 40.0, "partition": "turns"}
    replica |= {"latency_low_ms": None, "latency_high_ms": None}
    plan["gpus"] = [plan["gpus"][0] | {"replicas": [replica]}]
    source = tmp_path / "plan.json"
    source.write_text(json.dumps(plan))
    path = tmp_path / "plan.html"
    path.write_bytes(saved_page(source))
    looked = look(browser, path)
    label = looked.page.locator(".chart").first.get_attribute("aria-label")
    assert label.endswith(" 20 %")


DECODER = Path(os.environ.get("GKEST_SHARED", "")) / "models/llm/llama2_7b_s512.onnx"


@pytest.mark.slow
@pytest.mark.skipif(not DECODER.is_file(), reason="GKEST_SHARED names no folder with the decoder")
def test_a_decoders_page_stays_small(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "decoder.html"
    words = ["estimate", str(DECODER), "--gpu", "A100,H100", "--batch-size", "1,4", "--dtype", "fp16"]
    assert run([*words, "--report", str(path)]) == 0
    assert path.stat().st_size < 6_000_000
    looked = look(browser, path, width=400)
    assert looked.said == []
    # The file has no modules: its thousand operators stand by type.
    assert looked.page.locator("main > div > section .line").count() < 40


@pytest.mark.slow
def test_dark_and_light(browser: Any, model_page: Path) -> None:
    looked = look(browser, model_page, scheme="dark")
    page = looked.page
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark, light) == ("rgb(13, 17, 23)", "rgb(255, 255, 255)")
    assert looked.said == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan", "simulation", "requirements", "comparison/results"])
def test_saved_documents_draw_without_an_error(browser: Any, name: str, tmp_path: Path) -> None:
    source = SAVED / f"{name}.json"
    if not source.exists():
        pytest.skip(f"{name}: not among the documents of version 0.1")
    path = tmp_path / "page.html"
    path.write_bytes(saved_page(source))
    looked = look(browser, path, width=400)
    assert looked.said == []
    assert looked.page.evaluate("document.documentElement.scrollWidth") <= 400
