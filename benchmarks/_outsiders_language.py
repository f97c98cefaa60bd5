"""Write models that listen and read: speech, recurrent networks, language with and without past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import _outsider_networks as networks
import _outsider_transformers as transformers
import torch
from _outsiders_shared import CLASSIC, TODAY, Truth, export, outsider
from torch import nn

# --- speech and recurrent -----------------------------------------------------------------------------------------


@outsider("whisper_encoder")
def whisper_encoder(path: Path) -> Truth:
    """Write the encoder of Whisper tiny."""
    return export(
        transformers.whisper_encoder(),
        [torch.rand(2, 80, 3000)],
        path,
        exporter=TODAY,
        names=["input_features"],
        outputs=["last_hidden_state"],
        dynamic={"input_features": {0: "batch_size"}},
        batch="batch_size",
        counted=[torch.rand(1, 80, 3000)],
    )


@outsider("whisper_decoder_past")
def whisper_decoder_past(path: Path) -> Truth:
    """Write one step of Whisper's decoder with its keys and values of before."""
    step = transformers.WhisperStep()
    return cached(step, path, exporter=CLASSIC, tokens="decoder_input_ids", length=127)


@outsider("wav2vec2")
def wav2vec2(path: Path) -> Truth:
    """Write a wav2vec 2.0 of six layers for speech of any length."""
    return export(
        transformers.wav2vec2(),
        [torch.rand(2, 16_000)],
        path,
        exporter=CLASSIC,
        names=["input_values"],
        outputs=["logits"],
        dynamic={"input_values": {0: "batch_size", 1: "sequence_length"}},
        batch="batch_size",
        dims={"sequence_length": 80_000},
        counted=[torch.rand(1, 80_000)],
        opset=14,
    )


@outsider("conformer")
def conformer(path: Path) -> Truth:
    """Write a Conformer of six blocks."""
    return export(
        networks.Conformer(),
        [torch.rand(2, 120, 80)],
        path,
        exporter=TODAY,
        names=["features"],
        dynamic={"features": {0: "batch", 1: "frames"}},
        dims={"frames": 500},
        counted=[torch.rand(1, 500, 80)],
    )


@outsider("lstm_classic")
def lstm_classic(path: Path) -> Truth:
    """Write a two-layer bidirectional LSTM whose time comes first, as torch's default has it."""
    truth = export(
        networks.Recurrent(nn.LSTM),
        [torch.rand(20, 2, 64)],
        path,
        exporter=CLASSIC,
        names=["x"],
        dynamic={"x": {0: "time", 1: "batch"}},
        dims={"time": 100},
        counted=[torch.rand(100, 1, 64)],
        opset=17,
    )
    # torch's counter knows no LSTM: four gates from input and state, two directions, two layers
    flops = 100 * 2 * 2 * 4 * 256 * ((64 + 256) + (512 + 256)) + 2 * 512 * 10
    return replace(truth, flops=flops)


@outsider("crnn_gru")
def crnn_gru(path: Path) -> Truth:
    """Write a reader of text lines: convolutions, then a GRU."""
    return export(
        networks.TextLines(),
        [torch.rand(2, 1, 32, 256)],
        path,
        exporter=TODAY,
        names=["lines"],
        dynamic={"lines": {0: "batch"}},
        counted=[torch.rand(1, 1, 32, 256)],
    )


# --- language -----------------------------------------------------------------------------------------------------

WORDS = {"input_ids": {0: "batch_size", 1: "sequence_length"}}
MASKED = {**WORDS, "attention_mask": {0: "batch_size", 1: "sequence_length"}}


def words(batch: int = 2, length: int = 16) -> torch.Tensor:
    """Return token numbers."""
    return torch.randint(0, 1000, (batch, length))


def _step_shapes(
    step: transformers.Cached, dynamic: Mapping[str, Mapping[int, str]], tokens: str
) -> tuple[Any, ...]:
    """Return dynamic shapes in the form of torch.export: keys and values are one argument."""
    first = [tokens, *(["attention_mask"] if step.masked else []), *step.extra]
    return (*(dict(dynamic[name]) for name in first), tuple(dict(dynamic[name]) for name in step.past_names))


def cached(
    step: transformers.Cached, path: Path, *, exporter: str, tokens: str = "input_ids", length: int = 511
) -> Truth:
    """Write one decoding step after ``length`` tokens, with their keys and values, named as optimum names them."""
    names = [tokens, *(["attention_mask"] if step.masked else []), *step.extra, *step.past_names]
    outputs = ["logits", *(name.replace("past_key_values", "present") for name in step.past_names)]
    total = "past_sequence_length + 1" if exporter == CLASSIC else "total_sequence_length"
    dynamic: dict[str, Mapping[int, str]] = {tokens: {0: "batch_size"}}
    if step.masked:
        dynamic["attention_mask"] = {0: "batch_size", 1: total}
    dynamic |= {name: {0: "batch_size"} for name in step.extra}
    dynamic |= {name: {0: "batch_size", 2: "past_sequence_length"} for name in step.past_names}
    dims = {"past_sequence_length": length}
    if step.masked and exporter == TODAY:
        dims[total] = length + 1
    return export(
        step,
        step.inputs(2, 16),
        path,
        exporter=exporter,
        names=names,
        outputs=outputs,
        dynamic=dynamic,
        batch="batch_size",
        dims=dims,
        counted=step.inputs(1, length),
        shapes=None if exporter == CLASSIC else _step_shapes(step, dynamic, tokens),
    )


@outsider("bert")
def bert(path: Path) -> Truth:
    """Write a BERT of six layers as optimum does: two inputs of words, a mask."""
    return export(
        transformers.bert(),
        [words(), torch.ones(2, 16, dtype=torch.int64)],
        path,
        exporter=CLASSIC,
        names=["input_ids", "attention_mask"],
        outputs=["last_hidden_state"],
        dynamic=MASKED,
        batch="batch_size",
        dims={"sequence_length": 128},
        counted=[words(1, 128), torch.ones(1, 128, dtype=torch.int64)],
        opset=14,
    )


@outsider("gpt2")
def gpt2(path: Path) -> Truth:
    """Write a GPT-2 of six layers without past."""
    return export(
        transformers.gpt2(),
        [words()],
        path,
        exporter=TODAY,
        names=["input_ids"],
        outputs=["logits"],
        dynamic=WORDS,
        batch="batch_size",
        dims={"sequence_length": 128},
        counted=[words(1, 128)],
    )


@outsider("gpt2_past")
def gpt2_past(path: Path) -> Truth:
    """Write the same GPT-2 with its past, as optimum does."""
    return cached(transformers.gpt2_step(), path, exporter=CLASSIC)


@outsider("llama_past")
def llama_past(path: Path) -> Truth:
    """Write a Llama of 0.3 billion parameters in fp16, grouped queries, with its past."""
    return cached(transformers.llama_step(), path, exporter=TODAY)


@outsider("llama_int4")
def llama_int4(path: Path) -> Truth:
    """Write a Llama whose weights ONNX Runtime packed four bits each (MatMulNBits)."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    whole = path.with_name("llama_whole.onnx")
    truth = export(
        transformers.llama(),
        [words(), torch.ones(2, 16, dtype=torch.int64)],
        whole,
        exporter=CLASSIC,
        names=["input_ids", "attention_mask"],
        outputs=["logits"],
        dynamic=MASKED,
        batch="batch_size",
        dims={"sequence_length": 128},
        counted=[words(1, 128), torch.ones(1, 128, dtype=torch.int64)],
        opset=17,
    )
    quantiser = MatMulNBitsQuantizer(onnx.load(whole), block_size=32, is_symmetric=True)
    quantiser.process()
    quantiser.model.save_model_to_file(str(path), use_external_data_format=False)
    whole.unlink()
    return replace(truth, exporter="onnxruntime MatMulNBitsQuantizer after torch.onnx (TorchScript)")


@outsider("t5_encoder")
def t5_encoder(path: Path) -> Truth:
    """Write the encoder of a small T5: relative positions in buckets."""
    return export(
        transformers.t5_encoder(),
        [words(), torch.ones(2, 16, dtype=torch.int64)],
        path,
        exporter=CLASSIC,
        names=["input_ids", "attention_mask"],
        outputs=["last_hidden_state"],
        dynamic=MASKED,
        batch="batch_size",
        dims={"sequence_length": 128},
        counted=[words(1, 128), torch.ones(1, 128, dtype=torch.int64)],
        opset=17,
    )


@outsider("clip")
def clip(path: Path) -> Truth:
    """Write CLIP: images and texts in two batches that need not be of one size."""
    return export(
        transformers.clip(),
        [words(3, 77), torch.rand(2, 3, 224, 224), torch.ones(3, 77, dtype=torch.int64)],
        path,
        exporter=CLASSIC,
        names=["input_ids", "pixel_values", "attention_mask"],
        outputs=["logits_per_image"],
        dynamic={
            "input_ids": {0: "text_batch_size", 1: "sequence_length"},
            "pixel_values": {0: "image_batch_size"},
            "attention_mask": {0: "text_batch_size", 1: "sequence_length"},
        },
        batch="text_batch_size",
        dims={"image_batch_size": 1, "sequence_length": 77},
        counted=[words(1, 77), torch.rand(1, 3, 224, 224), torch.ones(1, 77, dtype=torch.int64)],
        opset=17,
    )
