"""What every executor must do; iterates the table of executors, on the CPU."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.profiling.executors import EXECUTORS, make_executor
from gkestimator.profiling.executors.base import EntryUnsupportedError, Executor
from gkestimator.profiling.executors.data import entry_inputs
from gkestimator.profiling.executors.faults import judged
from gkestimator.profiling.executors.measuring import Clocks, Effort, measure, measure_latency
from gkestimator.profiling.executors.nvtx_ranges import NvtxRanges
from gkestimator.profiling.plan import ModelPoint, PlanEntry, entry_id
from gkestimator.profiling.records import read_records, record_line


def entry(
    op: str, *tensors: tuple[Any, ...], dtype: str = "fp32", opset: int = 17, **attributes: Any
) -> PlanEntry:
    """One operator; a tensor is (shape,), (shape, role) or (shape, role, keywords)."""
    element = {"fp16": DType.FLOAT16, "bf16": DType.BFLOAT16}.get(dtype, DType.FLOAT)
    made = []
    for i, (shape, *rest) in enumerate(tensors):
        words: dict[str, Any] = {"dtype": element, **(rest[1] if len(rest) > 1 else {})}
        made.append(FragmentTensor(name=f"t{i}", shape=shape, role=rest[0] if rest else "input", **words))
    node = FragmentNode(
        op_type=op, domain="", attributes=attributes, inputs=tuple(t.name for t in made), outputs=("out",)
    )
    fragment = Fragment(opsets={"": opset}, nodes=(node,), tensors=tuple(made), outputs=("out",))
    return PlanEntry(id=entry_id(fragment, dtype), fragment=fragment, dtype=dtype, source="test")


INDEX = {"dtype": DType.INT64, "fill": "index", "below": 50}
CASES = {
    "matmul": entry("MatMul", ((7, 64, 32),), ((32, 48), "weight")),
    "matmul fp16": entry("MatMul", ((64, 32),), ((32, 48), "weight"), dtype="fp16"),
    "matmul tf32": entry("MatMul", ((64, 32),), ((32, 48), "weight"), dtype="tf32"),
    "gemm": entry("Gemm", ((5, 64),), ((48, 64), "weight"), ((48,), "weight"), transB=1),
    "conv": entry(
        "Conv", ((2, 8, 20, 21),), ((16, 4, 3, 3), "weight"), group=2, strides=(2, 1), pads=(1, 1, 1, 1)
    ),
    "add": entry("Add", ((3, 1, 65),), ((3, 17, 1),)),
    "relu": entry("Relu", ((1000,),)),
    "softmax": entry("Softmax", ((4, 12, 33),), axis=-1),
    "layer norm": entry("LayerNormalization", ((4, 9, 64),), ((64,), "weight"), ((64,), "weight"), axis=-1),
    "max pool": entry("MaxPool", ((1, 8, 32, 32),), kernel_shape=(3, 3), strides=(2, 2)),
    "gather": entry("Gather", ((50, 24), "weight"), ((3, 9), "input", INDEX)),
    "reduce mean": entry("ReduceMean", ((6, 40, 10),), axes=(1,), keepdims=0),
    "scalar": entry("Add", ((),), ((1,),)),
}
UNKNOWN = entry("NoSuchOperator", ((4, 4),))


@pytest.fixture(scope="module", params=tuple(EXECUTORS))
def executor(request: pytest.FixtureRequest) -> Executor:
    try:
        return make_executor(request.param, "cpu")
    except UsageError as e:
        pytest.skip(str(e))


@pytest.fixture
def torch_settings() -> Iterator[None]:
    """What process-wide settings of torch are before and after, where torch is there."""
    torch = pytest.importorskip("torch")
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.is_grad_enabled())
    yield
    after = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.is_grad_enabled())
    assert after == before


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_entry_gives_the_shapes_that_the_graph_says(executor: Executor, case: str) -> None:
    prepared = executor.prepare(CASES[case], 0)
    try:
        for _ in range(3):
            prepared.run()
        prepared.synchronise()
        graph = fragment_graph(CASES[case].fragment)
        assert prepared.output_shapes == tuple(v.shape for v in graph.outputs)  # type: ignore[union-attr]
        memory = prepared.workspace_bytes()
        assert memory is None or memory >= 0
    finally:
        prepared.close()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_runtime_says_what_ran_once_per_repeat(executor: Executor, case: str) -> None:
    prepared = executor.prepare(CASES[case], 0)
    try:
        kernels = prepared.host_kernels(4)
        assert kernels
        assert all(k.name and len(k.durations_us) == 4 and min(k.durations_us) >= 0 for k in kernels)
        again = prepared.host_kernels(2)
        assert again is not None
        assert [k.name for k in again] == [k.name for k in kernels]
    finally:
        prepared.close()


@pytest.mark.slow
def test_a_large_operator_s_pieces_take_most_of_its_time(executor: Executor) -> None:
    record = measured(executor, entry("MatMul", ((256, 512),), ((512, 512), "weight")), Effort(repeats=15))
    assert record.kernels
    assert record.elapsed_us is not None
    # The quickest of each, and room for a busy machine: what is held is that both are microseconds of the same work.
    inside = sum(min(k.durations_us) for k in record.kernels)
    call_us = min(record.host_us)  # on the CPU a call ends when the work does
    assert 0.1 * call_us < inside < 10 * call_us


def measured(executor: Executor, chosen: PlanEntry, effort: Effort) -> Any:
    return measure(
        executor, chosen, effort=effort, seed=0, ranges=NvtxRanges("test", {}).range, clocks=Clocks()
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_record_is_whole_and_comes_back_from_its_line(
    executor: Executor, case: str, tmp_path: Path
) -> None:
    record = measured(executor, CASES[case], Effort(repeats=6))
    assert (record.entry_id, record.status, record.reason, record.repeats) == (CASES[case].id, "ok", None, 6)
    assert len(record.host_us) == 6
    assert min(record.host_us) > 0
    assert sum(record.host_us) <= record.elapsed_us * 6 * 1.000001
    assert 0 <= record.ended_unix_ns - record.started_unix_ns < 60e9
    (tmp_path / "records.jsonl").write_text(record_line(record))
    assert list(read_records(tmp_path / "records.jsonl")) == [record]
    assert json.loads(record_line(record))["kernels"]


@pytest.mark.slow
def test_a_whole_model_has_a_latency_for_each_call_and_no_memory_of_a_cpu(
    executor: Executor, tmp_path: Path
) -> None:
    first, second = CASES["matmul"].fragment, CASES["relu"].fragment.nodes[0]
    fragment = replace(
        first,
        nodes=(first.nodes[0], replace(second, inputs=("out",), outputs=("y",))),
        outputs=("y",),
        pattern="model:two",
    )
    point = ModelPoint(name="two", batch_size=7)
    model = PlanEntry(id="two-fp32-0", fragment=fragment, dtype="fp32", source="model:two", model=point)
    record = measure_latency(executor, model, effort=Effort(repeats=6), seed=0, clocks=Clocks())
    assert (record.status, record.repeats, record.output_shapes) == ("ok", 6, ((7, 64, 48),))
    assert record.latency_us is not None
    assert record.host_us is not None
    assert all(0 < host <= call for host, call in zip(record.host_us, record.latency_us, strict=True))
    assert (record.memory, record.cpu_nodes, record.kernels) == (None, None, None)
    (tmp_path / "records.jsonl").write_text(record_line(record))
    assert list(read_records(tmp_path / "records.jsonl")) == [record]


@pytest.mark.slow
def test_the_pass_for_counters_calls_once(executor: Executor) -> None:
    record = measured(executor, CASES["conv"], Effort(counters=True))
    assert (record.repeats, len(record.host_us), record.kernels) == (1, 1, None)


@pytest.mark.slow
def test_an_operator_that_the_runtime_lacks_is_said_to_be_unsupported(executor: Executor) -> None:
    with pytest.raises(Exception, match="NoSuchOperator") as caught:
        executor.prepare(UNKNOWN, 0)
    assert isinstance(judged(caught.value), EntryUnsupportedError)
    assert "\n" not in str(judged(caught.value))


@pytest.mark.slow
def test_shapes_that_contradict_each_other_are_one_line_and_no_crash(executor: Executor) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        executor.prepare(entry("MatMul", ((4, 5),), ((6, 7), "weight")), 0)
    assert "\n" not in str(judged(caught.value))
    prepared = executor.prepare(CASES["relu"], 0)  # and the executor still works
    prepared.close()


@pytest.mark.parametrize("case", CASES)
def test_no_input_is_all_zeros(case: str) -> None:
    for name, data in entry_inputs(CASES[case], 0).items():
        assert data.any(), name


@pytest.mark.usefixtures("torch_settings")
@pytest.mark.parametrize("case", ["matmul tf32", "matmul", "matmul fp16"])
def test_process_wide_settings_are_as_before(executor: Executor, case: str) -> None:
    measured(executor, CASES[case], Effort(repeats=2))


@pytest.mark.usefixtures("torch_settings")
def test_settings_are_as_before_after_a_failure(executor: Executor) -> None:
    with pytest.raises(Exception, match="NoSuchOperator"):
        executor.prepare(UNKNOWN, 0)


@pytest.mark.slow
def test_a_closed_entry_frees_its_memory(executor: Executor) -> None:
    big = entry("MatMul", ((1, 4096),), ((4096, 4096), "weight"))  # 64 MiB of weights
    executor.prepare(big, 0).close()
    gc.collect()
    before = resident_bytes()
    for seed in range(8):
        executor.prepare(big, seed).close()
    gc.collect()
    assert resident_bytes() - before < 256 * 2**20


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def test_versions_name_the_runtime(executor: Executor) -> None:
    versions = executor.versions()
    assert versions[executor.name][0].isdigit()
    assert all(isinstance(v, str) and v for v in versions.values())


@pytest.mark.parametrize("device", ["cuda", "cuda:x", "gpu", "cpu:0", "cuda:0\n", ""])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match="expected cpu or cuda:N"):
        make_executor("onnxruntime", device)


def test_an_executor_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="expected one of onnxruntime, torch"):
        make_executor("tensorflow", "cpu")
    with pytest.raises(UsageError, match=r"^runtime tensorrt: nothing here profiles .* trtexec"):
        make_executor("tensorrt", "cpu")
