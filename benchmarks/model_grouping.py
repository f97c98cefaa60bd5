"""Measure how near operator graphs are by graph edit distance, and what ``gkest merge`` puts into one group.

    GKEST_SHARED=DIR python benchmarks/model_grouping.py [--pairs 300] [--nearest 24]

First the bounds against the exact distance (networkx) on random graphs of at most five operators; then, for every two
of the graphs in DIR/models, the bounds, both normalised forms and the time; then the groups by epsilon. Distances of
pairs are taken without epsilon, so every path is improved as far as it goes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from _shared import exported_models

sys.path.append(str(Path(__file__).parents[1] / "tests" / "merging" / "grouping"))

from random_skeletons import drawn, exact

from gkestimator.core.graph import OperatorGraph
from gkestimator.merging.grouping import EditDistance, graph_edit_distance, group_models
from gkestimator.merging.grouping.edit_distance import distance
from gkestimator.merging.options import MergeOptions
from gkestimator.onnx_io import read_model

EPSILONS = (0.0, 0.02, 0.05, MergeOptions().group_distance, 0.1, 0.15, 0.2, 0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--pairs", type=int, default=300, help="random pairs compared with the exact distance"
    )
    parser.add_argument("--nearest", type=int, default=24, help="rows of the table of near graphs")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    tightness(given.pairs, given.seed)
    files = exported_models()
    graphs = [read_model(p, name=f"{p.parent.name}/{p.stem}").bind() for p in files]
    nearest(graphs, given.nearest)
    groups(graphs)


def tightness(pairs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    below, above, lower_met, upper_met = [], [], 0, 0
    for _ in range(pairs):
        a, b = drawn(rng, 5, least=1), drawn(rng, 5, least=1)
        found, truth = distance(a, b), exact(a, b)
        assert found.lower <= truth <= found.upper
        lower_met += found.lower == truth
        upper_met += found.upper == truth
        below.append(truth - found.lower)
        above.append(found.upper - truth)
    print(
        f"{pairs} random pairs: lower <= exact <= upper in all; lower exact in {lower_met} (mean gap "
        f"{statistics.mean(below):.3f}), upper exact in {upper_met} (mean gap {statistics.mean(above):.3f})\n"
    )


def nearest(graphs: list[OperatorGraph], rows: int) -> None:
    timed: list[tuple[float, EditDistance, str, str]] = []
    for a, b in itertools.combinations(graphs, 2):
        start = time.process_time()
        found = graph_edit_distance(a, b)
        timed.append((time.process_time() - start, found, a.name, b.name))
    different = sorted((t for t in timed if t[1].upper), key=lambda t: (t[1].changed, t[2], t[3]))
    print(f"{len(timed)} pairs of {len(graphs)} graphs, {len(timed) - len(different)} of them the same graph")
    slowest = max(timed, key=lambda t: t[0])
    median = statistics.median(t[0] for t in timed)
    print(f"CPU seconds a pair: median {median:.3f}, most {slowest[0]:.2f} ({slowest[2]}, {slowest[3]})\n")
    print("| graphs | operators and edges | lower | upper | normalised | changed |")
    print("|---|---|---|---|---|---|")
    for _, d, a, b in different[:rows]:
        sizes = " / ".join(map(str, d.sizes))
        print(f"| {a}, {b} | {sizes} | {d.lower} | {d.upper} | {d.normalised:.3f} | {d.changed:.3f} |")
    print()


def groups(graphs: list[OperatorGraph]) -> None:
    print("| epsilon | groups of several |")
    print("|---|---|")
    for epsilon in EPSILONS:
        found = [g for g in group_models(graphs, epsilon=epsilon).groups if len(g) > 1]
        print(f"| {epsilon:g} | {'; '.join(', '.join(graphs[i].name for i in g) for g in found)} |")


if __name__ == "__main__":
    main()
