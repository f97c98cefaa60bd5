"""The torch executor itself: settings, precisions, errors, what it tells of a call, and how much of real models it runs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from torch_fragments import constant, entry, fragment, node, reference, tensor, weight

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import GkestimatorError, GkestimatorWarning, UsageError
from gkestimator.core.fragments import Fragment
from gkestimator.core.graph import Tensor
from gkestimator.lowering.memo import lower_operator, memo_of
from gkestimator.lowering.patterns import find_matches
from gkestimator.onnx_io import read_model
from gkestimator.profiling.executors.base import EntryUnsupportedError, ExecutionError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed (it is no test dependency)"
)

_DATA = Path(__file__).parents[1] / "data"
_RUNS = 0.97  # of the calls of real models


def _linear(dtype: DType = DType.FLOAT) -> Fragment:
    return fragment(
        [tensor("x", 8, 64, dtype=dtype), weight("w", 64, 32, dtype=dtype), weight("b", 32, dtype=dtype)],
        node("MatMul", "x w", "m"), node("Add", "m b", "y"), pattern="linear",
    )  # fmt: skip


def _relu(*shape: int) -> Fragment:
    return fragment([tensor("x", *shape)], node("Relu", "x", "y"))


def _switches() -> tuple[object, ...]:
    import torch

    cudnn = torch.backends.cudnn
    return (
        torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic,
        torch.is_inference_mode_enabled(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "kind", "tolerance"),
    [
        ("fp32", DType.FLOAT, 1e-5),
        ("tf32", DType.FLOAT, 1e-5),
        ("fp16", DType.FLOAT16, 1e-2),
        ("bf16", DType.BFLOAT16, 5e-2),
    ],
)
def test_each_precision_runs_in_its_own_type(dtype: str, kind: DType, tolerance: float) -> None:
    from gkestimator.profiling.executors.torch import TorchExecutor

    prepared = TorchExecutor("cpu").prepare(entry(_linear(kind), dtype), seed=3)
    try:
        (result,) = prepared.outputs()
        assert str(result.dtype) == {"fp16": "torch.float16", "bf16": "torch.bfloat16"}.get(
            dtype, "torch.float32"
        )
        wanted = reference(_linear(kind), dtype, seed=3)[0].astype(np.float32)
        np.testing.assert_allclose(result.float().numpy(), wanted, rtol=tolerance, atol=tolerance)
        assert prepared.output_shapes == ((8, 32),)
    finally:
        prepared.close()


def test_settings_hold_while_an_entry_is_open_and_come_back() -> None:
    import torch

    from gkestimator.profiling.executors.torch import TorchExecutor

    cudnn = torch.backends.cudnn
    before = _switches()
    cudnn.benchmark = True  # as a program around the executor might have it
    mine = _switches()
    try:
        executor = TorchExecutor("cpu")
        first = executor.prepare(entry(_relu(4), "tf32"), seed=0)
        assert _switches() == (True, True, False, False, True)
        second = executor.prepare(entry(_relu(5), "fp32"), seed=0)
        assert _switches() == (False, False, False, False, True)
        first.run()
        assert _switches()[:2] == (True, True)
        first.close()
        first.close()
        second.run()
        assert _switches() == (False, False, False, False, True)
        second.close()
        assert _switches() == mine
        with pytest.raises(EntryUnsupportedError):
            executor.prepare(entry(fragment([tensor("x", 2)], node("Identity", "x", "y"))), seed=0)
        assert _switches() == mine
    finally:
        cudnn.benchmark = before[2]


def test_what_it_tells_of_a_call() -> None:
    import torch

    from gkestimator.profiling.executors.torch import TorchExecutor

    executor = TorchExecutor("cpu")
    assert executor.versions() == {"torch": str(torch.__version__)}
    found = fragment(
        [tensor("x", 2, 8, 16), weight("g", 16), weight("b", 16)],
        node("LayerNormalization", "x g b", "n"), node("Softmax", "n", "y"),
    )  # fmt: skip
    prepared = executor.prepare(entry(found), seed=0)
    try:
        assert prepared.workspace_bytes() is None
        pieces = prepared.host_kernels(4)
        assert pieces is not None
        assert [p.name for p in pieces] == ["aten::native_layer_norm", "aten::_softmax"]
        assert all(len(p.durations_us) == 4 and min(p.durations_us) > 0 for p in pieces)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            assert prepared.host_kernels(2) is None  # two profilers in one process end in a crash
        assert len(prepared.host_kernels(1) or ()) == 2
    finally:
        prepared.close()


def test_the_host_spends_its_time_in_torch() -> None:
    """What surrounds the call is measured with it: here it may be as long as the smallest of calls."""
    import torch

    from gkestimator.profiling.executors.torch import TorchExecutor

    prepared = TorchExecutor("cpu").prepare(entry(_relu(4)), seed=0)
    try:
        x = torch.ones(4)

        def fastest(call: Callable[[], object]) -> int:
            times = []
            for _ in range(2000):
                before = time.perf_counter_ns()
                call()
                times.append(time.perf_counter_ns() - before)
            return min(times)

        assert fastest(prepared.run) < 2 * fastest(lambda: torch.relu(x)) + 1000
    finally:
        prepared.close()
    with pytest.raises(ExecutionError, match="closed"):
        prepared.run()


def test_workspace_is_the_peak_beyond_what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the allocator's own account of a call; the numbers are those of a GPU, which tests have not."""
    import torch

    from gkestimator.profiling.executors.torch import TorchExecutor

    executor = TorchExecutor("cpu")
    prepared = executor.prepare(entry(_relu(4)), seed=0)
    allocated = iter((1000, 1500))  # inputs; with outputs
    monkeypatch.setattr(TorchExecutor, "on_gpu", property(lambda _: True))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(allocated))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1900)
    try:
        assert prepared.workspace_bytes() == 400
        assert prepared.host_kernels(3) is None
    finally:
        prepared.close()


@pytest.mark.parametrize(("dtype", "kind"), [("tf32", DType.FLOAT), ("bf16", DType.BFLOAT16)])
def test_a_precision_that_the_gpu_lacks_is_said(
    monkeypatch: pytest.MonkeyPatch, dtype: str, kind: DType
) -> None:
    import torch

    from gkestimator.profiling.executors.torch import TorchExecutor

    executor = TorchExecutor("cpu")
    monkeypatch.setattr(TorchExecutor, "on_gpu", property(lambda _: True))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    with pytest.raises(EntryUnsupportedError, match=f"{dtype} needs compute capability 8.0, cpu has 7.0"):
        executor.prepare(entry(_linear(kind), dtype), seed=0)


def test_data_follow_the_seed_and_are_not_zeros() -> None:
    from gkestimator.profiling.executors.torch import TorchExecutor

    def run(seed: int) -> np.ndarray:
        prepared = TorchExecutor("cpu").prepare(entry(_linear()), seed=seed)
        (result,) = prepared.outputs()
        prepared.close()
        return np.asarray(result.numpy())

    assert np.array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))
    assert np.count_nonzero(run(1)) == 8 * 32


@pytest.mark.parametrize("device", ["cuda", "cuda:-1", "cuda:x", "gpu:0", "", "cpu:0", "cuda:9999"])
def test_a_device_that_is_not_there_is_one_line(device: str) -> None:
    from gkestimator.profiling.executors.torch import TorchExecutor

    with pytest.raises(UsageError, match="device"):
        TorchExecutor(device)


def test_what_launches_nothing_is_said() -> None:
    from gkestimator.profiling.executors.torch import TorchExecutor

    shape = constant("s", 6, dtype=DType.INT64, shape=(1,))
    for found in (
        fragment([tensor("x", 2, 3), shape], node("Reshape", "x s", "y")),
        fragment([tensor("x", 2, 3)], node("Transpose", "x", "t"), node("Identity", "t", "y")),
        fragment([tensor("x", 2, 3)], node("Cast", "x", "y", to=1)),
    ):
        with pytest.raises(EntryUnsupportedError, match="launches nothing in eager mode"):
            TorchExecutor("cpu").prepare(entry(found), seed=0)


@pytest.mark.parametrize(
    ("found", "error", "said"),
    [
        (
            fragment([tensor("x", 2)], node("Mystery", "x", "y", domain="ai.nobody"), opset=17),
            GkestimatorError,
            "Mystery",
        ),
        (
            fragment([tensor("x", 2, 3), tensor("z", 4, 5)], node("MatMul", "x z", "y")),
            ExecutionError,
            "MatMul",
        ),
        (
            fragment([tensor("x", 2, 4, 4)], node("LpPool", "x", "y", kernel_shape=(2,), p=3)),
            EntryUnsupportedError,
            "order 3",
        ),
        (
            fragment([tensor("x", 2**20, 1), tensor("z", 1, 2**20)], node("MatMul", "x z", "y")),
            ExecutionError,
            "out of memory",
        ),
        (
            fragment([tensor("x", 2, 3), constant("s", 10**30, dtype=DType.INT64, shape=(1,))], node("Add", "x s", "y")),
            GkestimatorError,
            "too (large|big)",
        ),
        (
            fragment([tensor("x", 2, 3, dtype=DType.FLOAT8E4M3FN)], node("Cast", "x", "y", to=1)),
            EntryUnsupportedError,
            "float8e4m3fn",
        ),
        (
            fragment(
                [tensor("x", 1, 1, 4, 4), constant("n", 1, 1, 4, 2**31 - 1, dtype=DType.INT64)],
                node("Resize", "x - - n", "y", mode="nearest"),
            ),
            EntryUnsupportedError,
            "more than 1,048,576 elements along one dimension",
        ),
        (
            fragment([tensor("x", 2, 4, 6, 6)], node("DepthToSpace", "x", "y", blocksize=0)),
            GkestimatorError,
            "DepthToSpace",
        ),
        (
            fragment([tensor("x", 2, 3), tensor("s", 2, dtype=DType.INT64, fill="index", below=3)],
                     node("TopK", "x s", "v i"), opset=17),
            GkestimatorError,
            "TopK",
        ),
    ],
)  # fmt: skip
def test_failures_are_one_line_of_the_right_kind(
    found: Fragment, error: type[GkestimatorError], said: str
) -> None:
    from gkestimator.profiling.executors.torch import TorchExecutor

    before = _switches()
    with pytest.raises(error, match=said) as caught:
        TorchExecutor("cpu").prepare(entry(found), seed=0)
    assert "\n" not in str(caught.value)
    assert _switches() == before


def test_results_do_not_live_on_after_a_call() -> None:
    """Values inside are let go after their last reader, as the locals of an author's function are."""
    import torch

    from gkestimator.profiling.executors.torch import TorchExecutor

    found = fragment(
        [tensor("x", 1024, 1024)], *(node("Exp" if i % 2 else "Neg", f"v{i}" if i else "x", f"v{i + 1}") for i in range(8))
    )  # fmt: skip
    prepared = TorchExecutor("cpu").prepare(entry(found), seed=0)
    try:
        with torch.profiler.profile(
            profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]
        ) as profiler:
            prepared.run()
        balance = most = 0
        for event in profiler.profiler.kineto_results.events():
            if event.name() == "[memory]":
                balance += event.nbytes()
                most = max(most, balance)
        assert 4 * 2**20 <= most <= 3 * 4 * 2**20, most  # two at a time, not eight
        assert balance == 0
    finally:
        prepared.close()


def test_importing_the_executors_module_needs_no_torch() -> None:
    code = (
        "import sys; import gkestimator.profiling.executors.torch as t; import gkestimator.profiling.executors."
        "torch_calls as c; assert 'torch' not in sys.modules and len(c.CALLS) > 100; print('none')"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout == "none\n", result.stderr


def _calls(path: Path) -> Iterator[tuple[tuple[str, str], int, str | None]]:
    """Every call that eager mode would make for a model: its key, how often, and why this executor cannot make it."""
    from gkestimator.profiling.executors.torch_calls import Call, build_call
    from gkestimator.profiling.executors.torch_calls.program import lowering_options

    options = lowering_options("fp32")
    model = read_model(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GkestimatorWarning)
        graph = model.bind(batch_size=1, dims={name: 16 for name in model.dims if name == "tokens"})
    matches = find_matches(graph, options)
    heads = [(m.operator, m.name, tuple(graph.operators[i] for i in m.covered)) for m in matches]
    covered = {i for m in matches for i in m.covered}
    heads += [(op, "", ()) for i, op in enumerate(graph.operators) if i not in covered]
    static = frozenset(
        v.name for op in graph.operators for v in op.inputs if isinstance(v, Tensor) and v.is_weight
    )
    for op, pattern, group in heads:
        lowered = lower_operator(op, options, memo_of(options))
        if not lowered.kernels or all(k.family == "host" for k in lowered.kernels):
            continue
        try:
            build_call(Call(op=op, known={}, static=static, group=group), pattern)
        except EntryUnsupportedError as e:
            yield op.key, op.repeat, str(e)
        else:
            yield op.key, op.repeat, None


def _share(paths: list[Path]) -> float:
    runs, fails, reasons = 0, 0, Counter[str]()
    for path in paths:
        for _, count, reason in _calls(path):
            if reason is None:
                runs += count
            else:
                fails += count
                reasons[reason] += count
    print(f"{runs:,} of {runs + fails:,} calls of {len(paths)} models ({runs / (runs + fails):.2%})")
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")
    return runs / (runs + fails)


def test_most_calls_of_the_exports_in_this_repository_are_covered() -> None:
    """Quantised files and those that ONNX Runtime optimised for itself are not what eager mode runs."""
    paths = [
        p
        for p in sorted(_DATA.rglob("*.onnx"))
        if not any(word in p.stem for word in ("qdq", "qoperator", "dynamic", "optimised", "layout"))
    ]
    assert len(paths) > 40
    assert _share(paths) >= _RUNS


@pytest.mark.shared
@pytest.mark.skipif(
    not (Path(os.environ.get("GKEST_SHARED", "")) / "models").is_dir() or "GKEST_SHARED" not in os.environ,
    reason="GKEST_SHARED names no folder with models",
)
def test_most_calls_of_real_models_are_covered() -> None:
    paths = sorted((Path(os.environ["GKEST_SHARED"]) / "models").rglob("*.onnx"))
    assert _share(paths) >= _RUNS
