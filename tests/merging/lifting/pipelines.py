"""Models to merged graphs without prices: every similar pair becomes a super-operator, then lifting or not."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import families
import numpy as np
import onnx

from gkestimator.merging.assembling import Assembler
from gkestimator.merging.editing import (
    EditableModel,
    ValueShape,
    align_opsets,
    check_editable,
    fix_dims,
    read_editable,
    tidy,
    value_shapes,
    write_editable,
)
from gkestimator.merging.matching import candidates, match_all
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing import Built
from gkestimator.merging.super_operators import can_emit


def build(
    protos: Sequence[onnx.ModelProto], folder: Path, *, lifted: bool = True, omega: float = 0.4
) -> Built:
    """Models called a, b, ... merged wherever their weights are similar; operators pair up along their positions."""
    models = []
    for name, proto in zip("abcdefgh", protos, strict=False):
        path = families.saved(proto, folder / f"{name}.onnx")
        models.append(read_editable(path, prefix=f"{name}/", name=name))
    models = [fix_dims(m, {}) for m in align_opsets(models)]
    shapes: dict[str, ValueShape] = {}
    for model in models:
        shapes |= value_shapes(model)
    operators = []
    for index, model in enumerate(models):
        starts = {node.name: float(place) for place, node in enumerate(model.nodes)}
        operators.append(candidates(model, index, shapes, starts))
    options = MergeOptions(omega=omega, tau_ms=0.5)
    matching = match_all(
        models,
        operators,
        (tuple(range(len(models))),),
        options,
        can_emit=functools.partial(can_emit, shapes=shapes),
    )
    return Assembler(models, shapes, tolerance=1e-7)(matching.supers, lifted)


def counted(model: EditableModel) -> dict[str, int]:
    """How many nodes of each operator type there are."""
    found: dict[str, int] = {}
    for node in model.nodes:
        found[node.op_type] = found.get(node.op_type, 0) + 1
    return dict(sorted(found.items()))


def session(path: Path):
    """ONNX Runtime without rewriting, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def largest_difference(
    model: EditableModel, protos: Sequence[onnx.ModelProto], folder: Path, dims: Sequence[Mapping[str, int]]
) -> float:
    """Largest |merged - original| over the largest |original|, over all outputs, on random inputs."""
    merged = tidy(model)
    check_editable(merged)
    write_editable(merged, folder / "merged.onnx")
    feeds, wanted = {}, {}
    for seed, (name, proto, sizes) in enumerate(zip("abcdefgh", protos, dims, strict=False)):
        mine = families.feeds(proto, seed=seed, **sizes)
        feeds |= {f"{name}/{k}": v for k, v in mine.items()}
        own = session(folder / f"{name}.onnx")
        wanted |= {f"{name}/{o.name}": v for o, v in zip(own.get_outputs(), own.run(None, mine), strict=True)}
    run = session(folder / "merged.onnx")
    names = [o.name for o in run.get_outputs()]
    assert set(names) == set(wanted)
    worst = 0.0
    for name, found in zip(names, run.run(None, feeds), strict=True):
        expected = wanted[name].astype(np.float64)
        assert found.shape == expected.shape, name
        scale = float(np.abs(expected).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(found.astype(np.float64) - expected).max(initial=0.0)) / scale)
    return worst
