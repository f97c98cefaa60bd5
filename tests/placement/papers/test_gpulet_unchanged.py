"""gpulet's answers on drawn problems are those of commit 056c9b42, before its search for turns was made quick."""

from __future__ import annotations

import hashlib

import pytest
from _gpulet_problems import case

from gkestimator.placement.papers.gpulet.policy import GpuletPolicy
from gkestimator.placement.policy import Placement

# By seed: the beginning of the digest of what that commit answered.
ANSWERS = (
    "08a5c681d767", "6314992975d2", "8eddf914c5d6", "f3c35ae7b700", "ea44c45c383c", "4712557d4433",
    "d5cd57760330", "d46ddd5e7644", "91e0ac9d82b2", "e38a2fcac91e", "17204084307b", "4044d87d3c31",
    "fdb4360a867f", "f8161f0a5966", "c8bda3d7c967", "e33119d52b1b", "044f63b05105", "1ea27c1691e9",
    "e347511b27e1", "b855911f5a44", "9f60f1b5cc05", "006a59d505b9", "0ab370be8da7", "a82e5e6c056c",
)  # fmt: skip


def digest(answer: Placement) -> str:
    """Return a digest of every replica, its cycle to the last bit."""
    lines = []
    for p in answer.placed:
        c = p.candidate
        lines.append(
            f"{p.gpu.id} {p.model} {c.batch_size} {c.sm_share_pct:g} {p.partition} {p.duty_cycle_ms!r}"
        )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


@pytest.mark.parametrize("seed", range(len(ANSWERS)))
def test_the_answers_are_those_of_before(seed: int) -> None:
    given = case(seed, gpus=seed % 9 + 1, models=12)
    assert digest(GpuletPolicy().place(given)) == ANSWERS[seed]
