"""Sizes of models for ModelMesh: bytes of the memory column, each model once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from gkestimator.core.errors import UsageError
from gkestimator.exporting.deployment import Deployment
from gkestimator.exporting.registry import make_exporters

Make = Callable[..., Deployment]


def text_of(made: Deployment, **options: Any) -> str:
    (exporter,) = make_exporters(("modelmesh",), **options)
    (file,) = exporter.files(made)
    return file.text


def save_model(path: Path, count: int) -> None:
    """Write a model of ``count`` float parameters."""
    weight = numpy_helper.from_array(np.ones(count, np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", count]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def test_a_model_stands_once_with_the_most_that_it_needs(make: Make) -> None:
    sizes = (3_000_000_000, 4_000_000_001)
    made = make(*({"model": "a", "batch_size": 2**n, "mreq_bytes": size} for n, size in enumerate(sizes)))
    (thing,) = yaml.safe_load_all(text_of(made, storage_uri="s3://bucket/models"))
    annotations = thing["metadata"]["annotations"]
    assert annotations["gkestimator/mreq-bytes"] == "4000000001"
    assert annotations["serving.kserve.io/deploymentMode"] == "ModelMesh"
    assert thing["spec"]["predictor"]["model"]["storageUri"] == "s3://bucket/models/a"


def test_an_unknown_size_is_an_error_of_one_line(make: Make) -> None:
    with pytest.raises(UsageError, match=r"^a-0: its Mreq is not known, and modelmesh needs it") as caught:
        text_of(make({"model": "a", "mreq_bytes": None}))
    assert "\n" not in str(caught.value)


def test_the_multiplier_makes_every_file_at_least_its_size(make: Make, tmp_path: Path) -> None:
    """ModelMesh counts a file's bytes times a factor: of 1,000 and 4,000 here, for models that need 3,333 and 8,000."""
    for name, count in (("a", 250), ("b", 1000)):
        save_model(tmp_path / f"{name}.onnx", count)
    replicas = ({"model": "a", "mreq_bytes": 3333}, {"model": "b", "mreq_bytes": 8000})
    head = " ".join(
        text_of(make(*replicas, models=[str(tmp_path)])).split("apiVersion")[0].replace("#", "").split()
    )
    assert "DEFAULT_MODELSIZE=8000, MODELSIZE_MULTIPLIER=3.34" in head
    head = text_of(make(*replicas)).split("apiVersion")[0]
    assert "DEFAULT_MODELSIZE=8000" in head and "MODELSIZE_MULTIPLIER=" not in head
