"""The YAML of a comparison: what is wrong with it is one line that names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from _specs import BASE, write_spec

from gkestimator import __version__
from gkestimator.core.errors import GkestimatorError
from gkestimator.simulation.comparing.cells import jobs
from gkestimator.simulation.comparing.spec import read_spec

TRACE = "time_s,model\n0.5,a\n1.0,b\n"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"tables": []}, "tables: found none"),
        ({"tables": ["no.csv"]}, "tables: no.csv: no such file"),
        ({"tables": None}, "tables is missing"),
        ({"policies": []}, "policies: found none"),
        ({"policies": ["ushr"]}, "policies[0]: name: found 'ushr', expected one of gkest, usher"),
        ({"policies": ["nexus", "nexus"]}, "policies: nexus stands twice"),
        ({"policies": [{"name": "gkest", "options": {"bursts": 4}}]}, "policies[0]: options: policy gkest has no option bursts"),
        ({"policies": [{"name": "gkest", "options": {"burst": 0.5}}]}, "policies[0]: options: "),
        ({"policies": [{"name": "nexus", "creq": "all"}]}, "creq: found 'all'"),
        ({"policies": [{"name": "nexus", "label": "../x"}]}, "label: found '../x'"),
        ({"workloads": [{"label": "w"}]}, "found neither file nor models"),
        ({"workloads": ["no.yaml"]}, "no.yaml: no such file"),
        ({"clusters": [{"gpus": [{"type": "V1000", "count": 2}]}]}, "V1000"),
        ({"slo_scale": [0]}, "slo_scale: found 0, expected numbers above 0"),
        ({"slo_scale": [1, 1.0]}, "slo_scale: 1.0 stands twice"),
        ({"rate_scale": ["1"]}, "rate_scale: found '1'"),
        ({"seeds": [-1]}, "seeds: found -1"),
        ({"arrivals": ["uniform"]}, "arrivals[0]: kind: found 'uniform', expected one of poisson"),
        ({"arrivals": [{"label": "x"}]}, "expected either a trace or a kind"),
        ({"arrivals": [{"trace": "no.csv"}]}, "trace: no.csv: no such file"),
        ({"arrivals": [{"kind": "poisson", "burst_s": 2}]}, "'burst_s' is not a field of arrivals"),
        ({"arrivals": [{"kind": "mmpp", "burst_s": 2}]}, "burst_factor: expected all of"),
        ({"arrivals": [{"kind": "mmpp", "burst_factor": 4, "burst_share": 0.5, "burst_s": 2}]}, "burst_factor: bursts"),
        ({"arrivals": [{"trace": "t.csv", "format": "azure"}]}, "format: found 'azure', expected one of csv"),
        ({"arrivals": [{"trace": "t.csv", "loop": "yes"}]}, "loop: found 'yes'"),
        ({"arrivals": [{"trace": "t.csv", "scaling": "none"}]}, "scaling: found 'none'"),
        ({"duration_s": 0}, "duration_s: found 0"),
        ({"warmup_s": 4}, "warmup_s: found 4, expected less than duration_s"),
        ({"drop": "early"}, "drop: found 'early', expected one of none, late"),
        ({"admission": "all"}, "admission: found 'all', expected one of plan, expected, none"),
        ({"slo_scales": [1]}, "slo_scales"),
        ({"schema_version": 2}, "schema_version: found 2"),
        ({"seeds": list(range(5000)), "rate_scale": [x / 100 for x in range(1, 51)]}, "asks for 500,000 cells"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    path = write_spec(tmp_path, **changes)
    with pytest.raises(GkestimatorError) as caught:
        read_spec(path)
    said = str(caught.value)
    assert found in said and "spec.yaml" in said and "\n" not in said


def test_what_is_not_said_is_the_default(tmp_path: Path) -> None:
    spec = read_spec(write_spec(tmp_path))
    assert (spec.slo_scale, spec.seeds, spec.cells) == ((1.0,), (0,), 4)
    assert [a.kind for a in spec.arrivals] == ["poisson"]
    assert (spec.settings["drop"], spec.settings["interference"]) == ("none", "contention")


def keys(path: Path) -> list[str]:
    return [c.key for j in jobs(read_spec(path), __version__) for c in j.cells]


@pytest.mark.parametrize(
    "changes",
    [
        {"duration_s": 5}, {"seeds": [1]}, {"service": "exponential"}, {"interference": "none"}, {"max_wait_ms": 5},
        {"policies": [{"name": "exclusive", "creq": "occupancy-max"}, {"name": "nexus", "creq": "occupancy-max"}]},
        {"clusters": [{"label": "pair", "gpus": [{"type": "V100", "count": 3}]}]},
        {"slo_scale": [0.9]}, {"arrivals": ["constant"]}, {"drop": "late"}, {"routing": "least-load"},
        {"batching": "late"}, {"batching": "early"},
    ],
)  # fmt: skip
def test_everything_that_decides_a_cell_is_in_its_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert not set(keys(write_spec(tmp_path))) & set(keys(write_spec(tmp_path, "other.yaml", **changes)))


def test_labels_order_and_other_cells_are_not(tmp_path: Path) -> None:
    before = keys(write_spec(tmp_path))
    policies = [{"name": "nexus", "label": "N"}, {"name": "exclusive"}, "selftuning"]
    models = BASE["workloads"][0]["models"]
    after = keys(
        write_spec(
            tmp_path,
            "more.yaml",
            policies=policies,
            rate_scale=[1.0, 0.5, 2.0],
            workloads=[{"label": "x", "models": models}],
        )
    )
    assert set(before) < set(after) and len(after) == 9


def test_a_table_that_changed_makes_other_cells(tmp_path: Path) -> None:
    before = keys(write_spec(tmp_path))
    (tmp_path / "table.csv").write_text((tmp_path / "table.csv").read_text().replace("25.0", "26.0"))
    assert not set(before) & set(keys(write_spec(tmp_path)))


def test_a_third_partys_policy_that_changed_makes_other_cells(tmp_path: Path, first_fit: Path) -> None:
    spec = write_spec(tmp_path, policies=["first-fit", "nexus"])
    before = keys(spec)
    with (first_fit / "first_fit.py").open("a") as stream:
        stream.write("# changed\n")
    after = keys(spec)
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, False, True]
