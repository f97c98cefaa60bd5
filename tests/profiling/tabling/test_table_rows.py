"""Raw folders to rows of the requirement table: latency, launches, memory, work, provenance, the best attempt."""

import hashlib
import json
from dataclasses import replace

import pytest
from _synthetic_raw import (
    CPU,
    H100,
    START_NS,
    Measured,
    entry_of,
    fixed,
    idle_sample,
    relu,
    write_chunk,
    write_run,
)
from tabling_samples import (
    GEMM,
    LATENCIES,
    MEMORY,
    MIB,
    RELU,
    latency_record,
    launches,
    mlp,
    model_entry,
    row_of,
    table_of,
    whole_run,
    write_latency,
    write_onnx,
)

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import TableError
from gkestimator.core.fragments import FragmentNode, FragmentTensor
from gkestimator.estimation import estimate_rows
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.profiling.building import build_dataset
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.records import MemoryUse
from gkestimator.profiling.tabling import build_table
from gkestimator.tables import REQUIREMENTS, read_table


def test_the_row_holds_what_was_measured(raw):
    whole_run(raw)
    result = table_of(raw)
    (row,) = result.rows
    assert result.exit_status == 0 and result.problems == ()
    assert (row.model, row.gpu, row.runtime, row.dtype) == ("mlp", "H100-SXM", "torch", "fp32")
    assert (row.batch_size, row.dims, row.sm_share_pct) == (256, "", 100.0)
    assert (row.latency_ms, row.latency_low_ms, row.latency_high_ms) == (0.1, 0.091, 0.109)
    assert row.throughput_rps == pytest.approx(256 / 0.1e-3)
    assert (row.source, row.occupancy_source, row.memory_source) == ("measured", "analytical", "measured")
    assert row.power_w == 400.0 and row.warnings == ""
    assert row.host_overhead_us is row.copy_ms is row.dram_util_mean_pct is row.coverage_pct is None


def test_memory_is_the_processes_and_its_parts_are_not_guessed(raw):
    whole_run(raw)
    row = row_of(raw)
    assert (row.reserved_bytes, row.mreq_bytes, row.context_bytes) == (64 * MIB, 600 * MIB, 536 * MIB)
    visible = gpu_catalogue().spec("H100-SXM").memory_visible_bytes
    assert row.mreq_pct == pytest.approx(100 * 600 * MIB / visible)
    assert row.activations_bytes is row.workspace_bytes is row.allocator_bytes is None


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (None, (None, None, None, "analytical")),
        (MemoryUse(reserved_bytes=5 * MIB), (5 * MIB, None, None, "measured")),
        (MemoryUse(device_bytes=9 * MIB), (None, 9 * MIB, None, "measured")),
        # Another process let go of memory meanwhile: the difference is no context.
        (MemoryUse(reserved_bytes=9 * MIB, device_bytes=5 * MIB), (9 * MIB, 5 * MIB, None, "measured")),
    ],
)
def test_memory_that_was_not_told_is_unknown(raw, memory, expected):
    whole_run(raw, memory=memory)
    row = row_of(raw)
    assert (row.reserved_bytes, row.mreq_bytes, row.context_bytes, row.memory_source) == expected


def test_work_and_tensors_are_those_of_an_estimate(raw, tmp_path):
    whole_run(raw)
    row = row_of(raw)
    path = write_onnx(tmp_path / "onnx", mlp(), "mlp")
    (estimate,) = estimate_rows([path], gpus=["H100"], dtype="fp32").rows
    assert row.flops == estimate.flops == 2 * 2 * 256 * 1024 * 512 + 256 * 512
    assert row.weights_bytes == estimate.weights_bytes == 2 * 1024 * 512 * 4
    assert row.input_bytes == estimate.input_bytes == 256 * 1024 * 4
    assert row.output_bytes == estimate.output_bytes == 256 * 1024 * 4
    assert (row.model, row.batch_size, row.dims) == (estimate.model, estimate.batch_size, estimate.dims)


def test_what_the_file_makes_of_shapes_is_no_input(raw):
    fragment = mlp()
    made = FragmentTensor(
        name="places", dtype=DType.FLOAT, shape=(4,), role="input", fill="value", values=(0.0, 1.0, 2.0, 3.0)
    )
    sums = FragmentNode(op_type="Relu", domain="", attributes={}, inputs=("places",), outputs=("z",))
    fragment = replace(
        fragment,
        nodes=(*fragment.nodes, sums),
        tensors=(*fragment.tensors, made),
        outputs=(*fragment.outputs, "z"),
    )
    entry = model_entry(fragment)
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    write_latency(raw, 0, [latency_record(entry)])
    row = row_of(raw)
    assert row.input_bytes == 256 * 1024 * 4
    assert row.output_bytes == 256 * 1024 * 4 + 16


@pytest.mark.parametrize(
    ("host_us", "bound"), [((30.0,) * 21, False), ((51.0,) * 21, True), (None, None), ((), None)]
)
def test_the_host_bounds_where_it_issues_longer_than_the_launches_run(raw, host_us, bound):
    whole_run(raw, host_us=host_us)
    row = row_of(raw)
    assert row.host_bound is bound
    assert row.host_ms == (host_us[0] / 1e3 if host_us else None)
    assert row.gpu_ms is not None and 0 < row.gpu_ms < row.latency_ms
    assert row.gpu_low_ms is row.gpu_high_ms is row.host_low_ms is row.host_high_ms is None


def test_few_repeats_have_no_ends_of_their_spread(raw):
    whole_run(raw, latency_us=(100.0,) * 19)
    row = row_of(raw)
    assert row.latency_ms == 0.1 and row.latency_low_ms is None and row.latency_high_ms is None
    assert "19 repeats" in row.warnings


def test_a_latency_without_a_timeline_has_a_row_without_launches(raw):
    entry = model_entry()
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    write_latency(raw, 0, [latency_record(entry)])
    row = row_of(raw)
    assert row.latency_ms == 0.1 and row.reserved_bytes == MEMORY.reserved_bytes
    assert row.gpu_ms is None
    assert row.kernels is row.host_bound is row.sm_util_mean_pct is row.occupancy_max_pct is None
    assert row.occupancy_source is None and "no timeline" in row.warnings


def test_a_timeline_without_a_latency_is_a_problem_and_no_row(raw):
    lonely = model_entry(name="lonely")
    whole_run(raw, lonely)
    write_chunk(raw, 2, [Measured(entry=lonely, kernels=launches(), repeats=3)])
    result = table_of(raw)
    assert [row.model for row in result.rows] == ["mlp"] and result.exit_status == 1
    (problem,) = result.problems
    assert "a timeline without a latency" in problem and lonely.id in problem


def test_the_best_attempt_is_kept_with_the_timeline_of_its_run(tmp_path):
    one, two = tmp_path / "raws" / "one", tmp_path / "raws" / "two"
    whole_run(one, latency_us=(150.0, 100.0, 60.0, 200.0, 90.0) * 4)
    entry = whole_run(two)
    write_latency(two, 2, [latency_record(entry, chunk=2, latency_us=(70.0,) * 20)])
    result = build_table([tmp_path / "raws"], tmp_path / "measured.csv")
    (row,) = result.rows
    # 21 repeats of a quiet run before 20 of another, and both before a noisy one.
    assert row.latency_ms == 0.1 and row.latency_high_ms == 0.109 and row.warnings == ""
    assert any("2 further attempts" in n for n in result.notes)


def test_noise_heat_and_tenants_are_said(raw):
    entry = model_entry()
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    hot = [
        replace(idle_sample(START_NS + i * 200_000_000), throttled=("hw_thermal_slowdown",), tenants=2)
        for i in range(6)
    ]
    write_latency(raw, 0, [latency_record(entry)], samples=hot)
    row = row_of(raw)
    assert "throttled: clocks were held down" in row.warnings
    assert "2 other processes were on the GPU" in row.warnings


def test_noisy_repeats_are_said(raw):
    whole_run(raw, latency_us=(150.0, 100.0, 60.0, 200.0, 90.0) * 5)
    assert "noisy: the repeats vary by" in row_of(raw).warnings


def test_power_is_of_samples_during_the_repeats_alone(raw):
    entry = model_entry()
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    before_and_after = [idle_sample(START_NS + 300_000_000), idle_sample(START_NS + 1_000_000_000)]
    write_latency(raw, 0, [latency_record(entry)], samples=before_and_after)
    row = row_of(raw)
    assert row.power_w is row.energy_j is None


def test_a_cpu_has_time_and_nothing_of_a_gpu(raw):
    entry = model_entry()
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)), device=CPU, collector="none")
    write_latency(raw, 0, [latency_record(entry, memory=MEMORY)], device=CPU)
    write_chunk(raw, 1, [Measured(entry=entry, kernels=launches(), repeats=3)], device=CPU, collector="none")
    result = table_of(raw)
    (row,) = result.rows
    assert row.gpu.startswith("CPU-") and result.files[-1].name == f"measured.{row.gpu}.toml"
    assert row.latency_ms == 0.1 and row.flops is not None
    for name in (
        "kernels", "host_bound", "gpu_ms", "host_ms", "energy_j", "sm_util_max_pct", "occupancy_max_pct", "occupancy_source", "power_w",
        "reserved_bytes", "mreq_bytes", "mreq_pct", "context_bytes",
    ):  # fmt: skip
        assert getattr(row, name) is None, name
    assert "a CPU stands in for a GPU" in row.warnings and "no timeline" not in row.warnings


def test_an_unknown_gpu_has_its_specification_written(raw):
    entry = model_entry()
    new = replace(
        H100,
        name="NVIDIA X999",
        limits={
            "sms": 100.0, "l2_bytes": 5e7, "registers_per_sm": 65536.0, "shared_bytes_per_sm": 233472.0,
            "shared_bytes_per_block_max": 232448.0, "blocks_per_sm": 32.0, "warps_per_sm": 64.0,
            "threads_per_block_max": 1024.0, "dram_bytes_per_s": 3e12, "memory_visible_bytes": 8e10,
            "power_limit_w": 700.0, "cuda_cores_per_sm": 128.0, "pcie_bytes_per_s": 6.4e10, "memory_bus_bits": 5120.0,
        },
    )  # fmt: skip
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)), device=new)
    write_latency(raw, 0, [latency_record(entry)], device=new)
    result = table_of(raw)
    (row,) = result.rows
    (spec,) = result.gpu_files
    assert spec.name == f"measured.{row.gpu}.toml" and spec in result.files
    again = build_table([raw], raw.parent / "again.csv", gpu_specs=[spec])
    assert again.rows[0].gpu == row.gpu and again.gpu_files == (spec,)


def test_two_models_of_one_name_are_not_two_answers(raw):
    small = model_entry(mlp(hidden=256))
    whole_run(raw, small)
    write_latency(raw, 2, [latency_record(small, chunk=2)])
    result = table_of(raw)
    assert len(result.rows) == 1 and result.exit_status == 1
    assert "expected one model of a name" in result.problems[0]
    counts = json.loads((raw.parent / "measured.provenance.json").read_text())
    assert sum(counts["quality"].values()) == counts["rows"] == len(result.rows)


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_the_file_reads_back_as_the_rows(raw, suffix):
    whole_run(raw)
    result = table_of(raw, suffix)
    assert tuple(read_table(result.files[0], REQUIREMENTS)) == result.rows
    provenance = json.loads((raw.parent / "measured.provenance.json").read_text())
    assert provenance["sha256"] == hashlib.sha256(result.files[0].read_bytes()).hexdigest()
    assert provenance["rows"] == 1 and provenance["gpus"] == {"H100-SXM": 1}
    assert provenance["with_launches"] == 1 and provenance["with_memory"] == 1
    (source,) = provenance["sources"]
    assert (source["name"], source["latencies"], source["measurements"]) == ("run", 1, 1)


def test_same_raw_folder_same_bytes(raw):
    whole_run(raw)
    first = table_of(raw, "parquet").files[0].read_bytes()
    assert table_of(raw, "parquet").files[0].read_bytes() == first


def test_a_dataset_leaves_whole_models_out_and_a_table_operators(raw):
    operator = entry_of(relu(4096, 1024))
    whole_run(raw, operator)
    write_chunk(raw, 2, [Measured(entry=operator, kernels=fixed((RELU, (20, 20, 22))), repeats=3)])
    built = build_dataset([raw], raw.parent / "kernels.parquet")
    assert {row.entry_id for row in built.rows} == {operator.id}
    assert built.exit_status == 0 and built.problems == ()
    assert "run: 1 whole models left out; gkest profile table makes the table of whole models" in built.notes
    assert not any("not measured yet" in note for note in built.notes)
    result = table_of(raw)
    assert [row.model for row in result.rows] == ["mlp"] and result.problems == ()
    assert GEMM not in (raw.parent / "kernels.lowering.json").read_text()


def test_a_chunk_of_both_kinds_serves_both(raw):
    entry, operator = model_entry(), entry_of(relu(4096, 1024))
    write_run(raw, SweepPlan(runtime="torch", entries=(entry, operator)))
    write_latency(raw, 0, [latency_record(entry)])
    mixed = [
        Measured(entry=entry, kernels=launches(), repeats=3),
        Measured(entry=operator, kernels=fixed((RELU, (20, 20, 22))), repeats=3),
    ]
    write_chunk(raw, 1, mixed)
    assert row_of(raw).kernels == 3
    assert [r.entry_id for r in build_dataset([raw], raw.parent / "k.csv").rows] == [operator.id]


def test_whole_models_alone_are_no_dataset(raw):
    whole_run(raw)
    with pytest.raises(TableError, match="whole models alone, no operator; gkest profile table"):
        build_dataset([raw], raw.parent / "kernels.parquet")


def test_every_repeat_counts_in_the_median(raw):
    whole_run(raw)
    assert row_of(raw).latency_ms * 1e3 == sorted(LATENCIES)[len(LATENCIES) // 2]
