"""What a plan puts together on one GPU, and what each file of it is called."""

from __future__ import annotations

from typing import Any

import pytest
from _plans import GPU, plan, replica

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.documents import PlacementPlan, Replica
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.merging.planned import PlannedModel, PlannedSet, planned_sets


def sets(*gpus: list[Replica]) -> tuple[PlannedSet, ...]:
    return planned_sets(placed(*gpus), gpu_catalogue())


def placed(*gpus: list[Replica]) -> PlacementPlan:
    names = sorted({r.model for here in gpus for r in here})
    return plan(*gpus, models=[(name, 10.0, 100.0) for name in names])


def model(name: str, batch: int = 4, **dims: int) -> PlannedModel:
    return PlannedModel(model=name, batch_size=batch, dims=tuple(sorted(dims.items())))


def test_gpus_with_the_same_models_share_a_file() -> None:
    found = sets([replica("b", 0), replica("a", 0)], [replica("a", 1), replica("b", 1)], [replica("a", 2)])
    assert found == (
        PlannedSet(
            gpu_type=GPU,
            runtime="torch",
            dtype="fp32",
            models=(model("a"), model("b")),
            gpus=(f"{GPU}-0", f"{GPU}-1"),
        ),
    )


def test_replicas_of_one_model_count_once_at_the_largest_batch() -> None:
    (found,) = sets([replica("a", 0, batch=2), replica("a", 1, batch=8), replica("b", 0, batch=1)])
    assert found.models == (model("a", 8), model("b", 1))
    assert not sets([replica("a", 0), replica("a", 1)])


def test_a_file_runs_in_one_process() -> None:
    mixed = [replica("a", 0), replica("b", 0, runtime="onnxruntime"), replica("c", 0, runtime="onnxruntime")]
    (found,) = sets(mixed)
    assert (found.runtime, [m.model for m in found.models]) == ("onnxruntime", ["b", "c"])
    assert not sets([replica("a", 0), replica("b", 0, dtype="fp16")])


def test_batch_sizes_and_dims_make_other_files() -> None:
    found = sets(
        [replica("a", 0), replica("b", 0)],
        [replica("a", 1, batch=8), replica("b", 1)],
        [replica("a", 2, dims="seq=128,width=4"), replica("b", 2)],
    )
    assert [f.models[0] for f in found] == [model("a"), model("a", 8), model("a", seq=128, width=4)]


@pytest.mark.parametrize(
    "dims", ["seq", "=3", "seq=", "seq=x", "seq=0", "seq=1,seq=2", "seq=" + "9" * 30, "seq=²"]
)
def test_dims_that_are_no_numbers(dims: str) -> None:
    with pytest.raises(DocumentError, match=r"a-0: dims: found"):
        sets([replica("a", 0, dims=dims), replica("b", 0)])


def test_more_models_than_a_file_takes() -> None:
    with pytest.raises(UsageError, match=f"{GPU}-0: found 65 models, expected at most 64"):
        sets([replica(f"m{i}", 0) for i in range(65)])


def test_unknown_gpu() -> None:
    import dataclasses

    unknown: dict[str, Any] = {"type": "Z9000"}
    found = placed([replica("a", 0), replica("b", 0)])
    with pytest.raises(UsageError, match=f"plan: {GPU}-0: unknown GPU .Z9000."):
        planned_sets(
            dataclasses.replace(found, gpus=(dataclasses.replace(found.gpus[0], **unknown),)), gpu_catalogue()
        )
