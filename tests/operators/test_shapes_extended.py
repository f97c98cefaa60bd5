"""Shape rules of the extended families beyond ONNX's node tests: old opsets, bounds, bad nodes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
from packaging.version import Version

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import LimitError, ShapeError
from gkestimator.onnx_io.binding.facts import check_type
from gkestimator.onnx_io.binding.inference import MALFORMED
from gkestimator.onnx_io.reading.schemas import infer_by_schema, known_to_onnx
from gkestimator.operators.registry import (
    LOWERINGS,
    SHAPE_RULES,
    DeclaredType,
    SequenceType,
    ShapeContext,
    TensorType,
    ValueType,
)

_F, _I = DType.FLOAT, DType.INT64


def _infer(
    op: str,
    *inputs: ValueType | np.ndarray | None,
    domain: str = "",
    version: int = 22,
    outputs: int = 1,
    declared: DeclaredType | None = None,
    **attributes: Any,
) -> list[ValueType | None]:
    """Outputs of one node; an array input is a known constant."""
    types: list[ValueType | None] = []
    for given in inputs:
        if isinstance(given, np.ndarray):
            types.append(TensorType(_I if given.dtype.kind == "i" else _F, given.shape))
        else:
            types.append(given)
    context = ShapeContext(
        op_type=op,
        domain=domain,
        version=version,
        attributes=attributes,
        types=types,
        values=[v if isinstance(v, np.ndarray) else None for v in inputs],
        outputs=outputs,
        declared=[declared] * outputs,
    )
    try:
        if (domain, op) in SHAPE_RULES:
            return list(SHAPE_RULES[domain, op](context))
        if not known_to_onnx(domain, op, version):
            raise ShapeError("the file has to declare it")
        return list(infer_by_schema(context) or [None])
    except MALFORMED as e:  # as binding does, which names the node and its inputs
        raise ShapeError(f"does not fit the operator ({e})") from e


def _t(*shape: int) -> TensorType:
    return TensorType(_F, shape)


def test_every_operator_of_the_installed_onnx_has_a_rule_or_an_inference_of_its_own() -> None:
    schemas = [s for s in onnx.defs.get_all_schemas() if not s.deprecated]
    shaped = {(s.domain, s.name) for s in schemas if s.has_type_and_shape_inference_function}
    unshaped = {(s.domain, s.name) for s in schemas} - shaped - set(SHAPE_RULES)
    # The shape of a gradient is what the file declares.
    assert unshaped <= {("ai.onnx.preview.training", "Gradient")}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (_infer("Upsample", _t(1, 3, 5, 5), version=7, scales=(1.0, 1.0, 2.0, 1.5)), _t(1, 3, 10, 7)),
        (_infer("Resize", _t(1, 3, 5, 5), np.float32([1, 1, 0.6, 2]), version=10), _t(1, 3, 3, 10)),
        (_infer("TopK", _t(4, 9), version=1, k=3, axis=-1), _t(4, 3)),
        (_infer("DFT", _t(2, 9, 1), version=17, axis=1, onesided=1), _t(2, 5, 2)),
        (_infer("ConvTranspose", _t(1, 4, 5, 5), _t(4, 3, 3, 3), strides=(2, 2), group=2), _t(1, 6, 11, 11)),
        (_infer("ConvTranspose", _t(1, 4, 5, 5), _t(4, 3, 3, 3), output_shape=(9, 8)), _t(1, 3, 9, 8)),
        (
            _infer("ConvTranspose", _t(1, 4, 5), _t(4, 3, 3), strides=(3,), auto_pad="SAME_UPPER"),
            _t(1, 3, 15),
        ),
        (_infer("LpPool", _t(1, 2, 6, 6), kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1), _t(1, 2, 3, 3)),
        (_infer("MaxRoiPool", _t(1, 8, 32, 32), _t(5, 5), pooled_shape=(7, 7)), _t(5, 8, 7, 7)),
        (_infer("GlobalLpPool", _t(2, 3, 7, 7)), _t(2, 3, 1, 1)),
        (_infer("RandomNormal", shape=(2, 3), dtype=1), _t(2, 3)),
        (_infer("ConcatFromSequence", SequenceType((_t(2, 3), _t(4, 3))), axis=0), _t(6, 3)),
        (_infer("ConcatFromSequence", SequenceType((_t(2, 3), _t(2, 3))), axis=-1, new_axis=1), _t(2, 3, 2)),
        (_infer("LSTM", _t(7, 2, 5), _t(2, 12, 5), _t(2, 12, 3), direction="bidirectional"), _t(7, 2, 2, 3)),
        (_infer("Scaler", _t(4, 3), domain="ai.onnx.ml"), _t(4, 3)),
        (_infer("TreeEnsembleRegressor", _t(4, 3), domain="ai.onnx.ml", n_targets=2), _t(4, 2)),
        (_infer("OneHotEncoder", _t(4, 3), domain="ai.onnx.ml", cats_int64s=(1, 2)), _t(4, 3, 2)),
    ],
)
def test_shape(found: list[ValueType | None], expected: TensorType) -> None:
    assert found[0] == expected


@pytest.mark.skipif(Version(onnx.__version__) < Version("1.21"), reason="onnx before 1.21 refuses it")
def test_the_inverse_of_a_onesided_transform_is_real() -> None:
    assert _infer("DFT", _t(2, 5, 2), version=20, inverse=1, onesided=1) == [_t(2, 8, 1)]


def test_multinomial_and_bernoulli_take_their_dtype_from_the_attribute() -> None:
    assert _infer("Multinomial", _t(2, 9), sample_size=4) == [TensorType(DType.INT32, (2, 4))]
    assert _infer("Bernoulli", _t(2, 9), dtype=9) == [TensorType(DType.BOOL, (2, 9))]


def test_classifiers_give_labels_and_scores() -> None:
    labels, scores = _infer(
        "TreeEnsembleClassifier",
        _t(4, 3),
        domain="ai.onnx.ml",
        outputs=2,
        classlabels_strings=("a", "b", "c"),
    )
    assert labels == TensorType(DType.STRING, (4,))
    assert scores == _t(4, 3)


def test_sizes_that_depend_on_data_are_bounds() -> None:
    assert _infer("NonZero", _t(3, 4)) == [TensorType(_I, (2, 12), True)]
    assert _infer("Compress", _t(3, 4), TensorType(DType.BOOL, (2,)), axis=1) == [
        TensorType(_F, (3, 2), True)
    ]
    limit = np.array([5])
    assert _infer("NonMaxSuppression", _t(2, 9, 4), _t(2, 3, 9), limit) == [TensorType(_I, (30, 3), True)]
    assert _infer("TopK", _t(4, 9), TensorType(_I, (1,)), axis=1) == [TensorType(_F, (4, 9), True)]


def test_constants_make_data_dependent_sizes_exact() -> None:
    assert _infer("NonZero", np.array([[1, 0], [1, 1]])) == [TensorType(_I, (2, 3))]
    assert _infer("Compress", _t(3, 4), np.array([0, 1, 1, 0]), axis=1) == [_t(3, 2)]


def test_an_unknown_size_takes_the_declared_one_and_is_refused_without() -> None:
    sizes = TensorType(_I, (4,))
    declared = DeclaredType(_F, (1, 3, 8, 8))
    assert _infer("Resize", _t(1, 3, 4, 4), None, None, sizes, declared=declared) == [_t(1, 3, 8, 8)]
    for unknown in (None, DeclaredType(_F, (1, 3, "h", "w")), DeclaredType(_F, (1, 3, 8))):
        with pytest.raises(ShapeError, match=r"input 3 \(sizes\), which is not a constant"):
            _infer("Resize", _t(1, 3, 4, 4), None, None, sizes, declared=unknown)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        ("LSTM", (_t(7, 2, 5), _t(1, 12, 5), _t(1, 16, 4)), {}, r"weight is \[1, 12, 5\], expected"),
        ("DepthToSpace", (_t(1, 6, 2, 2),), {"blocksize": 4}, "6 channels do not split into blocks of 4 x 4"),
        ("DepthToSpace", (_t(1, 6, 2, 2),), {}, "attribute blocksize is missing"),
        ("DeformConv", (_t(1, 3, 4, 4), _t(8, 4, 3, 3)), {}, "do not fit together"),
        ("LpPool", (_t(1, 3, 4, 4),), {"kernel_shape": (9, 9)}, "spans 9 elements along spatial axis 0"),
        ("LpPool", (_t(1, 3, 4, 4),), {"kernel_shape": (2, 2), "strides": (0, 1)}, "attribute strides"),
        ("LpPool", (_t(3),), {"kernel_shape": ()}, "expected at least 3 dimensions"),
        pytest.param(
            *("OneHot", (_t(2), np.array([-1]), _t(2)), {}, "depth"),
            marks=pytest.mark.skipif(Version(onnx.__version__) < Version("1.23"), reason="left open before"),
        ),
        ("GridSample", (_t(1, 2, 4, 4), _t(1, 3, 5, 3)), {}, "grid is"),
        ("QLinearMatMul", (_t(2, 3), _t(), _t(), _t(4, 2), _t(), _t(), _t(), _t()), {}, "inner dimensions"),
        ("BitCast", (_t(2),), {"to": 9}, "cannot reinterpret float as bool"),
        ("BitCast", (_t(2),), {"to": 99}, "attribute to is 99"),
        ("TopK", (_t(4, 9), np.array([10])), {}, "K is 10"),
        (
            "Attention",
            (_t(1, 3, 8), _t(1, 3, 8), _t(1, 3, 8)),
            {"q_num_heads": 3, "kv_num_heads": 3},
            "3 heads",
        ),
        ("SequenceInsert", (_t(2), _t(2)), {}, "a tensor, expected a sequence"),
        ("SequenceErase", (SequenceType(()),), {}, "sequence is empty"),
        ("Resize", (_t(1, 1, 2, 2), None, np.float32([1, 1, np.inf, 1])), {}, "expected positive numbers"),
        ("Resize", (_t(1, 1, 2, 2), None, np.float32([1, 1, 3e38, 1])), {}, "out of range"),
        ("StringSplit", (TensorType(DType.STRING, (3,)),), {}, "depends on the text"),
    ],
)
def test_contradictions_are_refused_in_one_line(
    op: str, inputs: tuple[Any, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        _infer(op, *inputs, **attributes)


_ATTRIBUTES: dict[str, tuple[Any, ...]] = {
    "axis": (-3, 0, 1, 7),
    "axes": ((0,), (1, 9), (-1, 0)),
    "kernel_shape": ((2, 2), (3,), (0, 1), (2**40, 2)),
    "strides": ((1, 2), (0, 0), (-1, 3), (2,)),
    "pads": ((1, 1, 1, 1), (-9, 0, 0, 0), (1, 2)),
    "dilations": ((2, 2), (0, 1)),
    "group": (0, 1, 2, -1),
    "auto_pad": ("SAME_UPPER", "VALID", "?"),
    "num_heads": (0, 1, 3, -2),
    "kv_num_heads": (0, 1, 2),
    "q_num_heads": (0, 2),
    "hidden_size": (3, -1),
    "direction": ("bidirectional", "?"),
    "blocksize": (0, 2, -2),
    "to": (1, 0, 77),
    "dtype": (1, 10, -4),
    "output_dtype": (0, 3, 99),
    "K": (3, 0),
    "N": (2, -1),
    "k": (1, -1, 99),
    "shape": ((2, 3), (-1,)),
    "bits": (4, 3),
    "ngram_indexes": ((0, 5), ()),
    "targets": (2, 0),
    "n_targets": (3, -1),
    "classlabels_strings": (("a", "b"), ()),
    "classlabels_int64s": ((1, 2),),
    "cats_int64s": ((1,),),
    "xs": (("a",),),
    "pooled_shape": ((2, 2), (0,)),
    "scales": ((1.0, 2.0, float("nan"), 1.0), ()),
    "output_shape": ((5, 5), (1, 2, 3)),
    "output_padding": ((1, 1), (1,)),
    "layout": (1,),
    "new_axis": (1,),
    "maxsplit": (0, 2),
    "sample_size": (0, 3),
    "keep_aspect_ratio_policy": ("not_larger", "?"),
    "transA": (1,),
    "transBatchA": (1,),
    "channels": (3, 0),
    "qkv_hidden_sizes": ((4, 4, 4), (1, 2)),
    "channels_last": (1,),
    "size": (2, 0),
    "step": (1, 0),
    "inverse": (1,),
    "onesided": (1, 0),
    "reduction": ("none", "?"),
    "cast_to": ("TO_FLOAT", "?"),
    "num_groups": (0, 2),
}
# Rules of the package itself; the operators beside them are those that onnx's schemas shape.
_RULES = sorted(
    {*SHAPE_RULES, *(key for key in LOWERINGS if onnx.defs.has(key[1], domain=key[0]))}
    - {("", name) for name in ("Constant", "If", "Loop", "Scan", "SequenceMap")}
)


def _arbitrary(rng: random.Random) -> ValueType | np.ndarray | None:
    kind = rng.random()
    if kind < 0.08:
        return None
    shape = tuple(rng.choice((0, 1, 2, 3, 4, 6, 8, 2**40)) for _ in range(rng.randint(0, 5)))
    if kind < 0.16:
        return SequenceType((TensorType(_F, shape),) * rng.randint(0, 2))
    if kind < 0.4:
        return np.array([rng.choice((-3, -1, 0, 1, 2, 5, 2**40)) for _ in range(rng.randint(0, 5))])
    return TensorType(rng.choice(list(DType)), shape)


@pytest.mark.parametrize(("domain", "op"), _RULES)
def test_arbitrary_nodes_are_shaped_or_refused(domain: str, op: str) -> None:
    rng = random.Random(f"{domain}.{op}")
    for _ in range(150):
        inputs = [_arbitrary(rng) for _ in range(rng.randint(0, 9))]
        names = rng.sample(sorted(_ATTRIBUTES), rng.randint(0, 30))
        attributes = {n: rng.choice(_ATTRIBUTES[n]) for n in names}
        version, outputs = rng.choice((1, 7, 10, 13, 22)), rng.randint(1, 4)
        try:
            inferred = _infer(op, *inputs, domain=domain, version=version, outputs=outputs, **attributes)
            found = [check_type(value) for value in inferred if value is not None]
        except (ShapeError, LimitError) as e:
            assert "\n" not in str(e)
            continue
        for value in found:
            if isinstance(value, TensorType):
                assert isinstance(value.dtype, DType)
                assert all(type(d) is int and d >= 0 for d in value.shape), value
