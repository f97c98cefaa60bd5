"""Compare every placement policy on the same instances by the requests expected on time: docs/reference/placement-policies.md.

    python benchmarks/policies.py [--instances 500] [--weighted 100] [--elastic 100] [--first 0] [--seed 0] [--processes 2]
                                  [--policies usher,milp,...] [--limit-s 20] [--csv FILE] [--report docs/reference/placement-policies.md]

Instances: benchmarks/placement_instances.py. Each policy packs by its own default measure. ``gkest`` is compared with each:
a win or loss is a difference above 0.1 %, the gain is expected_goodput_rps over the other's, less one. A policy that refuses an
instance (a column that it needs is null there), that has no answer within --limit-s, or whose expected goodput is unknown is not
compared on it, and the table says on how many it was. gpulet-ideal is exhaustive and has a benchmark of its own.
Weighted instances count each request by its model's weight. On rented GPUs (elastic) a policy is better that keeps more models'
requests on time (99 % of them expected), at equally many the cheaper one. The others know nothing of queues, so each is asked with
its rates raised by each of HEADROOMS too, and its best answer counts (they are given more than a user could: the judge's eye).
"""

from __future__ import annotations

import argparse
import csv
import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
from _placement_tables import own_estimates
from placement_instances import FAMILIES, instance

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.placement.building import impossible
from gkestimator.placement.expected import expect, goodput_rps
from gkestimator.placement.policy import Placement, Policy, checked_problem, verify
from gkestimator.placement.problem import Problem
from gkestimator.placement.registry import POLICIES, make_policy, policy_class

OURS = "gkest"
TIE = 1e-3
ON_TIME = 0.99
BOUND_PCT = 1.0
HEADROOMS = (1.15, 1.35, 1.6, 2.0, 3.0)
REFUSED, LATE, FAILED = "refused: ", "no answer", "failed: "


class OutOfTimeError(Exception):
    """A policy took longer than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One policy on one instance. ``value``: weighted requests expected on time (None: refused, out of time or unknown, and
    ``why``); ``least``: the smallest part of its rate that a model is expected to get, of the models that any GPU could serve;
    ``kept``: models with 99 % of their requests on time."""

    kind: str
    number: int
    family: str
    policy: str
    models: int
    value: float | None
    why: str = ""
    goodput: float = 0.0
    asked: float = 0.0
    least: float = 0.0
    kept: int = 0
    gpus: int = 0
    cost: float = 0.0
    gap_pct: float | None = None
    seconds: float = 0.0


def run(task: tuple[str, int], *, seed: int, policies: Sequence[str], limit_s: float) -> list[Result]:
    """Every policy on instance ``task`` (kind, number)."""
    kind, number = task
    drawn = instance(number, seed, kind)
    found = []
    for name in policies:
        problem = drawn.problem(policy_class(name).creq)
        common = {
            "kind": kind,
            "number": number,
            "family": drawn.family,
            "policy": name,
            "models": len(problem.models),
        }
        try:
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            policy = make_policy(name)
            answer, seconds = _answer(policy, problem)
            if kind == "elastic" and name != OURS:
                answer = max(
                    (answer, *(_answer(policy, _more(problem, f))[0] for f in HEADROOMS)),
                    key=partial(_rank, problem),
                )
        except UsageError as e:
            found.append(Result(**common, value=None, why=f"{REFUSED}{e}"))
            continue
        except OutOfTimeError:
            found.append(Result(**common, value=None, why=f"{LATE} in {limit_s:g} s"))
            continue
        except Exception as e:  # noqa: BLE001  (one policy's defect must not hide the others' results; it is counted and shown)
            found.append(Result(**common, value=None, why=f"{FAILED}{type(e).__name__}: {e}"))
            continue
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        expected = expect(problem, answer.placed)
        if expected.goodput_rps is None:
            found.append(Result(**common, value=None, why=expected.notes[0], seconds=seconds))
            continue
        parts = {m.name: (expected.by_model[m.name] or 0.0) / m.rate_rps for m in problem.models}
        used = {p.gpu.id: p.gpu.type for p in answer.placed}
        hopeless = impossible(problem)
        found.append(
            Result(
                **common,
                value=sum(m.weight * m.rate_rps * parts[m.name] for m in problem.models),
                goodput=sum(goodput_rps(problem, answer.placed).values()),
                asked=sum(m.rate_rps for m in problem.models),
                least=min((p for m, p in parts.items() if m not in hopeless), default=1.0),
                kept=sum(p >= ON_TIME for p in parts.values()),
                gpus=len(used),
                cost=sum(problem.prices[t] or 0.0 for t in used.values()),
                gap_pct=answer.gap_pct,
                seconds=seconds,
            )
        )
    return found


def _answer(policy: Policy, problem: Problem) -> tuple[Placement, float]:
    """What ``policy`` answers, verified, and how many seconds it took."""
    start = time.perf_counter()
    usable = checked_problem(policy, problem)
    found = policy.place(usable)
    seconds = time.perf_counter() - start
    verify(policy, usable, found)
    return found, seconds


def _more(problem: Problem, factor: float) -> Problem:
    return problem.with_models(tuple(replace(m, rate_rps=factor * m.rate_rps) for m in problem.models))


def _rank(problem: Problem, answer: Placement) -> tuple[int, float]:
    """Models on time, then cheapness."""
    by_model = expect(problem, answer.placed).by_model
    used = {p.gpu.id: p.gpu.type for p in answer.placed}
    kept = sum((by_model[m.name] or 0.0) >= ON_TIME * m.rate_rps for m in problem.models)
    return kept, -sum(problem.prices[t] or 0.0 for t in used.values())


def _alarm(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError


def _worker() -> None:
    signal.signal(signal.SIGALRM, _alarm)


def results(
    tasks: Sequence[tuple[str, int]], work: Callable[[tuple[str, int]], list[Result]], processes: int
) -> Iterator[Result]:
    """Of every task in order; how far it is goes to stderr."""
    start = time.perf_counter()
    with ProcessPoolExecutor(processes, initializer=_worker) as pool:
        for done, found in enumerate(pool.map(work, tasks, chunksize=2), 1):
            if done % 25 == 0 or done == len(tasks):
                print(
                    f"{done} of {len(tasks)} instances, {time.perf_counter() - start:.0f} s", file=sys.stderr
                )
            yield from found


def available(names: Sequence[str]) -> list[str]:
    """Those of ``names`` that are installed."""
    found = []
    for name in names:
        try:
            policy_class(name)
            found.append(name)
        except ModuleNotFoundError as e:
            print(f"{name}: left out: {e}", file=sys.stderr)
        except UsageError as e:
            sys.exit(str(e))
    return found


def against(all_of: Sequence[Result], other: str) -> list[tuple[Result, Result]]:
    """Pairs (ours, ``other``'s) on the instances that both answered; ``other`` "best of them": the best of all others."""
    groups: dict[tuple[str, int], dict[str, Result]] = {}
    for r in all_of:
        if r.value is not None:
            groups.setdefault((r.kind, r.number), {})[r.policy] = r
    pairs = []
    for here in groups.values():
        ours = here.get(OURS)
        theirs = here.get(other)
        if other == "best of them":
            theirs = max(
                (r for n, r in here.items() if n != OURS), key=lambda r: r.value or 0.0, default=None
            )
        if ours and theirs:
            pairs.append((ours, theirs))
    return pairs


def gain(ours: Result, theirs: Result) -> float:
    """Ours over theirs, less one; 0 where both serve nothing, infinite where only they serve nothing."""
    a, b = ours.value or 0.0, theirs.value or 0.0
    return a / b - 1 if b > 0 else (0.0 if a == 0 else math.inf)


def comparison(all_of: Sequence[Result], policies: Sequence[str]) -> list[list[str]]:
    """Rows of the table of wins, with its heading."""
    rows = [
        [
            "gkest against",
            "instances",
            "wins",
            "ties",
            "losses",
            "worse by > 1 %",
            "worst case",
            "mean gain",
            "others serve nothing",
        ]
    ]
    for other in [*(p for p in policies if p != OURS), "best of them"]:
        pairs = against(all_of, other)
        if not pairs:
            continue
        gains = [gain(a, b) for a, b in pairs]
        finite = [g for g in gains if math.isfinite(g)]
        mean = math.expm1(float(np.mean([math.log1p(max(g, -0.999999)) for g in finite]))) if finite else 0.0
        rows.append(
            [
                other,
                str(len(pairs)),
                str(sum(g > TIE for g in gains)),
                str(sum(abs(g) <= TIE for g in gains)),
                str(sum(g < -TIE for g in gains)),
                str(sum(100 * g < -BOUND_PCT for g in gains)),
                f"{100 * min(gains):+.2f} %",
                f"{100 * mean:+.1f} %",
                str(len(gains) - len(finite)),
            ]
        )
    return rows


def levels(all_of: Sequence[Result], policies: Sequence[str]) -> list[list[str]]:
    """Rows of the table of what each policy serves, with its heading."""
    rows = [
        [
            "policy",
            "answered",
            "refused",
            "out of time",
            "failed",
            "expected on time",
            "plain goodput",
            "least served model",
            "GPUs used",
            "median decision",
        ]
    ]
    for name in policies:
        mine = [r for r in all_of if r.policy == name]
        good = [r for r in mine if r.value is not None]
        if not good:
            rows.append([name, "0", *_unanswered(mine), *[""] * 5])
            continue
        rows.append(
            [
                name,
                str(len(good)),
                *_unanswered(mine),
                f"{100 * np.mean([(r.value or 0) / r.asked for r in good]):.1f} %",
                f"{100 * np.mean([r.goodput / r.asked for r in good]):.1f} %",
                f"{100 * np.mean([r.least for r in good]):.1f} %",
                f"{np.mean([r.gpus for r in good]):.2f}",
                f"{1e3 * np.median([r.seconds for r in good]):.0f} ms",
            ]
        )
    return rows


def _unanswered(mine: Sequence[Result]) -> list[str]:
    """Refused (or of unknown worth), out of time, failed."""
    late, failed = (sum(r.why.startswith(w) for r in mine) for w in (LATE, FAILED))
    return [str(sum(r.value is None for r in mine) - late - failed), str(late), str(failed)]


def rented(all_of: Sequence[Result], policies: Sequence[str]) -> list[list[str]]:
    """Rows of the table of rented GPUs, with its heading."""
    rows = [
        [
            "policy",
            "answered",
            "models on time",
            "mean cost where all are, over gkest's",
            "gkest better",
            "alike",
            "worse",
        ]
    ]
    for name in policies:
        good = [r for r in all_of if r.policy == name and r.value is not None]
        if not good:
            rows.append([name, "0", *[""] * 5])
            continue
        pairs = [(a, b) for a, b in against(all_of, name) if name != OURS]
        both = [b.cost / a.cost for a, b in pairs if a.kept == b.kept and a.cost > 0]
        better = sum(a.kept > b.kept or (a.kept == b.kept and a.cost < b.cost * (1 - TIE)) for a, b in pairs)
        worse = sum(a.kept < b.kept or (a.kept == b.kept and a.cost > b.cost * (1 + TIE)) for a, b in pairs)
        rows.append(
            [
                name,
                str(len(good)),
                f"{100 * sum(r.kept for r in good) / sum(r.models for r in good):.1f} %",
                f"{np.exp(np.mean(np.log(both))):.3f} ({len(both)})" if both else "",
                *([str(better), str(len(pairs) - better - worse), str(worse)] if pairs else [""] * 3),
            ]
        )
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is the heading."""
    lines = ["| " + " | ".join(r) + " |" for r in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


FAMILIES_SAID = "`a1`: models measured on a V100 (the thesis' table A.1); `own`: our estimates on one type of GPU; `mixed`: on two to four types."


def page(found: Sequence[Result], policies: Sequence[str], command: str) -> str:
    """The report."""
    parts = [
        "# Placement policies compared",
        f"`{command}`",
        "How many requests are on time, and how many GPUs that takes, under each [placement policy](../how-to/scheduling/policies.md): random problems of "
        "several models with rates and objectives. *Wins*: problems on which `gkest` is expected to answer more requests on time than the other.",
        "Requests expected on time are counted by our own formulas ([how](../how-to/scheduling/policies.md#how-expected-goodput-is-counted)), which `gkest` maximises and the others "
        "do not know; plain goodput is what their papers count. `gkest` was developed on instances of other seeds and, late, looked at "
        "on seed 0. A simulator that does not share them judges in [policies-simulated.md](../appendix/policies-simulated.md) and by `python benchmarks/expected_against_simulated.py`.",
    ]
    plain = [r for r in found if r.kind == "goodput"]
    if plain:
        parts += [
            "## Fixed clusters, by requests expected on time",
            markdown(comparison(plain, policies)),
            "A tie is a difference of at most 0.1 %. The mean gain is geometric, over the instances where the other serves anything.",
            markdown(levels(plain, policies)),
            "Parts of the rate asked for, as means over the instances; *least served model*: of those that the GPUs could serve at all.",
        ]
        tables = {f: comparison([r for r in plain if r.family == f], policies) for f in FAMILIES}
        best = [[f"`{family}`", *table[-1][1:]] for family, table in tables.items()]
        head = ["against the best of them", *tables[FAMILIES[0]][0][1:]]
        parts += ["### By family of instances", FAMILIES_SAID, markdown([head, *best])]
    weighted = [r for r in found if r.kind == "weighted"]
    if weighted:
        parts += [
            "## Weighted models, by weight times requests expected on time",
            markdown(comparison(weighted, policies)),
        ]
    elastic = [r for r in found if r.kind == "elastic"]
    if elastic:
        parts += [
            "## Rented GPUs, by models on time, then by cost",
            markdown(rented(elastic, policies)),
            "On time: 99 % of a model's requests are expected within its objective. In brackets: instances with as many models on time. "
            f"The others are asked for 1, {', '.join(f'{h:g}' for h in HEADROOMS)} times the rate, and their best answer counts.",
        ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for kind, count in (("instances", 500), ("weighted", 100), ("elastic", 100)):
        parser.add_argument(f"--{kind}", type=int, default=count)
    parser.add_argument("--first", type=int, default=0, help="number of the first instance of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--policies", default=",".join(p for p in POLICIES if p != "gpulet-ideal"))
    parser.add_argument("--limit-s", type=float, default=20.0)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    policies = available(given.policies.split(","))
    own_estimates()  # once, before the processes ask for it
    counts = {"goodput": given.instances, "weighted": given.weighted, "elastic": given.elastic}
    tasks = [(kind, given.first + i) for kind, count in counts.items() for i in range(count)]
    work = partial(run, seed=given.seed, policies=policies, limit_s=given.limit_s)
    try:
        found = list(results(tasks, work, given.processes))
    except GkestimatorError as e:
        sys.exit(str(e))
    if given.csv:
        with given.csv.open("w", newline="") as f:
            names = [x.name for x in fields(Result)]
            table = csv.writer(f)
            table.writerow(names)
            table.writerows([getattr(r, n) for n in names] for r in found)
    options = f"--instances {given.instances} --weighted {given.weighted} --elastic {given.elastic} --first {given.first} --seed {given.seed} --limit-s {given.limit_s:g}"
    text = page(found, policies, f"python benchmarks/policies.py {options} --policies {','.join(policies)}")
    print(text)
    if given.report:
        given.report.write_text(text)
    for why, count in Counter(
        f"{r.kind}: {r.policy}: {r.why}" for r in found if r.why.startswith(FAILED)
    ).items():
        print(f"{why} ({count} instances)")
    worst = [(gain(a, b), a) for a, b in against([r for r in found if r.kind == "goodput"], "best of them")]
    for g, r in sorted(worst, key=lambda x: x[0])[:10]:
        if g < -TIE:
            print(f"goodput {r.family} {r.number}: {100 * g:+.2f} % against the best of them")


if __name__ == "__main__":
    main()
