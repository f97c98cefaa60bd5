"""Models of several exporters, optimisers and quantisers (data/make_exporter_models.py), file to row, both runtimes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from gkestimator.estimation import EstimateResult, estimate_rows

FOLDER = Path(__file__).parent.parent / "data" / "exporters"
RUNTIMES = ("torch", "onnxruntime")
MOST_BYTES = 60_000
PRODUCTS = frozenset({"linear", "bmm", "conv", "attention"})
# Beyond the products themselves: biases, softmax in a fused attention, requantisation.
MOST_EPILOGUE = 1.25

# At batch 4 and 8 tokens: four projections (32 rows, 16 to 16), a feed-forward (16 to 32 and back), and attention's two
# products of 4 heads of 4.
_ENCODER = 4 * 2 * 32 * 16 * 16 + 2 * 2 * 32 * 16 * 32 + 2 * 2 * 4 * 4 * 8 * 8 * 4
# 3x3 convolutions of 16x16 pixels, 3 to 16 to 16 channels, and a classifier.
_VISION = 2 * 4 * 16 * 256 * 9 * (3 + 16) + 2 * 4 * 16 * 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """FLOPs of all matrix products on the GPU at batch 4, the row's dtype on a T4, and what its warnings say."""

    products: int
    dtype: str = "fp32"
    dims: dict[str, int] = field(default_factory=dict)
    warns: str = ""
    quantised: bool = False


TOKENS = {"tokens": 8}
EXPECTED = {
    "onnxscript_functions": Expected(products=4 * 2 * 32 * 16 * 64, dims=TOKENS),
    "onnxruntime_optimised_encoder": Expected(products=_ENCODER, dims=TOKENS),
    "onnxruntime_optimised_vision": Expected(products=_VISION),
    "onnxruntime_layout_vision": Expected(products=_VISION),
    "onnxruntime_qdq_vision": Expected(products=_VISION, quantised=True),
    "onnxruntime_qoperator_vision": Expected(products=_VISION, dtype="int8", quantised=True),
    "onnxruntime_dynamic_encoder": Expected(products=_ENCODER, dtype="int8", dims=TOKENS, quantised=True),
    "onnxruntime_dynamic_recurrent": Expected(
        products=2 * 20 * 16 * 4, dtype="int8", quantised=True, warns="runs on the CPU, its time not counted: Dynamic"
    ),
    "float16_encoder": Expected(products=_ENCODER, dtype="fp16", dims=TOKENS),
    "torch_jit_loop": Expected(products=4 * 2 * 4 * 8 * 8, warns="its then_branch is counted"),
    "tensorflow_opset9": Expected(products=2 * 4 * 8 * 256 * 27 + 2 * 4 * 8 * 5),
    "sklearn_opset9": Expected(
        products=0, warns="runs on the CPU, its time not counted: LinearClassifier, Normalizer, Scaler"
    ),
    "scan": Expected(products=12 * 2 * 4 * 24 * 16),
}  # fmt: skip


@lru_cache
def estimated(name: str, runtime: str, batch: int = 4) -> EstimateResult:
    dims = EXPECTED[name].dims
    return estimate_rows(
        [FOLDER / f"{name}.onnx"], gpus=["T4"], batch_sizes=[batch], dims=dims, runtime=runtime, kernels=True
    )


def products(result: EstimateResult) -> int:
    return sum(k.flops * k.launches for k in result.kernel_rows if k.family in PRODUCTS)


def test_every_file_is_expected_and_small() -> None:
    files = {path.stem: path.stat().st_size for path in FOLDER.glob("*.onnx")}
    assert files.keys() == EXPECTED.keys()
    assert max(files.values()) <= MOST_BYTES


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", EXPECTED)
def test_its_products_are_those_of_the_model(name: str, runtime: str) -> None:
    expected, result = EXPECTED[name], estimated(name, runtime)
    assert not result.failures, result.failures
    (row,) = result.rows
    assert expected.products <= products(result) <= MOST_EPILOGUE * expected.products
    assert row.batch_size == 4
    assert row.unknown_kernels == 0
    assert expected.warns in row.warnings
    assert (row.latency_high_ms is None) == ("runs on the CPU" in row.warnings)
    if expected.products:
        assert row.dtype == expected.dtype
        assert row.mreq_bytes is not None and row.kernels > 3


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", [n for n, e in EXPECTED.items() if e.products])
def test_twice_the_batch_is_twice_the_work(name: str, runtime: str) -> None:
    once, twice = products(estimated(name, runtime)), products(estimated(name, runtime, 8))
    # weights are dequantised, biases added to them, once: nothing of that is in these families
    assert twice == 2 * once


@pytest.mark.parametrize("name", EXPECTED)
def test_int8_is_for_quantised_files(name: str) -> None:
    options: dict[str, Any] = {"gpus": ["T4"], "batch_sizes": [4], "dims": EXPECTED[name].dims}
    result = estimate_rows(
        [FOLDER / f"{name}.onnx"], runtime="onnxruntime", dtype="int8", kernels=True, **options
    )
    if not EXPECTED[name].quantised:
        ((_, error),) = result.failures
        assert "needs a quantised model" in str(error) and name in str(error)
        return
    (row,) = result.rows
    assert row.dtype == "int8"
    assert any(k.kernel.endswith((".qlinear", ".integer")) for k in result.kernel_rows)


def test_quantise_pairs_vanish_into_int8_kernels_where_int8_is_asked_for() -> None:
    path = FOLDER / "onnxruntime_qdq_vision.onnx"
    options: dict[str, Any] = {"gpus": ["T4"], "batch_sizes": [4], "runtime": "onnxruntime", "kernels": True}
    plain = estimate_rows([path], **options)
    int8 = estimate_rows([path], dtype="int8", **options)
    counts = [sum(k.family == "quantize" for k in r.kernel_rows) for r in (plain, int8)]
    # between the pooling, which neither runtime has in int8, and its neighbours they stay
    assert counts == [14, 7]
    assert [k.kernel for k in int8.kernel_rows if k.family == "conv"] == ["conv.qlinear"] * 2
