"""Names of objects and files, rounding, and what no target may be asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gkestimator.core.errors import UsageError
from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.names import MAX_LABEL, dns_label, dns_labels
from gkestimator.exporting.rounding import (
    MIB,
    compute_pct,
    cores_and_memory,
    count_down,
    memory_mib,
    no_turns,
    up,
    within_gpu,
)

Make = Callable[..., Deployment]
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
HOSTILE = [
    "../x",
    "a\nb",
    "$(touch /tmp/x)",
    "`id`",
    "模型",
    "x" * 300,
    "-",
    "",
    "9",
    "a_b",
    "a.b",
    "a-b",
    "A_B",
    "%s{0}",
    "1e3",
    "y",
]


def test_every_text_gets_a_label_of_its_own() -> None:
    found = dns_labels(HOSTILE)
    assert set(found) == set(HOSTILE)
    assert len(set(found.values())) == len(HOSTILE)
    assert all(LABEL.fullmatch(label) and len(label) <= MAX_LABEL for label in found.values())
    assert found["a-b"] == "a-b"
    assert found["y"] == "y"
    assert all(found[t].startswith("a-b-") for t in ("a_b", "a.b", "A_B"))


def test_a_label_that_stands_for_one_text_is_plain() -> None:
    assert dns_labels(["timm/resnet50", "mobilenet_v2", "9x"]) == {
        "9x": "m-9x", "mobilenet_v2": "mobilenet-v2", "timm/resnet50": "timm-resnet50"
    }  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(alphabet="aAbB01_-./ $\n…", max_size=60), max_size=12))
def test_labels_are_distinct_valid_and_free_of_order(texts: list[str]) -> None:
    found = dns_labels(texts)
    assert len(set(found.values())) == len(set(texts))
    assert all(LABEL.fullmatch(label) and len(label) <= MAX_LABEL for label in found.values())
    assert found == dns_labels(reversed(texts))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_a_label_of_a_label_is_itself(text: str) -> None:
    assert dns_label(dns_label(text)) == dns_label(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(30.0, 30), (30.000000000000004, 30), (30.001, 31), (0.0, 1), (0.2, 1), (99.5, 100), (100.0, 100)],
)
def test_demands_are_rounded_up(value: float, expected: int) -> None:
    assert up(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(3.0, 3), (2.9999999999999996, 3), (2.9, 2), (0.4, 0)])
def test_counts_are_rounded_down(value: float, expected: int) -> None:
    assert count_down(value) == expected


def test_memory_is_rounded_up_to_whole_mebibytes(make: Make) -> None:
    one, two = make(
        {"model": "a", "mreq_bytes": 3 * MIB}, {"model": "b", "mreq_bytes": 3 * MIB + 1}
    ).instances
    assert (memory_mib(one, "x"), memory_mib(two, "x")) == (3, 4)


def test_a_share_of_the_sms_is_what_the_replica_was_estimated_at(make: Make) -> None:
    one, two = make(
        {"model": "a", "sm_share_pct": 40, "creq_pct": None}, {"model": "b", "creq_pct": 55.5}
    ).instances
    assert (compute_pct(one, "x"), compute_pct(two, "x")) == (40, 55.5)


@pytest.mark.parametrize(
    ("replica", "words"),
    [
        ({"creq_pct": None}, "its Creq is not known"),
        ({"creq_pct": 130.0}, "found a Creq of 130 % of a V100-SXM2-16GB"),
        ({"mreq_bytes": None}, "its Mreq is not known"),
        ({"mreq_bytes": 22 * 10**9}, "found a Mreq of 130 % of the memory of a V100-SXM2-16GB"),
    ],
)
def test_what_one_gpu_cannot_give_is_refused(make: Make, replica: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        cores_and_memory(make({"model": "a"} | replica), "hami")


def test_a_sum_above_the_gpu_is_refused_and_one_by_rounding_alone_is_said(make: Make) -> None:
    thirds = [{"model": m, "creq_pct": 33.1} for m in "abc"]
    (note,) = cores_and_memory(make(*thirds), "hami")
    assert "102 % of its compute after rounding up, more than 100" in note
    assert not cores_and_memory(make(*[t | {"creq_pct": 33.0} for t in thirds]), "hami")
    with pytest.raises(
        UsageError, match=r"V100-SXM2-16GB-0: its replicas ask for 120 % of its compute, expected at most 100"
    ):
        cores_and_memory(make(*[t | {"creq_pct": 40.0} for t in thirds]), "hami")
    assert not cores_and_memory(make(*[t | {"creq_pct": 40.0} for t in thirds]), "kai", cores=False)


def test_memory_of_a_gpu_is_what_its_specification_shows(make: Make) -> None:
    full = [{"model": m, "mreq_bytes": 8072 * MIB, "creq_pct": 10.0} for m in "ab"]  # 2 x 8,072 = 16,144 MiB
    assert not cores_and_memory(make(*full), "hami")
    with pytest.raises(UsageError, match=r"ask for 16,145 MiB, expected at most 16,144"):
        cores_and_memory(make(full[0], full[1] | {"mreq_bytes": 8073 * MIB}), "hami")


def test_replicas_of_different_gpus_are_not_added(make: Make) -> None:
    v100 = "V100-SXM2-16GB"
    apart = make(gpus={f"{v100}-{i}": (v100, [{"model": "a", "creq_pct": 80.0}]) for i in range(3)})
    assert not within_gpu([(i, i.creq_pct or math.nan) for i in apart.instances], {v100: 100.0}, "%", "x")


def test_turns_are_refused_and_a_partition_of_one_is_none(make: Make) -> None:
    shared = {"partition": "p0", "duty_cycle_ms": 30.0, "sm_share_pct": 40.0}
    with pytest.raises(
        UsageError, match=r"a-0 and b-0 take turns on V100-SXM2-16GB-0 \(partition p0\): hami has no turns"
    ):
        no_turns(make({"model": "a"} | shared, {"model": "b"} | shared).instances, "hami")
    with pytest.raises(UsageError, match="policy gkest makes it under options="):
        no_turns(make({"model": "a"} | shared, {"model": "b"} | shared).instances, "hami")
    no_turns(make({"model": "a"} | shared, {"model": "b"}).instances, "hami")
    apart = {f"T4-{i}": ("T4", [{"model": "ab"[i]} | shared]) for i in range(2)}
    no_turns(make(gpus=apart).instances, "hami")
