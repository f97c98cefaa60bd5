"""Pairs "measured" on a GPU that slows by a known law, with noise: a fit must find the law again."""

from __future__ import annotations

import random
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np

from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.interference.base import Interference
from gkestimator.interference.laws import slowdown
from gkestimator.tables import COLOCATION, CoRun, Requirement, write_table

V100 = "V100-SXM2-16GB"


def requirement(run: CoRun) -> Requirement:
    """``run``'s row of the requirement table, its demands included."""
    return Requirement(
        model=run.model,
        gpu=V100,
        runtime=run.runtime,
        dtype=run.dtype,
        batch_size=run.batch_size,
        sm_share_pct=run.sm_share_pct,
        latency_ms=run.latency_alone_ms,
        sm_util_mean_pct=run.sm_util_mean_pct,
        dram_util_mean_pct=run.dram_util_mean_pct,
        l2_util_mean_pct=run.l2_util_mean_pct,
        source="measured",
        occupancy_source="measured",
        memory_source=None,
    )


def pairs(
    law: Interference,
    *,
    models: int = 9,
    noise: float = 0.0,
    seed: int = 0,
    shares: tuple[float, ...] = (100.0, 50.0),
) -> list[CoRun]:
    """All pairs of ``models`` models at two batch sizes and at each of ``shares``; each time is off by a lognormal factor
    of deviation ``noise``."""
    draw = random.Random(seed)
    alone: dict[tuple[str, float], CoRun] = {}
    names = [f"m{i}" for i in range(models)]
    for name in names:
        sm, dram, l2, latency = (draw.uniform(a, b) for a, b in ((20, 95), (5, 90), (5, 80), (2, 60)))
        for share in shares:
            alone[name, share] = CoRun(
                group="",
                model=name,
                gpu=V100,
                runtime="torch",
                dtype="fp16",
                batch_size=8,
                sm_share_pct=share,
                latency_alone_ms=latency * 100 / share,
                sm_util_mean_pct=min(sm, share),
                dram_util_mean_pct=dram * share / 100,
                l2_util_mean_pct=l2 * share / 100,
            )
    terms = np.array(law.terms(gpu_catalogue().spec(V100)))
    found: list[CoRun] = []
    for share in shares:
        for group in combinations_with_replacement(names, 2):
            sides = [alone[name, share] for name in group]
            features = [np.array(law.features(requirement(s))) for s in sides]
            for i, side in enumerate(sides):
                factor = slowdown(law.code, features[i], features[1 - i], 1, terms)
                found.append(
                    _at(side, f"{'+'.join(group)}@{share:g}", factor * np.exp(draw.gauss(0.0, noise)))
                )
    return found


def _at(side: CoRun, group: str, factor: float) -> CoRun:
    from dataclasses import replace

    return replace(side, group=group, latency_together_ms=side.latency_alone_ms * float(factor))


def written(path: Path, runs: list[CoRun]) -> Path:
    """``runs`` as a file at ``path``."""
    write_table(COLOCATION, runs, path)
    return path
