"""Mixed-integer linear programs, solved by HiGHS on one thread: the same program gives the same answer."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from gkestimator.core.errors import GkestimatorError
from gkestimator.core.records import frozen
from gkestimator.placement.problem import FloatByIndex, Floats

if TYPE_CHECKING:
    import highspy


# Rows hold to the first of these with which HiGHS can confirm its own answer. Finer ones are not safer: at 1e-9
# HiGHS 1.15 loses optimal solutions in presolve. Whoever builds a program scales it so that they are small beside
# what it decides, and leaves more room (SLACK) in rows that repeat what another solve reached.
_TOLERANCES = (1e-7, 1e-6)
SLACK = 1e-6


class SolverError(GkestimatorError):
    """Say that HiGHS gave up on a program for another reason than time: a defect of the program, not of its
    input."""


class Deadline:
    """Hold a time limit shared by several solves. ``limit_s`` seconds from now; None: no limit."""

    def __init__(self, limit_s: float | None) -> None:
        if limit_s is None:
            self._end = None
        else:
            self._end = time.monotonic() + limit_s

    def left_s(self) -> float:
        """Return the seconds left: 0 when it has struck, infinite without a limit."""
        if self._end is None:
            return math.inf
        return max(0.0, self._end - time.monotonic())


@frozen
class Solution:
    """Hold ``values`` by column, integers exact; ``bound``: no solution is better than this (as the objective
    was stated); ``optimal``: False where time ran out first."""

    values: Floats
    objective: float
    bound: float
    optimal: bool


@dataclass(slots=True)
class IntegerProgram:
    """Hold columns (variables) and rows (constraints) of a mixed-integer linear program. Rows may be added
    between solves."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    rows: list[tuple[float, float, FloatByIndex]] = field(default_factory=list)

    def column(self, *, upper: float = math.inf, integer: bool = False) -> int:
        """Add a variable from 0 to ``upper``; return its number."""
        self.lower.append(0.0)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.lower) - 1

    def row(
        self, terms: Iterable[tuple[int, float]], *, low: float = -math.inf, high: float = math.inf
    ) -> None:
        """Hold low <= sum of coefficient x column <= high; ``terms`` are (column, coefficient), columns may
        repeat."""
        sums: FloatByIndex = {}
        for column, coefficient in terms:
            sums[column] = sums.get(column, 0.0) + coefficient
        self.rows.append((low, high, sums))

    def solve(
        self,
        objective: Mapping[int, float],
        *,
        maximise: bool = False,
        seed: int = 0,
        deadline: Deadline | None = None,
        start: Floats | None = None,
        nodes: int | None = None,
    ) -> Solution | None:
        """Return the best values of the columns. ``start``: values to begin from, kept when time runs out
        before better ones are found. ``nodes``: a bound on the search that is the same on every machine.
        None: no values hold the rows, or none were found in time. Raises SolverError."""
        import highspy

        if not self.lower:
            return Solution(values=(), objective=0.0, bound=0.0, optimal=True)
        states = highspy.HighsModelStatus
        model = self._model(objective, maximise=maximise)
        for tolerance in _TOLERANCES:
            if deadline is not None:
                left = deadline.left_s()
            else:
                left = math.inf
            solver = _solver(model, tolerance=tolerance, seed=seed, limit_s=left, start=start)
            if nodes is not None:
                solver.setOptionValue("mip_max_nodes", nodes)
            solver.run()
            status = solver.getModelStatus()
            info = solver.getInfo()
            if status != states.kSolveError:
                break
        if status in (states.kInfeasible, states.kUnboundedOrInfeasible):
            return None
        if status not in (states.kOptimal, states.kTimeLimit, states.kSolutionLimit):
            raise SolverError(f"HiGHS: {solver.modelStatusToString(status)}, expected optimal or out of time")
        if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
            return None
        values = list(map(float, solver.getSolution().col_value))
        for column, whole in enumerate(self.integer):
            if whole:
                values[column] = float(round(values[column]))
        optimal = status == states.kOptimal
        value = sum(c * values[i] for i, c in objective.items())
        if any(self.integer):
            bound = info.mip_dual_bound
        else:
            bound = info.objective_function_value
        return Solution(values=values, objective=value, bound=value if optimal else bound, optimal=optimal)

    def _model(self, objective: Mapping[int, float], *, maximise: bool) -> highspy.HighsLp:
        cost = np.zeros(len(self.lower))
        for column, coefficient in objective.items():
            cost[column] = coefficient
        return linear_program(
            cost=cost,
            lower=self.lower,
            upper=self.upper,
            row_lower=[low for low, _, _ in self.rows],
            row_upper=[high for _, high, _ in self.rows],
            vectors=[(list(terms), list(terms.values())) for _, _, terms in self.rows],
            maximise=maximise,
            integer=self.integer,
        )


def linear_program(
    *,
    cost: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    row_lower: ArrayLike,
    row_upper: ArrayLike,
    vectors: Sequence[tuple[Sequence[int], Floats]],
    by_row: bool = True,
    maximise: bool = False,
    integer: Sequence[bool] = (),
) -> highspy.HighsLp:
    """Return a program in HiGHS' form. ``vectors`` are the matrix' rows (columns where ``by_row`` is false)
    as (indices, coefficients); ``integer`` by column (none: all may be fractions)."""
    import highspy

    lp = highspy.HighsLp()
    real = np.float64
    lp.col_cost_ = np.asarray(cost, dtype=real)
    lp.col_lower_ = np.asarray(lower, dtype=real)
    lp.col_upper_ = np.asarray(upper, dtype=real)
    lp.row_lower_ = np.asarray(row_lower, dtype=real)
    lp.row_upper_ = np.asarray(row_upper, dtype=real)
    lp.num_col_ = len(lp.col_cost_)
    lp.num_row_ = len(lp.row_lower_)
    if maximise:
        lp.sense_ = highspy.ObjSense.kMaximize
    else:
        lp.sense_ = highspy.ObjSense.kMinimize
    if integer:
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in integer]
    formats = highspy.MatrixFormat
    matrix = lp.a_matrix_
    if by_row:
        matrix.format_ = formats.kRowwise
    else:
        matrix.format_ = formats.kColwise
    matrix.num_col_ = lp.num_col_
    matrix.num_row_ = lp.num_row_
    indices = [index for index, _ in vectors]
    values = [value for _, value in vectors]
    lengths = [len(index) for index in indices]
    matrix.start_ = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    matrix.index_ = np.fromiter(chain.from_iterable(indices), dtype=np.int32)
    matrix.value_ = np.fromiter(chain.from_iterable(values), dtype=real)
    return lp


def solver_of(model: highspy.HighsLp, **options: object) -> Any:
    """Return HiGHS with ``model`` and ``options``, silent and on one thread; for programs that
    :class:`IntegerProgram` is not made for (arrays at hand, duals asked for). Raises SolverError: HiGHS does
    not take an option, or the model."""
    import highspy

    # Nobody here listens to callbacks, and from HiGHS 1.16 on enabling them prints a banner before it can be silenced.
    silent: Any = type("SilentHighs", (highspy.Highs,), {"enableCallbacks": lambda solver: None})
    solver = silent()
    for option, value in {"output_flag": False, "threads": 1, **options}.items():
        if solver.setOptionValue(option, value) == highspy.HighsStatus.kError:
            raise SolverError(f"HiGHS: does not take {option}={value!r}")
    if solver.passModel(model) == highspy.HighsStatus.kError:
        raise SolverError("HiGHS: does not take the model")
    return solver


def _solver(
    model: highspy.HighsLp,
    *,
    tolerance: float,
    seed: int,
    limit_s: float,
    start: Floats | None,
) -> Any:
    import highspy

    solver = solver_of(
        model,
        parallel="off",
        random_seed=seed % 2**31,
        mip_rel_gap=0.0,
        mip_abs_gap=1e-9,
        mip_feasibility_tolerance=tolerance,
        primal_feasibility_tolerance=tolerance,
        dual_feasibility_tolerance=tolerance,
        time_limit=max(limit_s, 1e-3),  # HiGHS takes 0 as no limit
    )
    if start is not None:
        known = highspy.HighsSolution()
        known.col_value = [float(v) for v in start]
        solver.setSolution(known)
    return solver
