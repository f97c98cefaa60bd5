"""Decisions on whole models, with the graphs that merging really makes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import families
import onnx
import pytest

from gkestimator.estimation.api import estimate_rows
from gkestimator.merging.assembling import Assembler
from gkestimator.merging.editing import align_opsets, read_editable, value_shapes, write_editable
from gkestimator.merging.matching import candidates, match_all
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing import MergeDecision, Pricer, decide
from gkestimator.merging.super_operators import can_emit


def decided(
    protos: Sequence[onnx.ModelProto], folder: Path, batches: Sequence[int], **options: object
) -> MergeDecision:
    """Of models called a, b, ..., whose operators pair up along the timeline."""
    pytest.importorskip("scipy")
    settings = MergeOptions(**options)  # type: ignore[arg-type]
    pricer = Pricer(settings)
    models = align_opsets(
        [
            read_editable(families.saved(proto, folder / f"{name}.onnx"), prefix=f"{name}/", name=name)
            for name, proto in zip("abc", protos, strict=False)
        ]
    )
    shapes = {name: shape for model in models for name, shape in value_shapes(model).items()}
    operators = [candidates(m, at, shapes, pricer.starts(m)) for at, m in enumerate(models)]
    matching = match_all(
        models,
        operators,
        (tuple(range(len(models))),),
        settings,
        can_emit=functools.partial(can_emit, shapes=shapes),
    )
    build = Assembler(models, shapes, tolerance=settings.tolerance)
    return decide(models, matching.supers, build, pricer, batch_sizes=batches)


@pytest.mark.slow
@pytest.mark.parametrize("builder", [families.resnet_like, families.mobilenet_like, families.bert_like])
def test_siblings_are_merged_at_the_price_that_an_estimate_of_the_written_file_gives(
    builder: object, tmp_path: Path
) -> None:
    model = builder()  # type: ignore[operator]
    found = decided([model, families.sibling(model, last=1)], tmp_path, [1, 4])
    assert found.kept and not found.refused
    assert found.after.latency_ms < found.before.latency_ms
    # one trunk: fewer calls than the two models had by nearly half
    assert found.after.calls < 0.75 * found.before.calls
    path = tmp_path / "merged.onnx"
    write_editable(found.built.model, path)
    (row,) = estimate_rows(
        [path], gpus=["V100"], runtime="onnxruntime", dims={"a/batch": 1, "b/batch": 4}
    ).rows
    assert row.latency_ms == pytest.approx(found.after.latency_ms, rel=1e-9)
    assert (row.flops, row.dram_bytes, row.kernels) == (
        found.after.flops, found.after.dram_bytes, found.after.kernels
    )  # fmt: skip
    assert row.weights_bytes == found.after.resident_bytes
    assert (row.latency_low_ms, row.latency_high_ms) == pytest.approx(
        (found.after.latency_low_ms, found.after.latency_high_ms)
    )


@pytest.mark.slow
@pytest.mark.parametrize("builder", [families.resnet_like, families.bert_like])
def test_small_shifted_blocks_are_found_and_do_not_pay(builder: object, tmp_path: Path) -> None:
    model = builder()  # type: ignore[operator]
    found = decided([model, families.shifted(model, share=0.9)], tmp_path, [1, 1], tau_ms=float("inf"))
    assert found.refused and not found.kept
    assert found.after.latency_ms == pytest.approx(found.before.latency_ms)
    # side by side: what the shift left as it was is stored once
    path = tmp_path / "merged.onnx"
    write_editable(found.built.model, path)
    (row,) = estimate_rows(
        [path], gpus=["V100"], runtime="onnxruntime", dims=dict.fromkeys(["a/batch", "b/batch"], 1)
    ).rows
    assert row.weights_bytes == found.after.resident_bytes
    assert found.before.resident_bytes is not None and row.weights_bytes < found.before.resident_bytes
    for told in found.supers:
        against = found.regions[told.region]
        assert not against.pays and against.after.latency_ms > against.before.latency_ms
    forced = decided(
        [model, families.shifted(model, share=0.9)], tmp_path, [1, 1], tau_ms=float("inf"), always=True
    )
    assert len(forced.kept) == len(found.refused)
    assert forced.after.latency_ms > forced.before.latency_ms
    assert forced.after.weight_bytes < forced.before.weight_bytes


@pytest.mark.slow
def test_a_model_merged_with_itself_twice_costs_little_more_than_once(tmp_path: Path) -> None:
    model = families.bert_like(width=64, layers=3)
    alone = decided([model], tmp_path, [1]).after
    found = decided([model] * 3, tmp_path, [1, 1, 1])
    assert not found.refused
    assert found.before.weight_bytes == 3 * alone.weight_bytes
    assert found.after.calls < alone.calls + 12
    assert found.after.latency_ms < 1.3 * alone.latency_ms


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnxruntime", "torch"])
@pytest.mark.parametrize("builder", [families.resnet_like, families.bert_like])
def test_the_work_that_parts_of_weights_add_is_told_of_each(
    builder: object, runtime: str, tmp_path: Path
) -> None:
    model = builder()  # type: ignore[operator]
    found = decided(
        [model, families.shifted(model, share=0.8)],
        tmp_path,
        [2, 1],
        tau_ms=float("inf"),
        always=True,
        runtime=runtime,
    )
    extra = [told.extra_flops for told in found.supers]
    assert all(flops is not None and flops >= 0 for flops in extra)
    assert sum(flops or 0 for flops in extra) == found.after.flops - found.before.flops > 0
