"""Which family a launch belongs to, by exact words of its kernel's name.

A name is cut into words at everything that is no letter or digit and where the case changes (``nchwToNhwcKernel``:
nchw, to, nhwc, kernel). Only the function's own name counts, not its template arguments, unless it is one of the
generic ones (``elementwise_kernel<...>``, which its functor names). The first table that holds one of the words
decides; a name without any is of the operator's main family. Sources: the kernel names of PyTorch
(aten/src/ATen/native/cuda), CUTLASS, and those that nsys shows of cuBLAS, cuDNN and ONNX Runtime.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from gkestimator.core.kernels import Family
from gkestimator.kernel_models.roofline import MATRIX_FAMILIES

MATRIX = "matrix"
"""Words of matrix and convolution libraries: which family it is, the operator says (an implicit GEMM is a
convolution's)."""

# In order: the first table with one of the name's words decides. Transforms come before the products that they
# prepare (``winogradForwardData4x4``), the products before the words that they share with memory kernels.
_TABLES: tuple[tuple[str, frozenset[str]], ...] = (
    (Family.COPY, frozenset({
        "transpose", "permute", "copy", "cat", "concat", "memcpy", "memset", "fill", "pad",
        "padding", "expand", "tile", "slice", "split", "reorder", "reformat", "flip", "roll", "im2col", "col2im",
        "vol2col", "transform", "winogradforwarddata", "winogradforwardfilter", "winogradforwardoutput",
        "generatewinogradtileskernel", "kerneltransposenc", "direct_copy", "cast", "unrolled_copy",
    })),
    (Family.ATTENTION, frozenset({"fmha", "flash", "attention", "fmhacutlassf", "mha"})),
    (Family.DEPTHWISE, frozenset({"depthwise", "dwconv", "depthwise2d", "depthwise3d"})),
    (Family.SOFTMAX, frozenset({"softmax", "logsoftmax", "hardmax"})),
    (Family.LAYERNORM, frozenset({
        "layernorm", "layernormalization", "rmsnorm", "groupnorm", "rowwise", "instancenorm", "lrn",
        "simplifiedlayernorm", "skiplayernorm",
    })),
    (Family.BATCHNORM, frozenset({"batchnorm", "bn"})),
    (Family.POOLING, frozenset({"pool", "pooling", "maxpool", "avgpool", "averagepool", "pool1d", "pool2d", "pool3d"})),
    (Family.RESAMPLE, frozenset({"upsample", "resize", "interpolate", "grid", "roi", "roialign", "gridsample"})),
    (Family.SORT, frozenset({"sort", "topk", "radix", "bitonic", "merge", "nms", "unique", "nonzero", "select"})),
    (Family.SCAN, frozenset({"scan", "cumsum", "cumprod"})),
    (Family.SCATTER, frozenset({"scatter"})),
    (Family.GATHER, frozenset({"gather", "index", "embedding", "indexselect"})),
    (Family.FFT, frozenset({"fft", "cufft", "fft2d", "fft1d"})),
    (Family.RNN, frozenset({"lstm", "gru", "rnn", "persistrnn"})),
    (Family.RANDOM, frozenset({"random", "philox", "dropout", "bernoulli", "distribution"})),
    (Family.QUANTIZE, frozenset({"quantize", "dequantize", "quantizelinear", "dequantizelinear"})),
    (MATRIX, frozenset({
        "gemm", "sgemm", "hgemm", "dgemm", "igemm", "s884gemm", "s1688gemm", "s16816gemm", "h884gemm", "h1688gemm",
        "h16816gemm", "gemv", "gemv2t", "gemv2n", "gemvnsp", "gemmk1", "cutlass", "xmma", "convolve", "convolution",
        "conv", "conv2d", "winograd", "wgrad", "dgrad", "fprop", "scudnn", "hcudnn", "matmul", "addmm", "bmm", "mm",
        "tensorop", "cublas", "cudnn", "linear", "mmv", "baddbmm", "implicit", "nvjet", "cublaslt", "gett", "einsum",
        "addmv", "fusedmatmul", "fusedgemm",
    })),
    (Family.REDUCTION, frozenset({
        "reduce", "reduction", "splitkreduce", "sum", "mean", "argmax", "argmin", "norm", "amax", "amin",
    })),
    (Family.ELEMENTWISE, frozenset({
        "elementwise", "vectorized", "add", "mul", "sub", "div", "relu", "sigmoid", "tanh", "gelu", "erf", "exp", "pow",
        "sqrt", "silu", "swish", "clamp", "clip", "where", "unary", "binary", "bias", "pointwise", "activation", "op",
        "leakyrelu", "hardsigmoid", "hardswish", "neg", "abs", "log", "max", "min", "greater", "less", "equal",
    })),
)  # fmt: skip

# Two or more words that only together mean something, in the order of the name.
_PAIRS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (Family.REDUCTION, ("split", "kreduce")),
    (Family.REDUCTION, ("splitk", "reduce")),
    (Family.LAYERNORM, ("layer", "norm")),
    (Family.LAYERNORM, ("rms", "norm")),
    (Family.LAYERNORM, ("group", "norm")),
    (Family.LAYERNORM, ("instance", "norm")),
    (Family.LAYERNORM, ("layer", "normalization")),
    (Family.LAYERNORM, ("group", "normalization")),
    (Family.LAYERNORM, ("instance", "normalization")),
    (Family.BATCHNORM, ("batch", "norm")),
    (Family.BATCHNORM, ("batch", "normalization")),
    (Family.SOFTMAX, ("soft", "max")),
    (Family.POOLING, ("max", "pool")),
    (Family.POOLING, ("avg", "pool")),
    (Family.POOLING, ("average", "pool")),
    (Family.SORT, ("top", "k")),
    (Family.SORT, ("non", "zero")),
    (Family.GATHER, ("index", "select")),
    (Family.SCATTER, ("index", "put")),
    (Family.RESAMPLE, ("grid", "sampler")),
    (Family.COPY, ("winograd", "forward", "data")),
    (Family.COPY, ("winograd", "forward", "filter")),
    (Family.COPY, ("winograd", "forward", "output")),
    (Family.COPY, ("generate", "winograd", "tiles")),
    (Family.SORT, ("non", "max")),
    (Family.REDUCTION, ("arg", "max")),
    (Family.REDUCTION, ("arg", "min")),
    (Family.SCAN, ("cum", "sum")),
    (Family.RESAMPLE, ("grid", "sample")),
    (MATRIX, ("mat", "mul")),
    (MATRIX, ("conv", "transpose")),
    (Family.COPY, ("to", "nhwc")),
    (Family.COPY, ("to", "nchw")),
)
_GENERIC = frozenset({"elementwise", "vectorized", "unrolled"})
_FUNCTORS: tuple[tuple[str, str], ...] = (
    ("copy", Family.COPY),
    ("direct", Family.COPY),
    ("fill", Family.COPY),
    ("gather", Family.GATHER),
)
_SPLIT = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_SIZE = re.compile(r"(?<=[a-z])[0-9]+(x[0-9]+)*\Z")


def kernel_words(name: str) -> tuple[str, ...]:
    """The words of a kernel's own name, in lower case: return type, namespaces, template arguments and parameters
    left out."""
    return tuple(word.lower() for word in _SPLIT.findall(_own_name(name)))


def _own_name(name: str) -> str:
    """``reduce_kernel`` of ``void at::native::reduce_kernel<512, 1, at::native::ReduceOp<...>>(T3)``."""
    text = name[:4096].replace("(anonymous namespace)", "anonymous").replace("<unnamed>", "anonymous")
    depth = 0
    kept = []
    for character in text:
        if character in "<(":
            depth += 1
            if depth == 1 and character == "(":
                break  # the parameters begin
        elif character in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(character)
    words = "".join(kept).split()
    own = words[-1] if words else text
    *spaces, last = own.split("::")
    # cutlass::Kernel, cudnn::ops::kernel: the word that tells stands before
    if last.lower() in ("kernel", "kernel2", "device_kernel", "run"):
        return "_".join([*spaces[-2:], last])
    return last


@lru_cache(maxsize=16384)
def word_family(name: str) -> str | None:
    """A family's name, :data:`MATRIX`, or None where no word of ``name`` is known."""
    words = kernel_words(name)
    if set(words) & _GENERIC and "<" in name:
        inner = {w.lower() for w in _SPLIT.findall(name[name.index("<") :][:4096])}
        for word, family in _FUNCTORS:
            if word in inner and not set(words) & {"layer", "index", "gather", "scatter"}:
                return family
    plain = tuple(_SIZE.sub("", word) for word in words)  # data4x4, pool2, transpose4
    for family, pair in _PAIRS:
        if any(plain[i : i + len(pair)] == pair for i in range(len(plain) - len(pair) + 1)):
            return family
    known = {*words, *plain}
    for family, table in _TABLES:
        if known & table:
            return family
    if "<" in name and "cutlass" in name[:4096].lower():
        return MATRIX
    return None


def family_of(name: str | None, kind: str, rules: Sequence[Family]) -> Family:
    """The family of one of several launches of an operator whose rule says that it becomes kernels of the families
    ``rules``, its main one (the longest) first. Copies and memory sets are ``copy``; a matrix library's kernel is of
    the operator's own matrix family, ``linear`` if it has none; an unknown name, or none, is of the main family."""
    if kind in ("memcpy", "memset"):
        return Family.COPY
    main = rules[0] if rules else Family.ELEMENTWISE
    found = word_family(name) if name else None
    if found is None:
        return main
    if found == MATRIX:
        products = [f for f in rules if f in MATRIX_FAMILIES or f is Family.DEPTHWISE]
        if products:
            return products[0]
        return Family.LINEAR
    return Family(found)
