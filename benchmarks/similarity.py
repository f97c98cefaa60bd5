"""Hold the search for common weights (gkest merge) to brute force, and time it as weights grow.

    python benchmarks/similarity.py [--cases 1000] [--repeats 5] [--layers 72]

1. ``--cases`` random small pairs (alphabets of 2 to 100 values, tolerances 0 to 1, values at the tolerance's edges, NaN,
   several taps): the largest common block by anchors and by every shift against plain Python. Ends with status 1 where
   one differs.
2. Two weights of n x 4n float32 values with a shifted block (0.65 of the weight), and two unrelated ones: processor time
   by anchors (median of ``--repeats``) and by every shift (n to 32), growth when the number of values doubles.
3. Two 768 x 3072 weights in each type, memory beyond the weights (tracemalloc), and weights of few distinct values.
4. ``--layers`` x ``--layers`` unrelated weights of 768 x 3072 (all pairs in one call), and as many equal pairs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.merging.similarity import similar_pairs

sys.path.append(str(Path(__file__).parents[1] / "tests" / "merging" / "similarity"))
from _largest import by_anchors, by_every_shift, largest_common_rectangle
from _rectangle_oracle import largest_block
from _weight_cases import bfloat16, block, case, matrix

OMEGA, TOLERANCE = 0.4, 1e-7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, default=72)
    given = parser.parse_args()
    wrong = against_brute_force(given.cases)
    growth(given.repeats)
    kinds(given.repeats)
    many(given.layers)
    sys.exit(1 if wrong else 0)


def against_brute_force(cases: int) -> int:
    wrong = common = 0
    for seed in range(10_000, 10_000 + cases):
        a, b, tolerance = case(seed)
        expected = largest_block(a.tolist(), b.tolist(), tolerance)
        area = expected[0] * expected[1] if expected else 0
        found, certain = by_anchors(a, b, tolerance=tolerance, cells=max(1, area))
        shifts = by_every_shift(a, b, tolerance=tolerance)
        wrong += not (certain and block(found) == block(shifts) == expected)
        common += area > 1
    print(
        f"{cases} random pairs ({common} with more than one value in common): {cases - wrong} equal to brute force"
    )
    return wrong


def normal(rows: int, columns: int, seed: int) -> np.ndarray:
    made: np.ndarray = np.random.default_rng(seed).standard_normal((rows, columns, 1)) * 0.02
    return made.astype(np.float32)


def shifted(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Two weights, 0.81 x 0.81 of one at another place of the other."""
    a, b = normal(rows, columns, 1), normal(rows, columns, 2)
    tall, wide = round(0.81 * rows), round(0.81 * columns)
    b[rows - tall :, : columns - columns // 8][:, -wide:] = a[:tall, columns // 16 : columns // 16 + wide]
    return a, b


def milliseconds(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Processor time, the median of ``repeats``, and what the last call returned."""
    spent, found = [], None
    for _ in range(repeats):
        start = time.process_time()
        found = call()
        spent.append((time.process_time() - start) * 1e3)
    return statistics.median(spent), found


def growth(repeats: int) -> None:
    print("\nvalues    shifted ms  unrelated ms  every shift ms")
    points: dict[str, list[tuple[float, float]]] = {"anchors": [], "every shift": []}
    for n in (8, 16, 32, 64, 128, 256, 512, 1024, 2048):
        a, b = shifted(n, 4 * n)
        search = partial(largest_common_rectangle, tolerance=TOLERANCE, least=int(OMEGA * a.size))
        search(a, b)
        took, found = milliseconds(partial(search, a, b), repeats)
        assert found is not None and found.exact and found.rows * found.columns >= 0.6 * a.size
        other = normal(n, 4 * n, 3)
        apart, none = milliseconds(partial(search, a, other), repeats)
        assert none is None
        slow = "-"
        if n <= 32:
            brute, same = milliseconds(partial(by_every_shift, a, b, tolerance=TOLERANCE), 1)
            assert same == found
            slow = f"{brute:.1f}"
            points["every shift"].append((a.size, brute))
        if n >= 64:
            points["anchors"].append((a.size, took))
        print(f"{a.size:>9,} {took:>10.2f} {apart:>13.2f} {slow:>15}")
    for name, some in points.items():
        slope = np.polyfit(np.log([n for n, _ in some]), np.log([t for _, t in some]), 1)[0]
        print(f"{name}: time grows as |W|^{slope:.2f} (twice the values, {2**slope:.2f} times the time)")


def kinds(repeats: int) -> None:
    print("\n768 x 3072, omega 0.4              ms   MB beyond the weights")
    a, b = shifted(768, 3072)
    noise = np.random.default_rng(5).choice([-5e-8, 0, 5e-8], b.shape).astype(np.float32)
    zeros, pruned = normal(768, 3072, 6), normal(768, 3072, 7)
    zeros[:400] = 0
    pruned[300:] = 0
    dropped = [normal(768, 3072, s) * (np.random.default_rng(s).random((768, 3072, 1)) < 0.3) for s in (8, 9)]
    cases = {
        "float32, shifted block": (a, b, True),
        "float32, moved within 1e-7": (a, b + noise, True),
        "float16, shifted block": (a.astype(np.float16), b.astype(np.float16), True),
        "bfloat16, shifted block": (bfloat16(a), bfloat16(b), True),
        "float32, equal": (a, a.copy(), True),
        "float32, one row and column differ": (a, crossed(a), True),
        "400 and 468 rows of zeros": (zeros, pruned, True),
        "70 % zeros, unrelated": (dropped[0].astype(np.float32), dropped[1].astype(np.float32), False),
        "unrelated": (a, normal(768, 3072, 4), False),
    }
    for name, (x, y, expected) in cases.items():
        left, right = matrix(x), matrix(y)

        search = partial(similar_pairs, [left], [right], [(0, 0)], omega=OMEGA, tolerance=TOLERANCE)
        took, found = milliseconds(search, repeats)
        tracemalloc.start()
        search()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert bool(found) is expected, name
        assert all(r.exact for r in found.values()), name
        print(f"{name:<34}{took:>6.1f}{peak / 1e6:>10.1f}   {block(found[0, 0]) if found else 'nothing'}")


def crossed(a: np.ndarray) -> np.ndarray:
    changed = a.copy()
    changed[700] += 1
    changed[:, 2900] += 1
    return changed


def many(layers: int) -> None:
    left = [matrix(normal(768, 3072, 100 + k)) for k in range(layers)]
    right = [matrix(normal(768, 3072, 1000 + k)) for k in range(layers)]
    every = [(i, j) for i in range(layers) for j in range(layers)]
    took, found = milliseconds(lambda: similar_pairs(left, right, every, omega=OMEGA, tolerance=TOLERANCE), 1)
    assert not found
    print(f"\n{layers} x {layers} unrelated weights of 768 x 3072, {len(every):,} pairs: {took / 1e3:.2f} s")
    copies = [matrix(w.array().copy()) for w in left]
    same = [(i, i) for i in range(layers)]
    took, found = milliseconds(lambda: similar_pairs(left, copies, same, omega=OMEGA, tolerance=TOLERANCE), 1)
    assert len(found) == layers
    print(f"{layers} equal pairs of these: {took / 1e3:.2f} s")


if __name__ == "__main__":
    main()
