"""Calls bound to their tensors: what lives how long, what is laid out where, what the account of memory begins with."""

from __future__ import annotations

import importlib.util
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from latency_models import model_entry, small_network
from torch_fragments import constant, entry, fragment, node, reference, tensor, weight

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.executors.data import fill, tensor_rng
from gkestimator.profiling.records import MemoryUse

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed (it is no test dependency)"
)
ROW = 4 * 1000  # bytes of a float tensor of 1,000 elements


def _bound(found: Fragment) -> tuple[list[Any], list[Any], tuple[int, ...], dict[str, np.ndarray]]:
    from gkestimator.profiling.executors.torch_binding import bind, host_values
    from gkestimator.profiling.executors.torch_calls.program import program_of

    program = program_of(found, "fp32")
    values = host_values(found, program, lambda t: fill(t, tensor_rng("e", t.name, 0)))
    return (*bind(program, values, "cpu"), values)


class Watch:
    """Counts the bytes of results that are alive whenever a call has made another."""

    def __init__(self) -> None:
        self.alive: dict[int, int] = {}
        self.peaks: list[int] = []

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*operands: Any) -> Any:
            made = function(*operands)
            key = len(self.peaks), id(made)
            self.alive[hash(key)] = made.nbytes
            weakref.finalize(made, self.alive.pop, hash(key))
            self.peaks.append(sum(self.alive.values()))
            return made

        return watched


def test_a_result_lives_from_its_call_to_the_last_that_reads_it_and_not_into_the_next_run() -> None:
    from gkestimator.profiling.executors.torch_binding import compiled

    found = fragment(
        [tensor("x", 1000)],
        node("Relu", "x", "a"), node("Sigmoid", "a", "b"), node("Tanh", "b", "c"), node("Add", "c a", "d"),
        node("Neg", "d", "y"),
    )  # fmt: skip
    calls, slots, results, _ = _bound(found)
    watch = Watch()
    call = compiled([(watch.over(f), *rest) for f, *rest in calls], slots, results)
    for _ in range(3):
        call()
    # a; a b; a b c; a c d; d y. Had the first run's y lived on, the second would have a row more.
    assert watch.peaks == [ROW, 2 * ROW, 3 * ROW, 3 * ROW, 2 * ROW] * 3


def test_a_model_s_run_leaves_nothing_alive() -> None:
    from gkestimator.profiling.executors.torch import TorchExecutor

    prepared = TorchExecutor("cpu").prepare(model_entry(small_network(2)), seed=0)
    try:
        watch = Watch()
        call = prepared._call
        assert call is not None

        watched = watch.over(lambda: call()[0])
        prepared._call = lambda: (watched(),)
        for _ in range(4):
            prepared.run()
            assert not watch.alive
        assert watch.peaks == [2 * 10 * 4] * 4
    finally:
        prepared.close()


def test_the_host_s_values_are_given_up_and_a_weight_that_two_read_is_turned_once() -> None:
    found = fragment(
        [tensor("x", 4, 8), weight("w", 8, 8), weight("u", 8, 8)],
        node("MatMul", "x w", "a"), node("MatMul", "a w", "b"), node("MatMul", "b u", "c"), node("Add", "c x", "y"),
    )  # fmt: skip
    calls, slots, results, values = _bound(found)
    assert not values
    assert len([s for s in slots if s is not None]) == 3  # x, w, u; the originals of w and u are gone
    assert calls[0][1][1] == calls[1][1][1] != calls[2][1][1]
    from gkestimator.profiling.executors.torch_binding import compiled

    np.testing.assert_allclose(
        compiled(calls, slots, results)()[0].numpy(),
        _reference_with(found, "e"),
        rtol=1e-5, atol=1e-5,
    )  # fmt: skip


def _reference_with(found: Fragment, name: str) -> np.ndarray:
    v = {t.name: fill(t, tensor_rng(name, t.name, 0)) for t in found.tensors}
    result: np.ndarray = v["x"] @ v["w"] @ v["w"] @ v["u"] + v["x"]
    return result


def test_a_recurrent_layer_s_weights_are_there_once() -> None:
    import torch

    from gkestimator.profiling.executors.torch import TorchExecutor

    found = fragment(
        [tensor("x", 5, 2, 6), weight("w", 1, 16, 6), weight("r", 1, 16, 4), weight("b", 1, 32)],
        node("LSTM", "x w r b", "y h c", hidden_size=4), node("Relu", "y", "z"), outputs="z",
    )  # fmt: skip
    _, slots, _, _ = _bound(found)
    assert [tuple(s.shape) for s in slots if s is not None] == [(5, 2, 6)]
    prepared = TorchExecutor("cpu").prepare(entry(found), seed=0)
    try:
        torch.testing.assert_close(prepared.outputs()[0], torch.from_numpy(reference(found)[0].copy()))
    finally:
        prepared.close()


def test_a_tensor_that_nothing_makes_is_named() -> None:
    from gkestimator.profiling.executors.torch_binding import bind
    from gkestimator.profiling.executors.torch_calls.program import program_of

    program = program_of(fragment([tensor("x", 2)], node("Relu", "x", "y")), "fp32")
    with pytest.raises(LookupError, match="Relu: nothing makes its input x"):
        bind(program, {}, "cpu")


def test_binding_thousands_of_calls_is_quick() -> None:
    many = 6000
    found = fragment(
        [tensor("x0", 4), constant("one", 1.0)],
        *(node("Mul", f"x{i} one", f"x{i + 1}") for i in range(many)),
        pattern="model:long",
    )
    from gkestimator.profiling.executors.torch_binding import bind, host_values
    from gkestimator.profiling.executors.torch_calls.program import program_of

    program = program_of(found, "fp32")
    values = host_values(found, program, lambda t: fill(t, tensor_rng("e", t.name, 0)))
    before = time.process_time()
    calls, _, _ = bind(program, values, "cpu")
    taken = time.process_time() - before
    assert [len(call[3]) for call in calls] == [0, *[1] * (many - 1)]
    assert taken < 0.5  # a look at every value for each call takes seconds


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """torch's allocator of a GPU, which tests have not: what it is asked, in order."""
    import torch

    from gkestimator.profiling.executors.torch import TorchExecutor

    asked: list[str] = []
    monkeypatch.setattr(TorchExecutor, "on_gpu", property(lambda _: True))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: asked.append("clear"), raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("empty"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: asked.append("wait"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 410)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 460)
    return asked


@pytest.mark.parametrize(("held", "device_bytes"), [(900, 940), (None, None), (450, None)])
def test_a_model_s_account_begins_after_loading_and_ends_at_its_peak(
    allocator: list[str], held: int | None, device_bytes: int | None
) -> None:
    """Held are 900 with 460 reserved, so 440 lie beside the allocator, whose peak was 500."""
    from gkestimator.profiling.executors import torch_binding
    from gkestimator.profiling.executors.torch import TorchExecutor

    found = small_network(1)
    executor = TorchExecutor("cpu", held_bytes=lambda: held)
    with pytest.MonkeyPatch.context() as patch:
        from gkestimator.profiling.executors import torch as module

        def bind(*given: Any) -> Any:
            allocator.append("bind")
            return torch_binding.bind(*given)

        patch.setattr(module, "bind", bind)
        prepared = executor.prepare(model_entry(found), seed=0)
    try:
        assert allocator[:6] == ["clear", "empty", "bind", "wait", "empty", "reset"]
        allocator.clear()
        assert prepared.memory() == MemoryUse(
            reserved_bytes=500, allocated_bytes=410, device_bytes=device_bytes
        )
        assert allocator == ["wait"]  # the peak is not begun anew
    finally:
        prepared.close()


def test_an_operator_has_no_account_of_memory(allocator: list[str]) -> None:
    from gkestimator.profiling.executors.torch import TorchExecutor

    prepared = TorchExecutor("cpu").prepare(entry(fragment([tensor("x", 2)], node("Relu", "x", "y"))), seed=0)
    try:
        assert prepared.memory() is None
        assert "reset" not in allocator
    finally:
        prepared.close()


def test_a_large_weight_is_laid_out_on_the_device_and_its_original_given_back(
    allocator: list[str],
) -> None:
    """A small one is laid out on the host, where its original leaves no hole in the device's memory."""
    import torch

    from gkestimator.profiling.executors.torch_binding import _laid_out

    seen: list[str] = []

    def change(value: Any) -> Any:
        seen.append(value.device.type)
        return value.t().contiguous()

    device = torch.device("meta")  # any that is not the CPU
    assert _laid_out(torch.ones(20, 30), change, device).shape == (30, 20)
    assert (seen, allocator) == (["cpu"], [])
    assert _laid_out(torch.ones(2**11, 2**11), change, device).device == device
    assert (seen, allocator) == (["cpu", "meta"], ["empty"])
