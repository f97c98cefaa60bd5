"""Rows of language models: memory to the byte, times that grow as they must, and what was asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.core.graph import Tensor
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.llm.configs import read_decoder
from gkestimator.llm.decoder import Decoder
from gkestimator.llm.estimating import estimate_llm
from gkestimator.llm.memory import MemoryLaw
from gkestimator.llm.parts import Pass
from gkestimator.llm.profiles import ENGINES
from gkestimator.llm.request import LlmRequest
from gkestimator.llm.sharing import all_reduce_ms, shared_between
from gkestimator.llm.source import configured, pass_graph
from gkestimator.llm.weights import weight_bytes
from gkestimator.lowering.narrowing import narrowed
from gkestimator.operators.narrow import NARROW_FORMATS
from gkestimator.tables.llm_requirement import LLM_TABLE, LlmRequirement

FOLDER = Path(__file__).parents[1] / "data" / "decoders"
ALL = sorted(path.stem for path in FOLDER.glob("*.json"))


def _decoder(name: str) -> Decoder:
    return read_decoder(FOLDER / f"{name}.json")


def _no_lowering(run: Pass) -> Any:
    raise AssertionError(run)


def _rows(name: str = "llama-3.1-8b", **options: Any) -> list[LlmRequirement]:
    options = {
        "gpus": ("H100-SXM",),
        "batch_sizes": (1,),
        "input_tokens": (512,),
        "output_tokens": (64,),
        **options,
    }
    return estimate_llm(LlmRequest(model=FOLDER / f"{name}.json", **options))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("fused", [True, False])
def test_the_weights_of_a_pass_are_those_of_the_closed_form(name: str, fused: bool) -> None:
    decoder = _decoder(name)
    run = Pass(batch=2, tokens=16, past=0, dtype=DType.FLOAT16, cache=DType.FLOAT16, fused=fused)
    graph = pass_graph(decoder, run)
    once: dict[str, int] = {}
    times: dict[str, int] = {}
    for op in graph.operators:
        for value in op.inputs:
            if isinstance(value, Tensor) and value.is_weight and value.value is None:
                once[value.name] = value.nbytes
                times[value.name] = op.repeat
    total = sum(size * times[weight] for weight, size in once.items())
    if decoder.tied:
        total -= decoder.vocabulary * decoder.width * 2
    if decoder.experts is not None and decoder.experts.shared:
        total += (
            decoder.expert_layers * decoder.width * 2
        )  # the shared expert's gate, which is no operator's here
    assert total == weight_bytes(decoder, "fp16") == 2 * decoder.parameters


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-neox-20b", "gemma-2-9b"])
@pytest.mark.parametrize("word", sorted(NARROW_FORMATS))
@pytest.mark.parametrize("fused", [True, False])
def test_every_linear_layer_of_a_pass_is_narrowed(name: str, word: str, fused: bool) -> None:
    decoder = _decoder(name)
    run = Pass(batch=2, tokens=16, past=0, dtype=DType.FLOAT16, cache=DType.FLOAT16, fused=fused)
    graph = narrowed(pass_graph(decoder, run), word)
    times = {
        value.storage: op.repeat
        for op in graph.operators
        for value in op.inputs
        if isinstance(value, Tensor) and value.storage in graph.weights and value.value is None
    }
    total = sum(graph.weights[storage] * count for storage, count in times.items())
    if decoder.tied:
        total -= decoder.vocabulary * decoder.width * 2
    assert total == weight_bytes(decoder, word)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_kind_answers_under_every_engine(name: str, engine: str) -> None:
    (row,) = _rows(name, engine=engine, batch_sizes=(4,))
    LLM_TABLE.check([row])
    assert row.ttft_low_ms <= row.ttft_ms <= row.ttft_high_ms
    assert row.tpot_low_ms <= row.tpot_ms <= row.tpot_high_ms
    for name in ("tokens_per_s", "tokens_per_s_request", "usd_per_million_tokens", "energy_j_per_token"):
        low, value, high = (getattr(row, f"{name}{end}") for end in ("_low", "", "_high"))
        assert value is None or low < value < high, name
    assert row.tokens_per_s_low == pytest.approx(4 * 64 / (row.ttft_high_ms + 63 * row.tpot_high_ms) * 1e3)
    assert row.tokens_per_s == pytest.approx(4 * 64 / (row.ttft_ms + 63 * row.tpot_ms) * 1e3)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "gemma-2-9b"])
def test_the_largest_batch_and_the_longest_context_agree_with_memory_to_the_byte(
    name: str, engine: str
) -> None:
    law = MemoryLaw(
        source=configured(_decoder(name)),
        engine=ENGINES[engine],
        weights=10**9,
        context=10**8,
        cache_bits=16,
        visible=24 * 2**30,
        lower=_no_lowering,
    )
    most = law.largest_batch(2048, 256)
    assert most and law.fits(most, 2048, 256) and not law.fits(most + 1, 2048, 256)
    longest = law.longest_context(most, 256)
    assert longest is not None and law.fits(most, longest - 256, 256)
    if longest < law.source.most_tokens:
        assert not law.fits(most, longest - 255, 256)
    exact = replace(law, visible=law.need(most, 2048, 256).total)
    assert exact.largest_batch(2048, 256) == most
    assert replace(exact, visible=exact.visible - 1).largest_batch(2048, 256) < most


def test_what_does_not_fit_says_how_many_gpus_do() -> None:
    (row,) = _rows("llama-3.1-70b")
    assert row.largest_batch == 0 and row.gpus_needed == 2 and "needs 2 GPUs" in row.warnings
    (row,) = _rows("llama-3.1-70b", gpus=("T4",))
    assert row.gpus_needed is None and "nor on 8 GPUs" in row.warnings


def test_times_grow_with_batch_and_length_and_fall_with_gpus_and_bits() -> None:
    rows = _rows(batch_sizes=(1, 8, 64))
    assert [r.tpot_ms for r in rows] == sorted(r.tpot_ms for r in rows)
    short, long = _rows(input_tokens=(512, 8192))
    assert long.ttft_ms > 8 * short.ttft_ms and long.tpot_ms > short.tpot_ms
    alone, four = _rows("llama-3.1-70b", tensor_parallel=(1, 4))
    assert alone.tpot_ms / 4 < four.tpot_ms < alone.tpot_ms / 2
    assert four.weights_bytes < alone.weights_bytes / 3.9
    half, eighth, fourth = _rows(dtypes=("fp16", "int8", "int4"))
    assert half.tpot_ms > eighth.tpot_ms > fourth.tpot_ms
    assert half.weights_bytes > eighth.weights_bytes > fourth.weights_bytes


def test_a_step_of_a_batch_reads_the_weights_once() -> None:
    """At 3.35 TB/s an H100 reads 16 GB in 4.8 ms; no step is faster, and a small batch is not much slower."""
    (row,) = _rows()
    assert 4.8 < row.step_gpu_ms < 7.5 and row.binds == "memory"


def test_one_token_of_answer_has_no_time_per_token() -> None:
    (row,) = _rows(output_tokens=(1,))
    assert row.tpot_ms is None and row.tokens_per_s_request is None and row.request_ms == row.ttft_ms


def test_experts_are_read_as_tokens_are_expected_to_take_them() -> None:
    few, many = _rows("mixtral-8x7b", batch_sizes=(1, 64), tensor_parallel=(2,))
    # One token takes 2 of 8 experts, 64 take all: the weights read grow nearly fourfold.
    assert 2.2 < many.step_gpu_ms / few.step_gpu_ms < 4.2


def test_the_steps_mean_is_the_mean_over_all_steps() -> None:
    (row,) = _rows(output_tokens=(9,), input_tokens=(4096,))
    each = [_rows(output_tokens=(2,), input_tokens=(4096 + step,))[0].tpot_ms for step in range(8)]
    assert row.tpot_ms == pytest.approx(sum(each) / len(each), rel=2e-3)


def test_gpus_exchange_a_rings_sums() -> None:
    gpu = gpu_catalogue().spec("A100-SXM4-80GB")
    decoder = _decoder("llama-3.1-8b")
    data = 4096 * 1000 * 2
    each = 2 * 3 / 4 * data / 300e9 + 6 * 2e-6
    assert all_reduce_ms(decoder, 4, gpu, 1000) == pytest.approx(32 * 2 * each * 1e3)
    assert all_reduce_ms(decoder, 1, gpu, 1000) == 0


def test_shares_hold_everything_once() -> None:
    decoder = _decoder("llama-3.1-8b")
    part = shared_between(decoder, 8)
    assert (part.heads, part.kv_heads, part.inner) == (4, 1, 14336 // 8)
    with pytest.raises(UsageError, match="71 query heads cannot be shared by 2 GPUs"):
        shared_between(_decoder("falcon-7b"), 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_sizes": (0,)}, "batch_sizes"),
        ({"input_tokens": (10**12,)}, "input_tokens"),
        ({"tensor_parallel": (3,)}, "expected 1, 2, 4 or 8"),
        ({"dtypes": ("fp7",)}, "dtypes: found 'fp7', expected any of fp16, bf16, fp8, int8, int4"),
        ({"engine": "vllm"}, "engine"),
        ({"gpus": ("H1000",)}, "H1000"),
        ({"gpus": ("T4",), "dtypes": ("bf16",)}, "bf16"),
    ],
)
def test_wrong_questions_are_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        _rows(**options)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_objectives_alone_are_answered_with_the_largest_batch_that_keeps_them() -> None:
    asked = {"batch_sizes": None, "input_tokens": (2048,), "output_tokens": (256,), "slo_ttft_ms": 2000.0}
    fast, slow = _rows(gpus=("H100-SXM", "L4"), **asked)
    assert fast.ttft_ms <= 2000 and slow.ttft_ms <= 2000
    above = [row.batch_size + 1 for row in (fast, slow)]
    (beyond,) = _rows(gpus=("H100-SXM",), **{**asked, "batch_sizes": (above[0],)})
    assert beyond.ttft_ms > 2000
    (beyond,) = _rows(gpus=("L4",), **{**asked, "batch_sizes": (above[1],)})
    assert beyond.ttft_ms > 2000
    (none,) = _rows(gpus=("L4",), **{**asked, "slo_ttft_ms": 1.0})
    assert none.batch_size == 1 and none.ttft_ms > 1
