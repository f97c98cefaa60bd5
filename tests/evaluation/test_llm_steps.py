"""The section of language models: kernels of a pass by sizes, beside those that public tables have of the same sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.kernels import Family, Kernel

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

Rows = list[dict[str, Any]]


def write(folder: Path, name: str, rows: Rows) -> None:
    path = folder / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Tables of one product, three attentions, and layers that two publishers have."""
    product = {"gpu": "h100_sxm", "m": 8, "n": 4096, "k": 4096}
    prompt = {
        "gpu": "h100_sxm",
        "batch_size": 2,
        "isl": 512,
        "num_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    prompt |= {"window_size": 0.0, "step": 0, "latency_ms": 0.2}
    step = {"gpu": "H100-SXM", "batch_size": 8, "kv_len": 512, "num_heads": 32, "num_key_value_heads": 8}
    step |= {"head_dim": 128, "v_head_dim": 128, "window_size": None, "kv_cache_dtype": "bfloat16"}
    step |= {"kernel_source": "fa3", "latency_ms": 0.01}
    other = {**step, "kernel_source": "torch_flow", "latency_ms": 0.04}
    longer = {**step, "kv_len": 4096}
    byte = {**longer, "kv_cache_dtype": "fp8", "latency_ms": 9.0}
    windowed = {**step, "kv_len": 32768, "window_size": 128.0}
    folder = tmp_path / "aiconfigurator"
    write(folder, "gemm_bf16", [{**product, "latency_ms": time} for time in (0.02, 0.03, 0.09)])
    write(folder, "gemm_bf16_l40s", [{**product, "gpu": "L40S", "latency_ms": 0.05}])
    write(folder, "attention_context_bf16", [prompt, {**prompt, "isl": 4096, "step": 64}])
    write(folder, "attention_context_bf16_l40s", [{**prompt, "gpu": "L40S"}])
    write(folder, "attention_generation_bf16", [step, other, longer, byte, windowed])
    layer = {"gpu": "h100", "use_gated_mlp": True, "n_head": 32, "n_kv_head": 8, "n_embd": 4096}
    layer |= {"n_expanded_embd": 14336, "num_tokens": 8, "num_tensor_parallel_workers": 1}
    names = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj")
    layer |= {f"time_stats.{name}.median": 0.1 for name in names}
    write(tmp_path / "vidur", "mlp", [{**layer, "time_stats.mlp_down_proj.median": 0.019}])
    down = {
        "gpu": "H100-SXM",
        "layer": "down_proj",
        "tokens": 8,
        "in_features": 14336.0,
        "out_features": 4096.0,
    }
    norm = {**down, "layer": "input_layernorm", "in_features": None, "out_features": None}
    write(
        tmp_path / "llmservingsim",
        "layers_fp16",
        [{**down, "latency_us": 43.0}, {**norm, "latency_us": 20.0}],
    )
    return tmp_path


def test_tables_are_read_by_sizes(data: Path) -> None:
    from benchmarks.accuracy.llm_measured import Measured, measured_kernels

    table = measured_kernels(data)
    h100 = {key[1:]: row for key, row in table.items() if key[0] == "H100-SXM"}
    # The middle of three frameworks; Vidur has the product too, and comes after.
    assert h100.pop(("product", (8, 4096, 4096))) == Measured(pytest.approx(30.0), "aiconfigurator")
    assert h100.pop(("prefill", (2, 512, 32, 8, 128))) == Measured(pytest.approx(200.0), "aiconfigurator")
    assert h100.pop(("decode", (8, 512, 32, 8, 128))) == Measured(pytest.approx(20.0), "aiconfigurator")
    alone = h100.pop(("decode", (8, 4096, 32, 8, 128)))
    assert alone == Measured(pytest.approx(10.0), "aiconfigurator", "sglang.fa3")
    assert h100.pop(("product", (8, 6144, 4096))).source == "vidur"
    assert h100.pop(("product", (8, 28672, 4096))).time_us == pytest.approx(100.0)
    # Vidur's clock does not tell 19 us.
    assert h100.pop(("product", (8, 4096, 14336))) == Measured(pytest.approx(43.0), "llmservingsim")
    assert h100 == {}


def lowered(fused: bool) -> tuple[Any, Any]:
    from benchmarks.accuracy import llm_steps

    asked = [
        case
        for case in llm_steps.cases()
        if (case.model, case.gpus, case.batch, case.context) == ("llama-3.1-8b", 1, 8, 512)
        and case.fused == fused
        and not case.prompt
    ]
    (counts,) = llm_steps.lowered(asked, "H100-SXM")
    return asked[0], counts


def test_a_step_is_the_products_and_attention_of_all_layers(data: Path) -> None:
    from benchmarks.accuracy import llm_steps
    from benchmarks.accuracy.llm_measured import measured_kernels

    case, counts = lowered(True)
    heavy = {llm_steps.measured_as(kernel, case): count for kernel, count in counts.items() if kernel.gemm}
    assert heavy == {
        ("product", (8, 6144, 4096)): 32,
        ("decode", (8, 512, 32, 8, 128)): 32,
        ("product", (8, 4096, 4096)): 32,
        ("product", (8, 28672, 4096)): 32,
        ("product", (8, 4096, 14336)): 32,
        ("product", (8, 128256, 4096)): 1,
    }
    whole = llm_steps.matched(case, counts, measured_kernels(data), "H100-SXM")
    measured = sum(row.time_us * times for row, times in zip(whole.rows, whole.times, strict=True) if row)
    assert measured == pytest.approx(32 * (100 + 20 + 30 + 100 + 43))
    # The output layer alone is missing.
    assert llm_steps._whole_layers(whole)
    elsewhere = llm_steps.matched(case, counts, measured_kernels(data), "L40S")
    assert not llm_steps._whole_layers(elsewhere)


def test_what_a_step_asks_for_is_left_out_whatever_its_key_heads() -> None:
    from benchmarks.accuracy import llm_steps
    from gkestimator.core.kernels import KernelTable

    _, counts = lowered(True)
    attention = next(kernel for kernel in counts if kernel.family == Family.DECODE)
    product = next(kernel for kernel in counts if kernel.family == Family.LINEAR)
    assert product.gemm is not None
    fewer = replace(attention, read_bytes=attention.read_bytes // 2, variant="decode.warm_cache.trtllm")
    near = replace(product, gemm=replace(product.gemm, m=7))
    table = KernelTable.from_kernels([fewer, product, near])
    assert llm_steps._asked_for(table, [counts], any_rows=False).tolist() == [True, True, False]
    assert llm_steps._asked_for(table, [counts], any_rows=True).tolist() == [True, True, True]


def test_attention_is_estimated_as_it_was_measured() -> None:
    from benchmarks.accuracy import llm_steps
    from benchmarks.accuracy.llm_measured import Measured

    _, counts = lowered(False)
    attention: Kernel = next(kernel for kernel in counts if kernel.family == Family.DECODE)
    product: Kernel = next(kernel for kernel in counts if kernel.family == Family.LINEAR)
    typical = Measured(1.0, "aiconfigurator")
    alone = Measured(1.0, "aiconfigurator", "vllm.fa2")
    assert llm_steps.as_measured(attention, None) is attention
    assert llm_steps.as_measured(product, typical) is product
    assert llm_steps.as_measured(attention, typical).variant == "decode.warm_cache"
    assert llm_steps.as_measured(attention, alone).variant == "decode.warm_cache.vllm.fa2"


def test_the_form_of_which_more_was_measured_is_kept() -> None:
    from benchmarks.accuracy import llm_steps

    step = {"gpu": "H100-SXM", "model": "m", "gpus": 1, "kind": "step", "batch": 1, "context": 512}
    fused = {**step, "form": "fused", "whole": False, "share_pct": 80.0}
    composed = {**step, "form": "composed", "whole": True, "share_pct": 60.0}
    assert list(llm_steps.best_forms(iter([fused, composed]))) == [composed]
    even = {**fused, "whole": True, "share_pct": 60.5}
    assert list(llm_steps.best_forms(iter([even, composed]))) == [even]


def test_nothing_measured_is_said_so(tmp_path: Path) -> None:
    from benchmarks.accuracy import llm_steps
    from benchmarks.accuracy.workspace import Workspace

    space = Workspace(tmp_path, tmp_path / "cache")
    assert llm_steps.page(space) is None
    assert list(llm_steps.expected(space)) == []
    assert [line.met for line in llm_steps.lines(space)] == [None] * 4
