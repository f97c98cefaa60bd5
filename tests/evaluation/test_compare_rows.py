"""Measurements beside estimates: the figures, the matching of models and GPUs, and what cannot be estimated."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

import gkestimator
from gkestimator.core.errors import GkestimatorError, TableError, UsageError
from gkestimator.estimation import estimate_rows
from gkestimator.estimation.one_process import reserved_in_one_process
from gkestimator.evaluation.api import evaluate


def table(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_every_figure_of_a_row(models: list[Path], tmp_path: Path) -> None:
    (estimate,) = estimate_rows([models[0]], gpus=["T4"], batch_sizes=[8], include_copy=True).rows
    assert (
        estimate.latency_ms and estimate.latency_high_ms and estimate.reserved_bytes and estimate.mreq_bytes
    )
    truth = table(
        tmp_path / "t.csv",
        "model,batch_size,latency_ms,gpu,reserved_bytes,mreq_bytes,sm_util_mean_pct,occupancy_max_pct",
        f"resnet50,8,{estimate.latency_ms / 1.1!r},Tesla T4,{estimate.reserved_bytes * 2},{estimate.mreq_bytes},90,",
    )
    result = evaluate(truth, models=models[0], include_copy=True)
    (row,) = result.compared
    assert (row.model, row.gpu, row.dtype, row.batch_size) == ("resnet50", "T4", "fp32", 8)
    assert row.estimated_ms == estimate.latency_ms and row.high_ms == estimate.latency_high_ms
    assert row.error_pct == pytest.approx(10) and row.inside is True
    assert row.roofline_ms is not None and 0 < row.roofline_ms < row.estimated_ms
    assert row.constant_ms is None  # no other model to fit it to
    assert row.measured_occupancy_max_pct is None and row.occupancy_max_pct is None
    latency, reserved, mreq, sm = (s for s in result.summarised if s.scope == "gpu")
    assert (latency.n, latency.mean, latency.bias) == (1, pytest.approx(10), pytest.approx(10))
    assert latency.inside_pct == 100 and latency.constant_mean is None
    assert (reserved.measure, reserved.unit, reserved.mean) == ("reserved_bytes", "%", pytest.approx(50))
    assert (mreq.worst, mreq.bias) == (0, 0)
    assert (sm.unit, sm.mean) == ("points", pytest.approx(abs(estimate.sm_util_mean_pct - 90)))  # type: ignore[operator]
    assert result.failures == () and result.messages == ()


@pytest.mark.slow
def test_summaries_are_those_of_the_rows(write_truth: Callable[..., Path], models: list[Path]) -> None:
    result = gkestimator.evaluate(write_truth(), models=models, gpu="A100")
    rows, summary = result.rows, result.summary
    assert len(rows) == 20 and set(rows["gpu"]) == {"A100-SXM4-80GB"}
    errors = rows["error_pct"].abs().astype(float)
    (whole,) = summary[(summary["scope"] == "gpu") & (summary["measure"] == "latency_ms")].to_dict("records")
    assert whole["n"] == 20 and whole["name"] == "A100-SXM4-80GB"
    assert whole["mean"] == pytest.approx(errors.mean()) and whole["median"] == pytest.approx(errors.median())
    assert whole["worst"] == pytest.approx(errors.max()) and whole["p90"] == pytest.approx(
        errors.quantile(0.9)
    )
    assert whole["inside_pct"] == pytest.approx(100 * rows["inside"].mean())
    per_model = summary[(summary["scope"] == "model") & (summary["measure"] == "latency_ms")]
    assert list(per_model["n"]) == [5, 5, 5, 5]
    assert (per_model["mean"] * per_model["n"]).sum() / 20 == pytest.approx(whole["mean"])
    assert not (summary["scope"] == "all").any()  # one GPU: it would be said twice
    memory = summary[(summary["scope"] == "gpu") & (summary["measure"] == "reserved_bytes")]
    assert list(memory["mean"]) == pytest.approx([50.0]) and list(memory["bias"]) == pytest.approx([-50.0])


def test_the_constant_is_fitted_to_other_models_only(
    write_truth: Callable[..., Path], models: list[Path]
) -> None:
    rows = evaluate(write_truth(outliers=False), models=models, gpu="A100").compared
    for model in {r.model for r in rows}:
        others = [(r.measured_ms, r.roofline_ms) for r in rows if r.model != model]
        (own,) = {round(r.constant_ms / r.roofline_ms, 9) for r in rows if r.model == model}  # type: ignore[operator]

        def cost(constant: float, others: list = others) -> float:  # type: ignore[type-arg]
            return sum(abs(constant * roof / measured - 1) for measured, roof in others)

        assert all(cost(own) <= cost(own * factor) + 1e-9 for factor in (0.9, 0.99, 1.01, 1.1))


@pytest.mark.slow
def test_several_gpus_have_a_line_for_all(models: list[Path], tmp_path: Path) -> None:
    truth = table(
        tmp_path / "t.csv", "model,batch_size,latency_ms,gpu", "resnet50,4,5,T4", "resnet50,4,3,L4",
        "light_squeezenet,1,1,",
    )  # fmt: skip
    result = evaluate(truth, models=models, gpu="H100")
    names = [(s.scope, s.name, s.n) for s in result.summarised]
    assert names[:4] == [("all", "all", 3), ("gpu", "T4", 1), ("gpu", "L4", 1), ("gpu", "H100-SXM", 1)]
    assert [m for m in result.messages if "H100" in m]  # a short name says what it was taken for


@pytest.mark.slow
def test_models_by_stem_by_tail_and_by_path(models: list[Path], tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shutil.copy(models[2], tmp_path / folder / "net.onnx")
    shutil.copy(models[2], tmp_path / "alone.onnx")
    truth = table(
        tmp_path / "t.csv", "model,batch_size,latency_ms", "net,1,1", "b/net,1,1", "alone,1,1", "alone.onnx,2,1",
        f"{models[2]},3,1", "alnoe,1,1", "absent/x.onnx,1,1",
    )  # fmt: skip
    result = evaluate(truth, models=tmp_path, gpu="T4")
    assert [(r.row, r.model) for r in result.compared] == [(2, "b/net"), (3, "alone"), (4, "alone"), (5, "light_squeezenet")]  # fmt: skip
    texts = [str(f) for f in result.failures]
    assert texts[0] == "t.csv: row 1: model net is one of a/net, b/net: expected one of these names"
    assert texts[1] == "t.csv: row 6: model alnoe: no alnoe.onnx among 3 models; did you mean alone?"
    assert texts[2].startswith("t.csv: row 7: model absent/x.onnx: no x.onnx among 3 models")
    assert len(texts) == 3


def test_two_names_of_one_thing_are_two_rows(models: list[Path], tmp_path: Path) -> None:
    truth = table(
        tmp_path / "t.csv", "model,batch_size,latency_ms,gpu", "resnet50,1,5,T4", f"{models[0]},1,6,T4",
        "resnet50,1,7,Tesla T4",
    )  # fmt: skip
    rows = evaluate(truth, models=models).compared
    assert [(r.row, r.measured_ms, r.model, r.gpu) for r in rows] == [
        (1, 5, "resnet50", "T4"), (2, 6, "resnet50", "T4"), (3, 7, "resnet50", "T4"),
    ]  # fmt: skip
    assert len({r.estimated_ms for r in rows}) == 1


def test_rows_fail_alone(models: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    truth = table(
        tmp_path / "t.csv", "model,batch_size,latency_ms,gpu,dtype,runtime", "resnet50,1,5,T4,,", "resnet50,2,5,V199,,",
        "resnet50,4,5,T4,bf16,", "resnet50,8,5,L4,bf16,onnxruntime", "resnet50,16,5,T4,,tensorflow", "broken,1,1,T4,,",
        "resnet50,32,5,v199,,",
    )  # fmt: skip
    result = evaluate(truth, models=[*models, broken])
    assert [r.row for r in result.compared] == [1, 4]
    texts = " | ".join(str(f) for f in result.failures)
    assert "V199" in texts and "bf16" in texts and "tensorflow" in texts and "broken.onnx" in texts
    assert len(result.failures) == 5


@pytest.mark.slow
def test_latency_of_another_unit_is_noticed(write_truth: Callable[..., Path], models: list[Path]) -> None:
    path = write_truth(outliers=False)
    good = pandas.read_csv(path)
    for factor, unit in ((1e-3, "seconds"), (1e3, "microseconds")):
        result = evaluate(
            good.assign(latency_ms=good["latency_ms"] * factor), models=models, gpu="A100-SXM4-80GB"
        )
        (line,) = result.messages
        assert f"does latency_ms hold {unit}?" in line
    assert evaluate(good, models=models, gpu="A100-SXM4-80GB").messages == ()
    one = good.assign(latency_ms=good["latency_ms"].where(good.index > 0, good["latency_ms"] * 1000))
    assert evaluate(one, models=models, gpu="A100-SXM4-80GB").messages == ()  # one odd row is an odd row


def test_lower_bounds_are_compared_with_nothing(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Mystery", ["a"], ["y"], domain="else")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 64])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("else", 1)]
    path = tmp_path / "mystery.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())
    truth = table(tmp_path / "t.csv", "model,batch_size,latency_ms", "mystery,4,1")
    (failure,) = evaluate(truth, models=path, gpu="T4").failures
    assert "Mystery" in str(failure)
    result = evaluate(truth, models=path, gpu="T4", allow_unknown=True)
    (row,) = result.compared
    assert row.measured_ms == 1 and row.estimated_ms is None and row.error_pct is None and row.inside is None
    assert "lower bounds" in row.warnings and result.summarised == ()


def test_what_cannot_be_answered_at_all(models: list[Path], tmp_path: Path) -> None:
    truth = table(tmp_path / "t.csv", "model,batch_size,latency_ms", "resnet50,1,5")
    with pytest.raises(UsageError, match="row 1: names no GPU: expected a column gpu, or gpu for every row"):
        evaluate(truth, models=models)
    with pytest.raises(UsageError, match="V199"):
        evaluate(truth, models=models, gpu="V199")
    with pytest.raises(GkestimatorError, match="found a folder without models"):
        (tmp_path / "empty").mkdir()
        evaluate(truth, models=tmp_path / "empty", gpu="T4")
    with pytest.raises(UsageError, match="truth is a int: expected a path or a pandas DataFrame"):
        evaluate(3, models=models, gpu="T4")  # type: ignore[arg-type]
    with pytest.raises(TableError, match="truth: row 1, column latency_ms: found -1"):
        evaluate(pandas.DataFrame({"model": ["m"], "batch_size": [1], "latency_ms": [-1.0]}), gpu="T4")


def test_a_data_frame_and_its_missing_values(models: list[Path]) -> None:
    frame = pandas.DataFrame(
        {
            "model": ["resnet50"] * 2,
            "batch_size": [1, 2],
            "latency_ms": [4.0, None],
            "reserved_bytes": [None, 2e8],
        }
    )
    first, second = evaluate(frame, models=models, gpu="T4").compared
    assert first.measured_ms == 4 and first.measured_reserved_bytes is None
    assert second.measured_ms is None and second.measured_reserved_bytes == 2e8 and second.reserved_bytes


def test_memory_of_one_process(models: list[Path], tmp_path: Path) -> None:
    lines = [f"resnet50,{batch},{gpu},1e9" for gpu in ("T4", "L4") for batch in (32, 4, 16)]
    truth = table(tmp_path / "t.csv", "model,batch_size,gpu,reserved_bytes", *lines)
    fresh, together = (evaluate(truth, models=models, one_process=one).compared for one in (False, True))
    for at in (
        0,
        3,
    ):  # per GPU: the first row is a fresh process in both, a smaller batch after it releases nothing
        assert together[at].reserved_bytes == fresh[at].reserved_bytes
        assert together[at + 1].reserved_bytes is not None and fresh[at + 1].reserved_bytes is not None
        assert together[at + 1].reserved_bytes >= together[at].reserved_bytes > fresh[at + 1].reserved_bytes  # type: ignore[operator]
    asked = reserved_in_one_process(models[0], gpu="T4", batch_sizes=[32, 4, 16])
    assert [r.reserved_bytes for r in together[:3]] == list(asked.values())


def test_the_context_is_an_option(models: list[Path], tmp_path: Path) -> None:
    truth = table(tmp_path / "t.csv", "model,batch_size,reserved_bytes,mreq_bytes", "resnet50,4,1e9,1e9")
    for one_process in (False, True):
        (row,) = evaluate(truth, models=models, gpu="T4", context_mib=100, one_process=one_process).compared
        assert row.mreq_bytes is not None and row.mreq_bytes - row.reserved_bytes == 100 * 2**20  # type: ignore[operator]


def test_sequence_models_take_their_dims(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "seq", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "seq", 64])],
        initializer=[helper.make_tensor("w", TensorProto.FLOAT, [64, 64], [0.0] * 4096)],
    )  # fmt: skip
    path = tmp_path / "seq.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    )
    truth = table(
        tmp_path / "t.csv",
        "model,batch_size,latency_ms,dims",
        "seq,2,1,seq=128",
        "seq,2,1,seq=512",
        "seq,2,1,",
    )
    result = evaluate(truth, models=path, gpu="T4", dims={"seq": 7})
    assert [r.dims for r in result.compared] == ["seq=128", "seq=512", "seq=7"]
