"""The wrapper of HiGHS: small programs worked out by hand, limits and statuses."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys

import pytest

from gkestimator.placement.integer import Deadline, IntegerProgram, SolverError, solver_of


def knapsack(sizes: list[float], values: list[float], room: float) -> tuple[IntegerProgram, dict[int, float]]:
    program = IntegerProgram()
    columns = [program.column(upper=1, integer=True) for _ in sizes]
    program.row(list(zip(columns, sizes, strict=True)), high=room)
    return program, dict(zip(columns, values, strict=True))


def test_a_program_worked_out_by_hand() -> None:
    program = IntegerProgram()
    x, y = program.column(upper=5, integer=True), program.column(upper=2.5)
    program.row([(x, 2), (y, 3)], high=11.5)
    found = program.solve({x: 3, y: 4}, maximise=True)
    assert found is not None and found.optimal
    assert found.values == pytest.approx([5, 0.5]) and found.objective == pytest.approx(17)
    program.row([(x, 1)], high=3)
    found = program.solve({x: 3, y: 4}, maximise=True)
    assert found is not None and found.objective == pytest.approx(3 * 3 + 4 * 5.5 / 3)


def test_terms_of_one_column_add_up() -> None:
    program = IntegerProgram()
    x = program.column()
    program.row([(x, 1), (x, 1)], low=3)
    found = program.solve({x: 1})
    assert found is not None and found.objective == pytest.approx(1.5)


@pytest.mark.parametrize("seed", range(10))
def test_knapsacks_against_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.uniform(10, 60) for _ in range(10)]
    values = [rng.uniform(1, 9) for _ in range(10)]
    best = max(
        sum(v for v, t in zip(values, taken, strict=True) if t)
        for taken in itertools.product((0, 1), repeat=10)
        if sum(s for s, t in zip(sizes, taken, strict=True) if t) <= 100
    )
    program, objective = knapsack(sizes, values, 100)
    found = program.solve(objective, maximise=True, seed=seed)
    assert found is not None and found.objective == pytest.approx(best)
    assert set(found.values) <= {0.0, 1.0}
    assert found.bound == found.objective


def test_what_cannot_be_held_is_none_and_nothing_to_decide_is_empty() -> None:
    program = IntegerProgram()
    x = program.column(upper=1)
    program.row([(x, 1)], low=2)
    assert program.solve({x: 1}) is None
    empty = IntegerProgram().solve({})
    assert empty is not None and list(empty.values) == [] and empty.optimal


def test_a_start_is_kept_when_there_is_no_time() -> None:
    rng = random.Random(1)
    sizes = [rng.uniform(10, 60) for _ in range(300)]
    program, objective = knapsack(sizes, sizes, 4000)
    for _ in range(20):
        program.row([(i, rng.uniform(10, 60)) for i in range(300)], high=3900)
    struck = Deadline(0.0)
    assert struck.left_s() == 0
    found = program.solve(objective, maximise=True, deadline=struck, start=[0.0] * 300)
    assert found is not None and not found.optimal
    assert found.bound >= found.objective
    assert Deadline(None).left_s() == math.inf


def test_an_option_that_highs_does_not_have_is_an_error() -> None:
    import highspy

    with pytest.raises(SolverError, match="no_such_option=1"):
        solver_of(highspy.HighsLp(), no_such_option=1)


def test_the_solver_prints_nothing() -> None:
    """HiGHS writes past Python, and once a process; from 1.16 on it did so as it was made."""
    code = (
        "from gkestimator.placement.integer import IntegerProgram\n"
        "program = IntegerProgram()\n"
        "column = program.column(upper=3, integer=True)\n"
        "assert program.solve({column: 1}, maximise=True).objective == 3\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
