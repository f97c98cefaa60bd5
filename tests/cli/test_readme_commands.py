"""The README's commands, run one after the other in a copy of the checkout as on a fresh machine."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from walking import run_page  # tests/cli is on the path

pytest.importorskip("packaging")
pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the README was followed: ``clone``, ``machine`` and what was printed (``said``)."""
    folder = tmp_path_factory.mktemp("fresh")
    done = run_page(README, folder)
    assert done.status == 0, done.printed[-1][-3000:]
    (folder / "said").write_text("".join(done.printed), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_commands_write_what_the_readme_says(fresh: Path) -> None:
    made = fresh / "clone" / "try"
    table = pd.read_csv(made / "all.csv")
    assert set(table["gpu"]) == {"T4", "L4"} and set(table["batch_size"]) == {1, 8}
    assert (made / "report" / "report.md").exists() and (made / "host.toml").exists()
    assert {path.name for path in (made / "deploy").iterdir()} == {"hami", "ray-serve", "triton"}
    assert any((made / "bundle" / "gpus").glob("*.toml"))
    assert b"Where the time goes" in (made / "resnet50.html").read_bytes()


@pytest.mark.slow
def test_the_plan_is_kept_but_for_bursts(fresh: Path) -> None:
    said = (fresh / "said").read_text(encoding="utf-8")
    assert said.count("Each of 2 models keeps its SLO") == 1
    in_bursts = re.search(r"Less than 99 % on time: resnet50 ([\d.]+) %", said)
    assert in_bursts is not None
    assert 65 <= float(in_bursts[1]) <= 85, "the README says that a quarter is late"


@pytest.mark.slow
def test_every_installation_names_extras_that_exist(fresh: Path) -> None:
    assert (fresh / "machine" / "pytest").read_text() == "-q -n 2 tests\n"
    asked = (fresh / "machine" / "installed").read_text()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extras in re.findall(r"\[([\w,-]+)\]", asked):
        for extra in extras.split(","):
            assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


def test_the_workload_of_the_page_is_that_of_the_example() -> None:
    shown = re.search(r"^```yaml\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    example = ROOT / "examples" / "first-steps" / "workload.yaml"
    assert shown is not None and shown[1] == example.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_command_that_needs_what_nobody_installed_fails(tmp_path: Path) -> None:
    page = (
        "```sh\npython3 -m venv .venv && .venv/bin/pip install -q -e .\n. .venv/bin/activate\n```\n"
        "```sh\ngkest profile plan --cpu --runtime onnxruntime --entries 2 -o plan.json\n```\n"
    )
    done = run_page(page, tmp_path)
    assert done.status == 2 and "needs scipy" in done.printed[-1]
    assert "failed: gkest profile plan" in done.printed[-1]
