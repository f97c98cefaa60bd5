"""The example of docs/how-to/merging.md is what the program prints today."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path

import pytest

from gkestimator.merging.matching import RefusedOperators
from gkestimator.merging.pricing import Price
from gkestimator.merging.report import (
    MergedModel,
    MergeReport,
    ReportedOperator,
    ReportedRegion,
)

pytest.importorskip("scipy")
pytest.importorskip("onnxruntime")

REFRESH = Path(__file__).parents[2] / "docs" / "refresh_readme.py"
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
ROUNDING = re.compile(r"(largest relative difference) (\S+)")


@pytest.mark.slow
def test_the_example_is_current(tmp_path: Path) -> None:
    loading = importlib.util.spec_from_file_location("refresh_merging", REFRESH)
    assert loading is not None and loading.loader is not None
    module = importlib.util.module_from_spec(loading)
    loading.loader.exec_module(module)
    (block,) = module.NAMED.finditer(module.MERGING.read_text(encoding="utf-8"))
    found = module.output_of(block["arguments"], module.merging_folder(tmp_path))
    difference = ROUNDING.search(found)
    assert difference is not None and float(difference[2]) <= 1e-5
    # Another processor rounds otherwise, in the outputs and in the last digit of a figure.
    shown, now = (ROUNDING.sub(r"\1", text) for text in (block["output"], found))
    assert " ".join(NUMBER.sub("#", shown).split()) == " ".join(NUMBER.sub("#", now).split())
    numbers = [[float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (shown, now)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.01, abs=0.11), "run: python docs/refresh_readme.py"


def test_the_page_names_every_key_of_the_json() -> None:
    text = (REFRESH.parent / "reference" / "merge-report.md").read_text(encoding="utf-8")
    for kind in (MergeReport, ReportedOperator, ReportedRegion, RefusedOperators, MergedModel, Price):
        for field in dataclasses.fields(kind):
            name = field.name.replace("latency_low_ms", "latency_ms").replace("latency_high_ms", "latency_ms")
            assert f"`{name}`" in text, f"{kind.__name__}.{field.name}"
