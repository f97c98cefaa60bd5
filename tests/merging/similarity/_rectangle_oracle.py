"""Similarity by definition, in plain Python on lists: shares no code with the package."""

from __future__ import annotations

import math

Matrix = list[list[list[float]]]  # rows, columns, taps
Block = tuple[int, int, int, int, int, int]  # rows, columns, row_a, column_a, row_b, column_b


def equal(x: float, y: float, tolerance: float) -> bool:
    if math.isnan(x) or math.isnan(y):
        return False
    return x == y or abs(x - y) <= tolerance


def largest_block(a: Matrix, b: Matrix, tolerance: float) -> Block | None:
    """The largest common block; ties: smallest offset in a (row, column), then in b, then the most rows.

    From every pair of corners every rectangle is grown: row by row, as wide as the rows so far allow.
    """
    best: tuple[int, ...] | None = None
    for ra in range(len(a)):
        for ca in range(len(a[0])):
            for rb in range(len(b)):
                for cb in range(len(b[0])):
                    wide = min(len(a[0]) - ca, len(b[0]) - cb)
                    for tall in range(1, min(len(a) - ra, len(b) - rb) + 1):
                        row_a, row_b = a[ra + tall - 1], b[rb + tall - 1]
                        run = 0
                        while run < wide and all(
                            equal(x, y, tolerance)
                            for x, y in zip(row_a[ca + run], row_b[cb + run], strict=True)
                        ):
                            run += 1
                        wide = run
                        if wide == 0:
                            break
                        key = (-tall * wide, ra, ca, rb, cb, -tall)
                        if best is None or key < best:
                            best = key
    if best is None:
        return None
    area, ra, ca, rb, cb, tall = best
    return -tall, area // tall, ra, ca, rb, cb
