"""``gkest train`` on a kernel dataset of one GPU that follows a known law, and estimates with the bundle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from measured_law import FACTOR, GPU, achieved, law_us, linear, measurements, operators, relu, write_dataset

from gkestimator.bundle_models import chip_of
from gkestimator.bundles import load_bundle, stack_bundles
from gkestimator.cli import run
from gkestimator.dtypes import Precision
from gkestimator.errors import BundleError, GkestimatorError, OutputError, TableError, UsageError
from gkestimator.estimation import estimate_rows
from gkestimator.fragments import Fragment
from gkestimator.gpus import gpu_catalogue
from gkestimator.kernels import Family, Kernel, KernelTable
from gkestimator.launch import Launch
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.measured import MeasuredContents, MeasuredGpu
from gkestimator.onnx_io.fragment_models import fragment_graph, fragment_model
from gkestimator.tables import KERNEL_DATASET, read_table
from gkestimator.training import train
from gkestimator.training.measured import _common_shift
from gkestimator.training.rows import shape_hash, size_hash
from gkestimator.training.train_measured import MeasuredReport

for library in ("sklearn", "scipy", "xgboost", "lightgbm", "pyarrow"):
    pytest.importorskip(library)
L4 = gpu_catalogue().resolve(GPU)[0]
A100 = gpu_catalogue().resolve("A100-PCIE-40GB")[0]
OPTIONS = LoweringOptions(
    runtime="torch",
    dtype="fp32",
    matmul_precision=Precision.FP32,
    conv_precision=Precision.FP32,
    unfold_batchnorm=False,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MeasuredReport]:
    folder = tmp_path_factory.mktemp("measured")
    dataset = write_dataset(folder / "l4.parquet", measurements(70, counters=True))
    report = train([dataset], folder / "my_l4")
    assert isinstance(report, MeasuredReport)
    return folder / "my_l4", report


def kernels_of(fragment: Fragment) -> tuple[Kernel, ...]:
    return tuple(k for step in lower(fragment_graph(fragment), OPTIONS).steps for k in step.kernels)


def unseen(count: int) -> list[tuple[str, Fragment]]:
    return list(operators(count, np.random.default_rng(99)))


def test_held_out_operators_follow_the_law(trained: tuple[Path, MeasuredReport]) -> None:
    bundle, base = load_bundle(trained[0]).under("torch"), load_bundle()
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


def test_a_measured_kernel_is_answered_as_measured(trained: tuple[Path, MeasuredReport]) -> None:
    rows = [r for r in measurements(70, counters=True) if r.family == "linear"][:2]
    (kernel,) = kernels_of(Fragment.parse(rows[0].graph or "", where="row"))
    answer = load_bundle(trained[0]).under("torch").predict(KernelTable.from_kernels([kernel]), L4)
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


def test_another_runtime_has_no_measured_lowering_and_is_out_of_range(
    trained: tuple[Path, MeasuredReport],
) -> None:
    row = measurements(1)[0]
    table = KernelTable.from_kernels(kernels_of(Fragment.parse(row.graph or "", where="row")))
    own, other = (load_bundle(trained[0]).under(r).predict(table, L4) for r in ("torch", "onnxruntime"))
    assert own.detail.source[0] == "measured" and other.detail.source[0] == "trained:my_l4"  # type: ignore[union-attr]
    assert own.in_range[0] and not other.in_range[0]


def test_other_gpus_and_families_without_rows_answer_as_the_base(
    trained: tuple[Path, MeasuredReport],
) -> None:
    bundle, base = load_bundle(trained[0]).under("torch"), load_bundle()
    table = KernelTable.from_kernels([k for _, f in unseen(3) for k in kernels_of(f)])
    for name in ("duration_us", "low_us", "high_us", "occupancy_pct", "in_range"):
        np.testing.assert_array_equal(
            getattr(bundle.predict(table, A100), name), getattr(base.predict(table, A100), name)
        )
    assert bundle.name_on(L4) == "my_l4" and stack_bundles([bundle, base]).name_on(A100) == "default"
    pool = KernelTable.from_kernels([replace(kernels_of(relu(1 << 20))[0], family=Family.POOLING, name="p")])
    mine, theirs = bundle.predict(pool, L4), base.predict(pool, L4)
    assert trained[1].gpus[0].shift is None  # the law's families have nothing in common beyond the base
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


def test_far_from_what_was_measured_the_base_answers_again(trained: tuple[Path, MeasuredReport]) -> None:
    (correction,) = [c for c in load_bundle(trained[0]).measured[0].corrections if c.name == "linear_fp32"]
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


def test_parts_of_the_gpu_are_slower_and_out_of_range(trained: tuple[Path, MeasuredReport]) -> None:
    bundle = load_bundle(trained[0]).under("torch")
    table = KernelTable.from_kernels([k for _, f in unseen(4) for k in kernels_of(f)])
    times = [bundle.predict(table, L4, sm_share_pct=share) for share in (10, 50, 100)]
    assert (np.diff([t.duration_us for t in times], axis=0) <= 1e-9).all()
    assert not times[0].in_range.any() and (times[0].sm_util_pct <= 10.001).all()


def test_achieved_occupancy_learns_the_law_of_the_counters(trained: tuple[Path, MeasuredReport]) -> None:
    report = trained[1].gpus[0].occupancy
    assert report.used and report.learned_points is not None
    assert report.learned_points < 1.5 < report.rule_points
    model = load_bundle(trained[0]).measured[0].occupancy
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


def test_the_bundle_is_self_contained_and_its_card_complete(
    trained: tuple[Path, MeasuredReport], tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(trained[0], copy)
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
    assert "linear" in str(trained[1]) and "held" in str(trained[1])


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
    trained: tuple[Path, MeasuredReport], tmp_path: Path
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
        bundles=[trained[0]],
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
    with pytest.raises(UsageError, match="--gpu-spec"):
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
    tmp_path: Path, trained: tuple[Path, MeasuredReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GKEST_HOME", str(tmp_path))
    shutil.copytree(trained[0], tmp_path / "models" / "my_l4")
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


def edit(name: str, change: Callable[[dict], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        change(document)
        (folder / name).write_text(json.dumps(document))

    return apply


def arrays(name: str, **changes: np.ndarray) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        with np.load(folder / name) as found:
            kept = {key: found[key] for key in found.files}
        np.savez(folder / name, **{**kept, **changes})

    return apply


GPU0, FIRST = (lambda d: d["gpus"][0]), (lambda d: d["gpus"][0]["corrections"][0])
HOSTILE = {
    "no base": lambda f: shutil.rmtree(f / "base"),
    "base within base": lambda f: shutil.copy(f / "measured.json", f / "base" / "measured.json"),
    "broken base": edit("base/stack.json", lambda d: d.update(schema_version=99)),
    "version": edit("measured.json", lambda d: d.update(schema_version=99)),
    "no gpus": edit("measured.json", lambda d: d.update(gpus=[])),
    "gpu text": edit("measured.json", lambda d: d.update(gpus=["L4"])),
    "chip": edit("measured.json", lambda d: GPU0(d).update(chip=[8, 9])),
    "path in a name": edit("measured.json", lambda d: FIRST(d).update(name="../../etc/passwd")),
    "reserved name": edit("measured.json", lambda d: FIRST(d).update(name="lowering")),
    "twice": edit("measured.json", lambda d: GPU0(d)["corrections"].append(FIRST(d))),
    "features": edit("measured.json", lambda d: FIRST(d).update(features="quantum")),
    "other features": edit("measured.json", lambda d: FIRST(d)["feature_names"].__setitem__(0, "moon")),
    "fewer features": edit("measured.json", lambda d: FIRST(d)["feature_names"].pop()),
    "reference": edit("measured.json", lambda d: FIRST(d).update(reference="wish")),
    "negative width": edit("measured.json", lambda d: FIRST(d).update(factors=[-1, 0, 0])),
    "covers": edit("measured.json", lambda d: FIRST(d).update(covers=[["linear"]])),
    "shift": edit("measured.json", lambda d: GPU0(d).update(shift={"value": 1e9, "half_width": 0})),
    "truth": edit("measured.json", lambda d: GPU0(d).update(lowering="yes")),
    "missing arrays": lambda f: next(f.glob("g0_linear*.npz")).unlink(),
    "missing lowering": lambda f: (f / "g0_lowering.json").unlink(),
    "range": arrays("g0_linear_fp32.npz", low=np.full(3, np.nan)),
    "negative time": arrays("g0_lowering.npz", duration_us=np.full(280, -1.0)),
    "infinite time": arrays("g0_lowering.npz", duration_us=np.full(280, np.inf)),
    "launches of another call": arrays("g0_lowering.npz", first=np.zeros(281, dtype=np.int64)),
    "occupancy": arrays("g0_lowering.npz", launches=np.full((350, 6), 101.0)),
    "words": edit("g0_lowering.json", lambda d: d["words"].update(name=["x" * 500])),
    "kinds": edit("g0_lowering.json", lambda d: d["words"].update(kind=["dance"])),
    "index": arrays("g0_lowering.npz", family=np.full(280, 77, dtype=np.int32)),
    "count": edit("g0_lowering.json", lambda d: d.update(calls=10**9)),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_a_hostile_folder_is_refused_in_one_line(
    case: str, trained: tuple[Path, MeasuredReport], tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(trained[0], folder)
    HOSTILE[case](folder)
    with pytest.raises(BundleError) as caught:
        load_bundle(folder).under("torch").predict(
            KernelTable.from_kernels([k for _, f in unseen(1) for k in kernels_of(f)]), L4
        )
    assert "\n" not in str(caught.value)


def test_what_cannot_be_trained_on_is_said_in_one_line(tmp_path: Path) -> None:
    rows = [replace(r, quality="noisy") for r in measurements(2)]
    with pytest.raises(TableError, match="noisy or throttled"):
        train([write_dataset(tmp_path / "noisy.parquet", rows)], tmp_path / "b")
    bad = [replace(r, graph='{"nodes": 3}') for r in measurements(1)]
    with pytest.raises(TableError, match="row 1, column graph"):
        train([write_dataset(tmp_path / "bad.parquet", bad)], tmp_path / "b")
    short = [r for r in measurements(2) if r.kernel_index == 0]
    report = train([write_dataset(tmp_path / "short.parquet", short)], tmp_path / "c")
    assert isinstance(report, MeasuredReport) and report.gpus[0].skipped["launches missing"] == 2


def test_a_dataset_in_csv_trains_the_same(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "l4.parquet", measurements(12))
    write_dataset(tmp_path / "l4.csv", read_table(dataset, KERNEL_DATASET))
    train([dataset], tmp_path / "from_parquet")
    train([tmp_path / "l4.csv"], tmp_path / "from_csv")
    name = "measured.json"
    assert (tmp_path / "from_csv" / name).read_bytes() == (tmp_path / "from_parquet" / name).read_bytes()


def test_missing_libraries_are_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_read.csv").write_text("")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"scipy, sklearn, xgboost, lightgbm: pip install 'gkestimator\[train\]'"
    ):
        train([tmp_path / "never_read.csv"], tmp_path / "out")


def test_a_measured_bundle_is_no_base(trained: tuple[Path, MeasuredReport], tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d.parquet", measurements(2))
    with pytest.raises(BundleError, match="train together"):
        train([dataset], tmp_path / "b", base=trained[0])
    with pytest.raises(
        OutputError, match="tells them apart"
    ):  # `source` would not say which of the two answered
        train([dataset], tmp_path / "default")
    with pytest.raises(GkestimatorError, match="no such bundle"):
        train([dataset], tmp_path / "b", base=tmp_path / "nowhere")


def test_without_a_base_the_rows_stand_alone(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d.parquet", measurements(250, noise=0.01))
    report = train([dataset], tmp_path / "alone", base=None)
    assert {m.name for m in report.models} >= {"linear", "elementwise", "softmax", "conv"}  # type: ignore[union-attr]
    assert not load_bundle(tmp_path / "alone").measured


@pytest.mark.parametrize(
    "name", ["measured.json", "g0_lowering.json", "g0_lowering.npz", "g0_linear_fp32.npz", "g0_occupancy.npz"]
)
def test_a_mutated_file_answers_or_is_refused_in_one_line(
    name: str, trained: tuple[Path, MeasuredReport], tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(trained[0], folder)
    original = (folder / name).read_bytes()
    rng = np.random.default_rng(7)
    table = KernelTable.from_kernels([k for _, f in unseen(1) for k in kernels_of(f)])
    refused = 0
    for _ in range(25):
        data = bytearray(original)
        for at in rng.integers(0, len(data), 3):
            data[at] = rng.integers(0, 256)
        (folder / name).write_bytes(bytes(data[: rng.integers(1, len(data))] if rng.random() < 0.3 else data))
        try:
            answer = load_bundle(folder).under("torch").predict(table, L4)
        except BundleError as e:
            refused += 1
            assert "\n" not in str(e)
        else:
            assert np.isfinite(answer.duration_us).all() and (answer.duration_us > 0).all()
    assert refused


def test_the_command_trains_and_says_what_it_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = write_dataset(tmp_path / "d.parquet", measurements(15))
    assert run(["train", str(dataset), "-o", str(tmp_path / "2nd try")]) == 0
    done = capsys.readouterr()
    assert "L4: 60 measured calls, 60 distinct kernels" in done.out and "elementwise" in done.out
    assert load_bundle(tmp_path / "2nd try").name == "bundle_2nd_try"
    for arguments, said in (
        (["--base", str(tmp_path / "nowhere")], "no such bundle folder"),
        (["--gpu-spec", str(tmp_path / "no.toml")], "no.toml"),
    ):
        assert run(["train", str(dataset), *arguments, "-o", str(tmp_path / "b")]) == 2
        refused = capsys.readouterr().err.strip().splitlines()
        assert said in refused[-1] and refused[-1].startswith("gkest: error:")
    assert not (tmp_path / "b").exists()
