"""Compare two splits of an application's objective: by least GPU time, and in proportion to the fastest latencies.

    python benchmarks/slo_split.py [--policy gkest] [--policy milp] [--loads 1,4,16] [--objectives 1,0.5,0.3]

The applications of examples/applications at multiples of their rates and objectives, table A.1, V100s. GPU time is what the split itself minimises
(busy GPUs with room to fill and queue; "none" where no choice leaves that room). Whether it was worth it is for the policies to
say: GPUs rented until every rate is served, and expected goodput on four GPUs, in requests of all models a second.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _placement_tables import table_a1

from gkestimator.documents import Application, Workload, read_cluster, read_workload
from gkestimator.placement.building import build_problem, candidates_of, impossible
from gkestimator.placement.problem import Problem
from gkestimator.placement.registry import make_policy
from gkestimator.placement.run import place
from gkestimator.placement.slo import choices, proportional_split
from gkestimator.tables.candidate import Candidate

ROOT = Path(__file__).parents[1]
APPLICATIONS = ("video-surveillance", "social-media", "game", "traffic")


def gpu_time(
    application: Application, found: dict[str, tuple[Candidate, ...]], budgets: dict[str, float]
) -> float | None:
    total = 0.0
    for name, rate in application.rates_rps().items():
        costs = [c.cost for c in choices(found[name], rate) if c.response_ms <= budgets[name] * (1 + 1e-9)]
        if not costs:
            return None
        total += min(costs)
    return total


def with_budgets(problem: Problem, budgets: dict[str, float]) -> Problem:
    return problem.with_models(tuple(replace(m, slo_ms=budgets[m.name]) for m in problem.models))


def rented(policy: str, problem: Problem) -> str:
    plan = place(make_policy(policy), problem)
    return "none" if plan.unserved else str(plan.totals.gpus_used)


def expected(policy: str, problem: Problem) -> str:
    found = place(make_policy(policy), problem).totals.expected_goodput_rps
    return "nan" if found is None else f"{found:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", action="append", dest="policies")
    parser.add_argument("--loads", default="1,4,16")
    parser.add_argument("--objectives", default="1,0.5,0.3")
    given = parser.parse_args()
    policies = given.policies or ["gkest", "milp"]
    # What a policy cannot place (memory unknown) must not decide a split either.
    rows = tuple(r for r in table_a1() if r.reserved_bytes is not None)
    folder = ROOT / "examples" / "applications"
    fixed, elastic = (read_cluster(folder / name) for name in ("four-v100.yaml", "rented-v100.yaml"))
    specs = {spec.name: spec for spec in fixed.types}
    heading = [
        "application",
        "load",
        "split",
        "GPU time",
        *(f"{p} rents" for p in policies),
        *(f"{p} serves" for p in policies),
    ]
    print(" | ".join(heading))
    better = worse = only = 0
    savings = []
    served: dict[tuple[str, str], float] = {}
    for name in APPLICATIONS:
        (application,) = read_workload(folder / f"{name}.yaml").applications
        pairs = itertools.product(
            *([float(x) for x in text.split(",")] for text in (given.objectives, given.loads))
        )
        for part, load in pairs:
            asked = replace(
                application, rate_rps=application.rate_rps * load, slo_ms=application.slo_ms * part
            )
            workload = Workload(applications=(asked,))
            creq = {p: make_policy(p).creq for p in policies}
            found, _ = candidates_of(rows, workload.names(), specs, creq="sm-util-mean")
            problems = {
                (p, kind): build_problem(rows, workload, c, creq=creq[p])
                for p in policies
                for kind, c in (("f", fixed), ("e", elastic))
            }
            least = {m.name: m.slo_ms for m in next(iter(problems.values())).models}
            results, times = [], []
            for split, budgets in (("least", least), ("proportional", proportional_split(asked, found))):
                problem = {key: with_budgets(value, budgets) for key, value in problems.items()}
                time = gpu_time(asked, found, budgets)
                hopeless = impossible(next(iter(problem.values())))
                cells = [
                    name,
                    f"{asked.slo_ms:g}",
                    f"x{load:g}",
                    split,
                    "none" if time is None else f"{time:.3f}",
                ]
                cells += [rented(p, problem[p, "e"]) if not hopeless else "none" for p in policies]
                cells += [expected(p, problem[p, "f"]) for p in policies]
                results.append(cells)
                times.append(time)
                for p, cell in zip(policies, cells[-len(policies) :], strict=True):
                    served[p, split] = served.get((p, split), 0.0) + float(cell)
                print(" | ".join(cells), flush=True)
            if None not in times:
                savings.append(100 * (1 - times[0] / times[1]))
            elif times[0] is not None:
                only += 1
            for i in range(5, 5 + len(policies)):
                first, second = (float("inf") if r[i] == "none" else float(r[i]) for r in results)
                better += first < second
                worse += first > second
    print(
        f"GPU time saved in {len(savings)} cases: mean {statistics.mean(savings):.1f} %, least {min(savings):.1f} %, "
        f"most {max(savings):.1f} %; room to fill and queue by the least split alone: {only} cases"
    )
    for p in policies:
        least, proportional = served[p, "least"], served[p, "proportional"]
        print(
            f"{p} serves {100 * (least / proportional - 1):+.2f} % of expected goodput over all cases by the least split"
        )
    print(f"rented GPUs by the least split: fewer {better} times, more {worse} times")


if __name__ == "__main__":
    main()
