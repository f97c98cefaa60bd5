"""The built-in catalogue: fragments are valid, lower under both runtimes, run in onnxruntime, and are many."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from gkestimator.core.fragments import Fragment, FragmentTensor
from gkestimator.core.kernels import Family
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.onnx_io.fragment_models import fragment_graph, fragment_model
from gkestimator.profiling.plan import DTYPES, entry_id
from gkestimator.profiling.sweep.candidates import (
    LARGEST_BYTES,
    MOST_FLOPS,
    CandidateCollector,
    lowering_options,
)
from gkestimator.profiling.sweep.catalogue import GROUPS, catalogue
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler
from gkestimator.profiling.sweep.precision import in_dtype

SAMPLED = 600
VIEWS_IN_TORCH = {"Transpose", "Split", "Slice", "Expand", "contiguous_copy"}


@pytest.fixture(scope="module")
def items() -> list[CatalogueItem]:
    return list(catalogue(SAMPLED, seed=3))


@pytest.fixture(scope="module")
def chosen(items: list[CatalogueItem]) -> list[CatalogueItem]:
    rng = np.random.default_rng(11)
    return [items[i] for i in sorted(rng.choice(len(items), size=500, replace=False))]


def options(runtime: str) -> dict[str, LoweringOptions]:
    return lowering_options(runtime, DTYPES, gpu_catalogue().spec("A100-SXM4-40GB"))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_every_fragment_of_a_seeded_sample_lowers(chosen: list[CatalogueItem], runtime: str) -> None:
    by_dtype = options(runtime)
    empty: Counter[str] = Counter()
    for found in chosen:
        graph = lower(fragment_graph(found.fragment), by_dtype["fp32"])
        kernels = [k for step in graph.steps for k in step.kernels]
        assert all(k.family is not Family.HOST for k in kernels), found
        assert not graph.unknown_operators
        if not kernels:
            empty[found.fragment.op_type] += 1
    assert set(empty) <= (VIEWS_IN_TORCH if runtime == "torch" else set()), empty


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_a_fragment_in_half_precision_lowers_to_what_a_half_model_would(
    chosen: list[CatalogueItem], runtime: str, dtype: str
) -> None:
    wanted = options(runtime)[dtype]
    compared = 0
    for found in chosen[::3]:
        half = in_dtype(found.fragment, dtype)
        if half is None:
            assert found.fragment.op_type == "Cast"
            continue
        converted = lower(fragment_graph(found.fragment), wanted)
        native = lower(fragment_graph(half), wanted)
        assert [s.kernels for s in native.steps] == [s.kernels for s in converted.steps], half.text()
        assert entry_id(half, dtype) != entry_id(found.fragment, dtype)
        compared += 1
    assert compared > 150


def test_real_shapes_corners_and_samples_of_every_group() -> None:
    for group in GROUPS:
        sampler = ShapeSampler(np.random.default_rng(5))
        assert any(True for _ in group.real()) and any(True for _ in group.corners())
        assert len(list(group.sampled(sampler, 40))) == 40
    assert math.isclose(sum(g.share for g in GROUPS), 1.0)


@pytest.mark.slow
def test_the_catalogue_is_distinct_seeded_and_large(items: list[CatalogueItem]) -> None:
    texts = [i.fragment.text() for i in items]
    assert len(set(texts)) == len(texts)
    assert texts == [i.fragment.text() for i in catalogue(SAMPLED, seed=3)]
    assert texts != [i.fragment.text() for i in catalogue(SAMPLED, seed=4)]
    assert {i.source for i in items} == {"vision", "language", "detection", "corner", "sampled"}
    collector = CandidateCollector(options=options("torch"))
    for found in catalogue(400, seed=0):
        collector.add(found.fragment, found.source)
    ids = {c.id for c in collector.candidates}
    assert len(ids) == len(collector.candidates) >= 10_000
    assert {c.dtype for c in collector.candidates} == set(DTYPES)
    for candidate in collector.candidates:
        assert sum(k.read_bytes + k.write_bytes for k in candidate.kernels) <= LARGEST_BYTES
        assert sum(k.flops for k in candidate.kernels) <= MOST_FLOPS


@pytest.mark.slow
def test_most_fragments_are_one_kernel_and_tf32_is_planned_where_it_changes_one(
    items: list[CatalogueItem],
) -> None:
    collector = CandidateCollector(options=options("torch"))
    for found in items[::4]:
        collector.add(found.fragment, found.source)
    plain = [c for c in collector.candidates if c.dtype == "fp32"]
    assert sum(len(c.kernels) == 1 for c in plain) / len(plain) > 0.97
    # Tensor cores want another layout: convolutions in the other precisions come with their transformations. Torch
    # composes Softsign, HardSigmoid (of another slope than its own) and Pad; recurrent layers multiply their inputs first.
    several = {c.fragment.op_type for c in collector.candidates if len(c.kernels) > 1}
    composed = {"Softsign", "HardSigmoid", "Pad"}
    assert several <= composed | {
        "LSTM",
        "GRU",
        "RNN",
        "Conv",
        "ConvTranspose",
        "ScatterElements",
        "ScatterND",
    }
    matrix = {c.fragment.op_type for c in collector.candidates if c.dtype == "tf32"}
    assert {"Conv", "MatMul", "Gemm"} <= matrix
    assert matrix.isdisjoint({"Relu", "Add", "Softmax", "LayerNormalization", "MaxPool", "Gather"})


def _data(tensor: FragmentTensor, rng: np.random.Generator) -> np.ndarray:
    dtype = {"float": np.float32, "int64": np.int64, "bool": np.bool_}[tensor.dtype.value]
    if tensor.fill == "index":
        assert tensor.below is not None
        return rng.integers(tensor.below, size=tensor.shape).astype(dtype)
    if tensor.fill == "mask":
        return rng.random(tensor.shape) < 0.5
    return (rng.random(tensor.shape) + 0.5).astype(dtype)


def _small(fragment: Fragment) -> bool:
    return sum(t.nbytes for t in fragment.tensors) < 2**20


@pytest.mark.slow
def test_small_fragments_run_in_onnxruntime_and_give_the_shapes_that_lowering_saw(
    items: list[CatalogueItem],
) -> None:
    ort = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(1)
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    kinds: Counter[str] = Counter()
    for found in items:
        fragment = found.fragment
        graph = fragment_graph(fragment)
        flops = sum(k.flops for s in lower(graph, options("onnxruntime")["fp32"]).steps for k in s.kernels)
        kind = fragment.op_type
        if kinds[kind] >= 3 or not _small(fragment) or flops > 2e8:
            continue
        model = fragment_model(fragment, weights=lambda t: _data(t, rng))
        session = ort.InferenceSession(
            model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
        fed = {t.name: _data(t, rng) for t in fragment.tensors if t.role == "input"}
        results = session.run(None, fed)
        assert [r.shape for r in results] == [t.shape for t in graph.outputs], fragment.text()
        kinds[kind] += 1
    assert len(kinds) >= 60, sorted(kinds)
