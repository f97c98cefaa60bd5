"""The examples in examples/applications: what they say fits, by several policies, within every application's objective."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from gkestimator.documents.plan import plan_json
from gkestimator.placement.scheduling import UnservableError, schedule
from gkestimator.simulation.saved_pages import saved_page

FOLDER = Path(__file__).parents[2] / "examples" / "applications"
A1 = Path(str(files("gkestimator.datasets") / "published" / "ethz_v100.csv"))
APPLICATIONS = ("video-surveillance", "social-media", "game", "traffic")


def test_every_example_is_one_of_these() -> None:
    clusters = {"four-v100", "rented-v100"}
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(APPLICATIONS) | clusters


@pytest.mark.parametrize("policy", ["gkest", "usher", "milp", "gpulet", "nexus"])
@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_is_served_within_its_objective(name: str, policy: str) -> None:
    for cluster in ("four-v100", "rented-v100"):
        result = schedule([A1], FOLDER / f"{name}.yaml", FOLDER / f"{cluster}.yaml", policy=policy)
        (application,) = result.plan.workload.applications
        budget = {m.name: m.slo_ms for m in result.problem.models}
        for path in application.paths():
            assert sum(budget[m] for m in path) <= application.slo_ms * (1 + 1e-9)
        for gpu in result.plan.gpus:
            for replica in gpu.replicas:
                assert replica.slo_ms == budget[replica.model]
                assert replica.latency_ms + (replica.duty_cycle_ms or 0.0) <= budget[replica.model] * (
                    1 + 1e-9
                )
        assert not result.plan.unserved or policy == "nexus"
        assert not result.unservable
        notes = " ".join(result.plan.notes)
        assert f"application {name}: {application.slo_ms:g} ms split by least GPU time" in notes


def test_a_program_gets_the_same_refusals_as_a_user(tmp_path: Path) -> None:
    text = (FOLDER / "traffic.yaml").read_text().replace("slo_ms: 140", "slo_ms: 10")
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(UnservableError) as caught:
        schedule([A1], tmp_path / "w.yaml", FOLDER / "four-v100.yaml", policy="milp")
    assert set(caught.value.reasons) == {"mobilenet_v2", "inception_v3", "vgg19"}
    assert len(caught.value.lines) == 3
    found = schedule([A1], tmp_path / "w.yaml", FOLDER / "four-v100.yaml", policy="milp", allow_unserved=True)
    assert set(found.unservable) == {u.model for u in found.plan.unserved}


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    schedule(
        [A1], FOLDER / "game.yaml", FOLDER / "four-v100.yaml", policy="exclusive", progress=lambda *step: told.append(step)
    )  # fmt: skip
    assert told == [
        ("reading ethz_v100.csv", 0, 3),
        ("matching rows and models", 1, 3),
        ("placing by exclusive", 2, 3),
    ]


def test_a_plan_of_applications_alone_has_a_page(tmp_path: Path) -> None:
    result = schedule([A1], FOLDER / "game.yaml", FOLDER / "four-v100.yaml")
    (tmp_path / "plan.json").write_text(plan_json(result.plan), encoding="utf-8")
    models = {replica.model for gpu in result.plan.gpus for replica in gpu.replicas}
    assert f"A plan: {len(models)} models on".encode() in saved_page(tmp_path / "plan.json")
