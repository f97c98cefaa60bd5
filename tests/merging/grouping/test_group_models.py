"""Which models are put together: families with random weights, and graphs that exporters wrote."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import families
import onnx
import pytest

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra
from gkestimator.core.graph import OperatorGraph
from gkestimator.merging.grouping import graph_edit_distance, group_models
from gkestimator.merging.options import MergeOptions
from gkestimator.onnx_io import read_model

SHARED = Path(os.environ.get("GKEST_SHARED", ""), "models")
# Without timm3090, whose networks are siblings by design: the default was chosen on graphs of different authors.
FOLDERS = ("ethz", "llm", "timm")
GRAPHS = [path for folder in FOLDERS for path in sorted(SHARED.glob(f"{folder}/*.onnx"))]
EPSILON = MergeOptions().group_distance


def bound(folder: Path, models: Mapping[str, onnx.ModelProto]) -> list[OperatorGraph]:
    return [
        read_model(families.saved(model, folder / f"{name}.onnx")).bind(batch_size=1)
        for name, model in models.items()
    ]


def named(graphs: Sequence[OperatorGraph], epsilon: float) -> list[list[str]]:
    return [[graphs[i].name for i in group] for group in group_models(graphs, epsilon=epsilon).groups]


def test_siblings_and_deeper_ones_group_and_families_do_not(tmp_path: Path) -> None:
    resnet, bert = families.resnet_like(blocks=(2, 2, 2, 2)), families.bert_like()
    models = {
        "resnet": resnet,
        "bert": bert,
        "resnet_tuned": families.sibling(resnet, last=2),
        "gpt": families.gpt_like(),
        "bert_wide": families.bert_like(width=64, classes=7, layers=2),
        "mobilenet": families.mobilenet_like(),
        "bert_deep": families.bert_like(layers=4),
        "resnet_deep": families.resnet_like(blocks=(3, 4, 6, 3)),
    }
    graphs = bound(tmp_path, models)
    assert named(graphs, EPSILON) == [
        ["resnet", "resnet_tuned", "resnet_deep"],
        ["bert", "bert_wide", "bert_deep"],
        ["gpt"],
        ["mobilenet"],
    ]


def test_distance_of_siblings_is_0_whatever_their_sizes(tmp_path: Path) -> None:
    a, b, c = bound(
        tmp_path,
        {
            "a": families.gpt_like(),
            "b": families.gpt_like(width=64, sequence=8),
            "c": families.gpt_like(seed=3),
        },
    )
    assert graph_edit_distance(a, b).upper == graph_edit_distance(a, c).upper == 0


def test_a_chain_of_near_ones_is_one_group(tmp_path: Path) -> None:
    """The ends are further apart than epsilon, what lies between is near to both."""
    models = {
        "ends18": families.resnet_like(blocks=(2, 2, 2, 2)),
        "ends34": families.resnet_like(blocks=(3, 4, 6, 3)),
        "between": families.resnet_like(blocks=(2, 2, 2)),
    }
    graphs = bound(tmp_path, models)
    found = group_models(graphs, epsilon=0.065)
    assert found.groups == ((0, 1, 2),)
    assert set(found.distances) == {(0, 1), (0, 2), (1, 2)}
    assert round(found.distances[0, 1].changed, 3) == 0.076  # which the default rests on, too
    assert named(graphs[:2], 0.065) == [["ends18"], ["ends34"]]


def test_epsilon_0_asks_for_the_same_operators_and_1_for_nothing(tmp_path: Path) -> None:
    models = {
        "a": families.bert_like(),
        "b": families.bert_like(layers=3),
        "c": families.bert_like(seed=5, width=64),
        "d": families.mobilenet_like(),
    }
    graphs = bound(tmp_path, models)
    assert named(graphs, 0.0) == [["a", "c"], ["b"], ["d"]]
    assert named(graphs, 1.0) == [["a", "b", "c", "d"]]


def test_equal_graphs_need_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Siblings, the usual case, are grouped before SciPy is imported: importing it takes longer than all else."""
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    graphs = bound(
        tmp_path, {"a": families.resnet_like(), "b": families.bert_like(), "c": families.resnet_like(seed=2)}
    )
    assert group_models([], epsilon=0.1).groups == ()
    assert group_models(graphs[:1], epsilon=0.1).groups == ((0,),)
    assert group_models([graphs[0], graphs[2]], epsilon=0.0).groups == ((0, 1),)
    with pytest.raises(UsageError, match=re.escape(f"merging needs scipy: {install_extra('merge')}")):
        group_models(graphs, epsilon=0.1)


@pytest.mark.shared
@pytest.mark.skipif(not GRAPHS, reason="GKEST_SHARED does not name a folder with models/*/*.onnx")
def test_exported_graphs_fall_into_their_families() -> None:
    graphs = [read_model(p, name=f"{p.parent.name}/{p.stem}").bind() for p in GRAPHS]
    grouping = group_models(graphs, epsilon=EPSILON)
    together = [[graphs[i].name for i in group] for group in grouping.groups if len(group) > 1]
    assert together == [
        ["ethz/densenet121", "timm/densenet121"],
        ["ethz/efficientnet_b7", "timm/efficientnet_b0"],
        ["ethz/inception_v3", "timm/inception_v3", "timm/inception_v4"],
        ["ethz/mobilenet_v2", "timm/mobilenetv2_100"],
        ["ethz/resnet50", "ethz/resnext50_32x4d", "timm/resnet101", "timm/resnet50", "timm/resnext50_32x4d"],
        ["ethz/vgg19", "timm/vgg19"],
    ]
    # What the default rests on: of these graphs, nothing lies between 0.041 and 0.087.
    changed = sorted(d.changed for d in grouping.distances.values())
    near = [c for c in changed if c <= EPSILON]
    assert near[-1] < 0.041 and changed[len(near)] > 0.087
