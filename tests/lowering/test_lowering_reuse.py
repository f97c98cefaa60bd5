"""What lowerings share is exact: the same as lowering every binding from scratch under every precision."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.graph import OperatorGraph
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.lowering import lower, lower_each
from gkestimator.memory import MemoryReplay, memory_profile
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import LoweringOptions

SHARED = Path(os.environ.get("GKEST_SHARED", "")) / "models"
GRAPHS = sorted(SHARED.glob("*/*.onnx")) if os.environ.get("GKEST_SHARED") else []


def from_scratch(graph: OperatorGraph) -> OperatorGraph:
    """``graph`` without anything that lowering could remember it by."""
    operators = tuple(replace(op, signature=None) for op in graph.operators)
    return replace(graph, operators=operators, structure=None)


def precisions(runtime: str) -> tuple[LoweringOptions, ...]:
    pairs = (("FP32", "FP32"), ("FP32", "TF32"), ("TF32", "TF32"))
    return tuple(
        LoweringOptions(
            runtime=runtime, dtype="auto", matmul_precision=Precision[m], conv_precision=Precision[c]
        )
        for m, c in pairs
    )


@pytest.mark.shared
@pytest.mark.skipif(not GRAPHS, reason="GKEST_SHARED does not name a folder with models/")
@pytest.mark.parametrize("path", GRAPHS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_shared_parts_are_what_lowering_from_scratch_gives(path: Path) -> None:
    model = read_model(path)
    for runtime in ("torch", "onnxruntime"):
        profile = load_runtime(runtime)
        replay = MemoryReplay(profile.allocator, profile.allocator_bytes)
        for batch in (1, 2, 8):
            graph = model.bind(batch_size=batch)
            options = precisions(runtime)
            together = lower_each(graph, options)
            for one, shared in zip(options, together, strict=True):
                assert shared == lower(from_scratch(graph), one)
                fresh = replace(shared, wiring=None)
                for library in (0, 8 << 20):
                    assert replay.profile(shared, library) == memory_profile(
                        fresh,
                        allocator=profile.allocator,
                        figures=profile.allocator_bytes,
                        library_workspace_bytes=library,
                    )
