"""Configurations are read as transformers' own modules are made of them; what cannot be is said in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.errors import DocumentError, GkestimatorError
from gkestimator.llm.configs import KINDS, read_decoder

FOLDER = Path(__file__).parents[1] / "data" / "decoders"
RECORDED = json.loads((FOLDER / "parameters.recorded").read_text(encoding="utf-8"))
LLAMA = json.loads((FOLDER / "llama-3.1-8b.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_parameters_are_those_of_transformers_modules(name: str) -> None:
    """The record is written by ``benchmarks/record_decoders.py``."""
    assert read_decoder(FOLDER / f"{name}.json").parameters == RECORDED[name]


def test_every_kind_but_aliases_is_recorded() -> None:
    seen = {json.loads(path.read_text(encoding="utf-8"))["model_type"] for path in FOLDER.glob("*.json")}
    # The text part of a Gemma 3 with images is read as a Gemma 3 of text.
    assert set(KINDS) - seen == {"gemma3"}


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        # 2 x layers x key-value heads x head size x 2 bytes
        ("llama-2-7b", 2 * 32 * 32 * 128 * 2),
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2),
        ("llama-3.1-70b", 2 * 80 * 8 * 128 * 2),
        ("mixtral-8x7b", 2 * 32 * 8 * 128 * 2),
        ("qwen2-7b", 2 * 28 * 4 * 128 * 2),
        ("qwen3-30b-a3b", 2 * 48 * 4 * 128 * 2),
        ("gemma-7b", 2 * 28 * 16 * 256 * 2),
        ("phi-2", 2 * 32 * 32 * 80 * 2),
        ("gpt2", 2 * 12 * 12 * 64 * 2),
        ("falcon-7b", 2 * 32 * 1 * 64 * 2),
        ("falcon-40b", 2 * 60 * 8 * 64 * 2),
        ("bloom-7b1", 2 * 30 * 32 * 128 * 2),
    ],
)
def test_a_token_in_the_cache_takes_the_closed_form(name: str, bytes_per_token: int) -> None:
    decoder = read_decoder(FOLDER / f"{name}.json")
    assert decoder.cache_bytes_per_token(2) == bytes_per_token
    assert decoder.cache_bytes(1000, 2) == 1000 * bytes_per_token


def test_layers_with_a_window_keep_the_window_alone() -> None:
    decoder = read_decoder(FOLDER / "gemma-3-1b.json")  # 22 of 26 layers see 512 tokens
    assert (decoder.window, decoder.window_layers) == (512, 22)
    assert decoder.cache_bytes(4096, 2) == 2 * (4 * 4096 + 22 * 512) * 256 * 2


def test_a_window_that_is_null_is_none(tmp_path: Path) -> None:
    document = json.loads((FOLDER / "gemma-2-9b.json").read_text(encoding="utf-8"))
    assert read_decoder(_written(tmp_path, document)).window_layers == 21
    assert read_decoder(_written(tmp_path, {**document, "sliding_window": None})).window_layers == 0


def _written(folder: Path, document: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_the_name_is_the_folders(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    assert read_decoder(_written(folder, LLAMA)).name == "My-Llama"


def test_an_unknown_kind_names_what_is_known_and_can_be_read_as_another(tmp_path: Path) -> None:
    path = _written(tmp_path, {**LLAMA, "model_type": "lama"})
    with pytest.raises(
        DocumentError, match=r"model_type: found 'lama', expected one of bloom, .*did you mean llama\?"
    ):
        read_decoder(path)
    assert read_decoder(path, like="llama").parameters == RECORDED["llama-3.1-8b"]


def test_the_decoder_of_a_model_with_images_is_its_text_config(tmp_path: Path) -> None:
    text = json.loads((FOLDER / "gemma-3-1b.json").read_text(encoding="utf-8"))
    path = _written(tmp_path, {"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert read_decoder(path).parameters == RECORDED["gemma-3-1b"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "hidden_size: found nothing"),
        ({"hidden_size": -4}, "hidden_size: found -4, expected a whole number from 1"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers: found 1000000000000"),
        ({"num_attention_heads": 7}, "num_attention_heads: found 7, expected a divisor of hidden_size 4096"),
        ({"num_key_value_heads": 7}, "32 query heads are no multiple of 7 key heads"),
        ({"vocab_size": "many"}, "vocab_size: found 'many'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: found 'no', expected true or false"),
        ({"is_encoder_decoder": True}, "expected a model of a decoder alone"),
        ({"model_type": ["llama"]}, "model_type: found"),
    ],
)
def test_wrong_fields_are_named_in_one_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(GkestimatorError) as caught:
        read_decoder(_written(tmp_path, {**LLAMA, **change}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"model_type": "llama"}', "\x00\xff", '{"a": ' * 5000])
def test_hostile_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(GkestimatorError) as caught:
        read_decoder(path)
    assert "\n" not in str(caught.value)
