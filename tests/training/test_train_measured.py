"""``gkest train`` on a kernel dataset of one GPU that follows a known law, and estimates with the bundle."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from measured_law import (
    FACTOR,
    GPU,
    achieved,
    kernels_of,
    law_us,
    linear,
    measurements,
    relu,
    unseen,
    write_dataset,
)

from gkestimator.bundles.bundle import load_bundle, stack_bundles
from gkestimator.bundles.measured import MeasuredContents, MeasuredGpu
from gkestimator.bundles.models import chip_of
from gkestimator.core.errors import UsageError
from gkestimator.core.fragments import Fragment
from gkestimator.core.kernels import Family, KernelTable
from gkestimator.estimation import estimate_rows
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.launch import Launch
from gkestimator.onnx_io.fragment_models import fragment_model
from gkestimator.training import train
from gkestimator.training.measured import _common_shift
from gkestimator.training.rows import shape_hash, size_hash
from gkestimator.training.train_measured import MeasuredReport

for library in ("sklearn", "scipy", "xgboost", "lightgbm", "pyarrow"):
    pytest.importorskip(library)
L4 = gpu_catalogue().resolve(GPU)[0]
A100 = gpu_catalogue().resolve("A100-PCIE-40GB")[0]


@pytest.mark.slow
def test_held_out_operators_follow_the_law(trained_l4: tuple[Path, MeasuredReport]) -> None:
    bundle, base = load_bundle(trained_l4[0]).under("torch"), load_bundle()
    found: dict[str, list[tuple[float, float, bool]]] = {}
    for family, fragment in unseen(25):
        (kernel,) = kernels_of(fragment)
        table = KernelTable.from_kernels([kernel])
        truth = law_us(fragment, family, L4)
        mine = bundle.predict(table, L4)
        inside = bool(mine.low_us[0] <= truth <= mine.high_us[0])
        errors = [abs(float(p.duration_us[0]) / truth - 1) for p in (mine, base.predict(table, L4))]
        found.setdefault(family, []).append((*errors, inside))
    assert set(found) == set(FACTOR)
    for family, rows in found.items():
        mine_error, base_error, held = np.mean(np.array(rows, dtype=float), axis=0)
        assert mine_error < 0.5 * base_error, (family, mine_error, base_error)
        assert mine_error < 0.15, (family, mine_error)
        assert held >= 0.7, (family, held)


@pytest.mark.slow
def test_a_measured_kernel_is_answered_as_measured(trained_l4: tuple[Path, MeasuredReport]) -> None:
    rows = [r for r in measurements(70, counters=True) if r.family == "linear"][:2]
    (kernel,) = kernels_of(Fragment.parse(rows[0].graph or "", where="row"))
    answer = load_bundle(trained_l4[0]).under("torch").predict(KernelTable.from_kernels([kernel]), L4)
    total = sum(r.duration_us or 0 for r in rows)
    assert answer.duration_us[0] == pytest.approx(total, rel=1e-9)
    assert answer.in_range[0] and answer.trained[0] and answer.detail is not None
    assert answer.detail.source[0] == answer.detail.occupancy_source[0] == "measured"
    sequence = answer.detail.sequence[0]
    assert [one.name for one in sequence] == ["gemm_splitk", "reduce_splits"]
    assert [one.share for one in sequence] == pytest.approx([0.9, 0.1])
    weighted = sum(s * (r.achieved_occupancy_pct or 0) for s, r in zip((0.9, 0.1), rows, strict=True))
    assert answer.occupancy_pct[0] == pytest.approx(weighted)
    assert answer.detail.occupancy_peak_pct[0] == max(r.achieved_occupancy_pct or 0 for r in rows)
    assert answer.grid_blocks[0] == int((rows[0].grid or "").split(",")[0])


@pytest.mark.slow
def test_another_runtime_has_no_measured_lowering_and_is_out_of_range(
    trained_l4: tuple[Path, MeasuredReport],
) -> None:
    row = measurements(1)[0]
    table = KernelTable.from_kernels(kernels_of(Fragment.parse(row.graph or "", where="row")))
    own, other = (load_bundle(trained_l4[0]).under(r).predict(table, L4) for r in ("torch", "onnxruntime"))
    assert own.detail.source[0] == "measured" and other.detail.source[0] == "trained:my_l4"  # type: ignore[union-attr]
    assert own.in_range[0] and not other.in_range[0]


@pytest.mark.slow
def test_other_gpus_and_families_without_rows_answer_as_the_base(
    trained_l4: tuple[Path, MeasuredReport],
) -> None:
    bundle, base = load_bundle(trained_l4[0]).under("torch"), load_bundle()
    table = KernelTable.from_kernels([k for _, f in unseen(3) for k in kernels_of(f)])
    for name in ("duration_us", "low_us", "high_us", "occupancy_pct", "in_range"):
        np.testing.assert_array_equal(
            getattr(bundle.predict(table, A100), name), getattr(base.predict(table, A100), name)
        )
    assert bundle.name_on(L4) == "my_l4" and stack_bundles([bundle, base]).name_on(A100) == "default"
    pool = KernelTable.from_kernels([replace(kernels_of(relu(1 << 20))[0], family=Family.POOLING, name="p")])
    mine, theirs = bundle.predict(pool, L4), base.predict(pool, L4)
    assert trained_l4[1].gpus[0].shift is None  # the law's families have nothing in common beyond the base
    np.testing.assert_array_equal(mine.duration_us, theirs.duration_us)


def test_a_slow_gpu_is_slow_in_families_without_rows_too() -> None:
    assert _common_shift({"linear|fp32": 0.3, "conv|fp32": 0.34}) is None  # two families say little
    assert _common_shift({"linear|fp32": 0.3, "conv|fp32": -0.3, "softmax|fp32": 0.05}) is None
    # Two families in several precisions are two opinions, not four.
    assert _common_shift({f"{f}|{p}": 0.3 for f in ("linear", "bmm") for p in ("fp32", "fp16")}) is None
    shift = _common_shift({"linear|fp32": 0.3, "conv|fp32": 0.36, "softmax|fp32": 0.24})
    assert shift is not None and shift.value == pytest.approx(0.3) and 0.05 < shift.half_width < 0.3
    contents = MeasuredContents(corrections=(), lowering=None, occupancy=None, shift=shift)
    gpu = MeasuredGpu(bundle="slow", base=load_bundle(), gpus=(GPU,), chip=chip_of(L4), read=lambda: contents)
    table = KernelTable.from_kernels(kernels_of(relu(1 << 22)))
    mine, theirs = gpu.predict(table, L4), load_bundle().predict(table, L4)
    assert mine.duration_us[0] == pytest.approx(theirs.duration_us[0] * np.exp(0.3))
    assert mine.high_us[0] / mine.duration_us[0] > theirs.high_us[0] / theirs.duration_us[0]
    assert mine.detail is not None and mine.trained[0] and mine.detail.source[0] == "trained:slow"
    assert not mine.in_range[0]  # what other families showed is no measurement of this one
    plain = KernelTable.from_kernels([replace(kernels_of(relu(1 << 22))[0], family=Family.SORT)])
    untrained = gpu.predict(plain, L4)
    assert not untrained.trained[0]
    assert untrained.detail is not None and untrained.detail.source[0] == "analytical"


@pytest.mark.slow
def test_a_small_call_may_be_slower_in_a_model_than_when_repeated_alone(tmp_path: Path) -> None:
    small, large = relu(64, 1024), relu(1 << 27)
    rows = [
        replace(row, entry_id=f"e{i}", graph=f.text(), op_type="Relu", family="elementwise", duration_us=us,
                kernels_in_op=1, input_shapes="[]", duration_cv=0.0)
        for i, (row, f, us) in enumerate(zip(measurements(1), (small, large), (3.0, 4000.0), strict=False))
    ]  # fmt: skip
    train([write_dataset(tmp_path / "d.parquet", rows)], tmp_path / "b")
    bundle = load_bundle(tmp_path / "b").under("torch")
    table = KernelTable.from_kernels([*kernels_of(small), *kernels_of(large)])
    answer = bundle.predict(table, L4)
    assert answer.duration_us == pytest.approx([3.0, 4000.0])
    # The small one's operand fits in L2, where each repeat found it; elsewhere it is read from DRAM first.
    assert answer.high_us[0] == pytest.approx(3.0 + 64 * 1024 * 4 / L4.dram_bytes_per_s * 1e6)
    assert answer.low_us[0] == pytest.approx(3.0 * np.exp(-0.03))
    assert answer.high_us[1] == pytest.approx(4000 * np.exp(0.03))
    # Of a model of such calls all are slower together, and none is faster than when repeated.
    onnx.save(fragment_model(small), tmp_path / "m.onnx")
    (row,) = estimate_rows(
        [tmp_path / "m.onnx"], gpus=[GPU], dtype="fp32", bundles=[tmp_path / "b"], host_overhead_us=0.0
    ).rows
    assert row.latency_ms == pytest.approx(3e-3) and row.coverage_pct == 100
    assert row.latency_high_ms is not None and row.latency_high_ms >= answer.high_us[0] * 0.999e-3
    assert row.latency_low_ms is not None and row.latency_low_ms > 2.7e-3


@pytest.mark.slow
def test_what_the_sizes_leave_open_widens_the_interval(tmp_path: Path) -> None:
    rows = [r for r in measurements(1) if r.family in ("softmax", "linear")]
    train([write_dataset(tmp_path / "d.parquet", rows)], tmp_path / "b")
    bundle = load_bundle(tmp_path / "b").under("torch")
    width = {}
    for row in rows:
        table = KernelTable.from_kernels(kernels_of(Fragment.parse(row.graph or "", where="row")))
        answer = bundle.predict(table, L4)
        assert answer.detail is not None and answer.detail.source[0] == "measured"
        width[row.family] = float(np.log(answer.duration_us[0] / answer.low_us[0]))
    # Softmax along the last axis and along another one have the same rows and columns.
    assert width["softmax"] == pytest.approx(0.3) and width["linear"] == pytest.approx(0.03)


@pytest.mark.slow
def test_far_from_what_was_measured_the_base_answers_again(trained_l4: tuple[Path, MeasuredReport]) -> None:
    (correction,) = [c for c in load_bundle(trained_l4[0]).measured[0].corrections if c.name == "linear_fp32"]
    base = load_bundle()
    moved = []
    for side in (1000, 9000, 4_000_000):
        table = KernelTable.from_kernels(kernels_of(linear(side, side, side)))
        expected = base.predict(table, L4)
        width = np.log(expected.high_us / expected.duration_us)
        found, half, inside = correction.predict(table, L4, expected.duration_us, width)
        moved.append(abs(float(np.log(found[0] / expected.duration_us[0]))))
        assert bool(inside[0]) == (side == 1000) and (side == 1000 or half[0] >= width[0])
    assert moved[1] > 0.03  # a little beyond the sizes measured the correction holds
    assert moved[2] < 0.01


def test_folds_leave_out_all_operators_of_a_size() -> None:
    sizes = (1 << 18, 1 << 20, 1 << 22)
    table = KernelTable.from_kernels(
        [
            replace(kernels_of(relu(n))[0], variant=v, inputs=i)
            for n in sizes
            for v, i in (("relu", 1), ("add", 2))
        ]
    )
    found = size_hash(table)
    assert len(set(found.tolist())) == 3 and (found[::2] == found[1::2]).all()
    assert len(set(shape_hash(table).tolist())) == 6


@pytest.mark.slow
def test_calls_that_are_not_one_on_the_gpu_are_left_out(tmp_path: Path) -> None:
    one, two, three = (r for r in measurements(1) if r.family != "linear")
    other_name = replace(three, gpu="NVIDIA L4", kernels_in_op=None)
    rows = [
        replace(one, kind="host"),
        replace(two, kernels_in_op=2),
        replace(two, kernels_in_op=2, kernel_index=1, dtype="fp16"),
        replace(three, kernels_in_op=None),
        other_name,
        *(replace(r, gpu="A100-PCIE-40GB") for r in measurements(1) if r.family == "linear"),
    ]
    (tmp_path / "data").mkdir()
    write_dataset(tmp_path / "data" / "a.parquet", rows)
    write_dataset(tmp_path / "data" / "b.parquet", measurements(1, seed=5))
    report = train([tmp_path / "data"], tmp_path / "b")
    assert isinstance(report, MeasuredReport)
    found = {g.gpu: g.skipped for g in report.gpus}
    assert found == {
        "L4": {
            "launches of different operators": 1,
            "measured twice in one dataset": 1,
            "ran on the host": 1,
        },
        "A100-PCIE-40GB": {},
    }
    listed = json.loads((tmp_path / "b" / "card.json").read_text())["trained_on"]
    assert [(e["source"], e["rows"], e["calls"]) for e in listed] == [
        ("a.parquet", 7, 1),
        ("b.parquet", 5, 4),
    ]


def test_parts_of_the_gpu_are_slower_and_out_of_range(trained_l4: tuple[Path, MeasuredReport]) -> None:
    bundle = load_bundle(trained_l4[0]).under("torch")
    table = KernelTable.from_kernels([k for _, f in unseen(4) for k in kernels_of(f)])
    times = [bundle.predict(table, L4, sm_share_pct=share) for share in (10, 50, 100)]
    assert (np.diff([t.duration_us for t in times], axis=0) <= 1e-9).all()
    assert not times[0].in_range.any() and (times[0].sm_util_pct <= 10.001).all()


def test_achieved_occupancy_learns_the_law_of_the_counters(trained_l4: tuple[Path, MeasuredReport]) -> None:
    report = trained_l4[1].gpus[0].occupancy
    assert report.used and report.learned_points is not None
    assert report.learned_points < 1.5 < report.rule_points
    model = load_bundle(trained_l4[0]).measured[0].occupancy
    assert model is not None
    launch = Launch(
        grid_blocks=np.array([1000.0, 3000.0]),
        block_threads=np.array([256.0, 128.0]),
        registers_per_thread=np.array([64.0, 64.0]),
        shared_bytes=np.array([0.0, 0.0]),
    )

    streaming = np.array([True, False])
    learned = model.predict_pct(launch, np.array([100.0, 100.0]), streaming, L4)
    assert learned == pytest.approx(achieved(launch, L4, streaming), abs=4.0)


@pytest.mark.slow
def test_too_few_counters_leave_the_rule(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "few.parquet", measurements(4, counters=True))
    report = train([dataset], tmp_path / "few")
    assert isinstance(report, MeasuredReport)
    occupancy = report.gpus[0].occupancy
    assert occupancy.rows == 20 and occupancy.learned_points is None and not occupancy.used
    assert load_bundle(tmp_path / "few").measured[0].occupancy is None
    kept = {f.family: f.kept for f in report.gpus[0].families}
    assert set(kept.values()) == {"base"}  # four rows of a family correct nothing
    assert report.gpus[0].exact == 16


@pytest.mark.slow
def test_the_bundle_is_self_contained_and_its_card_complete(
    trained_l4: tuple[Path, MeasuredReport], tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(trained_l4[0], copy)
    bundle = load_bundle(copy)
    default = load_bundle()
    assert [m.name for m in bundle.models] == [m.name for m in default.models]
    card = json.loads((copy / "card.json").read_text())
    assert card["base"]["name"] == "default" and len(card["base"]["sha256"]) == 64
    assert card["trained_on"][0]["sha256"] and card["trained_on"][0]["calls"] == 280
    (gpu,) = card["gpus"]
    assert gpu["launches_per_call"] == {"1": 210, "2": 70}
    for family in gpu["families"]:
        assert family["rows"] == 70 and family["kept"] in ("correction", "alone")
        assert family["correction_pct"] < family["base_pct"] and 60 <= family["coverage_pct"] <= 100
    assert "linear" in str(trained_l4[1]) and "held" in str(trained_l4[1])


@pytest.mark.slow
def test_the_same_dataset_gives_the_same_bundle(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d.parquet", measurements(12))
    table = KernelTable.from_kernels([k for _, f in unseen(3) for k in kernels_of(f)])
    answers = []
    backwards = {row.entry_id: [] for row in reversed(measurements(12))}  # type: ignore[var-annotated]
    for row in measurements(12):
        backwards[row.entry_id].append(row)
    other = write_dataset(tmp_path / "other.parquet", [row for rows in backwards.values() for row in rows])
    for name, source in (("one", dataset), ("two", dataset), ("three", other)):
        train([source], tmp_path / name, name="same")
        answers.append(load_bundle(tmp_path / name).under("torch").predict(table, L4).duration_us)
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])


def test_an_estimate_names_the_bundle_and_lists_the_launches_that_were_measured(
    trained_l4: tuple[Path, MeasuredReport], tmp_path: Path
) -> None:
    row = measurements(1)[0]
    model = fragment_model(Fragment.parse(row.graph or "", where="row"))
    del model.graph.output[:]
    shape = [model.graph.input[0].type.tensor_type.shape.dim[0].dim_value]
    n = model.graph.initializer[0].dims[1]
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [*shape, n]))
    onnx.save(model, tmp_path / "product.onnx")
    result = estimate_rows(
        [tmp_path / "product.onnx"],
        gpus=[GPU, "A100-PCIE-40GB"],
        dtype="fp32",
        bundles=[trained_l4[0]],
        kernels=True,
    )
    mine, other = result.rows
    assert mine.source == "trained:my_l4" and other.source == "trained:default"
    assert mine.occupancy_source == "measured" and other.occupancy_source == "analytical"
    assert mine.kernels == 2 and other.kernels == 1 and mine.coverage_pct == 100
    listed = [k for k in result.kernel_rows if k.gpu == GPU]
    assert [k.kernel for k in listed] == ["gemm_splitk", "reduce_splits"] and [k.index for k in listed] == [
        0,
        1,
    ]
    assert {k.source for k in listed} == {"measured"}
    assert sum(k.duration_us or 0 for k in listed) == pytest.approx(
        law_us(linear(*_sizes(model)), "linear", L4), rel=0.1
    )
    assert listed[1].start_us == pytest.approx((listed[0].start_us or 0) + (listed[0].duration_us or 0))


def _sizes(model: onnx.ModelProto) -> tuple[int, int, int]:
    m, k = (d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    return m, model.graph.initializer[0].dims[1], k


@pytest.mark.slow
def test_a_gpu_from_a_file_beside_the_dataset_travels_with_the_bundle(tmp_path: Path) -> None:
    spec = (
        Path(str(__import__("importlib.resources").resources.files("gkestimator.datasets")))
        / "gpus"
        / "L4.toml"
    )
    text = spec.read_text().replace('name = "L4"', 'name = "My-L4"', 1)
    text = "\n".join(
        "aliases = []"
        if line.startswith("aliases")
        else "short_names = []"
        if line.startswith("short_names")
        else line
        for line in text.splitlines()
    )
    rows = [replace(r, gpu="My-L4") for r in measurements(3)]
    dataset = write_dataset(tmp_path / "mine.parquet", rows)
    with pytest.raises(UsageError, match="gpu_specs"):
        train([dataset], tmp_path / "b")
    (tmp_path / "mine.My-L4.toml").write_text(text)
    (tmp_path / "unrelated.toml").write_text("nothing = 1")
    train([dataset], tmp_path / "b")
    assert [p.name for p in (tmp_path / "b" / "gpus").iterdir()] == ["My-L4.toml"]
    assert gpu_catalogue(bundles=[tmp_path / "b"]).resolve("my l4")[0].name == "My-L4"
    onnx.save(fragment_model(relu(64, 64)), tmp_path / "m.onnx")
    (row,) = estimate_rows([tmp_path / "m.onnx"], gpus=["My-L4"], bundles=[tmp_path / "b"]).rows
    assert row.gpu == "My-L4"


def test_bundles_of_the_users_folder_bring_their_gpus(
    tmp_path: Path, trained_l4: tuple[Path, MeasuredReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GKEST_HOME", str(tmp_path))
    shutil.copytree(trained_l4[0], tmp_path / "models" / "my_l4")
    onnx.save(fragment_model(relu(512, 512)), tmp_path / "m.onnx")
    row, other = estimate_rows([tmp_path / "m.onnx"], gpus=[GPU, "T4"], dtype="fp32").rows
    assert row.source == "trained:my_l4" and other.source == "trained:default"


def test_a_cpu_has_no_occupancy(tmp_path: Path) -> None:
    spec = (
        Path(str(__import__("importlib.resources").resources.files("gkestimator.datasets")))
        / "gpus"
        / "L4.toml"
    )
    lines = spec.read_text().splitlines()
    keep = {"name": 'name = "CPU-test"', "aliases": "aliases = []", "short_names": "short_names = []",
            "architecture": 'architecture = "CPU"'}  # fmt: skip
    (tmp_path / "cpu.toml").write_text("\n".join(keep.get(line.split(" ")[0], line) for line in lines))
    onnx.save(fragment_model(relu(512, 512)), tmp_path / "m.onnx")
    result = estimate_rows(
        [tmp_path / "m.onnx"], gpus=["CPU-test"], gpu_specs=[tmp_path / "cpu.toml"], kernels=True
    )
    (row,), (kernel,) = result.rows, result.kernel_rows
    assert row.latency_ms and "CPU stands in" in row.warnings
    assert (
        row.occupancy_max_pct
        is row.occupancy_mean_pct
        is row.sm_util_mean_pct
        is row.occupancy_source
        is None
    )
    assert row.sm_util_max_pct is row.sm_util_busy_mean_pct is None
    assert kernel.occupancy_pct is kernel.grid_blocks is None
