"""Files of four families, read, timed by the estimator and matched."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import families
import onnx
import pytest

from gkestimator.merging.editing import ValueShape, align_opsets, fix_dims, read_editable, value_shapes
from gkestimator.merging.matching import Matching, candidates, match_all
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing import Pricer
from gkestimator.merging.super_operators import can_emit

FAMILIES = [families.resnet_like, families.mobilenet_like, families.bert_like, families.gpt_like]


def _matched(folder: Path, *protos: onnx.ModelProto, tau_ms: float = 0.001) -> tuple[Matching, list[int]]:
    """What becomes of the models, and how many operators of each could be merged."""
    options = MergeOptions(tau_ms=tau_ms)
    models = []
    for k, proto in enumerate(protos):
        path = folder / f"m{k}.onnx"
        families.saved(proto, path)
        models.append(read_editable(path, prefix=f"m{k}/", name=f"m{k}"))
    models = [fix_dims(m, {}) for m in align_opsets(models)]
    shapes: dict[str, ValueShape] = {}
    for m in models:
        shapes |= value_shapes(m)
    pricer = Pricer(options)
    own = [candidates(m, k, shapes, pricer.starts(m, batch_size=1)) for k, m in enumerate(models)]
    found = match_all(models, own, [range(len(models))], options, can_emit=partial(can_emit, shapes=shapes))
    return found, [len(o) for o in own]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_siblings_are_merged_up_to_the_layers_that_differ(
    family: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    model = family(batch=3)
    found, counts = _matched(tmp_path, model, families.sibling(family(batch=5), last=2), model)
    assert counts == [len(families.weighted_layers(model))] * 3
    by_size = [len(s.members) for s in found.supers]
    assert sorted(by_size) == [2, 2] + [3] * (counts[0] - 2)
    for s in found.supers:
        assert s.whole
        assert len({m.operator.node.name.partition("/")[2] for m in s.members}) == 1
    assert found.refused == ()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_other_weights_are_not_merged(family: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    assert _matched(tmp_path, family(seed=1), family(seed=2))[0] == Matching(supers=(), refused=())


def test_a_layer_more_shifts_what_follows(tmp_path: Path) -> None:
    two, three = families.bert_like(layers=2), families.bert_like(layers=3)
    found, counts = _matched(tmp_path, two, three)
    assert counts == [14, 20]
    assert len(found.supers) == 12
    # Pooler and classifier come later in the longer model: the report says that tau would have to be larger.
    assert [r.reason for r in found.refused] == ["start", "start"]
    assert {n.partition("/")[2] for r in found.refused for n in r.operators} == {"pooler", "classifier"}
    found, _ = _matched(tmp_path, two, three, tau_ms=math.inf)
    assert (len(found.supers), found.refused) == (14, ())
