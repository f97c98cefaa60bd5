"""An estimate is the DataFrame that it always was, and can be looked into."""

from __future__ import annotations

import io
import pickle
import xml.dom.minidom
from pathlib import Path

import onnx
import pandas as pd
import pytest
from small_nets import net

import gkestimator
from gkestimator.errors import GkestimatorError, ModelError, UsageError
from gkestimator.estimation import estimate_rows

KEY = ["model", "gpu", "runtime", "dtype", "batch_size", "dims", "sm_share_pct"]


def test_it_is_a_dataframe(needs: gkestimator.Requirements) -> None:
    assert isinstance(needs, pd.DataFrame) and isinstance(needs, gkestimator.Requirements)
    assert needs.shape == (4, len(needs.columns))
    assert needs["kernels"].tolist() == [2, 2, 2, 2]  # the column, whatever the attribute says
    assert needs.set_index(["gpu", "batch_size"])["latency_ms"].loc["T4", 8] > 0
    assert list(needs[needs.gpu == "T4"].batch_size) == [1, 8]
    buffer = io.StringIO()
    needs.to_csv(buffer, index=False)
    assert buffer.getvalue().startswith("schema_version,model,gpu")


def test_what_pandas_makes_of_it_is_plain(needs: gkestimator.Requirements) -> None:
    derived = {
        "slice": needs[needs.gpu == "T4"],
        "columns": needs[["gpu", "latency_ms"]],
        "copy": needs.copy(),
        "concat": pd.concat([needs, needs]),
        "sorted": needs.sort_values("latency_ms"),
        "merged": needs.merge(needs, on=KEY),
        "table": needs.table,
    }
    assert {name: type(frame) for name, frame in derived.items()} == dict.fromkeys(derived, pd.DataFrame)
    pd.testing.assert_frame_equal(needs.table, needs, check_frame_type=False)


def test_parquet_gives_it_back(needs: gkestimator.Requirements, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    needs.to_parquet(tmp_path / "needs.parquet")
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "needs.parquet").astype(dict(needs.dtypes)), needs.table
    )


def test_a_pickle_keeps_what_is_behind_it(needs: gkestimator.Requirements) -> None:
    again = pickle.loads(pickle.dumps(needs))
    assert isinstance(again, gkestimator.Requirements)
    pd.testing.assert_frame_equal(again, needs)
    pd.testing.assert_frame_equal(again.kernels, needs.kernels)
    assert again.messages == needs.messages


def test_kernels_are_those_of_every_row(needs: gkestimator.Requirements, models: Path) -> None:
    listed = estimate_rows([models / "net.onnx"], gpus=["V100", "T4"], batch_sizes=[1, 8], kernels=True)
    assert needs.kernels["duration_us"].tolist() == [row.duration_us for row in listed.kernel_rows]
    assert needs.kernels.groupby(["gpu", "batch_size"]).size().tolist() == [2, 2, 2, 2]
    assert needs.kernels is needs.kernels, "computed once"


def test_the_timeline_has_a_lane_of_the_host_and_one_of_the_gpu(needs: gkestimator.Requirements) -> None:
    timeline = needs.timeline
    assert timeline.groupby("lane").size().to_dict() == {"GPU": 8, "host": 8}
    assert timeline[timeline.lane == "host"]["stream"].isna().all()
    row = needs.iloc[0]
    mine = timeline[(timeline.gpu == row.gpu) & (timeline.batch_size == row.batch_size)]
    host = mine[mine.lane == "host"]
    assert host["duration_us"].sum() == pytest.approx(1e3 * row.host_ms)
    ends = mine["start_us"] + mine["duration_us"]
    assert ends.max() == pytest.approx(1e3 * row.latency_ms)


def test_memory_over_time_and_at_its_peak(needs: gkestimator.Requirements) -> None:
    over_time = needs.memory.over_time
    at_peak = needs.memory.at_peak
    row = needs[(needs.gpu == "T4") & (needs.batch_size == 8)].iloc[0]
    mine = over_time[(over_time.gpu == "T4") & (over_time.batch_size == 8)]
    assert mine["step"].tolist() == [0, 1]
    assert mine["live_bytes"].max() == row.activations_bytes
    alive = at_peak[(at_peak.gpu == "T4") & (at_peak.batch_size == 8)]
    assert alive["bytes"].sum() == row.activations_bytes
    assert set(alive["tensor"]) >= {"x", "h"}
    assert alive["bytes"].is_monotonic_decreasing


def test_a_report_is_one_page(needs: gkestimator.Requirements, models: Path, tmp_path: Path) -> None:
    assert needs.report(tmp_path / "needs.html") == tmp_path / "needs.html"
    page = (tmp_path / "needs.html").read_text(encoding="utf-8")
    given = estimate_rows([models / "net.onnx"], gpus=["V100", "T4"], batch_sizes=[1, 8], forms=["html"])
    assert len(page) == len(given.documents["html"].decode())
    with pytest.raises(UsageError, match="path .*net.onnx: is also used as"):
        needs.report(models / "net.onnx")


def test_a_picture_is_drawn_and_pandas_still_draws(needs: gkestimator.Requirements, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    figure = needs.plot(tmp_path / "needs.svg")
    assert isinstance(figure, matplotlib.figure.Figure)
    xml.dom.minidom.parse(str(tmp_path / "needs.svg"))
    assert isinstance(needs.plot(), matplotlib.figure.Figure)
    with pytest.raises(UsageError, match=r"needs.txt: found the suffix '.txt', expected .png"):
        needs.plot(tmp_path / "needs.txt")
    axes = needs.plot(x="batch_size", y="latency_ms", kind="scatter")
    assert axes.get_xlabel() == needs.plot.scatter("batch_size", "latency_ms").get_xlabel() == "batch_size"


def test_a_file_that_changed_is_not_looked_into(models: Path) -> None:
    needs = gkestimator.estimate(models / "net.onnx", "T4", 8)
    (models / "net.onnx").write_bytes(net("y = Tanh (x)").SerializeToString())
    with pytest.raises(UsageError, match="has changed since: estimate again"):
        _ = needs.kernels


def test_the_largest_batches_have_no_kernels(models: Path) -> None:
    needs = gkestimator.estimate(models / "net.onnx", "T4", max_batch=True, slo_ms=1)
    assert len(needs) == 1
    with pytest.raises(UsageError, match="estimate them as batch_sizes"):
        _ = needs.timeline


@pytest.mark.parametrize("form", ["path", "text", "folder", "pattern", "list", "memory", "mixed"])
def test_models_are_named_in_every_way(models: Path, form: str) -> None:
    given = {
        "path": (models / "net.onnx", ["net"]),
        "text": (str(models / "net.onnx"), ["net"]),
        "folder": (models, ["tanh", "net"]),
        "pattern": (f"{models}/**/*.onnx", ["tanh", "net"]),
        "list": ([models / "net.onnx", str(models / "inner")], ["net", "tanh"]),
        "memory": (net(), ["net"]),
        "mixed": (
            [net(name="sum"), models / "inner", net(name="two words/a")],
            ["tanh", "sum", "two_words_a"],
        ),
    }
    what, names = given[form]
    assert sorted(gkestimator.estimate(what, "T4", 8).model) == sorted(names)


def test_a_model_in_memory_is_what_it_was_when_it_was_given(models: Path) -> None:
    model = net()
    needs = gkestimator.estimate([model, models / "net.onnx"], "T4", 8)
    memory, file = needs.itertuples(index=False)
    assert (memory.model, file.model) == ("memory/net", "models/net")
    assert memory.latency_ms == file.latency_ms and memory.weights_bytes == file.weights_bytes
    del model.graph.node[:]
    assert len(needs.kernels) == 4
    assert pickle.loads(pickle.dumps(needs)).kernels.equals(needs.kernels)


def test_large_weights_in_memory_are_not_kept() -> None:
    model = net()
    weight = onnx.numpy_helper.from_array(pd.Series(range(2**20), dtype="float32").to_numpy(), name="unused")
    model.graph.initializer.append(weight)
    needs = gkestimator.estimate(model, "T4", 8)
    assert len(pickle.dumps(needs)) < weight.ByteSize() / 10


def test_one_bad_model_is_a_row_of_errors(models: Path, tmp_path: Path) -> None:
    (models / "bad.onnx").write_bytes(b"no model")
    unknown = net("y = Frobnicate (x)", name="unknown")
    given = [models, tmp_path / "none", f"{tmp_path}/*.nothing", unknown]
    with pytest.raises(GkestimatorError, match="no file matches this pattern"):
        gkestimator.estimate(given, "T4", 8)
    with pytest.raises(ModelError, match="bad.onnx: not an ONNX file"):
        gkestimator.estimate(models, "T4", 8)
    needs = gkestimator.estimate(given, "T4", 8, errors="collect")
    assert sorted(needs.model) == ["net", "tanh"] and len(needs.kernels) == 3
    errors = needs.errors.set_index("model")["message"]
    assert list(needs.errors.columns) == ["model", "message"] and len(errors) == 4
    assert "not an ONNX file" in errors[str(models / "bad.onnx")]
    assert "Frobnicate" in errors["memory/unknown.onnx"]
    assert "no file matches" in errors[f"{tmp_path}/*.nothing"]
    assert gkestimator.estimate(models / "net.onnx", "T4", 8).errors.empty


def test_nothing_but_bad_models_is_an_empty_table(tmp_path: Path) -> None:
    for given in (tmp_path, tmp_path / "none.onnx"):
        needs = gkestimator.estimate(given, "T4", 8, errors="collect")
        assert needs.empty and "latency_ms" in needs.columns and len(needs.errors) == 1
        with pytest.raises(UsageError, match="nothing to look into"):
            needs.report(tmp_path / "needs.html")
    with pytest.raises(UsageError, match="unknown GPU"):
        gkestimator.estimate(tmp_path / "none.onnx", "T5000", 8, errors="collect")


def test_details_do_not_hang_on_the_working_folder(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models)
    needs = gkestimator.estimate("net.onnx", "T4", 8)
    monkeypatch.chdir(tmp_path)
    assert len(needs.kernels) == 2


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match="models: found 7, expected paths or models of onnx"):
        gkestimator.estimate(7, "T4")
    with pytest.raises(UsageError, match="models: found none, expected at least 1"):
        gkestimator.estimate([], "T4")
    with pytest.raises(UsageError, match="errors: found 'ignore', expected one of raise, collect"):
        gkestimator.estimate("m.onnx", "T4", errors="ignore")
