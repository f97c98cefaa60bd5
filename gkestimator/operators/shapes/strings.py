"""Shape rules of the string operators and of the n-gram vectoriser."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.operators.shapes.checks import (
    Outputs,
    broadcast,
    declared_tensor,
    int_attribute,
    ints_attribute,
    refuse,
    tensor,
)
from gkestimator.operators.shapes.registry import ShapeContext, TensorType, shape_rule

__all__: list[str] = []


@shape_rule("StringConcat")
def _concat(ctx: ShapeContext) -> Outputs:
    return [TensorType(DType.STRING, broadcast(ctx, tensor(ctx, 0).shape, tensor(ctx, 1).shape))]


@shape_rule("RegexFullMatch")
def _match(ctx: ShapeContext) -> Outputs:
    return [TensorType(DType.BOOL, tensor(ctx, 0).shape)]


@shape_rule("StringSplit")
def _split(ctx: ShapeContext) -> Outputs:
    """The pieces in a new last dimension: as many as the file declares, else at most maxsplit + 1."""
    x = tensor(ctx, 0)
    count = TensorType(DType.INT64, x.shape, x.bounded)
    most = int_attribute(ctx, "maxsplit", -1)
    declared = declared_tensor(ctx, 0, DType.STRING, rank=len(x.shape) + 1)
    if declared is not None and declared.shape[:-1] == x.shape:
        pieces = TensorType(DType.STRING, declared.shape)
    elif 0 in x.shape:
        pieces = TensorType(DType.STRING, (*x.shape, 0))
    elif most >= 0:
        pieces = TensorType(DType.STRING, (*x.shape, most + 1), True)
    else:
        refuse(ctx, "the number of pieces depends on the text; expected maxsplit or a declared output shape")
    return [pieces, count][: ctx.outputs]


@shape_rule("StringNormalizer")
def _normalize(ctx: ShapeContext) -> Outputs:
    """[C] or [1, C]; stop words leave fewer, never less than one (an empty string)."""
    x = tensor(ctx, 0)
    if len(x.shape) not in (1, 2) or (len(x.shape) == 2 and x.shape[0] != 1):
        refuse(ctx, f"input is {list(x.shape)}, expected (C) or (1, C)")
    shape = (*x.shape[:-1], max(1, x.shape[-1]))
    return [TensorType(DType.STRING, shape, bool(ctx.attributes.get("stopwords")) or x.bounded)]


@shape_rule("TfIdfVectorizer")
def _tfidf(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=1)
    if len(x.shape) > 2:
        refuse(ctx, f"input is {list(x.shape)}, expected (C) or (N, C)")
    places = ints_attribute(ctx, "ngram_indexes", low=0)
    if places is None:
        refuse(ctx, "attribute ngram_indexes is missing")
    return [TensorType(DType.FLOAT, (*x.shape[:-1], max(places) + 1))]


@shape_rule("Tokenizer", domain="com.microsoft")
def _tokenize(ctx: ShapeContext) -> Outputs:
    x = tensor(ctx, 0, min_rank=1)
    declared = declared_tensor(ctx, 0, DType.STRING, rank=len(x.shape) + 1)
    if declared is None:
        refuse(ctx, "the number of tokens depends on the text; expected a declared output shape")
    return [declared]


@shape_rule("MurmurHash3", domain="com.microsoft")
def _hash(ctx: ShapeContext) -> Outputs:
    if int_attribute(ctx, "positive", 1) == 1:
        dtype = DType.UINT32
    else:
        dtype = DType.INT32
    return [TensorType(dtype, tensor(ctx, 0).shape)]
