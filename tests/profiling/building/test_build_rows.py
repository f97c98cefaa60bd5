"""Raw folders to rows: medians, geometry, the best of several attempts, CPU executors, counters."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from _synthetic_raw import (
    CPU,
    H100,
    START_NS,
    Measured,
    conv,
    entry_of,
    fixed,
    idle_sample,
    matmul,
    relu,
    small_measured,
    write_chunk,
    write_run,
)

from gkestimator.core.errors import TableError
from gkestimator.core.fragments import Fragment
from gkestimator.hardware.gpus import gpu_catalogue, load_gpu_file
from gkestimator.kernel_models.launch import Launch as Geometry
from gkestimator.kernel_models.launch import occupancy, sm_utilisation_pct
from gkestimator.profiling.building import build_dataset
from gkestimator.profiling.building.contents import Tools
from gkestimator.profiling.captures import Capture, EntryRange
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.raw import document_of, read_chunk
from gkestimator.profiling.records import EntryRecord, HostKernel, record_line
from gkestimator.tables import KERNEL_DATASET, read_table


def _built(raw, **how):
    return build_dataset([raw], raw.parent / "kernels.parquet", **how)


def _by_op(result):
    found = {}
    for row in result.rows:
        found.setdefault(row.op_type, []).append(row)
    return found


def test_rows_hold_what_was_measured(raw):
    result = _built(raw)
    rows = _by_op(result)
    assert result.exit_status == 0 and not result.problems
    assert [r.kernel_index for r in rows["Conv"]] == [0, 1, 2]
    assert [r.duration_us for r in rows["Conv"]] == [11, 102, 9]
    assert {r.entry_us for r in rows["Conv"]} == {123.0}  # the median of 119, 124 and 123
    assert {r.kernels_in_op for r in rows["Conv"]} == {3}
    assert rows["Conv"][2].duration_cv == 0
    assert rows["Conv"][0].duration_cv == pytest.approx(1 / 11)
    assert [r.family for r in rows["Conv"]] == ["copy", "conv", "copy"]
    assert [r.family for r in rows["MatMul"] + rows["Relu"]] == ["linear", "elementwise"]
    for row in result.rows:
        assert (row.gpu, row.driver, row.cuda, row.runtime) == ("H100-SXM", "570.86.15", "12.8", "torch")
        assert (row.runtime_version, row.collector, row.clock_control) == ("2.9.0", "nsys", "none")
        assert (row.sm_clock_mhz, row.power_w, row.tenants) == (1980.0, 400.0, 0)
        assert (row.grid, row.block, row.repeats, row.quality) == ("132,8,1", "256,1,1", 3, "ok")
        assert row.host_us == 20.0 and row.opset == 17


def test_a_kernel_that_does_its_operator_alone_is_of_the_operators_family(tmp_path):
    raw, entry = tmp_path / "run", entry_of(matmul(64, 64, 64))
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    name = "void at::native::elementwise_kernel<128, 2>(int)"
    write_chunk(raw, 0, [Measured(entry=entry, kernels=fixed((name, (5, 5))), repeats=2)])
    assert [r.family for r in _built(raw).rows] == ["linear"]


def test_columns_of_the_operator_come_from_the_fragment_and_the_rules(raw):
    rows = _by_op(_built(raw))
    row = rows["Conv"][0]
    assert json.loads(row.attributes) == {"pads": [1, 1, 1, 1], "strides": [1, 1]}
    assert json.loads(row.input_shapes) == [[8, 64, 56, 56], [64, 64, 3, 3]]
    assert row.flops == 2 * 8 * 56 * 56 * 64 * 64 * 9
    assert row.weight_bytes == 64 * 64 * 9 * 4
    assert row.input_bytes == row.output_bytes == 8 * 64 * 56 * 56 * 4
    assert row.batch_size == 8
    assert Fragment.parse(row.graph, where="row") == conv(8, 64, 56, 3, 64)


def test_occupancy_follows_the_launch(raw):
    row = _by_op(_built(raw))["MatMul"][0]
    # 256 threads of 122 registers: 128 x 32 a warp, 16,384 registers a quarter SM hold 4 warps, so 16 warps or 2 blocks
    # of 8; 48 KiB + 1 KiB of shared memory would allow 4. 16 of 64 warps are 25 %.
    assert row.theoretical_occupancy_pct == 25.0
    gpu = gpu_catalogue().spec("H100-SXM")
    launch = Geometry(
        grid_blocks=np.array([1056.0]),
        block_threads=np.array([256.0]),
        registers_per_thread=np.array([122.0]),
        shared_bytes=np.array([49152.0]),
    )
    assert row.theoretical_occupancy_pct == occupancy(launch, gpu)[0][0]
    assert row.sm_util_pct == sm_utilisation_pct(launch, gpu)[0] == 100.0


def test_the_file_reads_back_as_the_rows(raw):
    for suffix in ("parquet", "csv"):
        path = raw.parent / f"kernels.{suffix}"
        result = build_dataset([raw], path)
        assert read_table(path, KERNEL_DATASET) == result.rows


def test_the_better_attempt_is_kept(tmp_path):
    raw, entry = tmp_path / "run", entry_of(relu(4096, 1024))
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    name = "void vectorized_elementwise_kernel<4>(int)"
    noisy = Measured(entry=entry, kernels=fixed((name, (20, 60, 20, 90))), repeats=4)
    calm = Measured(entry=entry, kernels=fixed((name, (21, 21, 22))), repeats=3)
    write_chunk(raw, 0, [noisy])
    write_chunk(raw, 1, [calm], attempt=2)
    write_chunk(raw, 2, [noisy], attempt=3)
    result = _built(raw)
    assert [(r.duration_us, r.quality, r.repeats) for r in result.rows] == [(21.0, "ok", 3)]
    assert result.checks[0].count == 1 and "3 times" in result.checks[0].examples[0]


def test_heat_is_throttled(tmp_path):
    raw, entry = tmp_path / "run", entry_of(relu(4096, 1024))
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    hot = replace(idle_sample(START_NS), throttled=("sw_thermal_slowdown",), sm_clock_mhz=1200.0)
    one = Measured(entry=entry, kernels=fixed(("vectorized_elementwise_kernel", (20, 20))), repeats=2)
    write_chunk(raw, 0, [one], samples=[hot])
    assert [(r.quality, r.sm_clock_mhz) for r in _built(raw).rows] == [("throttled", 1200.0)]


def test_clock_and_power_are_not_those_of_an_idle_neighbour(tmp_path):
    """Entries are shorter than the interval between samples, and an idle GPU lowers its clocks."""
    raw, entry = tmp_path / "run", entry_of(relu(4096, 1024))
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    work = replace(idle_sample(START_NS), throttled=(), sm_clock_mhz=1700.0, power_w=500.0, tenants=0)
    idle = replace(work, throttled=("gpu_idle",), sm_clock_mhz=345.0, power_w=70.0, tenants=1)
    one = Measured(entry=entry, kernels=fixed(("vectorized_elementwise_kernel", (20, 20))), repeats=2)
    folder = write_chunk(raw, 0, [one], samples=[idle, work])
    (row,) = _built(raw).rows
    assert (row.sm_clock_mhz, row.power_w, row.tenants) == (1700.0, 500.0, 1)
    (folder / "environment.jsonl").write_text(json.dumps(document_of(idle)) + "\n")
    (row,) = _built(raw).rows
    assert (row.sm_clock_mhz, row.power_w, row.tenants) == (None, None, 1)


def _cpu_run(tmp_path, kernels, *, host_us=(50.0, 52.0, 51.0), elapsed_us=60.0):
    raw, entry = tmp_path / "run", entry_of(relu(64, 64))
    write_run(raw, SweepPlan(runtime="onnxruntime", entries=(entry,)), executor="onnxruntime", collector="none",
              device=CPU)  # fmt: skip
    one = Measured(entry=entry, kernels=(), repeats=3)
    folder = write_chunk(raw, 0, [one], device=CPU, executor="onnxruntime", collector="none", samples=[])
    record = EntryRecord(
        entry_id=entry.id,
        status="ok",
        repeats=3,
        started_unix_ns=START_NS,
        ended_unix_ns=START_NS + 10**6,
        host_us=host_us,
        elapsed_us=elapsed_us,
        kernels=kernels,
    )
    (folder / "records.jsonl").write_text(record_line(record))
    return raw


def test_pieces_of_a_cpu_executor(tmp_path):
    pieces = (
        HostKernel(name="ReorderInput", durations_us=(1.0, 0.0, 1.0)),
        HostKernel(name="Clip", durations_us=(40.0, 42.0, 41.0)),
    )
    result = _built(_cpu_run(tmp_path, pieces))
    assert [(r.kind, r.kernel_name, r.family) for r in result.rows] == [
        ("host", "ReorderInput", "copy"),
        ("host", "Clip", "elementwise"),
    ]
    # Whole microseconds: the mean resolves what the median rounds.
    assert [r.duration_us for r in result.rows] == [pytest.approx(2 / 3), 41.0]
    assert result.rows[0].entry_us == 42.0
    assert {r.theoretical_occupancy_pct for r in result.rows} == {None}
    assert result.exit_status == 0


def test_a_cpu_executor_without_a_profile_measured_the_call(tmp_path):
    (row,) = _built(_cpu_run(tmp_path, None)).rows
    assert (row.kind, row.kernel_name, row.kernels_in_op, row.duration_us) == ("host", None, None, 51.0)
    assert row.repeats == 3


def test_a_call_in_which_nothing_ran_is_left_out(tmp_path):

    with pytest.raises(TableError, match="no operator was measured"):
        _built(_cpu_run(tmp_path, ()))


def test_a_device_that_the_catalogue_does_not_know_gets_a_file(tmp_path):
    result = _built(_cpu_run(tmp_path, None))
    (name,) = {r.gpu for r in result.rows}
    path = tmp_path / f"kernels.{name}.toml"
    assert path in result.files and load_gpu_file(path).name == name
    assert any(name in note for note in result.notes)
    # The file given back as --gpu-spec is taken, and nothing is written anew.
    again = build_dataset([tmp_path / "run"], tmp_path / "again.parquet", gpu_specs=[path])
    assert {r.gpu for r in again.rows} == {name} and not list(tmp_path.glob("again.*.toml"))


def test_figures_that_the_user_corrected_are_used_and_kept(tmp_path):
    raw = _cpu_run(tmp_path, None)
    first = _built(raw)
    (name,) = {r.gpu for r in first.rows}
    path = tmp_path / f"kernels.{name}.toml"
    assert path in _built(raw).files  # the same figures are written again
    corrected, count = re.subn(r"(?m)^(\[l2_bytes\]\nvalue = )[\d.]+$", r"\g<1>4194304", path.read_text())
    assert count == 1
    path.write_text(corrected)
    result = _built(raw)
    assert path.read_text() == corrected and path not in result.files
    assert result.gpus[name].l2_bytes == 2**22 and any("used and kept" in note for note in result.notes)
    path.write_text("broken")
    with pytest.raises(TableError, match=f"{name}.toml: not a GPU specification"):
        _built(raw)
    assert path.read_text() == "broken"


OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"


def _counters(raw, entry, launches):
    """A counters chunk whose capture the injected parser makes of ``launches``."""
    folder = raw / "chunks" / "000009-cuda0-counters"
    folder.mkdir()
    timeline = next(iter(sorted((raw / "chunks").glob("*-timeline"))))
    info = replace(
        read_chunk(timeline), pass_name="counters", collector="ncu", files=("counters.ncu-rep",), number=9
    )
    (folder / "chunk.json").write_text(json.dumps(document_of(info)))
    (folder / "records.jsonl").write_text("")
    (folder / "counters.ncu-rep").write_bytes(b"")
    capture = Capture(
        tool="ncu",
        tool_version="2024.1",
        schema=None,
        ranges=(EntryRange(entry_id=entry.id, repeats=1, start_ns=0, end_ns=1, launches=launches),),
    )
    read = Tools().parse
    return replace(Tools(), parse=lambda name, path: capture if name == "ncu" else read(name, path))


def test_counters_are_joined_to_the_timeline(raw):
    from gkestimator.profiling.captures import CapturedLaunch

    matmul_entry = small_measured()[1]
    kernel = matmul_entry.kernels[0]
    launch = CapturedLaunch(
        kind="kernel",
        name=kernel.name,
        start_ns=0,
        duration_ns=39_000,
        grid=kernel.grid,
        block=kernel.block,
        counters={
            OCCUPANCY: 23.5,
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 12.0,
            "dram__bytes_read.sum": 5e6,
            "dram__bytes_write.sum": 3e6,
            "lts__t_sector_hit_rate.pct": 100.02,
        },
    )
    result = _built(raw, tools=_counters(raw, matmul_entry.entry, (launch,)))
    row = _by_op(result)["MatMul"][0]
    assert (row.achieved_occupancy_pct, row.dram_util_pct, row.dram_bytes) == (23.5, 12.0, 8_000_000)
    assert row.l2_hit_pct == 100.0  # several passes add up to a little more
    assert row.duration_us == 41.0 and row.collector == "nsys"
    assert all(r.achieved_occupancy_pct is None for r in _by_op(result)["Conv"])


def test_counters_of_another_kernel_are_not_given(raw):
    from gkestimator.profiling.captures import CapturedLaunch

    entry = small_measured()[1]
    other = CapturedLaunch(
        kind="kernel", name="something_else", start_ns=0, duration_ns=1, grid=(1, 1, 1), block=(32, 1, 1),
        counters={OCCUPANCY: 99.0},
    )  # fmt: skip
    result = _built(raw, tools=_counters(raw, entry.entry, (other,)))
    assert _by_op(result)["MatMul"][0].achieved_occupancy_pct is None


def test_provenance_says_where_the_rows_are_from(raw):
    import hashlib

    result = _built(raw)
    path = raw.parent / "kernels.json"
    document = json.loads(path.read_text())
    assert document["sha256"] == hashlib.sha256((raw.parent / "kernels.parquet").read_bytes()).hexdigest()
    assert document["rows"] == len(result.rows) == 5 and document["operators"] == 3
    assert document["licence"] is None and document["table_version"] == KERNEL_DATASET.version
    (source,) = document["sources"]
    assert source["versions"]["torch"] == "2.9.0" and source["devices"][0]["name"] == H100.name
    assert source["plan_entries"] == 3 and source["not_reached"] == 0
    assert str(raw.parent) not in path.read_text()  # no path of this machine
    assert math.isclose(sum(document["quality"].values()), 3)


def test_two_runs_of_one_plan_are_one_dataset(tmp_path):
    measured = small_measured()
    plan = SweepPlan(runtime="torch", entries=tuple(m.entry for m in measured))
    for number, part in enumerate((measured[:2], measured[1:])):
        write_run(tmp_path / "all" / f"machine{number}", plan)
        write_chunk(tmp_path / "all" / f"machine{number}", 0, part)
    result = build_dataset([tmp_path / "all"], tmp_path / "kernels.parquet")
    assert len({r.entry_id for r in result.rows}) == 3 and len(result.rows) == 5
    assert result.checks[0].count == 1  # the matrix product was measured on both
    assert len(result.contents) == 2


def test_a_matrix_product_in_half_precision_keeps_its_arithmetic(tmp_path):
    from _synthetic_raw import operator

    from gkestimator.core.dtypes import DType

    raw = tmp_path / "run"
    entry = entry_of(
        operator("MatMul", {"x": (64, 64), "w": (64, 64)}, dtype=DType.FLOAT16, weights=("w",)), "fp16"
    )
    write_run(raw, SweepPlan(runtime="torch", entries=(entry,)))
    write_chunk(raw, 0, [Measured(entry=entry, kernels=fixed(("sm90_hgemm", (5, 5))), repeats=2)])
    (row,) = _built(raw).rows
    assert (row.dtype, row.input_bytes, row.weight_bytes) == ("fp16", 8192, 8192)
    assert matmul(64, 64, 64).digest() != entry.fragment.digest()
