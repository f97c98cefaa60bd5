"""Count how many of 1,023 load scenarios gpulet, its ideal and Nexus schedule (gpu-lets, ATC 2022), by our estimates.

    python benchmarks/papers/gpulet_scenarios.py [--gpu RTX-2080-TI] [--count 4] [--factor 0] [--models DIR --names A,B,C,D,E]
                                                 [--exhaustive] [--interference]

The study of Choi et al. (USENIX ATC 2022): five models, each asked for 0, 200, 400 or 600 times a second (all zero left out), on
four GPUs; a scenario is scheduled where every rate is served within its objective. Ours are five generated networks in
place of theirs, as estimated; objectives are twice the latency of batch 32 on the whole GPU; and rates are scaled by one
factor, found by bisection so that gpulet schedules half of the scenarios (--factor sets it).

The ideal is searched where nothing else tells: what gpulet schedules can be scheduled (its answer is checked), and so can
all that asks for no more of any model; what asks for more than an unschedulable scenario cannot. --exhaustive searches every
scenario instead.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gkestimator.documents import Cluster, ModelLoad, Workload
from gkestimator.documents.cluster import GpuCount
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.placement.building import build_problem
from gkestimator.placement.expected import goodput_rps
from gkestimator.placement.papers.gpulet.ideal import GpuletIdealPolicy
from gkestimator.placement.papers.gpulet.policy import GpuletPolicy
from gkestimator.placement.papers.nexus import NexusPolicy
from gkestimator.placement.policy import Policy, checked_problem, verify
from gkestimator.placement.problem import Problem

sys.path.insert(0, str(Path(__file__).parents[1]))
from _placement_tables import own_estimates

# In place of LeNet, GoogLeNet, ResNet-50, SSD-MobileNet and VGG-16.
NAMES = ("light_squeezenet", "light_inception_v1", "resnet50", "mobilenet_v2", "light_vgg19")
LEVELS = (0.0, 200.0, 400.0, 600.0)
SHARES = (20.0, 40.0, 50.0, 60.0, 80.0, 100.0)
BATCHES = (1, 2, 4, 8, 16, 32)
LEAST = 0.95

Scenario = tuple[float, ...]


def main() -> None:
    given = arguments()
    names = tuple(given.names.split(","))
    rows = own_estimates(given.models, gpus=(given.gpu,), batch_sizes=BATCHES, sm_shares=SHARES)
    latency = {
        r.model: r.latency_ms for r in rows if r.batch_size == 32 and r.sm_share_pct == 100 and r.latency_ms
    }
    lacking = [n for n in names if n not in latency]
    if lacking or len(names) != 5:
        sys.exit(
            f"expected five models with an estimate, found none for {', '.join(lacking) or 'others than five'}"
        )
    cluster = Cluster(gpus=(GpuCount(spec=gpu_catalogue().spec(given.gpu), count=given.count),))
    loads = tuple(ModelLoad(name=n, rate_rps=1.0, slo_ms=2 * latency[n]) for n in names)
    every = build_problem(rows, Workload(models=loads), cluster)
    print(
        f"{given.count} {given.gpu}; SLO: " + ", ".join(f"{m.name} {m.slo_ms:.1f} ms" for m in every.models)
    )

    scenarios = [s for s in itertools.product(LEVELS, repeat=5) if any(s)]
    ideal = GpuletIdealPolicy(interference=given.interference)
    gpulet = GpuletPolicy(interference=given.interference)
    factor = given.factor or half_schedulable(every, gpulet, scenarios)
    print(
        f"{len(scenarios):,} scenarios, rates x {factor:.3g}, interference {'' if given.interference else 'not '}counted"
    )

    def judge(policy: Policy) -> Callable[[Scenario], bool]:
        return lambda s: schedules(policy, loaded(every, s, factor))

    counts: dict[str, set[Scenario]] = {}
    for name, policy in (
        ("gpulet", gpulet),
        ("as published", GpuletPolicy(interference=given.interference, published=True)),
        ("gpulet, no turns", GpuletPolicy(interference=given.interference, temporal_sharing=False)),
        ("nexus", NexusPolicy()),
    ):
        start = time.perf_counter()
        counts[name] = {s for s in scenarios if judge(policy)(s)}
        spent = (time.perf_counter() - start) / len(scenarios)
        print(f"{name:17s} {len(counts[name]):5,d} scheduled, {1e3 * spent:.1f} ms each")
    start = time.perf_counter()
    known = set() if given.exhaustive else counts["gpulet"]
    counts["ideal"], searched = frontier(
        scenarios, known, lambda s: ideal.schedulable(loaded(every, s, factor)), given.exhaustive
    )
    spent = (time.perf_counter() - start) / max(1, searched)
    print(
        f"{'ideal':17s} {len(counts['ideal']):5,d} scheduled, {1e3 * spent:.0f} ms each of {searched:,} searched"
    )
    best = len(counts["ideal"])
    for name in ("gpulet", "as published", "gpulet, no turns", "nexus"):
        beyond = len(counts[name] - counts["ideal"])
        print(
            f"{name:17s} {100 * len(counts[name]) / best:6.2f} % of ideal"
            + (f"; {beyond} beyond it" if beyond else "")
        )
    if len(counts["gpulet"]) < LEAST * best:
        sys.exit(f"gpulet schedules less than {100 * LEAST:g} % of what its ideal schedules")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", default="RTX-2080-TI")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--factor", type=float, default=0.0)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--interference", action="store_true")
    return parser.parse_args()


def loaded(every: Problem, scenario: Scenario, factor: float) -> Problem:
    """The problem with the scenario's rates; models asked for at 0 are not in it."""
    models = tuple(
        replace(m, rate_rps=rate * factor) for m, rate in zip(every.models, scenario, strict=True) if rate
    )
    return every.with_models(models)


def schedules(policy: Policy, problem: Problem) -> bool:
    """Whether every rate is served, by an answer that stands."""
    usable = checked_problem(policy, problem)
    answer = policy.place(usable)
    verify(policy, usable, answer)
    served = goodput_rps(usable, answer.placed)
    return all(served[m.name] >= m.rate_rps * (1 - 1e-6) for m in usable.models)


def half_schedulable(every: Problem, policy: Policy, scenarios: list[Scenario]) -> float:
    """The factor at which ``policy`` schedules half of every fifth of ``scenarios``, within 2 %."""
    drawn = scenarios[::5]
    low, high = 1 / 64, 64.0
    while high / low > 1.02:
        middle = (low * high) ** 0.5
        if 2 * sum(schedules(policy, loaded(every, s, middle)) for s in drawn) >= len(drawn):
            low = middle
        else:
            high = middle
    return float(f"{(low * high) ** 0.5:.2g}")


def frontier(
    scenarios: list[Scenario], known: set[Scenario], judge: Callable[[Scenario], bool], every: bool
) -> tuple[set[Scenario], int]:
    """The schedulable ones, and how many had to be searched: from the middle of the loads outwards."""
    yes = {s for s in scenarios if any(below(s, k) for k in known)}
    no: set[Scenario] = set()
    searched = 0
    left = [s for s in scenarios if s not in yes]
    while left:
        left.sort(key=lambda s: (sum(s), s))
        s = left[0 if every else len(left) // 2]
        searched += 1
        if judge(s):
            yes |= {s} if every else {t for t in left if below(t, s)}
        else:
            no |= {s} if every else {t for t in left if below(s, t)}
        left = [t for t in left if t not in yes and t not in no]
    return yes, searched


def below(one: Scenario, two: Scenario) -> bool:
    """Whether ``one`` asks for no more of any model."""
    return all(a <= b for a, b in zip(one, two, strict=True))


if __name__ == "__main__":
    main()
