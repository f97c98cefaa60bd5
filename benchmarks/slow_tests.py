"""List the tests above a second that are not marked slow, from a run's JUnit file; `--mark` marks them in their files.

First run, on a quiet machine: OMP_NUM_THREADS=1 pytest -q -n 2 -m "not slow" --junitxml=times.xml tests
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARK = "@pytest.mark.slow"
# Parametrised tests of which only a few cases are slow stay in the fast loop, when all cases together are quick.
FEW = 0.1
MOST_S = 5.0


def times_of(report: Path) -> dict[tuple[Path, str], list[float]]:
    """Return the seconds of every case by test file and function."""
    seconds: dict[tuple[Path, str], list[float]] = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        file = ROOT / (case.get("classname", "").replace(".", "/") + ".py")
        function = re.sub(r"\[.*", "", case.get("name", ""), flags=re.S)
        seconds[file, function].append(float(case.get("time", "0")))
    return seconds


def slow_functions(report: Path, limit_s: float) -> dict[Path, dict[str, float]]:
    """Return the slowest case of each function that is to be marked, by file."""
    slow: dict[Path, dict[str, float]] = defaultdict(dict)
    for (file, function), seconds in times_of(report).items():
        above = [second for second in seconds if second > limit_s]
        few = len(above) <= FEW * len(seconds) and sum(seconds) <= MOST_S
        if above and not few and file.is_file():
            slow[file][function] = max(above)
    return slow


def mark(file: Path, functions: set[str]) -> None:
    """Put the mark above each of the functions that lacks it."""
    source = file.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    for node in sorted(ast.walk(ast.parse(source)), key=lambda node: -getattr(node, "lineno", 0)):
        if not isinstance(node, ast.FunctionDef) or node.name not in functions:
            continue
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        if not any(decorator.startswith("pytest.mark.slow") for decorator in decorators):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines.insert(first - 1, f"{' ' * node.col_offset}{MARK}\n")
    text = "".join(lines)
    if "import pytest" not in text:
        text = re.sub(r"^((?:from|import) (?!__future__))", r"import pytest\n\1", text, count=1, flags=re.M)
    file.write_text(text, encoding="utf-8")


def main() -> int:
    """Print every function to be marked with its slowest case; return 1 when there is one and `--mark` is not given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("--limit-s", type=float, default=1.0, help="seconds of a case [default: 1]")
    parser.add_argument("--mark", action="store_true", help="mark them")
    arguments = parser.parse_args()
    slow = slow_functions(arguments.report, arguments.limit_s)
    for file, functions in sorted(slow.items()):
        for function, second in sorted(functions.items()):
            print(f"{second:6.1f} s  {file.relative_to(ROOT)}::{function}")
        if arguments.mark:
            mark(file, set(functions))
    return int(bool(slow) and not arguments.mark)


if __name__ == "__main__":
    sys.exit(main())
