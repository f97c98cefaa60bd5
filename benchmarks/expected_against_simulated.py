"""Compare the requests that plans expect to answer on time with those that the simulator finds, by policy.

    python benchmarks/expected_against_simulated.py [--instances 60] [--first 0] [--seed 2] [--seeds 8] [--limit-s 60]
                                                    [--service interval|deterministic] [--processes 1] [--policies gkest,usher,...]

Instances: benchmarks/placement_instances.py. Each policy packs by its own default measure and knows nothing of the simulator.
Its plan is served as it stands: time-outs of the plan, the rate let in that placement.expected found best (`--admission
expected`), Poisson arrivals, round robin (or `--routing least-load`), the estimate's interval as one factor for each model and run, contention between
batches that run at once. Expected goodput comes from formulas (placement/queueing.py, placement/contention.py); the simulator
shares with them the description of a replica, the time-outs and admitted rates, and the law of contention; it does not share
the queueing, and slows by who runs at the moment, not on average. All policies
see the same arrivals and factors. A win or loss is a difference above 1 %.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType

import numpy as np
from placement_instances import instance

from gkestimator.core.errors import GkestimatorError
from gkestimator.documents import PlacementPlan
from gkestimator.placement.registry import make_policy, policy_class
from gkestimator.placement.run import place
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.options import Options
from gkestimator.simulation.running import simulate_plan
from gkestimator.tables import Requirement

OURS = "gkest"
POLICIES = (OURS, "usher", "milp", "gpulet", "nexus", "selftuning", "igniter", "exclusive")
TIE = 0.01
REQUESTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """``expected`` and ``simulated`` requests a second on time of ``asked``; ``alone``: no GPU runs two batches at once;
    ``turns``: some replica takes turns."""

    number: int
    policy: str
    asked: float
    expected: float
    simulated: float
    alone: bool
    turns: bool
    why: str = ""


class OutOfTimeError(Exception):
    """A policy took longer than it may."""


def simulated_rps(
    plan: PlacementPlan, rows: Sequence[Requirement], seeds: Sequence[int], service: str, routing: str
) -> float:
    """Requests a second on time, mean over ``seeds``."""
    models = plan.workload.models
    rate = sum(m.rate_rps for m in models)
    duration = max(1e3 * REQUESTS / rate, 100 * max(m.slo_ms for m in models))
    found = []
    for seed in seeds:
        arrivals = make_arrivals("poisson", [m.rate_rps for m in models], [m.name for m in models], seed=seed)
        options = Options(
            duration_ms=duration,
            warmup_ms=duration / 10,
            window_ms=duration / 10,
            service=service,
            routing=routing,
            interference="contention",
            seed=seed,
        )
        run = simulate_plan(plan, rows, arrivals, options, admission="expected")
        found.append(1e3 * float(run.result.on_time.sum()) / (0.9 * duration))
    return float(np.mean(found))


def judge(
    number: int, *, seed: int, seeds: int, service: str, routing: str, policies: Sequence[str], limit_s: float
) -> list[Judged]:
    """Every policy on instance ``number``."""
    drawn = instance(number, seed, "goodput")
    if service == "deterministic":
        drawn = replace(
            drawn, rows=tuple(replace(r, latency_low_ms=None, latency_high_ms=None) for r in drawn.rows)
        )
    found = []
    for name in policies:
        asked = sum(m.rate_rps for m in drawn.workload.models)
        none = partial(
            Judged,
            number=number,
            policy=name,
            asked=asked,
            expected=0.0,
            simulated=0.0,
            alone=True,
            turns=False,
        )
        try:
            signal.setitimer(signal.ITIMER_PROF, limit_s)
            plan = place(make_policy(name), drawn.problem(policy_class(name).creq))
        except OutOfTimeError:
            found.append(none(why="out of time"))
            continue
        except GkestimatorError as e:
            found.append(none(why=f"refused: {e}"))
            continue
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if plan.totals.expected_goodput_rps is None:
            found.append(none(why="its expected goodput is unknown"))
            continue
        servers = [len({r.partition or r.id for r in g.replicas}) for g in plan.gpus]
        found.append(
            Judged(
                number=number,
                policy=name,
                asked=asked,
                expected=plan.totals.expected_goodput_rps,
                simulated=simulated_rps(
                    plan, drawn.rows, range(1000 * number, 1000 * number + seeds), service, routing
                ),
                alone=max(servers, default=0) <= 1,
                turns=any(r.duty_cycle_ms is not None for g in plan.gpus for r in g.replicas),
            )
        )
    return found


def accuracy(all_of: Sequence[Judged], policies: Sequence[str]) -> None:
    print("\nexpected less simulated, percent of the rate asked for")
    print(f"{'plans':44s} {'plans':>6} {'mean':>7} {'mean abs':>9} {'95 %':>7} {'largest':>8}  where")
    groups = [(f"of {p}", [j for j in all_of if j.policy == p]) for p in policies]
    groups += [
        ("one batch at a time on each GPU, no turns", [j for j in all_of if j.alone and not j.turns]),
        ("one batch at a time on each GPU, turns", [j for j in all_of if j.alone and j.turns]),
        ("several at once on a GPU, no turns", [j for j in all_of if not j.alone and not j.turns]),
        ("several at once on a GPU, turns", [j for j in all_of if not j.alone and j.turns]),
        ("all", list(all_of)),
    ]
    for title, here in groups:
        here = [j for j in here if not j.why]
        if not here:
            continue
        off = np.array([100 * (j.expected - j.simulated) / j.asked for j in here])
        at = here[int(np.argmax(np.abs(off)))]
        print(
            f"{title:44s} {len(here):6d} {off.mean():+7.2f} {np.abs(off).mean():9.2f} {np.percentile(np.abs(off), 95):7.2f} "
            f"{off[np.argmax(np.abs(off))]:+8.2f}  {at.policy} {at.number}"
        )


def comparison(all_of: Sequence[Judged], policies: Sequence[str]) -> None:
    print("\ngkest against the others by simulated requests on time\n")
    print(
        "| gkest against | instances | wins | ties | losses | worst case | mean gain | by expected goodput: wins | losses |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    by = {(j.number, j.policy): j for j in all_of if not j.why}
    numbers = sorted({j.number for j in all_of})
    for other in (*(p for p in policies if p != OURS), "best of them"):
        pairs = []
        for n in numbers:
            ours = by.get((n, OURS))
            theirs = by.get((n, other))
            if other == "best of them":
                rest = [by[n, p] for p in policies if p != OURS and (n, p) in by]
                theirs = max(rest, key=lambda j: j.simulated, default=None)
            if ours and theirs:
                pairs.append((ours, theirs))
        if not pairs:
            continue
        gains = np.array([(a.simulated - b.simulated) / max(b.simulated, 1e-3 * a.asked) for a, b in pairs])
        told = np.array([(a.expected - b.expected) / max(b.expected, 1e-3 * a.asked) for a, b in pairs])
        worst = int(np.argmin(gains))
        print(
            f"| {other} | {len(pairs)} | {np.sum(gains > TIE)} | {np.sum(np.abs(gains) <= TIE)} | {np.sum(gains < -TIE)} | "
            f"{100 * gains[worst]:+.1f} % ({pairs[worst][1].policy}, {pairs[worst][0].number}) | "
            f"{100 * np.expm1(np.mean(np.log1p(np.maximum(gains, -0.999)))):+.1f} % | {np.sum(told > TIE)} | {np.sum(told < -TIE)} |"
        )
    print("\n| policy | answered | simulated on time | expected on time |\n|---|---|---|---|")
    for p in policies:
        here = [j for j in all_of if j.policy == p and not j.why]
        if here:
            print(
                f"| {p} | {len(here)} | {100 * np.mean([j.simulated / j.asked for j in here]):.1f} % | "
                f"{100 * np.mean([j.expected / j.asked for j in here]):.1f} % |"
            )


def _alarm(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError


def _worker() -> None:
    signal.signal(signal.SIGPROF, _alarm)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instances", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=2, help="of the instances")
    parser.add_argument("--seeds", type=int, default=8, help="simulations of each plan")
    parser.add_argument(
        "--service",
        choices=("interval", "deterministic"),
        default="interval",
        help="deterministic: intervals are taken out of the tables, for the policies too",
    )
    parser.add_argument("--routing", choices=("round-robin", "least-load"), default="round-robin")
    parser.add_argument("--limit-s", type=float, default=60.0, help="processor time of a decision")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--policies", default=",".join(POLICIES))
    given = parser.parse_args()
    policies = given.policies.split(",")
    from concurrent.futures import ProcessPoolExecutor

    work = partial(
        judge,
        seed=given.seed,
        seeds=given.seeds,
        service=given.service,
        routing=given.routing,
        policies=policies,
        limit_s=given.limit_s,
    )
    found: list[Judged] = []
    with ProcessPoolExecutor(given.processes, initializer=_worker) as pool:
        for here in pool.map(work, range(given.first, given.first + given.instances)):
            found += here
            for j in here:
                print(
                    f"{j.number:4d} {j.policy:12s} asked {j.asked:10.1f} expected {j.expected:10.1f} simulated {j.simulated:10.1f} "
                    f"{'alone ' if j.alone else ''}{'turns ' if j.turns else ''}{j.why}",
                    flush=True,
                )
    accuracy(found, policies)
    comparison(found, policies)


if __name__ == "__main__":
    main()
