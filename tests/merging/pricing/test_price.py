"""Prices are the estimator's own, of models in memory, of several one after the other, and of parts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import families
import pytest
from chains import chain

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ModelError, UsageError
from gkestimator.estimation.api import estimate_rows
from gkestimator.merging.editing import EditableModel, EditNode, ValueInfo, read_editable
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing import Pricer
from gkestimator.merging.pricing import pricer as pricer_module

BUILDERS = [families.resnet_like, families.mobilenet_like, families.bert_like, families.gpt_like]


def read(folder: Path, name: str, builder: object, **sizes: object) -> tuple[Path, EditableModel]:
    path = families.saved(builder(**sizes), folder / f"{name}.onnx")  # type: ignore[operator]
    return path, read_editable(path, prefix=f"{name}/", name=name)


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("dtype", ["auto", "fp16"])
def test_a_price_is_what_an_estimate_of_the_file_says(builder: object, dtype: str, tmp_path: Path) -> None:
    path, model = read(tmp_path, "m", builder)
    pricer = Pricer(MergeOptions(gpu="A100-PCIE-40GB", dtype=dtype))
    price = pricer.originals([model], [4]).price
    result = estimate_rows(
        [path], gpus=["A100-PCIE-40GB"], batch_sizes=[4], runtime="onnxruntime", dtype=dtype, kernels=True
    )
    (row,) = result.rows
    assert price.latency_ms == row.latency_ms
    assert (price.latency_low_ms, price.latency_high_ms) == (row.latency_low_ms, row.latency_high_ms)
    assert (price.flops, price.dram_bytes, price.kernels) == (row.flops, row.dram_bytes, row.kernels)
    assert price.gpu_ms == pytest.approx(
        sum((k.duration_us or 0) * k.launches for k in result.kernel_rows) / 1e3
    )
    assert price.resident_bytes == row.weights_bytes


def test_starts_are_those_of_the_kernels(tmp_path: Path) -> None:
    path, model = read(tmp_path, "m", families.bert_like)
    starts = Pricer(MergeOptions()).starts(model, batch_size=2)
    rows = estimate_rows(
        [path], gpus=["V100"], batch_sizes=[2], runtime="onnxruntime", kernels=True
    ).kernel_rows
    for row in rows:
        assert starts[f"m/{row.operator}"] == pytest.approx((row.start_us or 0.0) / 1e3)
    # what the runtime fuses starts with its group, what launches nothing has no start
    assert starts["m/layer.0/gelu/Div"] == starts["m/layer.0/gelu/Mul_1"]
    assert "m/ids/Shape" not in starts


def test_siblings_start_together_at_one_reference_whatever_batch_they_were_exported_at(
    tmp_path: Path,
) -> None:
    pricer = Pricer(MergeOptions())
    sizes: tuple[int | str, ...] = ("batch", 1, 3)
    found = [
        pricer.starts(read(tmp_path, f"m{at}", families.bert_like, batch=size)[1])
        for at, size in enumerate(sizes)
    ]
    bare = [{name.partition("/")[2]: start for name, start in one.items()} for one in found]
    assert bare[0] == bare[1] == bare[2]


def test_originals_run_back_to_back() -> None:
    models = [chain("a", width=512), chain("b", width=768)]
    pricer = Pricer(MergeOptions())
    alone = [pricer.originals([m], [n]).price for m, n in zip(models, (1, 8), strict=True)]
    both = pricer.originals(models, [1, 8]).price
    for field in ("dram_bytes", "weight_bytes", "flops", "kernels", "calls", "resident_bytes"):
        assert getattr(both, field) == sum(getattr(price, field) for price in alone), field
    assert both.gpu_ms == pytest.approx(sum(price.gpu_ms for price in alone))
    assert max(p.latency_ms for p in alone) < both.latency_ms <= sum(p.latency_ms for p in alone)
    assert both.latency_low_ms < both.latency_ms < both.latency_high_ms


@pytest.mark.parametrize("width", [64, 1024, 4096])
def test_a_piece_is_what_the_whole_is_longer_by(width: int) -> None:
    model = chain("a", layers=4, width=width)
    priced = Pricer(MergeOptions()).originals([model], [1])
    names = [node.name for node in model.nodes]
    everything, nothing = priced.piece(names), priced.piece([])
    assert everything.latency_ms == pytest.approx(priced.price.latency_ms)
    assert everything.weight_bytes == 4 * width * width * 4
    assert (nothing.latency_ms, nothing.gpu_ms, nothing.kernels, nothing.flops) == (0, 0, 0, 0)
    pieces = [priced.piece([name]) for name in names]
    for field in ("gpu_ms", "dram_bytes", "weight_bytes", "flops", "kernels", "calls"):
        whole = getattr(priced.price, field)
        assert sum(getattr(piece, field) for piece in pieces) == pytest.approx(whole), field
    # the model without its last two layers is priced the same whether it is cut off or never was there
    shorter = Pricer(MergeOptions()).originals([chain("a", layers=2, width=width)], [1]).price
    cut = priced.piece([name for name in names if name[-1] in "23"])
    assert priced.price.latency_ms - cut.latency_ms == pytest.approx(shorter.latency_ms)


def test_a_piece_in_the_shadow_of_the_gpu_costs_its_kernels_and_of_the_host_its_calls() -> None:
    overhead = Pricer(MergeOptions()).host_overhead_us / 1e3
    slow_host = Pricer(MergeOptions()).originals([chain("a", layers=6, width=32)], [1])
    assert slow_host.piece(["a/mm3"]).latency_ms == pytest.approx(overhead)
    slow_gpu = Pricer(MergeOptions()).originals([chain("a", layers=6, width=4096)], [1])
    piece = slow_gpu.piece(["a/mm3"])
    assert piece.latency_ms == pytest.approx(piece.gpu_ms)
    assert piece.gpu_ms > 10 * overhead


def test_models_of_a_merged_graph_keep_their_batches() -> None:
    models = [chain("a", width=256), chain("b", width=256)]
    pricer = Pricer(MergeOptions())
    beside = EditableModel(
        name="both", nodes=[n for m in models for n in m.nodes], opsets={"": 17}, ir_version=9,
        weights={k: w for m in models for k, w in m.weights.items()}, inputs=[i for m in models for i in m.inputs],
        outputs=[o for m in models for o in m.outputs], prefixes=("a/", "b/"),
    )  # fmt: skip
    for sizes in ([1, 1], [4, 32], [None, 2]):
        assert pricer.merged(beside, models, sizes).price == pricer.originals(models, sizes).price


def test_a_fixed_batch_that_is_not_the_one_asked_for() -> None:
    pricer, model = Pricer(MergeOptions()), chain("a", batch=4)
    assert pricer.originals([model], [4]).price == pricer.originals([model], [None]).price
    with pytest.raises(
        UsageError, match=r"^a: batch size 8 was asked for, found a file exported at batch size 4; "
    ):
        pricer.originals([model], [8])


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, 10**9])
def test_a_batch_size_that_cannot_be(wrong: object) -> None:
    with pytest.raises(UsageError, match=r"^a: batch size is .*: expected a whole number from 1 to 1000000$"):
        Pricer(MergeOptions()).originals([chain("a")], [wrong])  # type: ignore[list-item]


def one_node(node: EditNode) -> EditableModel:
    return EditableModel(
        name="m", nodes=[node], weights={}, opsets={"": 17, "my": 1}, ir_version=9, prefixes=("m/",),
        inputs=[ValueInfo(name="m/x", dtype=DType.FLOAT, shape=("m/batch", 8))],
        outputs=[ValueInfo(name="m/y", dtype=DType.FLOAT, shape=("m/batch", 8))],
    )  # fmt: skip


def test_a_model_that_launches_nothing() -> None:
    model = one_node(EditNode(name="m/same", op_type="Identity", inputs=("m/x",), outputs=("m/y",)))
    priced = Pricer(MergeOptions()).originals([model], [2])
    assert (priced.price.latency_ms, priced.price.kernels, priced.piece(["m/same"]).latency_ms) == (0, 0, 0)
    assert Pricer(MergeOptions()).starts(model) == {}


def test_an_operator_that_nobody_knows_is_named_and_leaves_no_upper_end() -> None:
    model = one_node(EditNode(name="m/own", op_type="Own", domain="my", inputs=("m/x",), outputs=("m/y",)))
    priced = Pricer(MergeOptions()).originals([model], [2])
    assert priced.unknown_operators == ("my.Own",)
    assert priced.price.latency_high_ms is None


def test_int8_of_a_model_that_is_not_quantised() -> None:
    with pytest.raises(UsageError, match="^a: dtype int8 needs a quantised model"):
        Pricer(MergeOptions(dtype="int8")).originals([chain("a")], [1])


def test_a_dimension_without_a_size_is_an_error() -> None:
    model = chain("a")
    (given,) = model.inputs
    open_ended = replace(model, inputs=[replace(given, shape=("a/batch", "a/seq", 64))])
    with pytest.raises(ModelError, match="a/seq has no size"):
        Pricer(MergeOptions()).originals([open_ended], [1])


@pytest.mark.parametrize("wrong", [math.nan, -1.0, math.inf])
@pytest.mark.parametrize("field", ["latency_ms", "gpu_ms"])
def test_a_price_that_is_no_time_is_an_error(
    field: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(pricer_module.Engine):
        def estimate(self, lowerings):  # type: ignore[no-untyped-def]
            for e in super().estimate(lowerings):
                yield replace(e, measures=replace(e.measures, **{field: wrong}))

    monkeypatch.setattr(pricer_module, "Engine", Broken)
    with pytest.raises(ModelError, match=r"^a: estimated at .*expected a time from 0"):
        Pricer(MergeOptions()).originals([chain("a")], [1])


def test_a_gpu_that_nobody_knows() -> None:
    with pytest.raises(UsageError, match="V1000"):
        Pricer(MergeOptions(gpu="V1000"))
