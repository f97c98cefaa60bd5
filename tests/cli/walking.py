"""Run the shell blocks of a page as a reader does, one after the other in a copy of the checkout, on a machine that has nothing.

The environment that ``python3 -m venv`` would make and ``pip`` fill is tests/data/fresh_machine: it holds the gkest of this
checkout, which can import only what the commands so far have installed, and cannot reach a network.
A block ``<!-- output -->`` behind commands shows what they print; ``<!-- output | tail -n 2 -->`` what is left of it.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^```sh\n(?P<commands>.*?)^```\n"
    r"(?:\n<!-- output(?: \|(?P<filter>[^\n]*))? -->\n```text\n(?P<output>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
FRESH = ROOT / "tests" / "data" / "fresh_machine"


@dataclass
class Walk:
    """Hold the exit status of a page's commands, what each block that was begun printed, and the copy of the checkout."""

    status: int
    printed: list[str]
    clone: Path


def clone(folder: Path) -> Path:
    """Return a copy of the checkout in ``folder`` without what Git ignores."""
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    patterns = [".git", *(line.strip("/") for line in ignored)]
    return Path(shutil.copytree(ROOT, folder / "clone", ignore=shutil.ignore_patterns(*patterns)))


def run_page(page: str, folder: Path, tools: Sequence[Path] = ()) -> Walk:
    """Run the shell blocks of ``page`` in one shell; the first command that fails ends it and is named.

    ``tools``: folders of programs that the machine has besides.
    """
    machine = Path(shutil.copytree(FRESH, folder / "machine"))
    printed = folder / "printed"
    printed.mkdir()
    script = ["set -eE", """trap 'echo "failed: $BASH_COMMAND" >&2' ERR"""]
    for number, block in enumerate(BLOCK.finditer(page)):
        script += [f"exec >{printed}/{number} 2>&1", block["commands"]]
    environment = {
        "PATH": os.pathsep.join([str(machine), *map(str, tools), "/usr/bin", "/bin"]),
        "HOME": str(folder / "home"),
        "GKEST_HOME": str(folder / "home" / "gkest"),
        "FRESH_MACHINE": str(machine),
        "TEST_PYTHON": sys.executable,
        "OMP_NUM_THREADS": "1",
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }
    copy = clone(folder)
    command = ["bash", "-c", "\n".join(script)]
    done = subprocess.run(command, cwd=copy, env=environment, timeout=600, check=False)
    texts = [
        (printed / str(number)).read_text(encoding="utf-8") for number in range(len(list(printed.iterdir())))
    ]
    return Walk(done.returncode, texts, copy)


def shown(block: re.Match[str], printed: str) -> str:
    """Return what the page shows of what its ``block`` printed. Raises AssertionError where nothing is left of it."""
    command = ["bash", "-c", block["filter"] or "cat"]
    left = subprocess.run(command, input=printed, capture_output=True, text=True, check=False).stdout
    assert left, f"nothing is left by {block['filter']} of: {printed}"
    return left


def skeleton(text: str) -> str:
    """Return ``text`` without its figures and spacing: another processor's last digit may round the other way."""
    return " ".join(NUMBER.sub("#", text).split())


def numbers(text: str) -> list[float]:
    """Return the figures of ``text``."""
    return [float(n.replace(",", "")) for n in NUMBER.findall(text)]


def is_current(text: str, current: str) -> None:
    """Raise AssertionError where a page's ``text`` is not ``current`` but for a figure's last digit."""
    assert skeleton(text) == skeleton(current), "run: python docs/refresh_readme.py"
    assert len(numbers(text)) == len(numbers(current))
    for said, true in zip(numbers(text), numbers(current), strict=True):
        assert math.isclose(said, true, rel_tol=0.01, abs_tol=0.11), "run: python docs/refresh_readme.py"


def refresh_module() -> ModuleType:
    """Return docs/refresh_readme.py as a module."""
    loading = importlib.util.spec_from_file_location("refresh_readme", ROOT / "docs" / "refresh_readme.py")
    assert loading is not None and loading.loader is not None
    module = importlib.util.module_from_spec(loading)
    loading.loader.exec_module(module)
    return module
