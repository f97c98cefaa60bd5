"""Shape rules of the classical machine-learning operators, domain ai.onnx.ml.

Their inputs are (N, features); a one-dimensional input is one example.
"""

from __future__ import annotations

import math

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    dtype_of_array,
    int_attribute,
    ints_attribute,
    refuse,
    tensor,
)
from gkestimator.operators.shapes.registry import SequenceType, ShapeContext, TensorType, shape_rule

__all__: list[str] = []

_ML = "ai.onnx.ml"
_LIMIT_MAPS = 65_536


def _count(ctx: ShapeContext, *names: str) -> int:
    """Length of the first of the list attributes ``names`` that is given, 0 when none is."""
    for name in names:
        found = ctx.attributes.get(name)
        if found is not None and len(found):
            return len(found)
    return 0


def _examples(ctx: ShapeContext) -> int:
    shape = tensor(ctx, 0).shape
    if len(shape) > 2:
        refuse(ctx, f"input is {list(shape)}, expected (N, features)")
    if len(shape) == 2:
        return shape[0]
    return 1


@shape_rule("Scaler", "Normalizer", domain=_ML)
def _to_float(ctx: ShapeContext) -> Outputs:
    return [TensorType(DType.FLOAT, tensor(ctx, 0).shape)]


@shape_rule("Binarizer", "Imputer", domain=_ML)
def _same(ctx: ShapeContext) -> Outputs:
    return [tensor(ctx, 0)]


@shape_rule("ArrayFeatureExtractor", domain=_ML)
def _extract(ctx: ShapeContext) -> Outputs:
    """Picks elements of the last dimension; a one-dimensional input counts as one row."""
    x = tensor(ctx, 0, min_rank=1)
    picked = math.prod(tensor(ctx, 1).shape)
    if len(x.shape) > 1:
        rows = x.shape[:-1]
    else:
        rows = (1,)
    return [TensorType(x.dtype, (*rows, picked))]


@shape_rule("FeatureVectorizer", domain=_ML)
def _vectorize(ctx: ShapeContext) -> Outputs:
    inputs = [tensor(ctx, i) for i in range(len(ctx.types))]
    if not inputs or any(len(t.shape) not in (1, 2) for t in inputs):
        refuse(ctx, "expected inputs of one or two dimensions")
    dims = ints_attribute(ctx, "inputdimensions", length=len(inputs), low=0)
    if dims is None:
        width = sum(t.shape[-1] for t in inputs)
    else:
        width = sum(dims)
    return [TensorType(DType.FLOAT, (_examples(ctx), width))]


@shape_rule("LabelEncoder", domain=_ML)
def _encode(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    names = ctx.attributes
    if names.get("values_tensor") is not None:
        return [TensorType(dtype_of_array(ctx, names["values_tensor"]), x.shape)]
    if ctx.version < 2:  # classes_strings maps both ways
        return [TensorType(DType.INT64 if x.dtype is DType.STRING else DType.STRING, x.shape)]
    for name, dtype in (
        ("values_strings", DType.STRING),
        ("values_int64s", DType.INT64),
        ("values_floats", DType.FLOAT),
    ):
        if _count(ctx, name):
            return [TensorType(dtype, x.shape)]
    refuse(ctx, "no values_* attribute is given")


@shape_rule("CategoryMapper", domain=_ML)
def _map_category(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0)
    return [TensorType(DType.INT64 if x.dtype is DType.STRING else DType.STRING, x.shape)]


@shape_rule("OneHotEncoder", domain=_ML)
def _one_hot(ctx: ShapeContext) -> Outputs:
    categories = _count(ctx, "cats_int64s", "cats_strings")
    if not categories:
        refuse(ctx, "no cats_* attribute is given")
    return [TensorType(DType.FLOAT, (*tensor(ctx, 0).shape, categories))]


@shape_rule("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor", domain=_ML)
def _regress(ctx: ShapeContext) -> Outputs:
    name, default = ("n_targets", 1) if ctx.op_type == "TreeEnsembleRegressor" else ("targets", 1)
    targets = 1 if ctx.op_type == "SVMRegressor" else int_attribute(ctx, name, default)
    if targets < 1:
        refuse(ctx, f"{name} is {targets}, expected at least 1")
    return [TensorType(DType.FLOAT, (_examples(ctx), targets))]


@shape_rule("TreeEnsemble", domain=_ML)
def _trees(ctx: ShapeContext) -> Outputs:
    targets = int_attribute(ctx, "n_targets", 1)
    if targets < 1:
        refuse(ctx, f"n_targets is {targets}, expected at least 1")
    return [TensorType(tensor(ctx, 0).dtype, (_examples(ctx), targets))]


@shape_rule("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier", domain=_ML)
def _classify(ctx: ShapeContext) -> Outputs:
    """The label of each example, and its scores: one per class (a raw SVM has one per pair of classes)."""
    texts = _count(ctx, "classlabels_strings")
    classes = texts or _count(ctx, "classlabels_ints", "classlabels_int64s")
    if ctx.op_type == "LinearClassifier" and not classes:
        classes = _count(ctx, "intercepts")
    if not classes:
        refuse(ctx, "no classlabels_* attribute is given")
    scores = classes
    if ctx.op_type == "SVMClassifier" and _count(ctx, "vectors_per_class") and not _count(ctx, "prob_a"):
        scores = max(2, classes * (classes - 1) // 2)
    count = _examples(ctx)
    label = TensorType(DType.STRING if texts else DType.INT64, (count,))
    return [label, TensorType(DType.FLOAT, (count, scores))][: ctx.outputs]


@shape_rule("ZipMap", domain=_ML)
def _zip(ctx: ShapeContext) -> Outputs:
    """A sequence of N maps, each held as the tensor of its values."""
    x = tensor(ctx, 0, min_rank=1)
    count = _examples(ctx)
    if count > _LIMIT_MAPS:
        refuse(ctx, f"{count} maps, expected at most {_LIMIT_MAPS}")
    return [SequenceType((TensorType(x.dtype, (x.shape[-1],)),) * count)]


@shape_rule("DictVectorizer", domain=_ML)
def _vectorize_map(ctx: ShapeContext) -> Outputs:
    """A map, held as the tensor of its values, to (1, vocabulary)."""
    words = _count(ctx, "string_vocabulary", "int64_vocabulary")
    if not words:
        refuse(ctx, "no *_vocabulary attribute is given")
    return [TensorType(tensor(ctx, 0).dtype, (1, words))]


@shape_rule("CastMap", domain=_ML)
def _cast_map(ctx: ShapeContext) -> Outputs:
    kinds = {"TO_FLOAT": DType.FLOAT, "TO_STRING": DType.STRING, "TO_INT64": DType.INT64}
    target = ctx.attributes.get("cast_to", "TO_FLOAT")
    if target not in kinds:
        refuse(ctx, f"cast_to is {target!r}, expected one of {', '.join(kinds)}")
    sparse = ctx.attributes.get("map_form", "DENSE") == "SPARSE"
    if sparse:
        width = int_attribute(ctx, "max_map", 1)
    else:
        width = int(np.prod(tensor(ctx, 0).shape, dtype=object))
    if width < 0:
        refuse(ctx, f"max_map is {width}, expected a positive number")
    return [TensorType(kinds[target], (1, width))]
