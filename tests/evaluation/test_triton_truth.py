"""The reader of Triton's tables at fixed batches, and the count of pairs of runtimes whose order is right."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pd = pytest.importorskip("pandas")

from _diffusion_truth import diffusion_parts, diffusion_rows  # noqa: E402
from _triton_truth import Judged, Measured, measured_rows, pairs_apart, share_right  # noqa: E402

ROW: dict[str, Any] = {
    "gpu": "T4", "model": "bert", "backend": "torchscript", "precision": "fp16", "batch": 8, "dataset": None,
    "audio_s": math.nan, "compute_input_ms": 0.5, "compute_infer_ms": 2.0, "compute_output_ms": 6.0,
    "avg_ms": 9.0, "container": "21.10",
}  # fmt: skip
SPLIT = ("compute_input_ms", "compute_infer_ms", "compute_output_ms")


def read(*changes: dict[str, Any]) -> list[Measured]:
    """Return what is read of rows like ``ROW`` with the changes."""
    return list(measured_rows(pd.DataFrame([{**ROW, **change} for change in changes])))


def measured(runtime: str, ms: float) -> Measured:
    (row,) = read({})
    return replace(row, runtime=runtime, ms=ms)


def test_torchscript_waits_for_the_gpu_while_outputs_are_read() -> None:
    (row,) = read({})
    assert (row.runtime, row.ms, row.output_ms, row.client) == ("torch", 8.0, 6.0, False)


def test_rows_that_are_not_split_hold_a_clients_latency() -> None:
    (row,) = read(dict.fromkeys(SPLIT, math.nan) | {"backend": "tensorrt", "audio_s": 16.7})
    assert (row.ms, row.output_ms, row.client, row.frames) == (9.0, 0.0, True, 1671)


def test_rows_without_a_latency_or_a_runtime_are_left_out() -> None:
    without = dict.fromkeys((*SPLIT, "avg_ms"), math.nan)
    assert read(without, {"backend": "tensorflow"}) == []


def test_data_sets_are_models_of_their_own_in_the_same_half() -> None:
    electricity, traffic = read(
        {"model": "tft", "dataset": "electricity"}, {"model": "tft", "dataset": "traffic"}
    )
    assert (electricity.model, traffic.model) == ("tft_electricity", "tft_traffic")
    assert electricity.case != traffic.case
    assert electricity.half == traffic.half == "chosen by"


def test_pairs_count_where_measurements_are_apart() -> None:
    times = {"tensorrt": (1.0, 2.0), "onnxruntime_tensorrt": (1.05, 1.9), "torch": (2.0, 1.95)}
    judged = [Judged(row=measured(name, ms), estimate_ms=estimate) for name, (ms, estimate) in times.items()]
    pairs = pairs_apart(judged)
    assert [(pair.runtimes, pair.right) for pair in pairs] == [
        ("tensorrt / torch", False),
        ("onnxruntime_tensorrt / torch", True),
    ]
    assert share_right(pairs) == 50.0


def test_equal_estimates_have_no_order() -> None:
    judged = [
        Judged(row=measured(name, ms), estimate_ms=1.0) for name, ms in (("torch", 2.0), ("tensorrt", 1.0))
    ]
    assert share_right(pairs_apart(judged)) == 0.0


def test_other_batches_are_other_cases() -> None:
    one = Judged(row=measured("torch", 2.0), estimate_ms=2.0)
    other = Judged(row=replace(measured("tensorrt", 1.0), batch=16), estimate_ms=1.0)
    pairs = pairs_apart([one, other])
    assert pairs == []
    assert math.isnan(share_right(pairs))


def test_an_image_is_read_once_a_runtime_in_its_newest_version() -> None:
    image = {
        "table": "Stable Diffusion README", "gpu": "T4", "engine": "onnxruntime", "provider": "cuda", "batch": 1,
        "version": "1.14.1", "precision": "fp16", "latency_ms": 5600.0,
    }  # fmt: skip
    newer = image | {"version": "1.15.1", "latency_ms": 5500.0}
    others = [
        image | {"engine": "torch", "provider": "xformers"},
        image | {"gpu": "MI100"},
        image | {"table": "transformers README"},
    ]
    (row,) = diffusion_rows(pd.DataFrame([newer, image, *others]))
    assert (row.runtime, row.ms, row.container) == ("onnxruntime", 5500.0, "1.15.1")


def test_images_take_fifty_steps_at_twice_the_batch_and_one_decoder_each() -> None:
    parts = {part.path.name: part for part in diffusion_parts(Path("graphs"), "tensorrt", 4)}
    steps, decoder = parts["sd_unet.plain.onnx"], parts["sd_vae.plain.onnx"]
    assert (steps.batch, steps.runs) == (8, 50)
    assert (decoder.batch, decoder.runs) == (1, 4)
    assert diffusion_parts(Path("graphs"), "onnxruntime", 4)[1].path.name == "sd_unet.onnx"
