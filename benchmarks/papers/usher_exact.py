"""Compare the search of USHER's policy with the enumeration of every configuration on 200 random instances.

    python benchmarks/papers/usher_exact.py [--instances 200] [--first 0] [--most 20000]

Fixed and rented, one to three GPU types, two to seven models; at most ``--most`` configurations each, of which
the enumeration (plain Python, GPU by GPU, shares no code with the policy but the groups) packs every one. Ends
with status 1 if one differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from gkestimator.placement.expected import goodput_rps
from gkestimator.placement.papers.usher.policy import UsherPolicy
from gkestimator.placement.policy import verify

sys.path.append(str(Path(__file__).parents[2] / "tests" / "placement" / "policies"))
from _usher_reference import exhaustive, instance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--most", type=int, default=20_000)
    given = parser.parse_args()
    policy = UsherPolicy()
    same_goodput = same_cost = same = configurations = 0
    searching = enumerating = 0.0
    kinds: dict[str, int] = {}
    for seed in range(given.first, given.first + given.instances):
        problem = instance(seed, most=given.most)
        start = time.process_time()
        found = policy.place(problem)
        searching += time.process_time() - start
        verify(policy, problem, found)
        start = time.process_time()
        used, count = exhaustive(problem)
        enumerating += time.process_time() - start
        configurations += count
        goodput = sum(goodput_rps(problem, found.placed).values())
        other = 0.0
        for model in problem.models:
            rps = sum(c.throughput_rps for g in used for m, c in g.held if m == model.name)
            other += min(model.rate_rps, rps)
        mine = {p.gpu.id: p.gpu.type for p in found.placed}
        same_goodput += abs(goodput - other) <= 1e-9 * other
        same_cost += sorted(mine.values()) == sorted(g.type for g in used)
        held = sorted((p.gpu.id, p.model, p.candidate.batch_size) for p in found.placed)
        same += held == sorted((f"{g.type}-{g.number}", m, c.batch_size) for g in used for m, c in g.held)
        kind = f"{'rented' if problem.elastic else 'fixed'}, {'one type' if len(problem.types) == 1 else 'several types'}"
        kinds[kind] = kinds.get(kind, 0) + 1
    print(f"{given.instances} instances ({'; '.join(f'{n} {k}' for k, n in sorted(kinds.items()))})")
    print(
        f"same goodput {same_goodput}, same GPUs and cost {same_cost}, same placement {same}; {configurations:,} "
        f"configurations enumerated in {enumerating:.1f} s of processor time, the search took {searching:.2f} s"
    )
    sys.exit(0 if same == same_goodput == same_cost == given.instances else 1)


if __name__ == "__main__":
    main()
