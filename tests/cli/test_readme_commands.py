"""The commands of the README and of its how-to page, run one after the other in a copy of the checkout as on a fresh machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from walking import BLOCK, is_current, refresh_module, run_page

pytest.importorskip("packaging")
pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
FIRST_HOUR = ROOT / "docs" / "how-to" / "first-hour.md"


@dataclass
class Followed:
    """Hold what following a page left: the folder ``try``, what was printed, the page as it should be."""

    made: Path
    said: str
    current: str


def follow(page: Path, folder: Path) -> Followed:
    current, walk = refresh_module().walked(page, folder)
    return Followed(walk.clone / "try", "".join(walk.printed), current)


@pytest.fixture(scope="module")
def readme(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    return follow(README, tmp_path_factory.mktemp("readme"))


@pytest.fixture(scope="module")
def first_hour(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    return follow(FIRST_HOUR, tmp_path_factory.mktemp("first_hour"))


@pytest.mark.slow
def test_the_commands_write_what_the_readme_says(readme: Followed) -> None:
    table = pd.read_csv(readme.made / "table.csv")
    assert set(table["gpu"]) == {"T4", "L4"} and set(table["model"]) == {"resnet50", "mobilenet_v2", "minilm"}
    assert {path.name for path in (readme.made / "deploy").iterdir()} == {"triton"}
    assert b"Where the time goes" in (readme.made / "resnet50.html").read_bytes()
    assert (readme.made.parents[1] / "machine" / "pytest").read_text() == "-q -n 2 tests\n"


@pytest.mark.slow
def test_the_outputs_of_the_readme_are_current(readme: Followed) -> None:
    is_current(README.read_text(encoding="utf-8"), readme.current)
    assert readme.said.count("Each of 3 models keeps its SLO") == 2  # by chance, and in bursts


def test_every_step_of_the_readme_shows_its_output() -> None:
    """But for the two commands of the set-up and the one that activates the environment."""
    blocks = list(BLOCK.finditer(README.read_text(encoding="utf-8")))
    assert [block["output"] is None for block in blocks[:3]] == [True] * 3
    assert all(block["output"] for block in blocks[3:])
    steps = "".join(block["commands"] for block in blocks[3:])
    for command in ("estimate", "evaluate", "schedule", "export", "simulate", "--report"):
        assert command in steps


@pytest.mark.slow
def test_the_first_hour_writes_and_prints_what_it_says(first_hour: Followed) -> None:
    made = first_hour.made
    assert (made / "report" / "report.md").exists() and (made / "host.toml").exists()
    assert {path.name for path in (made / "apart").iterdir()} == {"hami", "ray-serve"}
    assert any((made / "bundle" / "gpus").glob("*.toml"))
    is_current(FIRST_HOUR.read_text(encoding="utf-8"), first_hour.current)


@pytest.mark.parametrize("page", [README, FIRST_HOUR], ids=["README", "first-hour"])
def test_every_installation_names_extras_that_exist(page: Path) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    blocks = [block["commands"] for block in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    installing = " ".join(line for line in "".join(blocks).splitlines() if "pip install" in line)
    extras = ",".join(re.findall(r"\[([\w,-]+)\]", installing)).split(",")
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)


@pytest.mark.slow
def test_a_command_that_needs_what_nobody_installed_fails(tmp_path: Path) -> None:
    page = (
        "```sh\npython3 -m venv .venv && .venv/bin/pip install -q -e .\n. .venv/bin/activate\n```\n"
        "```sh\ngkest profile plan --cpu --runtime onnxruntime --entries 2 -o plan.json\n```\n"
    )
    done = run_page(page, tmp_path)
    assert done.status == 2 and "needs scipy" in done.printed[-1]
    assert "failed: gkest profile plan" in done.printed[-1]
