"""Add one of each kind of thing with only the files that CONTRIBUTING.md names, and use it by the command line.

What is added stands in CONTRIBUTING.md, as its worked examples: the page is read here, so it cannot go stale.
Runtimes and options of an estimate have tests of this kind of their own (tests/hardware, tests/cli/test_options.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import ROOT, HouseCopy

pytestmark = pytest.mark.slow
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WORKLOAD = "models:\n  - {name: resnet50, rate_rps: 20, slo_ms: 200}\n"
CLUSTER = "gpus:\n  - {type: V100-SXM2-16GB, count: 2}\n"


def worked_example(file: str) -> str:
    """Return the code block of CONTRIBUTING.md whose first line names `file` in a comment."""
    blocks = re.findall(r"```(?:python|toml)\n(# " + re.escape(file) + r"\n.*?)```", PAGE, flags=re.S)
    assert len(blocks) == 1, f"CONTRIBUTING.md: {len(blocks)} blocks of {file}"
    return str(blocks[0])


def add_worked_example(house: HouseCopy, file: str) -> None:
    """Write a worked example into the copy; a page path `gkestimator/...` or of a mapped folder."""
    house.add(file.removeprefix("gkestimator/"), worked_example(file))


def add_entry(house: HouseCopy, file: str) -> None:
    """Add the entry that the page shows for a registry: a line to stand before the registry's last line."""
    line = re.search(r"`" + re.escape(file) + r"`[^`]*: `([^`]+)`", PAGE)
    assert line is not None, f"CONTRIBUTING.md shows no entry of {file}"
    path = house.package / file.removeprefix("gkestimator/")
    source = path.read_text(encoding="utf-8")
    start = re.search(r"^(POLICIES|EXPORTERS|COLLECTORS)\b.*?\{\n", source, flags=re.M | re.S)
    assert start is not None
    path.write_text(f"{source[: start.end()]}    {line.group(1)}\n{source[start.end() :]}", encoding="utf-8")


@pytest.mark.slow
def test_an_operator_is_one_file(house: HouseCopy, one_node: Callable[..., Path]) -> None:
    model = one_node("Newcomer", "com.example")
    assert "Newcomer" in house.run("estimate", model, "--gpu", "T4", status=2)
    add_worked_example(house, "gkestimator/operators/newcomer.py")
    listing = house.run("estimate", model, "--gpu", "T4", "--kernels", "--format", "csv")
    assert "newcomer" in listing


@pytest.mark.slow
def test_a_gpu_is_one_short_file(house: HouseCopy, one_node: Callable[..., Path]) -> None:
    add_worked_example(house, "datasets/gpus/NEWCOMER-24GB.toml")
    assert len(worked_example("datasets/gpus/NEWCOMER-24GB.toml").splitlines()) <= 25
    assert "NEWCOMER-24GB" in house.run("gpus")
    assert "2,520" in house.run("gpus", "newcomer") or "2520" in house.run("gpus", "newcomer")
    assert "NEWCOMER-24GB" in house.run(
        "estimate", one_node("Relu"), "--gpu", "newcomer-24gb", "--format", "csv"
    )


@pytest.mark.slow
def test_a_collector_is_one_file_and_one_entry(house: HouseCopy) -> None:
    pytest.importorskip("onnxruntime")
    add_worked_example(house, "profiling/collectors/newcomer.py")
    add_entry(house, "profiling/collectors/registry.py")
    assert "newcomer" in house.run("profile", "run", "--help")
    house.run("profile", "plan", "--cpu", "--runtime", "onnxruntime", "--entries", "3", "-o", "plan.json")
    house.run("profile", "run", "plan.json", "--collector", "newcomer", "--device", "cpu", "-o", "raw")
    assert "3 operators" in house.run("profile", "build", "raw", "-o", "data.parquet")


@pytest.mark.slow
def test_a_policy_is_one_file_and_one_entry(house: HouseCopy) -> None:
    add_worked_example(house, "gkestimator/placement/papers/newcomer.py")
    add_entry(house, "gkestimator/placement/registry.py")
    assert "newcomer" in house.run("schedule", "--help")
    (house.folder / "w.yaml").write_text(WORKLOAD)
    (house.folder / "c.yaml").write_text(CLUSTER)
    table = house.package / "datasets" / "published" / "ethz_v100.csv"
    text = house.run(
        "schedule",
        table,
        "--workload",
        "w.yaml",
        "--cluster",
        "c.yaml",
        "--policy",
        "newcomer",
        "--format",
        "json",
    )
    assert '"policy": "newcomer"' in text


def test_an_exporter_is_one_file_and_one_entry(house: HouseCopy) -> None:
    add_worked_example(house, "gkestimator/exporting/newcomer.py")
    add_entry(house, "gkestimator/exporting/registry.py")
    assert "newcomer" in house.run("export", "--targets")
    table = house.package / "datasets" / "published" / "ethz_v100.csv"
    house.run("export", table, "--only", "resnet50", "--batch-size", "8", "--to", "newcomer", "-o", "out")
    assert "resnet50" in (house.folder / "out" / "newcomer" / "models.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_column_is_one_field(house: HouseCopy, one_node: Callable[..., Path]) -> None:
    model = one_node("Relu")
    house.run("estimate", model, "--gpu", "T4", "-o", "before.csv")
    before = re.search(
        r"    power_w: .*?\n    \)\n|    power_w: [^\n]*\n",
        (house.package / "tables" / "requirement.py").read_text(),
    )
    assert before is not None
    house.edit("tables/requirement.py", before.group(0), worked_column() + before.group(0))
    house.run("estimate", model, "--gpu", "T4", "-o", "after.csv")
    heading_before, heading_after = (
        (house.folder / name).read_text(encoding="utf-8").splitlines()[0].split(",")
        for name in ("before.csv", "after.csv")
    )
    assert set(heading_after) - set(heading_before) == {"fan_speed_pct"}
    rows = [
        (house.folder / name).read_text(encoding="utf-8").splitlines()[1].split(",")
        for name in ("before.csv", "after.csv")
    ]
    version = heading_before.index("schema_version")
    assert rows[0][version] != rows[1][heading_after.index("schema_version")]
    house.run("export", "before.csv", "--to", "csv", "-o", "out")  # the older file still loads


def worked_column() -> str:
    """Return the field that CONTRIBUTING.md adds to the requirement table."""
    blocks = re.findall(r"```python\n# in gkestimator/tables/requirement.py\n(.*?)```", PAGE, flags=re.S)
    assert len(blocks) == 1
    return "".join(f"    {line}\n" for line in str(blocks[0]).splitlines())
