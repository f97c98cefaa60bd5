"""What gpu-lets could serve at best: every way to split the GPUs and to fill the parts, for small cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.interference.gpulet_law import read_coefficients
from gkestimator.placement.integer import linear_program, solver_of
from gkestimator.placement.papers.gpulet.board import placed_in
from gkestimator.placement.papers.gpulet.columns import Array, Filled, fillings
from gkestimator.placement.papers.gpulet.lets import sizes
from gkestimator.placement.papers.gpulet.policy import interference_of, whole_only
from gkestimator.placement.policy import Placement, Policy, PolicyError, check_flags
from gkestimator.placement.problem import Problem

_TOLERANCE = 1e-9
# Where not every rate can be served, proving the most goodput can take minutes; a count of nodes, unlike
# time, ends alike on every machine.
_MOST_NODES = 20
_RELATIVE_GAP = 1e-4
_PROVEN_PCT = 1e-6


class GpuletIdealPolicy(Policy):
    """Find the exhaustive ideal that gpulet is compared with (Choi et al., USENIX ATC 2022, evaluation): the
    most goodput over all splits of every GPU into at most two gpu-lets, all sets of models in each, all their
    batches, and all ways to divide the rates; then the fewest GPUs (elastic: the lowest cost). Feasible is
    what gpulet calls feasible.

    Ways to fill one GPU are enumerated and those kept that no other is at least as good as; how often each is
    used is an integer program (HiGHS), solved to optimality; where the rates cannot all be served, to a gap
    that is stated. Refuses problems with more ways than ``gpulet_columns`` allows."""

    name = "gpulet-ideal"
    summary = "the best that gpu-lets can do, by exhaustive search; small cases only"
    options = ("coefficients", "interference")

    def __init__(self, *, coefficients: Path | str | None = None, interference: bool = True) -> None:
        check_flags(self.name, interference=interference)
        if coefficients is not None and not interference:
            raise UsageError(f"policy {self.name}: coefficients are given, but interference is turned off")
        if coefficients is None:
            self._given = None
        else:
            self._given = read_coefficients(Path(coefficients))
        self._interference = interference

    def place(self, problem: Problem) -> Placement:
        """Return replicas in gpu-lets; see :class:`Policy`. Raises UsageError: more ways than the limit, or
        coefficients for a column that is null."""
        coefficients, notes = interference_of(self.name, problem, self._given, self._interference)
        notes += whole_only({gpu: sizes(problem, gpu) for gpu in problem.types})
        columns = [f for gpu in problem.types for f in fillings(problem, gpu, coefficients)]
        if not columns:
            return Placement(notes=tuple(notes))
        counts, gap = _choose(problem, columns)
        if gap > 0:
            notes.append(f"the search was ended before its proof: the best may serve {gap:.3g} % more")
        placed = []
        used = dict.fromkeys(problem.types, 0)
        for column, count in zip(columns, counts, strict=True):
            for _ in range(count):
                gpu = problem.gpu(column.gpu, used[column.gpu])
                used[column.gpu] += 1
                for part, let in enumerate(column.lets):
                    placed += placed_in(gpu, part, let)
        return Placement(placed=tuple(placed), notes=tuple(notes), gap_pct=gap)

    def schedulable(self, problem: Problem) -> bool:
        """Return whether gpu-lets can serve every rate: faster than :meth:`place` where they cannot, as
        fractions of GPUs are tried first. Raises as :meth:`place`."""
        coefficients, _ = interference_of(self.name, problem, self._given, self._interference)
        columns = [f for gpu in problem.types for f in fillings(problem, gpu, coefficients)]
        all_of_it = np.ones(len(problem.models))
        if not columns:
            return not problem.models
        program = _Program(problem, columns)
        fractions = program.cheapest(all_of_it, whole=False)
        return fractions is not None and program.cheapest(all_of_it) is not None


class _Program:
    """Hold how many GPUs are filled in each way (integers, in the order of ``columns``), and what part of
    each model's rate is served (0 to 1, after them)."""

    def __init__(self, problem: Problem, columns: Sequence[Filled]) -> None:
        models = problem.models
        n = len(columns)
        count = len(models)
        self.ways = n
        rates = np.array([m.rate_rps for m in models])
        served = np.array([c.served_rps for c in columns]).T / rates[:, None]
        limits = problem.limits
        # A GPU filled in one way as often as serves the whole rate of each of its models is of no use once
        # more.
        useful = [max(int(np.ceil(1 / s)) for s in served[:, i] if s > 0) for i in range(n)]
        pools = dict(zip(problem.types, problem.pools, strict=True))
        most = np.minimum([pools[c.gpu] for c in columns], useful)
        self.upper = np.concatenate([most, np.ones(count)])
        self.rows = list(np.hstack([served, -np.eye(count)]))
        unserved = [0.0] * count
        self.low = unserved.copy()
        self.high = [np.inf] * count
        for gpu, limit in limits.items():
            if limit is not None:
                here = [float(c.gpu == gpu) for c in columns]
                self.add(np.array(here + unserved), 0.0, float(limit))
        self.goodput = np.concatenate([np.zeros(n), rates / rates.sum()])
        self.price = np.array([_price(problem, c.gpu) for c in columns] + unserved)

    def add(self, row: Array, low: float, high: float) -> None:
        """Hold ``row`` times the values within ``low`` and ``high``."""
        self.rows.append(row)
        self.low.append(low)
        self.high.append(high)

    def cheapest(self, parts: Array, *, whole: bool = True) -> Array | None:
        """Return the lowest price at which at least ``parts`` of the rates are served; None where they cannot
        be."""
        lower = np.concatenate([np.zeros(self.ways), parts])
        solution = _solve(self.price, self, lower, self.ways if whole else 0)
        if solution is None:
            return None
        return solution[0]

    def most(self) -> tuple[Array, float]:
        """Return the most goodput, and how far it is at most from the best, percent."""
        nothing = np.zeros(len(self.upper))
        solution = _solve(-self.goodput, self, nothing, self.ways, nodes=_MOST_NODES)
        assert solution is not None  # serving nothing is allowed
        return solution


def _choose(problem: Problem, columns: Sequence[Filled]) -> tuple[list[int], float]:
    """Return how many GPUs are filled as each of ``columns`` says (all rates at the lowest price, else the
    most goodput, then the lowest price for it), and the gap to the most goodput, percent."""
    program = _Program(problem, columns)
    gap = 0.0
    reachable = np.array([any(c.served_rps[i] > 0 for c in columns) for i in range(len(problem.models))])
    everything = reachable.astype(float)
    counts = None
    if program.cheapest(everything, whole=False) is not None:  # by fractions of GPUs, which is fast
        counts = program.cheapest(everything)
    if counts is None:
        counts, gap = program.most()
        reached = float(program.goodput @ counts)
        program.add(program.goodput, reached * (1 - _TOLERANCE) - _TOLERANCE, np.inf)
        nothing = np.zeros(len(program.upper))
        fewer = _solve(program.price, program, nothing, program.ways, nodes=_MOST_NODES)
        if fewer is not None:
            counts, _ = fewer
    return [round(float(x)) for x in counts[: len(columns)]], gap


def _price(problem: Problem, gpu: str) -> float:
    """Return the price of one GPU: on a fixed cluster its number counts first, its price (where known) only
    decides between equals."""
    price = problem.prices.get(gpu)
    if problem.elastic:
        if price is None:
            return 0.0
        return price
    most = max((p for p in problem.prices.values() if p is not None), default=0.0)
    if price is None or most <= 0 or len(problem.types) == 1:
        return 1.0
    return 1.0 + 1e-4 * price / most


def _solve(
    cost: Array,
    program: _Program,
    lower: Array,
    whole: int,
    *,
    nodes: int | None = None,
) -> tuple[Array, float] | None:
    """Return the values of the least cost, the first ``whole`` of them integers, and the gap to it in percent
    (0 unless ``nodes`` limits the search); None where HiGHS proves that there are none, or finds none in
    ``nodes``. Raises PolicyError where it ends otherwise."""
    import highspy

    vectors = []
    for row in program.rows:
        here = np.flatnonzero(row)
        vectors.append((here.tolist(), row[here].tolist()))
    lp = linear_program(
        cost=cost,
        lower=lower,
        upper=program.upper,
        row_lower=program.low,
        row_upper=program.high,
        vectors=vectors,
        integer=[i < whole for i in range(len(cost))],
    )
    if nodes is None:
        options: dict[str, object] = {}
    else:
        options = {"mip_max_nodes": nodes}
    mip_rel_gap = _RELATIVE_GAP
    if nodes is None:
        mip_rel_gap = 0.0
    solver = solver_of(
        lp,
        random_seed=0,
        presolve="off",  # looking for dominated ways among thousands takes longer than the search
        mip_rel_gap=mip_rel_gap,
        mip_abs_gap=1e-9,
        mip_feasibility_tolerance=1e-9,
        primal_feasibility_tolerance=1e-9,
        **options,
    )
    solver.run()
    status = solver.getModelStatus()
    states = highspy.HighsModelStatus
    info = solver.getInfo()
    values = np.array(solver.getSolution().col_value)
    if status == states.kInfeasible:
        return None
    if status == states.kOptimal:
        if whole and nodes is not None:
            gap = 100 * float(info.mip_gap)
        else:
            gap = 0.0
        return values, gap if gap > _PROVEN_PCT else 0.0
    if status == states.kSolutionLimit and nodes is not None:
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        return values, 100 * float(info.mip_gap)
    raise PolicyError(f"policy gpulet-ideal: HiGHS ended with {solver.modelStatusToString(status)}")
