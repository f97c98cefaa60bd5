"""The commands of the README and of its how-to page, run one after the other in a copy of the checkout as on a fresh machine.

The environment that ``python3 -m venv`` would make and ``pip`` fill is tests/data/fresh_machine: it holds the gkest of this
checkout, which can import only what the commands so far have installed, and cannot reach a network.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("packaging")
pytest.importorskip("onnxruntime")
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIRST_HOUR = (ROOT / "docs" / "how-to" / "first-hour.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
FRESH = ROOT / "tests" / "data" / "fresh_machine"


def clone(folder: Path) -> Path:
    """Return a copy of the checkout in ``folder`` without what Git ignores."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    patterns = [".git", *(line.strip("/") for line in ignored)]
    return Path(shutil.copytree(ROOT, folder / "clone", ignore=shutil.ignore_patterns(*patterns)))


def run_page(page: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the shell blocks of ``page`` in one shell, as a reader does; the first command that fails ends it and is named."""
    machine = Path(shutil.copytree(FRESH, folder / "machine"))
    script = ["set -eE", """trap 'echo "failed: $BASH_COMMAND" >&2' ERR"""]
    for number, block in enumerate(BLOCK.findall(page), start=1):
        script += [f"echo '=== block {number}'", block]
    environment = {
        "PATH": f"{machine}:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "GKEST_HOME": str(folder / "home" / "gkest"),
        "FRESH_MACHINE": str(machine),
        "TEST_PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }
    return subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=clone(folder),
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def followed(page: str, folder: Path) -> Path:
    """Follow ``page`` in ``folder`` and return that: ``clone``, ``machine`` and what was printed (``said``)."""
    done = run_page(page, folder)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    (folder / "said").write_text(done.stdout + done.stderr, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the README was followed."""
    return followed(README, tmp_path_factory.mktemp("fresh"))


@pytest.mark.slow
def test_the_commands_write_what_the_readme_says(fresh: Path) -> None:
    made = fresh / "clone" / "try"
    table = pd.read_csv(made / "table.csv")
    assert set(table["gpu"]) == {"T4", "L4"} and set(table["model"]) == {"resnet50", "mobilenet_v2", "minilm"}
    assert {path.name for path in (made / "deploy").iterdir()} == {"hami", "triton"}
    assert b"Where the time goes" in (made / "resnet50.html").read_bytes()
    assert (fresh / "machine" / "pytest").read_text() == "-q -n 2 tests\n"


@pytest.mark.slow
def test_the_plan_is_kept_but_for_bursts(fresh: Path) -> None:
    said = (fresh / "said").read_text(encoding="utf-8")
    assert said.count("Each of 3 models keeps its SLO") == 1
    assert said.count("Less than 99 % on time: mobilenet_v2 ") == 1


@pytest.mark.slow
def test_the_commands_of_the_first_hour_write_what_it_says(tmp_path: Path) -> None:
    set_up = BLOCK.findall(README)[0]
    made = followed(f"```sh\n{set_up}```\n{FIRST_HOUR}", tmp_path) / "clone" / "try"
    assert (made / "report" / "report.md").exists() and (made / "host.toml").exists()
    assert {path.name for path in (made / "apart").iterdir()} == {"hami", "ray-serve"}
    assert any((made / "bundle" / "gpus").glob("*.toml"))


@pytest.mark.parametrize("page", [README, FIRST_HOUR], ids=["README", "first-hour"])
def test_every_installation_names_extras_that_exist(page: str) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    installed = [line for line in "\n".join(BLOCK.findall(page)).splitlines() if "pip install" in line]
    extras = [
        extra
        for line in installed
        for names in re.findall(r"\[([\w,-]+)\]", line)
        for extra in names.split(",")
    ]
    assert extras
    assert [extra for extra in extras if not re.search(rf"^{extra} = \[", project, re.MULTILINE)] == []


@pytest.mark.slow
def test_a_command_that_needs_what_nobody_installed_fails(tmp_path: Path) -> None:
    page = (
        "```sh\npython3 -m venv .venv && .venv/bin/pip install -q -e .\n. .venv/bin/activate\n```\n"
        "```sh\ngkest profile plan --cpu --runtime onnxruntime --entries 2 -o plan.json\n```\n"
    )
    done = run_page(page, tmp_path)
    assert (
        done.returncode == 2 and "needs scipy" in done.stderr and "failed: gkest profile plan" in done.stderr
    )
