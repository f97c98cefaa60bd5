"""Hold the code to the figures of `benchmarks/structure.py`: none grows, and those whose bar is reached stay within it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from structure import complexity, figures  # benchmarks/ is on the path

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_no_figure_is_above_what_it_is_held_to() -> None:
    failed = [f"{figure.name}: {figure.value}" for figure in figures(ROOT) if figure.failed]
    assert failed == []


def test_complexity_counts_every_branch() -> None:
    source = "def f(a):\n    if a and a > 1 or a < 0:\n        return [x for x in a if x]\n    return 1 if a else 2\n"
    # 1 + if + and + or + comprehension + conditional expression
    assert complexity(ast.parse(source).body[0]) == 6
