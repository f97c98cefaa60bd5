"""HTML pages: one file, safe with strangers' names, small, and drawn without an error in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gkestimator.cli import run
from gkestimator.onnx_io.demo import write_resnet50
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
    kernels = document["kernels"][detail["kernels"]]
    # The kernels' times add up to what the GPU works, the last call to what the host needs.
    busy_us = sum(detail["us"][k] * n for k, n in zip(detail["kernel"], detail["repeat"], strict=True))
    flops = sum(kernels["flops"][k] * n for k, n in zip(detail["kernel"], detail["repeat"], strict=True))
    assert busy_us / 1e3 <= row["latency_ms"] * 1.001
    assert sum(detail["calls"]) * detail["host_us"] / 1e3 == pytest.approx(row["host_ms"], rel=1e-3)
    assert flops == row["flops"]
    assert max(detail["live"]) == row["activations_bytes"]
    assert sum(nbytes for _, nbytes in detail["peak"]["alive"]) <= row["activations_bytes"]


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
    # Open the first layer: its operators appear.
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("details[open] > .leaf, details[open] > details")
    assert looked.said == []


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
