"""Shows that a change of the code changes no result: one hash per group of cases, and the cases that differ from before.

    python benchmarks/unchanged.py -o before.json            (about 8 minutes on one core)
    python benchmarks/unchanged.py --against before.json     (exit status 1 where a case differs)
    python benchmarks/unchanged.py --quick ...               (about a minute: fewer of each)

Groups: estimates (tables and kernels by graph, GPU, runtime, dtype and option), placements (random problems, every policy),
simulations (random plans, arrivals and options, lengths), exports (every target) and merges (report and merged file).
Schema versions are left out of what is compared, words on stderr too. Everything goes through ``gkestimator.cli.run``,
so that the same file measures checkouts whose modules stand elsewhere: start it with each checkout's interpreter.

The random problems are made from requirement tables. They are kept in the file of -o; ``--against`` takes them from there,
so that an estimate that was mended shows among the estimates alone. ``--tables FILE`` takes them from another file.
Two files of -o are compared by ``--against BEFORE --of AFTER``, without running anything. GKEST_SHARED, where it is set,
adds public graphs to the estimates. A placement that the clock ended (milp's time limit) is not compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _unchanged_estimates import estimates
from _unchanged_merges import merges
from _unchanged_placements import ENDED, Tables, placements, problem_tables
from _unchanged_simulations import exports, simulations

Cases = Iterator[tuple[str, str]]
SHOWN = 40


@dataclass(frozen=True)
class Counts:
    """Say how many cases each group has: placements and exports are counted for each policy."""

    placements: int
    simulations: int
    exports: int
    merges: int


FULL = Counts(placements=500, simulations=50, exports=3, merges=40)
QUICK = Counts(placements=25, simulations=8, exports=1, merges=6)


def main() -> int:
    """Run the groups, print their hashes, write and compare; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer of each, public graphs left out")
    parser.add_argument("--groups", help="only these, by comma")
    parser.add_argument("-o", "--output", type=Path, help="JSON of every case's hash")
    parser.add_argument("--against", type=Path, metavar="FILE", help="an earlier file of -o to compare with")
    parser.add_argument("--of", type=Path, metavar="FILE", help="compare this file instead of running")
    parser.add_argument(
        "--tables", type=Path, metavar="FILE", help="take the problems' tables from this file of -o"
    )
    asked = parser.parse_args()
    before = json.loads(asked.against.read_text()) if asked.against else None
    if asked.of:
        now = json.loads(asked.of.read_text())
    else:
        earlier = json.loads(asked.tables.read_text()) if asked.tables else before
        now = measured(asked.quick, asked.groups, earlier and earlier["tables"])
    if asked.output:
        asked.output.write_text(json.dumps(now, indent=0) + "\n")
    return 1 if before and differences(before["groups"], now["groups"]) else 0


def measured(quick: bool, names: str | None, tables: Tables | None) -> dict[str, Any]:
    """Return the tables that problems are made from and the hash of every case by group."""
    counts = QUICK if quick else FULL
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = tables or problem_tables(folder / "tables")
        groups: Mapping[str, Callable[[], Cases]] = {
            "estimates": lambda: estimates(folder / "estimates", quick),
            "placements": lambda: placements(known, folder / "placements", counts.placements),
            "simulations": lambda: simulations(known, folder / "simulations", counts.simulations),
            "exports": lambda: exports(known, folder / "exports", counts.exports),
            "merges": lambda: merges(folder / "merges", counts.merges),
        }
        chosen = names.split(",") if names else list(groups)
        results = {group: _run(group, groups[group]) for group in chosen}
    return {"quick": quick, "tables": dict(known), "groups": results}


def _run(group: str, cases: Callable[[], Cases]) -> dict[str, str]:
    start = time.perf_counter()
    hashes = dict(cases())
    seconds = time.perf_counter() - start
    refused = sum(h.startswith("2 ") for h in hashes.values())
    clock = sum(h == ENDED for h in hashes.values())
    print(
        f"{group:12s} {overall(hashes)}  {len(hashes):6,d} cases, {refused} of them refused, {clock} ended by the clock"
        f" {seconds:8.1f} s",
        flush=True,
    )
    return hashes


def overall(hashes: Mapping[str, str]) -> str:
    """Return one hash of all cases."""
    return hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest()[:20]


def differences(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> int:
    """Print the cases that differ or are gone, group by group; return how many. New cases are only counted."""
    total = 0
    for group, hashes in now.items():
        earlier = before.get(group, {})
        gone = [case for case in earlier if case not in hashes]
        changed = [case for case in hashes if case in earlier and _differ(earlier[case], hashes[case])]
        new = sum(case not in earlier for case in hashes)
        total += len(gone) + len(changed)
        same = len(hashes) - len(changed) - new
        print(f"{group:12s} {same:,} the same, {len(changed)} differ, {len(gone)} gone, {new} new")
        for word, cases in (("differs", changed), ("gone", gone)):
            for case in cases[:SHOWN]:
                print(f"  {word}: {case}")
            if len(cases) > SHOWN:
                print(f"  {word}: {len(cases) - SHOWN} more")
    return total


def _differ(before: str, now: str) -> bool:
    return before != now and ENDED not in (before, now)


if __name__ == "__main__":
    sys.exit(main())
