"""The regression gate: estimates of the golden set stay what they were, and obey what must hold of any bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from golden_table import differences, golden_csv, golden_estimates, golden_path, read_golden, summary
from kernel_sanity import ALLOWED_SHARE, golden_kernel_violations
from sanity import ALLOWED, Estimates, dominance, estimates, violations

from gkestimator.hardware.gpus import gpu_catalogue

LINES_SHOWN = 60
GPUS = (
    "V100-SXM2-16GB", "T4", "A100-PCIE-40GB", "A100-SXM4-80GB", "H100-SXM", "H200", "L4",
    "RTX-3090", "RTX-4090", "RTX-5090",
)  # fmt: skip
"""Trained on and not, with several pairs of which one is better in every figure."""


@pytest.mark.slow
def test_estimates_of_the_golden_set_did_not_change(models: list[Path]) -> None:
    old, new = read_golden(golden_path()), golden_estimates(models)
    missing = {key[0] for key in old} - {key[0] for key in new}
    old = {key: values for key, values in old.items() if key[0] not in missing}  # another version of onnx
    assert len({key[0] for key in new}) >= 7
    changed = differences(old, new)
    shown = changed[:LINES_SHOWN]
    rest = [f"... and {len(changed) - len(shown)} more rows"] if len(changed) > len(shown) else []
    text = "\n".join([*shown, *rest, *summary(old, new)])
    assert not changed, (
        f"{len(changed)} of {len(new)} golden rows changed (old -> new); if that is meant, run "
        f"python tests/golden/refresh.py and commit its diff:\n{text}"
    )


def test_the_golden_file_reads_as_it_was_written() -> None:
    table = read_golden(golden_path())
    assert golden_csv(table) == golden_path().read_bytes()


def test_a_change_is_told_in_words() -> None:
    old = read_golden(golden_path())
    key = next(key for key, values in old.items() if values["occupancy_mean_pct"] is not None)
    before = old[key]
    assert before["latency_ms"] is not None and before["occupancy_mean_pct"] is not None
    small = {**before, "latency_ms": before["latency_ms"] * 1.009}
    assert differences(old, {**old, key: small}) == []
    moved = {**before, "latency_ms": before["latency_ms"] * 1.02, "reserved_bytes": None}
    (line,) = differences(old, {**old, key: moved})
    assert line.startswith(" ".join(key)) and "(+2.0 %)" in line and "-> None" in line
    points = {**before, "occupancy_mean_pct": before["occupancy_mean_pct"] + 1.5}
    assert len(differences(old, {**old, key: points})) == 1
    rest = {k: v for k, v in old.items() if k != key}
    assert differences(old, rest) == [f"gone: {' '.join(key)}"]
    assert differences(rest, old) == [f"new: {' '.join(key)}"]


@pytest.fixture(scope="module")
def found(models: list[Path]) -> Estimates:
    return estimates(models, GPUS, (1, 8, 32, 64))


@pytest.mark.slow
def test_no_estimate_breaks_what_must_hold(found: Estimates) -> None:
    bad = [v for v in violations(found) if v.excess > ALLOWED.get(v.rule, 1.0)]
    assert not bad, f"{len(bad)} estimates cannot be:\n" + "\n".join(v.text for v in bad[:LINES_SHOWN])


def test_the_gate_compares_gpus() -> None:
    catalogue = gpu_catalogue()
    specs = {name: catalogue.spec(name) for name in GPUS}
    pairs = [(a, b) for a in specs for b in specs if dominance(specs[a], specs[b])]
    assert {("RTX-4090", "L4"), ("RTX-5090", "RTX-3090"), ("H200", "H100-SXM")} <= set(pairs)
    assert dominance(specs["RTX-5090"], specs["RTX-3090"]) == 1
    assert dominance(specs["L4"], specs["T4"]) == pytest.approx(300 / 320)  # its bandwidth
    assert ("T4", "L4") not in pairs and ("L4", "L4") not in pairs


def _changed(found: Estimates, **changes: float) -> Estimates:
    """``found`` with one row (H100, fp16, batch 64) falsified; factors by column."""
    point = next(p for p in found.rows if p[1:] == ("H100-SXM", "fp16", 64))
    row = found.rows[point]
    values = {name: getattr(row, name) * factor for name, factor in changes.items()}
    return replace(found, rows={**found.rows, point: replace(row, **values)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes, rule",
    [
        ({"latency_high_ms": 0.01}, "interval"),
        ({"sm_util_mean_pct": 1e3}, "share"),
        ({"latency_ms": 0.01, "latency_low_ms": 0.001}, "roofline"),
        ({"latency_ms": 0.01, "latency_low_ms": 0.001}, "batch"),
        ({"latency_ms": 100, "latency_high_ms": 1e3}, "dominance"),
        ({"latency_ms": 100, "latency_high_ms": 1e3}, "precision"),
        ({"latency_ms": 100, "latency_high_ms": 1e3}, "throughput"),
        ({"reserved_bytes": 0.0}, "memory"),
    ],
)
def test_a_false_estimate_is_seen(found: Estimates, changes: dict[str, float], rule: str) -> None:
    limit = ALLOWED.get(rule, 1.0)
    before = {v.text for v in violations(found)}
    new = [v for v in violations(_changed(found, **changes)) if v.text not in before]
    assert any(v.rule == rule and v.excess >= limit for v in new)


@pytest.mark.slow
def test_no_kernel_breaks_what_must_hold(models: list[Path]) -> None:
    bad, counted = golden_kernel_violations(models, GPUS, (1, 32))
    lines = []
    for rule, total in counted.items():
        of_rule = [v for v in bad if v.rule == rule]
        if len(of_rule) > ALLOWED_SHARE.get(rule, 0.0) * total:
            worst = sorted(of_rule, key=lambda v: -v.excess)[:15]
            lines += [f"{rule}: {len(of_rule)} of {total} predictions", *(v.text for v in worst)]
    assert not lines, "\n".join(lines)
