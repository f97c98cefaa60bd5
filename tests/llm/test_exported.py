"""Decoders in ONNX files: what their dimensions stand for, rows like those of their configurations, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gkestimator.cli import run
from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.kernels import KernelGraph
from gkestimator.llm.configs import read_decoder
from gkestimator.llm.estimating import estimate_llm
from gkestimator.llm.exported import ExportedDecoder, read_exported
from gkestimator.llm.parts import Pass
from gkestimator.llm.profiles import ENGINES
from gkestimator.llm.request import LlmRequest
from gkestimator.llm.source import DecoderSource, configured
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.tables.llm_requirement import LLM_TABLE, LlmRequirement

FOLDER = Path(__file__).parents[1] / "data" / "exported_decoders"
EXPORTERS = ("dynamo", "classic", "genai")
HALF = DType.FLOAT16


def _path(exporter: str) -> Path:
    return FOLDER / f"llama-tiny.{exporter}.onnx"


def _rows(model: Path, **options: Any) -> list[LlmRequirement]:
    asked: dict[str, Any] = {
        "gpus": ("H100-SXM",),
        "batch_sizes": (4,),
        "input_tokens": (512,),
        "output_tokens": (64,),
    }
    return estimate_llm(LlmRequest(model=model, **(asked | options)))


def _kernels(source: DecoderSource, run: Pass) -> KernelGraph:
    half = Precision.FP16
    options = LoweringOptions(
        runtime="torch", dtype="fp16", half=half, matmul_precision=half, conv_precision=half
    )
    return lower(source.pass_graph(run), options)


def _flops(graph: KernelGraph) -> int:
    return sum(kernel.flops * step.repeat for step in graph.steps for kernel in step.kernels)


def _run(batch: int, tokens: int, past: int, *, fused: bool = True, **options: Any) -> Pass:
    return Pass(batch=batch, tokens=tokens, past=past, dtype=HALF, cache=HALF, fused=fused, **options)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("batch", "tokens", "past"), [(1, 300, 0), (8, 1, 777), (3, 16, 100)])
def test_every_exporters_passes_have_the_sizes_asked_for(
    exporter: str, batch: int, tokens: int, past: int
) -> None:
    graph = read_exported(_path(exporter)).pass_graph(_run(batch, tokens, past))
    shapes = {value.name: value.shape for value in graph.inputs}
    assert shapes["input_ids"] == (batch, tokens)
    assert shapes["attention_mask"] == (batch, past + tokens)
    # GenAI's caches are buffers that hold the new tokens too.
    held = past + tokens if exporter == "genai" else past
    assert shapes["past_key_values.1.value"] == (batch, 2, held, 16)
    assert graph.outputs[0].shape == (batch, 1, 512)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("batch", "tokens", "past"), [(1, 512, 0), (8, 1, 512)])
def test_flops_are_those_of_the_configuration(exporter: str, batch: int, tokens: int, past: int) -> None:
    run = _run(batch, tokens, past, fused=exporter == "genai")
    ours = _flops(_kernels(configured(read_decoder(FOLDER / "llama-tiny.json")), run))
    theirs = _flops(_kernels(read_exported(_path(exporter)), run))
    # Layers are thin: what the files do with masks and positions weighs more than in a model that anybody uses.
    assert theirs == pytest.approx(ours, rel=0.015)


@pytest.mark.parametrize("engine", ["paged", "onnxruntime"])
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_a_file_of_genai_answers_as_its_configuration_does(engine: str, batch: int) -> None:
    """Llama 3.2 1B cut to eight layers, at its true widths."""
    config, file = (FOLDER / f"llama-3.2-1b.{end}" for end in ("json", "genai.onnx"))
    options: dict[str, Any] = {"engine": engine, "batch_sizes": (batch,), "input_tokens": (2048,)}
    (ours,), (theirs,) = _rows(config, **options), _rows(file, **options)
    assert theirs.ttft_ms == pytest.approx(ours.ttft_ms, rel=0.03)
    assert theirs.tpot_ms == pytest.approx(ours.tpot_ms, rel=0.03)
    assert theirs.kv_bytes == ours.kv_bytes
    tables = 2 * 131072 * 32 * 2  # cosines and sines of every position
    assert theirs.weights_bytes - tables == pytest.approx(ours.weights_bytes, rel=1e-4)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_rows_of_files_keep_the_rules_of_the_table(exporter: str, engine: str) -> None:
    rows = _rows(_path(exporter), engine=engine, batch_sizes=(1, 4), dtypes=("fp16", "int4"))
    LLM_TABLE.check(rows)
    assert all(row.longest_context is None and row.gpus_needed == 1 for row in rows)
    assert [row.batch_size for row in rows] == [1, 4] * 2
    token = 2 * 2 * 2 * 16 * 2  # keys and values, layers, heads, size, bytes
    tokens = 512 + 64
    if engine != "paged" and exporter != "genai":
        tokens += tokens - 1  # past and present lie beside each other
    assert rows[1].kv_bytes == 4 * tokens * token


def test_what_a_file_needs_agrees_with_its_largest_batch_to_the_byte() -> None:
    from gkestimator.llm.memory import MemoryLaw

    source = read_exported(_path("dynamo"))
    law = MemoryLaw(
        source=source,
        engine=ENGINES["torch"],
        weights=10**6,
        context=0,
        cache_bits=16,
        visible=2**30,
        lower=lambda run: _kernels(source, run),
    )
    most = law.largest_batch(512, 64)
    assert most and law.fits(most, 512, 64) and not law.fits(most + 1, 512, 64)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(("tokens", "past"), [(512, 0), (1, 512)])
def test_bytes_between_weights_and_caches_are_those_of_the_replay(
    exporter: str, tokens: int, past: int
) -> None:
    """Two passes say all batches: another one is lowered and counted by itself."""
    source = read_exported(_path(exporter))

    def lowered(run: Pass) -> KernelGraph:
        return _kernels(source, run)

    alone = source._beside_caches(lowered(_run(7, tokens, past, in_place=True))).max()
    assert source._alive(lowered, 7, tokens, past) == pytest.approx(int(alone), rel=1e-3)


def test_layers_follow_each_other_in_time() -> None:
    """A small kernel's launch is hidden behind the large kernel of the layer before it, as in the file, layer by layer."""
    options: dict[str, Any] = {"engine": "onnxruntime", "batch_sizes": (1,), "host_overhead_us": 8.0}
    ours, theirs = (_rows(FOLDER / f"llama-3.2-1b.{end}", **options)[0] for end in ("json", "genai.onnx"))
    assert theirs.tpot_ms == pytest.approx(ours.tpot_ms, rel=0.03)


def test_paged_engines_append_to_a_files_caches_in_place() -> None:
    source = read_exported(_path("dynamo"))
    apart, in_place = (_kernels(source, _run(2, 1, 4096, in_place=word)) for word in (False, True))
    written = [
        sum(kernel.write_bytes * step.repeat for step in graph.steps for kernel in step.kernels)
        for graph in (apart, in_place)
    ]
    caches = 2 * 2 * 2 * 4097 * 2 * 16 * 2
    assert written[0] - written[1] == pytest.approx(caches, rel=1e-3)


def test_notes_say_whose_operators_are_used() -> None:
    (row,) = _rows(_path("genai"))
    assert "own operators" not in row.warnings
    (row,) = _rows(_path("dynamo"))
    assert (
        "own operators are used: it holds no GroupQueryAttention, one CUDA graph a step, caches in place"
        in (row.warnings)
    )
    (row,) = _rows(_path("dynamo"), engine="torch")
    assert "own operators" not in row.warnings


# --- small files made here ----------------------------------------------------------------------------------------

_WIDTH = 32


def _write(
    folder: Path,
    *,
    causal: bool = True,
    tokens: Any = "s",
    mask: Any = None,
    cached: Any = None,
    extra: Any = None,
) -> Path:
    """Write one layer of attention over embedded tokens: with a mask of dimensions ``mask`` that nothing reads, a cache
    of dimensions ``cached``, and a floating input of dimensions ``extra``.
    """
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", tokens])]
    weights = [helper.make_tensor("table", TensorProto.FLOAT, [64, _WIDTH], np.ones(64 * _WIDTH))]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["x"])]
    heads = [f"{name}s" for name in ("query", "key", "value")]
    axes = helper.make_tensor("sizes", TensorProto.INT64, [4], [0, 0, 2, _WIDTH // 2])
    for name in heads:
        weights.append(helper.make_tensor(f"w{name}", TensorProto.FLOAT, [_WIDTH] * 2, np.ones(_WIDTH**2)))
        nodes += [
            helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            helper.make_node("Reshape", [f"{name}0", "sizes"], [f"{name}1"]),
            helper.make_node("Transpose", [f"{name}1"], [name], perm=[0, 2, 1, 3]),
        ]
    outputs = ["logits"]
    if cached is not None:
        for name in heads[1:]:
            inputs.append(helper.make_tensor_value_info(f"held_{name}", TensorProto.FLOAT, cached))
            nodes.append(helper.make_node("Concat", [f"held_{name}", name], [f"all_{name}"], axis=2))
            outputs.append(f"all_{name}")
        heads[1:] = outputs[1:]
    if mask is not None:
        inputs.append(helper.make_tensor_value_info("other", TensorProto.INT64, mask))
    if extra is not None:
        inputs.append(helper.make_tensor_value_info("extra", TensorProto.FLOAT, extra))
    nodes += [
        helper.make_node("Attention", heads, ["y0"], is_causal=int(causal)),
        helper.make_node("Transpose", ["y0"], ["y1"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["y1", "flat"], ["y2"]),
        helper.make_node("MatMul", ["y2", "head"], ["logits"]),
    ]
    flat = helper.make_tensor("flat", TensorProto.INT64, [3], [0, 0, _WIDTH])
    head = helper.make_tensor("head", TensorProto.FLOAT, [_WIDTH, 64], np.ones(64 * _WIDTH))
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        initializer=[*weights, axes, flat, head],
    )
    path = folder / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]), path)
    return path


def test_a_decoder_without_past_repeats_all_tokens_in_every_step(tmp_path: Path) -> None:
    path = _write(tmp_path)
    (row,) = _rows(path)
    assert row.kv_bytes == 0 and row.largest_batch
    assert "every step is a forward pass over all tokens so far" in row.warnings
    assert "the scores of all tokens" in row.warnings
    graph = read_exported(path).pass_graph(_run(4, 1, 575))
    assert graph.inputs[0].shape == (4, 576)
    longer, shorter = (_rows(path, input_tokens=(tokens,))[0] for tokens in (20_000, 2_000))
    assert longer.tpot_ms > 2 * shorter.tpot_ms and longer.activations_bytes > 9 * shorter.activations_bytes


def test_float32_files_are_converted_as_the_dtype_says(tmp_path: Path) -> None:
    half, wide = (
        _rows(_write(tmp_path, cached=["b", 2, "p", 16]), dtypes=(word,))[0] for word in ("fp16", "bf16")
    )
    assert (half.kv_dtype, wide.kv_dtype) == ("float16", "bfloat16")
    parameters = 2 * 64 * _WIDTH + 3 * _WIDTH**2
    assert half.weights_bytes == wide.weights_bytes == pytest.approx(2 * parameters, abs=100)
    assert half.kv_bytes == 4 * 576 * 2 * _WIDTH * 2


def test_structure_tells_caches_whatever_they_are_called(tmp_path: Path) -> None:
    path = _write(tmp_path, cached=["n", 2, "s53", 16])
    graph = read_exported(path).pass_graph(_run(3, 5, 11))
    assert [value.shape for value in graph.inputs] == [(3, 5), (3, 2, 11, 16), (3, 2, 11, 16)]


def test_sums_by_name_are_all_tokens(tmp_path: Path) -> None:
    path = _write(tmp_path, cached=["b", 2, "p", 16], mask=["b", "p + s"])
    graph = read_exported(path).pass_graph(_run(3, 5, 11))
    assert dict(zip([v.name for v in graph.inputs], [v.shape for v in graph.inputs], strict=True))[
        "other"
    ] == (3, 16)


def test_what_cannot_be_told_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _write(tmp_path, cached=["b", 2, "p", 16], mask=["b", "q"])
    with pytest.raises(
        UsageError, match=r"dimension q of input other could not be told: give dims=\['q=ROLE'\]"
    ):
        _rows(path)
    assert run(["llm", str(path), "--gpu", "H100-SXM"]) == 2
    assert "give --dim q=ROLE, ROLE being batch, tokens, past, total or a number" in capsys.readouterr().err
    for word, size in (("total", 16), ("tokens", 5), ("9", 9)):
        graph = read_exported(path, (f"q={word}",)).pass_graph(_run(3, 5, 11))
        assert {value.shape for value in graph.inputs} >= {(3, size)}
    assert _rows(path, dims=("q=total",))


@pytest.mark.parametrize(
    ("made", "options", "said"),
    [
        ({"causal": False}, {}, "nor a causal attention, expected a decoder"),
        ({"tokens": 128}, {}, "a fixed length of 128.*gkest estimate"),
        ({"tokens": 1, "cached": ["b", 2, "p", 16]}, {}, "decoding steps alone.*gkest estimate"),
        ({"extra": ["b", 1500, 384]}, {}, "found input extra float .*expected a decoder alone"),
        ({"cached": ["b", 2, 2048, 16]}, {}, "found input held_keys float .*open length"),
        ({"cached": ["b", 2, "s", 16]}, {}, "dimension s of input_ids: found past, expected tokens"),
        ({}, {"dims": ("z=tokens",)}, "dimension 'z' is not in the model; known: b, s"),
        ({}, {"dims": ("s=words",)}, "dimension s: found 'words', expected batch, tokens, past, total"),
        ({}, {"dims": ("s=99999999999999999999",)}, "a number below a billion"),
        ({}, {"tensor_parallel": (2,)}, "found 2 GPUs for an ONNX file, expected 1"),
        ({}, {"like": "llama"}, "found llama for an ONNX file"),
        ({"cached": ["b", 2, "p", 16]}, {"kv_dtype": "fp8"}, "expected float16, which the file's keys"),
    ],
)
def test_bad_files_and_questions_are_refused_in_one_line(
    made: dict[str, Any], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(GkestimatorError, match=said) as caught:
        _rows(_write(tmp_path, **made), **options)
    assert "\n" not in str(caught.value)


def test_sizes_beyond_all_memory_are_refused_in_one_line() -> None:
    with pytest.raises(GkestimatorError, match="llama-tiny.dynamo: node .* fewer than 2.63") as caught:
        _rows(_path("dynamo"), input_tokens=(10**8,), batch_sizes=(10**6,))
    assert "\n" not in str(caught.value)


def test_the_command_says_so_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    no_file = tmp_path / "text.onnx"
    no_file.write_text("{}")
    for path in (_write(tmp_path, causal=False), no_file):
        assert run(["llm", str(path), "--gpu", "H100-SXM"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("gkest: error: ") and said.count("\n") == 1


def test_dimensions_are_for_files_alone() -> None:
    with pytest.raises(UsageError, match="expected an ONNX file"):
        _rows(FOLDER / "llama-tiny.json", dims=("s=tokens",))


def test_a_file_is_called_by_its_folder_where_its_own_name_says_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    plain = _write(folder).rename(folder / "model.onnx")
    source = read_exported(plain)
    assert isinstance(source, ExportedDecoder) and source.name == "my-llama"


def test_gkest_estimate_says_that_a_decoder_has_a_command_of_its_own(tmp_path: Path) -> None:
    from gkestimator import estimate

    def warnings(path: Path) -> str:
        result = estimate(models=[path], gpus=["H100-SXM"], batch_sizes=[1], dims={"s": 300})
        return str(result["warnings"].iloc[0])

    assert "gkest llm" in warnings(_write(tmp_path))
    assert "gkest llm" not in warnings(_write(tmp_path, causal=False))


def _tensor(name: str, dtype: int, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _embedded(*weights: tuple[str, int, int]) -> list[onnx.TensorProto]:
    table = ("table", 64, _WIDTH)
    return [
        helper.make_tensor(name, TensorProto.FLOAT16, [rows, columns], np.ones(rows * columns))
        for name, rows, columns in (table, *weights)
    ]


def test_lengths_that_are_inputs_get_their_numbers(tmp_path: Path) -> None:
    """Models of ONNX Runtime with one buffer for past and present, whose lengths are inputs of their own."""
    half, whole = TensorProto.FLOAT16, TensorProto.INT32
    buffer = ["b", 2, "buffer", "size"]
    caches = [_tensor(f"past.{name}", half, buffer) for name in ("key", "value")]
    lengths = [_tensor("seqlens_k", whole, ["b"]), _tensor("total_sequence_length", whole, [])]
    attention = ["x1", "", "", "past.key", "past.value", "seqlens_k", "total_sequence_length"]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x0"]),
        helper.make_node("MatMul", ["x0", "packed"], ["x1"]),
        helper.make_node(
            "GroupQueryAttention",
            attention,
            ["y", "key", "value"],
            domain="com.microsoft",
            num_heads=4,
            kv_num_heads=2,
        ),
        helper.make_node("MatMul", ["y", "head"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [_tensor("input_ids", TensorProto.INT64, ["b", "s"]), *caches, *lengths],
        [_tensor(name, half, None) for name in ("logits", "key", "value")],
        initializer=_embedded(("packed", _WIDTH, 2 * _WIDTH), ("head", _WIDTH, 64)),
    )
    path = tmp_path / "buffers.onnx"
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    bound = read_exported(path).pass_graph(_run(3, 5, 11))
    shapes = {value.name: value.shape for value in (*bound.inputs, *bound.outputs)}
    assert shapes["past.key"] == shapes["key"] == (3, 2, 16, _WIDTH // 4)
    assert shapes["seqlens_k"] == (3,)
    (row,) = _rows(path)
    assert row.kv_bytes == 4 * 576 * 2 * 2 * (_WIDTH // 4) * 2
    assert "own operators" not in row.warnings


def test_merged_files_take_the_branch_with_the_cache(tmp_path: Path) -> None:
    """optimum joins both of a decoder's files by an If on ``use_cache_branch``."""
    half = TensorProto.FLOAT16

    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [_tensor(f"{name}_keys", half, None)])

    with_cache = branch("with", helper.make_node("Concat", ["past_key", "keys"], ["with_keys"], axis=2))
    without = branch("without", helper.make_node("Identity", ["keys"], ["without_keys"]))
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [4], [0, 0, 1, _WIDTH])
    flat = helper.make_tensor("flat", TensorProto.INT64, [3], [0, 0, _WIDTH])
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x0"]),
        helper.make_node("Reshape", ["x0", "sizes"], ["x1"]),
        helper.make_node("Transpose", ["x1"], ["keys"], perm=[0, 2, 1, 3]),
        helper.make_node(
            "If", ["use_cache_branch"], ["all_keys"], then_branch=with_cache, else_branch=without
        ),
        helper.make_node("Attention", ["keys", "all_keys", "all_keys"], ["y0"]),
        helper.make_node("Transpose", ["y0"], ["y1"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["y1", "flat"], ["y2"]),
        helper.make_node("MatMul", ["y2", "head"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            _tensor("input_ids", TensorProto.INT64, ["b", "s"]),
            _tensor("past_key", half, ["b", 1, "p", _WIDTH]),
            _tensor("use_cache_branch", TensorProto.BOOL, [1]),
        ],
        [_tensor(name, half, None) for name in ("logits", "all_keys")],
        initializer=[*_embedded(("head", _WIDTH, 64)), sizes, flat],
    )
    path = tmp_path / "merged.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]), path)
    for past in (0, 11):
        bound = read_exported(path).pass_graph(_run(3, 5, past))
        assert bound.outputs[1].shape == (3, 1, past + 5, _WIDTH)
    assert _rows(path)[0].kv_bytes == 4 * 576 * _WIDTH * 2
