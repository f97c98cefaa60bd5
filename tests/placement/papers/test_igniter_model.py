"""iGniter's latency model and its coefficients, term by term by hand."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _milp_cases import row
from _problems import T4, V100, problem

from gkestimator.core.errors import DocumentError, GkestimatorError, UsageError
from gkestimator.interference.igniter_coefficients import load_of, read_coefficients, terms_of
from gkestimator.interference.igniter_law import (
    GpuTerms,
    IgniterLoad,
    active_ms,
    clock_mhz,
    gpu_ms,
    latency_ms,
    linear,
    service_ms,
)

GPU = GpuTerms(
    pcie_bytes_per_s=1e10,
    clock_mhz=1500.0,
    power_limit_w=300.0,
    idle_power_w=50.0,
    clock_mhz_per_w=-1.0,
    schedule_ms_per_model=0.005,
    schedule_offset_ms=-0.008,
)
A = IgniterLoad(
    batch_size=4, input_bytes=4e6, output_bytes=1e6, kernels=100, schedule_ms=0.2, active_ms=9.8,
    cache_slowdown=0.5, l2_util=0.2, power_w=150.0,
)  # fmt: skip
B = IgniterLoad(
    batch_size=1, input_bytes=0.0, output_bytes=0.0, kernels=50, schedule_ms=0.1, active_ms=4.9,
    cache_slowdown=0.1, l2_util=0.4, power_w=180.0,
)  # fmt: skip


def test_alone() -> None:
    # 5 MB over 10 GB/s: 0.5 ms; 0.2 + 9.8 ms; 50 + 150 W are below 300.
    assert latency_ms(GPU, [A], 0) == pytest.approx(10.5)
    assert service_ms(GPU, [A], 0) == pytest.approx(10.1)
    assert clock_mhz(GPU, [A]) == 1500


def test_beside_a_neighbour() -> None:
    # A kernel waits 0.005 x 2 - 0.008 = 0.002 ms longer: 0.2 + 100 x 0.002 = 0.4 ms. The cache: 9.8 x (1 + 0.5 x 0.4)
    # = 11.76 ms. Power: 50 + 150 + 180 = 380 W, 80 above the limit: 1420 MHz.
    expected = (0.4 + 11.76) * 1500 / 1420
    assert gpu_ms(GPU, [A, B], 0) == pytest.approx(expected)
    assert latency_ms(GPU, [A, B], 0) == pytest.approx(0.5 + expected)
    assert service_ms(GPU, [B, A], 1) == pytest.approx(0.1 + expected)
    # B: 0.1 + 50 x 0.002 = 0.2; 4.9 x (1 + 0.1 x 0.2) = 4.998.
    assert gpu_ms(GPU, [A, B], 1) == pytest.approx((0.2 + 4.998) * 1500 / 1420)


def test_terms_that_are_unknown_are_left_out_and_no_more() -> None:
    bare = GpuTerms(pcie_bytes_per_s=1e10, clock_mhz=1500.0, power_limit_w=300.0)
    assert gpu_ms(bare, [A, B], 0) == pytest.approx(0.2 + 11.76)
    assert gpu_ms(GPU, [replace(A, power_w=None), B], 0) == pytest.approx(0.4 + 11.76)
    assert latency_ms(GPU, [replace(A, input_bytes=None)], 0) == pytest.approx(10.1)
    with pytest.raises(ValueError, match="L2 utilisation"):
        gpu_ms(GPU, [A, replace(B, l2_util=None)], 0)


def test_a_delay_is_never_negative_and_a_clock_of_nothing_takes_for_ever() -> None:
    quick = replace(GPU, schedule_offset_ms=-1.0)
    assert gpu_ms(quick, [replace(A, power_w=0.0), replace(B, power_w=0.0)], 0) == pytest.approx(0.2 + 11.76)
    assert gpu_ms(replace(GPU, clock_mhz_per_w=-100.0), [A, B], 0) == math.inf


def test_the_fit_of_k_act_and_the_lines() -> None:
    # (0.1 x 16 + 0.5 x 4 + 1) / (0.5 + 0.1) + 2 = 4.6 / 0.6 + 2
    assert active_ms((0.1, 0.5, 1.0, 0.1, 2.0), 4, 0.5) == pytest.approx(4.6 / 0.6 + 2)
    assert active_ms((0.1, 0.5, 1.0, -0.5, 2.0), 4, 0.5) == math.inf
    assert active_ms((0.0, 0.0, 0.0, 0.0, -2.0), 4, 0.5) == math.inf
    assert linear(60.0, 40.0, 4, 10.0) == pytest.approx(60 * 0.4 + 40)
    assert linear(-60.0, 4.0, 4, 10.0) == 0


EXAMPLE = Path(__file__).parents[3] / "examples" / "igniter-coefficients.toml"


def document() -> dict[str, Any]:
    return tomllib.loads(EXAMPLE.read_text())


def written(tmp_path: Path, found: object) -> Path:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(found))
    return path


def test_the_example_is_read_alike_as_toml_and_json(tmp_path: Path) -> None:
    found = read_coefficients(EXAMPLE)
    other = read_coefficients(written(tmp_path, document()))
    assert (found.gpus, found.models) == (other.gpus, other.models)
    assert list(found.gpus) == [V100] and list(found.models) == [("resnet50", V100)]
    assert found.models["resnet50", V100].kernels == document()["models"][0]["kernels"]
    assert found.gpus[V100]["clock_mhz"] is None


def change(path: str, value: object) -> dict[str, Any]:
    """The example with ``value`` at ``path`` (``...`` removes it)."""
    found = document()
    at: Any = found
    *way, last = path.split(".")
    for step in way:
        at = at[int(step)] if step.isdigit() else at[step]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return found


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema_version", 2, "schema_version: found 2"),
        ("schema_version", ..., "schema_version is missing"),
        ("gpus", ..., "gpus is missing"),
        ("gpus.0.idle_power_w", ..., r"gpus\[0\]: idle_power_w is missing"),
        (
            "gpus.0.idle_power_w",
            -3.0,
            r"gpus\[0\]: idle_power_w: found -3.0, expected a number of at least 0",
        ),
        ("gpus.0.clock_mhz_per_w", 1.0, "clock_mhz_per_w: found 1.0, expected .* at most 0"),
        ("gpus.0.watts", 3, "'watts' is not a field of a GPU type"),
        ("models.0.cache_slowdown", "0.3", "cache_slowdown: found '0.3', expected a number"),
        ("models.0.kernels", 0, "kernels: found 0, expected a whole number from 1"),
        ("models.0.name", "../x", r"name: found '\.\./x', expected a name"),
        ("models.0.power_w", {"slope": 1.0}, "power_w: offset is missing from the line of power_w"),
        ("models.0.active", {"k1": 1, "k2": 1, "k3": 1, "k4": 1, "k5": 1, "k6": 1}, "'k6' is not a field"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, path: str, value: object, message: str) -> None:
    with pytest.raises(DocumentError, match=message) as e:
        read_coefficients(written(tmp_path, change(path, value)))
    assert "\n" not in str(e.value) and e.value.exit_code == 2


@pytest.mark.parametrize("text", ["", "x", "[[gpus]", "a = nan", "\x00"])
@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_what_is_no_such_file_at_all(tmp_path: Path, text: str, suffix: str) -> None:
    path = tmp_path / f"c{suffix}"
    path.write_text(text)
    with pytest.raises(GkestimatorError, match=str(path)):
        read_coefficients(path)
    with pytest.raises(GkestimatorError, match="none"):
        read_coefficients(tmp_path / f"none{suffix}")
    with pytest.raises(GkestimatorError):
        read_coefficients(tmp_path)


def test_entries_that_stand_twice(tmp_path: Path) -> None:
    twice = document()
    twice["gpus"].append(dict(twice["gpus"][0], type="v100"))
    with pytest.raises(DocumentError, match=f"found {V100} twice"):
        read_coefficients(written(tmp_path, twice))
    twice = document()
    twice["models"] *= 2
    with pytest.raises(DocumentError, match=f"found resnet50 on {V100} twice"):
        read_coefficients(written(tmp_path, twice))


def test_the_file_wins_over_the_table_and_the_specification(tmp_path: Path) -> None:
    found = change("gpus.0.clock_mhz", 1400.0)
    found["models"][0] |= {"active": {"k1": 0.0, "k2": 2.0, "k3": 1.0, "k4": 0.5, "k5": 1.0}}
    given = read_coefficients(written(tmp_path, found))
    p = problem([row("resnet50", 4, 9.0, sm_share_pct=50.0, l2_util_mean_pct=77.0, kernels=9)], {"resnet50": (9, 90)}, {V100: 1})  # fmt: skip
    terms = terms_of(p.specs[V100], given)
    assert (terms.clock_mhz, terms.power_limit_w, terms.idle_power_w) == (1400, 300, 50)
    load = load_of("resnet50", p.models[0].candidates[0], terms, given, beside=True)
    assert load.active_ms == pytest.approx((2 * 4 + 1) / (0.5 + 0.5) + 1)
    assert load.kernels == 174 and load.schedule_ms == pytest.approx(0.002 * 174)
    assert load.l2_util == pytest.approx((8 * 4 / 10 + 2) / 100)
    assert load.power_w == pytest.approx(60 * 4 / 10 + 40)
    assert load.cache_slowdown == 0.3


def test_the_table_stands_in_for_a_model_without_an_entry() -> None:
    given = read_coefficients(EXAMPLE)
    rows = [
        row(
            "other", 4, 9.0, sm_share_pct=50.0, l2_util_mean_pct=20.0, kernels=9, power_w=130.0, input_bytes=8
        )
    ]
    p = problem(rows, {"other": (9, 90)}, {V100: 1})
    terms = terms_of(p.specs[V100], given)
    load = load_of("other", p.models[0].candidates[0], terms, given, beside=True)
    assert load == IgniterLoad(
        batch_size=4, input_bytes=8, output_bytes=None, kernels=9, schedule_ms=0.0, active_ms=9.0,
        cache_slowdown=0.2, l2_util=0.2, power_w=80.0,
    )  # fmt: skip


def test_what_neither_knows_is_named() -> None:
    given = read_coefficients(EXAMPLE)
    p = problem([row("a", 1, 9.0), row("resnet50", 1, 0.3)], {"a": (9, 90), "resnet50": (9, 90)}, {V100: 1})
    terms = terms_of(p.specs[V100], given)
    a, resnet50 = (m.candidates[0] for m in p.models)
    with pytest.raises(
        UsageError, match=f"needs kernels, which is null for a on {V100} .*missing from .*toml"
    ):
        load_of("a", a, terms, given, beside=True)
    with pytest.raises(
        UsageError, match=f"needs l2_util_mean_pct, which is null for a on {V100}, or a file of coefficients"
    ):
        load_of("a", a, terms, None, beside=True)
    assert load_of("a", a, terms, None, beside=False).l2_util is None
    with pytest.raises(
        UsageError, match="schedule_ms_per_kernel of resnet50: found 0.348 ms for 174 kernels"
    ):
        load_of("resnet50", resnet50, terms, given, beside=True)
    t4 = problem([row("a", 1, 9.0, gpu=T4)], {"a": (9, 90)}, {T4: 1})
    with pytest.raises(UsageError, match=f"gpus: found {V100}, expected T4 too"):
        terms_of(t4.specs[T4], given)
