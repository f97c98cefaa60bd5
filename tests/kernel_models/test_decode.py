"""Attention of few queries: bytes of the cache over what memory sustains, parts of the keys, and whose kernel it is."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.features.decode import decode_blocks, decode_us
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.sustained import sustained_bytes_per_s
from gkestimator.training.importers.generation import generation_table
from gkestimator.training.rows import product_table

H100 = gpu_catalogue().spec("H100-SXM")
L40S = gpu_catalogue().spec("L40S")
A100 = gpu_catalogue().spec("A100-SXM4-80GB")


def attention(
    keys: float, *, variant: str = "decode", batch: float = 8, heads: float = 32, caches: float = 32, window: float = 0
) -> KernelTable:  # fmt: skip
    sizes = (np.array([value]) for value in (batch, keys, heads, caches, 128.0, 128.0, window))
    return generation_table(np.array([variant], dtype=object), *sizes)


def time_us(keys: float, **options: object) -> float:
    return float(decode_us(attention(keys, **options), H100)[0])  # type: ignore[arg-type]


def test_a_long_cache_takes_what_memory_sustains() -> None:
    table = attention(32_768)
    least = table.total_bytes[0] / sustained_bytes_per_s(H100) * 1e6
    assert least < time_us(32_768) < 1.3 * least
    assert time_us(65_536) == pytest.approx(2 * time_us(32_768), rel=0.05)


def test_grouped_heads_and_byte_caches_read_less() -> None:
    whole = time_us(65_536)
    assert whole / 4 < time_us(65_536, caches=8) < whole / 3
    assert whole / 2 < time_us(65_536, variant="decode.byte_cache") < 0.7 * whole


def test_only_a_cache_that_fits_into_l2_is_faster_when_it_is_warm() -> None:
    warm = "decode.warm_cache"
    for keys, faster in ((256, 0.8), (65_536, 0.99)):
        cold, kept = (decode_us(attention(keys, variant=v), L40S)[0] for v in ("decode", warm))
        assert (kept < faster * cold) == (keys == 256)
        assert kept <= cold


def test_the_keys_of_one_sequence_are_cut_until_the_gpu_is_full() -> None:
    one = attention(65_536, batch=1, heads=8, caches=1)
    assert H100.sms / 2 < decode_blocks(one, H100)[0] <= H100.sms
    assert decode_blocks(attention(64, batch=1, heads=8, caches=1), H100)[0] == 1
    uncut = attention(65_536, batch=1, heads=8, caches=1, variant="decode.uncut")
    assert decode_us(uncut, H100)[0] > 10 * decode_us(one, H100)[0]


def test_flash_attention_2_gives_each_head_a_block_where_a_window_is_set() -> None:
    sizes = {"batch": 512, "heads": 32, "caches": 1, "window": 128}
    grouped = decode_us(attention(4096, variant="decode.window", **sizes), A100)[0]
    alone = decode_us(attention(4096, variant="decode.window.vllm.fa2", **sizes), A100)[0]
    assert alone > 2 * grouped


def test_a_window_bounds_what_is_read() -> None:
    assert time_us(131_072, window=1024) == time_us(2048, window=1024)


@pytest.mark.parametrize("features", ["decode", "decode_unseen"])
def test_features_are_those_of_a_warm_cache(features: str) -> None:
    cold, names = feature_matrix(features, attention(512), H100)
    warm, _ = feature_matrix(features, attention(512, variant="decode.warm_cache"), H100)
    assert np.isfinite(cold).all()
    assert len(set(names)) == len(names)
    np.testing.assert_array_equal(cold, warm)


def test_the_shipped_bundle_answers_for_a_cold_cache() -> None:
    bundle = load_bundle()
    cold = bundle.predict(attention(256), L40S)
    warm = bundle.predict(attention(256, variant="decode.warm_cache"), L40S)
    assert cold.trained[0] and cold.in_range[0]
    assert cold.duration_us[0] > warm.duration_us[0]
    assert cold.low_us[0] < cold.duration_us[0] < cold.high_us[0]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_batches_of_matrices_times_vectors_take_their_traffic(precision: str) -> None:
    size = {"fp32": 4.0, "fp16": 2.0}[precision]
    one, keys, width = (np.array([value]) for value in (1.0, 8192.0, 128.0))
    scores = product_table("bmm", precision, m=one, n=keys, k=width, size=size, batch=256.0)
    answer = load_bundle().predict(scores, A100)
    least = scores.total_bytes[0] / A100.dram_bytes_per_s * 1e6
    assert least < answer.duration_us[0] < 1.3 * least
    assert not answer.in_range[0]
    # A matrix of sixteen rows is no vector: its regressor answers.
    many = product_table("bmm", precision, m=16 * one, n=keys, k=width, size=size, batch=256.0)
    assert load_bundle().predict(many, A100).trained[0]
