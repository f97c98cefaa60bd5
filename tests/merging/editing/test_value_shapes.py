"""Sizes said to be static are those that ONNX Runtime finds, whatever the symbolic dimensions are."""

from __future__ import annotations

from pathlib import Path

import families
import onnx
import pytest
from onnx import helper
from packaging.version import Version

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UnboundDimensionError, UsageError
from gkestimator.merging.editing import (
    EditableModel,
    ValueInfo,
    batch_dims,
    combine,
    fix_dims,
    graph_of,
    symbolic_dims,
    value_shapes,
    write_editable,
)
from gkestimator.merging.editing.dimensions import assignments

FAMILIES = {
    "resnet": lambda: families.resnet_like(folded=False),
    "mobilenet": families.mobilenet_like,
    "bert": lambda: families.bert_like(sequence="seq"),
    "bert by Shape": lambda: families.bert_like(sequence="seq", reshape="shape"),
    "bert in parts": lambda: families.bert_like(sequence="seq", decomposed=True),
    "gpt": lambda: families.gpt_like(sequence="seq"),
    "fixed": lambda: families.bert_like(batch=2, sequence=8, reshape="static"),
}


def all_shown(model: EditableModel, path: Path) -> Path:
    """``model`` with every value as an output."""
    [written] = write_editable(model, path)
    proto = onnx.load(written)
    del proto.graph.output[:]
    for node in proto.graph.node:
        proto.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in node.output if n)
    written.write_bytes(proto.SerializeToString())
    return written


@pytest.mark.parametrize("family", FAMILIES)
def test_static_is_what_never_changes(read, run, tmp_path: Path, family: str):
    proto = FAMILIES[family]()
    model = read(proto)
    shapes = value_shapes(model)
    path = all_shown(model, tmp_path / "all.onnx")
    seen: dict[str, list[tuple[int, ...]]] = {}
    symbols = {d.removeprefix("m/") for d in symbolic_dims(model)}
    for sizes in ({"batch": 2, "seq": 5}, {"batch": 3, "seq": 16}):
        dims = {k: v for k, v in sizes.items() if k in symbols}
        feeds = {f"m/{k}": v for k, v in families.feeds(proto, seed=1, **dims).items()}
        for name, value in run(path, feeds).items():
            seen.setdefault(name, []).append(value.shape)
    assert set(seen) <= set(shapes)
    for name, found in seen.items():
        if len(found[0]) == len(shapes[name].dims):
            for axis, size in enumerate(shapes[name].dims):
                # never static where it changes; and where it does not change here, known to be so
                assert size == (found[0][axis] if found[0][axis] == found[1][axis] else None), (name, found)
        else:
            raise AssertionError(f"{name}: {shapes[name].dims} but {found}")


def certain(read, text: str, **dims: int) -> dict[str, tuple[int | None, ...]]:
    found = value_shapes(fix_dims(read(text), dims))
    return {n.removeprefix("m/"): s.dims for n, s in found.items()}


def test_sizes_cut_off_or_rounded(read):
    """Sizes that agree for neighbouring numbers: cut off at a limit, halved and rounded, or 1 for small ones."""
    found = certain(read, """g (float[B,H,8] x) => (float[B,K,8] y, float[B,L,8] z) <
        int64[1] zero = {0}, int64[1] top = {512}, int64[1] one = {1}, int64[1] far = {9223372036854775807},
        int64[1] step = {400}>
        { y = Slice (x, zero, top, one) z = Slice (x, zero, far, one, step) }""")  # fmt: skip
    assert found["x"] == (None, None, 8)
    assert found["y"][1:] == (None, 8) and found["z"][1:] == (None, 8)


def test_rests_of_divisions(read):
    """A rest after a division by 8, as windows of attention pad it, agrees for many numbers."""
    found = certain(read, """g (float[b,s,4] x) => (float[b,r,4] y) <int64[1] zero = {0}, int64[1] one = {1},
        int64[1] two = {2}, int64[1] eight = {8}>
        { n = Shape (x) s = Slice (n, one, two) r = Mod (s, eight) y = Slice (x, zero, r, one) }""")  # fmt: skip
    assert found["y"] == (None, None, 4)


def test_too_many_dimensions(read):
    names = ",".join(f"d{i}+d{i + 1}" for i in range(20_000))
    assert assignments(names.split(","), frozenset()) == ([], [])


def test_what_depends_on_data(read):
    found = certain(read, """g (float[4,6] x, bool c) => (int64[2,K] i, float[A,B] y, float[M] m, float[4,6] r)
        <float[2] p = {1.0, 2.0}>
        { i = NonZero (x) t = Transpose <perm = [1, 0]> (i) r = Relu (x)
          y = If (c) <then_branch = t1 () => (float[4,6] o) { o = Relu (x) },
                      else_branch = t2 () => (float[2,2] o2) { o2 = Constant <value = float[2,2] {1, 1, 1, 1}> () }>
          m = ReduceSum (y) }""")  # fmt: skip
    assert found["r"] == (4, 6)
    assert found["t"] == (None, None)
    assert found["i"] == (None, None)  # even the 2: a bound says nothing about a single size
    assert "y" not in found and "m" not in found


def test_branches_that_read_nothing_from_outside(read):
    found = certain(read, """g (bool c, float[4,6] x) => (float[K] y, float[4,6] r)
        { r = Relu (x)
          y = If (c) <then_branch = t1 () => (float[2] o) { o = Constant <value = float[2] {1, 1}> () },
                      else_branch = t2 () => (float[3] o2) { o2 = Constant <value = float[3] {1, 1, 1}> () }> }
        """)  # fmt: skip
    assert found == {"c": (), "x": (4, 6), "r": (4, 6)}


def test_dimensions_that_follow_from_each_other(read):
    """Only numbers that fit together bind: a mask as long as past and present, by its name or an expression."""
    text = """g (float[batch,4,past_length,8] past, float[batch,4,length,8] now, float[batch,{total}] mask)
        => (float[batch,4,T,8] keys, float[batch,4,T,8] y) <int64[2] axes = {{1, 3}}>
        {{ keys = Concat <axis = 2> (past, now) m = Unsqueeze (mask, axes) y = Mul (keys, m) d = Shape (y) }}"""
    written = ["total_length"]
    if Version(onnx.__version__) >= Version("1.22"):  # older parsers of this text form take no expression
        written.append('"past_length + length"')
    for total in written:
        found = certain(read, text.format(total=total))
        assert found["y"] == (None, 4, None, 8)
    # of a name that says nothing no numbers are found; then nothing is said of what comes from the inputs
    unfit = text.format(total="whatever")
    assert certain(read, unfit) == {"axes": (2,)}
    fixed = certain(read, unfit, past_length=3, length=2, whatever=5)
    assert fixed["y"] == (None, 4, 5, 8)


def test_sizes_that_must_be_halved(read):
    """Skip connections of a U-net fit sizes that can be halved without a rest only."""
    found = certain(read, """g (float[n,2,h,w] x) => (float[n,4,h,w] y) <float[4] s = {1.0, 1.0, 8.0, 8.0}>
        { d = MaxPool <kernel_shape = [8, 8], strides = [8, 8]> (x) u = Resize (d, , s) y = Concat <axis = 1> (x, u) }
        """)  # fmt: skip
    assert found["y"] == (None, 4, None, None)


def test_assignments_differ_in_every_dimension():
    free = ["n", "past_len", "seq_len", "past_len + seq_len", "2*seq_len", "other.1", "a/b"]
    small, large = assignments(free, frozenset({"n"}))
    assert len(small) >= 3 and len(large) >= 3
    for one in (*small, *large):
        assert set(one) == set(free)
        plain = [one[n] for n in ("n", "past_len", "seq_len", "other.1", "a/b")]
        assert len(set(plain)) == len(plain)
        assert one["past_len + seq_len"] == one["past_len"] + one["seq_len"]
        assert one["2*seq_len"] == 2 * one["seq_len"]
    many = [f"d{i}" for i in range(60)]
    for names in (free, many):
        small, large = assignments(names, frozenset({"n"}))
        assert all(a[n] != b[n] for a in small for b in large for n in names)
    assert all(len(set(one.values())) == 60 for one in (*small, *large))
    for one in assignments(["9**9**9", "a"], frozenset())[0]:
        assert one["9**9**9"] < 1 << 31  # a name like any other


def test_limits_of_positions(read):
    """A length beyond the table of positions fits no input; static is what holds below it."""
    for places in (24, 100, 512):
        model = read(families.bert_like(sequence="seq", positions=places))
        assert value_shapes(model)["m/words_output_0"].dims == (None, None, 32)


def test_fixed_dimensions(read):
    model = read(families.bert_like(sequence="seq"))
    assert symbolic_dims(model) == ("m/batch", "m/seq")
    assert batch_dims(model) == {"m/": ("m/batch",)}
    for name in ("seq", "m/seq"):
        fixed = fix_dims(model, {name: 9, "unknown": 3})
        assert fixed.inputs[0].shape == ("m/batch", 9)
        assert symbolic_dims(fixed) == ("m/batch",)
    for bad in (0, -1, True, 2.0):
        with pytest.raises(UsageError, match="dimension seq is .*; a positive whole number was expected"):
            fix_dims(model, {"seq": bad})


def test_dimensions_without_a_name(read):
    model = read(families.resnet_like())
    [image] = model.inputs
    model.inputs[0] = ValueInfo(name=image.name, dtype=DType.FLOAT, shape=(None, *image.shape[1:]))
    assert batch_dims(model) == {"m/": ("m/image.0",)}
    assert value_shapes(model)["m/image"].dims == (None, *image.shape[1:])
    assert fix_dims(model, {"image.0": 5}).inputs[0].shape[0] == 5
    assert graph_of(model, batch_size=7).inputs[0].shape[0] == 7


def test_operator_graphs(read):
    model = read(families.bert_like(sequence="seq"))
    with pytest.raises(UnboundDimensionError, match="m/seq"):
        graph_of(model, batch_size=2)
    graph = graph_of(model, batch_size=2, dims={"seq": 6})
    assert graph.batch_size == 2 and graph.inputs[0].shape == (2, 6)
    assert {o.name for o in graph.operators} <= {n.name for n in model.nodes}
    written = {w for n in model.nodes for w in n.writes}
    assert {t.name for o in graph.operators for t in o.outputs if t} <= written


def test_batches_of_combined_models(read):
    both = combine([read(families.resnet_like(), "a"), read(families.resnet_like(batch="N"), "b")], "both")
    assert batch_dims(both) == {"a/": ("a/batch",), "b/": ("b/N",)}
    graph = graph_of(both, batch_size=4, dims={"b/N": 2})
    assert [t.shape[0] for t in graph.inputs] == [4, 2]
    fixed = combine(
        [read(families.resnet_like(batch=2), "a"), read(families.resnet_like(batch=2), "b")], "both"
    )
    assert [t.shape[0] for t in graph_of(fixed).inputs] == [2, 2]
    with pytest.raises(UsageError, match="both: batch size 3; 2 was expected"):
        graph_of(fixed, batch_size=3)
    assert graph_of(read(families.resnet_like(batch=2)), batch_size=3).inputs[0].shape[0] == 3


CONSTANTS = (
    "<int64[1] c0 = {0}, int64[1] c1 = {1}, int64[1] c2 = {2}, int64[1] c4 = {4}, int64[1] far = {4096}>"
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Slice (x, c0, c4, c1)", (None, None, 8)),  # three positions have no fourth
        ("y = Slice (x, c0, c2, c0)", (None, None, 8)),  # nor has a batch of 1 a second
        ("s = Shape (x) q = Slice (s, c1, c2) r = Mod (q, c2) e = Add (r, c1) y = Slice (x, c0, e, c1)", (None, None, 8)),
        ("s = Shape (x) q = Slice (s, c1, c2) r = Max (q, far) y = ConstantOfShape (r)", (None,)),
        ("s = Shape (x) q = Slice (s, c1, c2) r = Div (q, far) e = Add (r, c1) y = ConstantOfShape (e)", (None,)),
        ("y = Slice (x, c0, c1, c1)", (None, 1, 8)),  # there is always a first one
        ("n = NonZero (x) s = Shape (n) q = Slice (s, c1, c2) m = Min (q, c4) y = ConstantOfShape (m)", None),
        ("y = Squeeze (x)", None),  # one position has a rank less
    ],
)  # fmt: skip
def test_sizes_that_few_numbers_change(read, body: str, expected):
    model = read(f"g (float[batch,seq,8] x) => (float[] y) {CONSTANTS} {{ {body} }}")
    found = value_shapes(model).get("m/y")
    assert (None if found is None else found.dims) == expected


def test_one_dimension_that_may_be_1_while_another_may_not(read):
    """The window of a Conv does not fit into one place, but one sequence may still be short."""
    found = value_shapes(
        read("""g (float[n,1,side,9] x, float[n,seq,8] t) => (float[] y, float[] z) <
        float[1,1,5,5] w = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}, int64[1] c0 = {0},
        int64[1] c1 = {1}, int64[1] c4 = {4}> { y = Conv (x, w) z = Slice (t, c0, c4, c1) }""")
    )
    assert found["m/z"].dims == (None, None, 8)
    assert found["m/y"].dims == (None, 1, None, 5)
