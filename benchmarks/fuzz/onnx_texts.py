"""Small models of every kind that the reader of ONNX treats apart, as text."""

from __future__ import annotations

TEXTS = {
    "conv": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 3, 32, 32] x, float[8, 3, 3, 3] w, float[8] b, float[10, 8] f) => (float[N, 10] y) {
          c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b)
          r = Relu (c)
          p = GlobalAveragePool (r)
          t = Flatten (p)
          y = Gemm <transB = 1> (t, f)
        }""",
    "attention": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, S, 64] x, float[64, 64] wq, float[64, 64] wk, float[64, 64] wv) => (float[N, S, 64] y)
        <int64[4] heads = {0, 0, 4, 16}, int64[3] merged = {0, 0, 64}, float scale = {4.0}> {
          q = MatMul (x, wq)
          k = MatMul (x, wk)
          v = MatMul (x, wv)
          qr = Reshape (q, heads)
          kr = Reshape (k, heads)
          vr = Reshape (v, heads)
          qt = Transpose <perm = [0, 2, 1, 3]> (qr)
          kt = Transpose <perm = [0, 2, 3, 1]> (kr)
          vt = Transpose <perm = [0, 2, 1, 3]> (vr)
          s = MatMul (qt, kt)
          d = Div (s, scale)
          m = Softmax <axis = -1> (d)
          o = MatMul (m, vt)
          ot = Transpose <perm = [0, 2, 1, 3]> (o)
          y = Reshape (ot, merged)
        }""",
    "shapes": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 12] x) => (float[A, B] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64 start = {0}, int64 step = {1}, int64[1] minus = {-1}> {
          s = Shape (x)
          n = Gather (s, zero)
          m = Gather (s, one)
          t = Concat <axis = 0> (m, n)
          r = Reshape (x, t)
          l = Squeeze (m)
          i = Range (start, l, step)
          f = Cast <to = 1> (i)
          e = Expand (f, s)
          z = ConstantOfShape (t)
          a = Add (r, z)
          b = Transpose <perm = [1, 0]> (a)
          y = Add (b, e)
        }""",
    "loop": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 8] x, int64 trips, bool go) => (float[N, 8] y) {
          y = Loop (trips, go, x) <body = step (int64 i, bool c, float[N, 8] h) => (bool k, float[N, 8] g) {
            k = Identity (c)
            g = Tanh (h)
          }>
        }""",
    "function": """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        net (float[N, 8] x) => (float[N, 8] y) {
          a = own.twice <scale = 2.0> (x)
          y = own.twice (a)
        }
        <domain: "own", opset_import: ["" : 17]>
        twice <scale: float = 1.0> (x) => (y) {
          s = Constant <value_float: float = @scale> ()
          t = Mul (x, s)
          y = Relu (t)
        }""",
    "quantised": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 4, 8, 8] x, int8[4, 4, 3, 3] w) => (float[N, 4, 6, 6] y)
        <float sx = {0.1}, int8 zx = {0}, float sw = {0.02}, int8 zw = {0}> {
          q = QuantizeLinear (x, sx, zx)
          d = DequantizeLinear (q, sx, zx)
          v = DequantizeLinear (w, sw, zw)
          c = Conv (d, v)
          r = QuantizeLinear (c, sx, zx)
          y = DequantizeLinear (r, sx, zx)
        }""",
    "sequences": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 6, 4] x, int64 at) => (float[N, 6, 4] y) {
          s = SplitToSequence <axis = 1, keepdims = 1> (x)
          e = SequenceAt (s, at)
          i = SequenceInsert (s, e)
          n = SequenceLength (i)
          m = SequenceErase (i, at)
          y = ConcatFromSequence <axis = 1> (m)
        }""",
    "branches": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 8] x, bool c) => (float[A, B] y) <int64[2] p = {-1, 4}> {
          y = If (c) <then_branch = t () => (float[C, D] a) { a = Reshape (x, p) },
                      else_branch = e () => (float[E, F] b) { u = Relu (x) b = Reshape (u, p) }>
        }""",
    "scan": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[4, 8] h, float[16, 4, 8] x) => (float[4, 8] y, float[16, 4, 8] z) {
          y, z = Scan <num_scan_inputs = 1, body = b (float[4, 8] s, float[4, 8] u) => (float[4, 8] t, float[4, 8] v) {
            t = Add (s, u)
            v = Tanh (t)
          }> (h, x)
        }""",
    "selection": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 100] x, float[1, 20, 4] boxes, float[1, 3, 20] scores) => (float[A, B] y, int64[C, 3] m)
        <int64[1] k = {5}, int64 most = {4}, float iou = {0.5}, float[2] onoff = {0.0, 1.0}, int64 depth = {7}> {
          v, i = TopK <axis = 1> (x, k)
          o = OneHot <axis = -1> (i, depth, onoff)
          z = NonZero (x)
          u = Unique (x)
          m = NonMaxSuppression (boxes, scores, most, iou)
          f = Flatten (o)
          w = Slice (f, k, depth)
          y = Einsum <equation = "ab,cb->ac"> (f, f)
        }""",
    "images": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 4, 9, 9] x, float[4, 2, 3, 3] w, float[4] g) => (float[N, C, H, W] y)
        <float[4] scales = {1.0, 1.0, 2.0, 2.0}, int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, int64[4] times = {1, 2, 1, 1}> {
          c = ConvTranspose <strides = [2, 2], group = 1> (x, w)
          p = Pad (x, pads)
          r = Resize <mode = "nearest"> (p, , scales)
          t = Tile (r, times)
          a = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (t)
          d = DepthToSpace <blocksize = 2> (a)
          b, e = Split <axis = 1> (d)
          y = MaxPool <kernel_shape = [2, 2], dilations = [1, 1]> (b)
        }""",
    "recurrent": """
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[T, N, 8] x, float[2, 64, 8] w, float[2, 64, 16] r, float[2, 128] b) => (float[T, D, N, 16] y) {
          y, h, c = LSTM <hidden_size = 16, direction = "bidirectional"> (x, w, r, b)
        }""",
    "microsoft": """
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[N, S, 64] x, float[64, 192] w, float[192] b, float[64] g, float[64, 32] f) => (float[N, S, 64] y) {
          a = com.microsoft.Attention <num_heads = 4> (x, w, b)
          s = com.microsoft.SkipLayerNormalization <epsilon = 0.00001> (x, a, g, g)
          l = com.microsoft.FastGelu (s)
          y = com.microsoft.FusedMatMul <transB = 1, alpha = 2.0> (l, w2)
        }""".replace("float[64, 32] f", "float[64, 64] w2"),
    "integer": """
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[N, 64] x, uint8[32, 2, 16] q, float[64] s, int8[64, 16] w) => (float[N, 32] y, int32[N, 16] z)
        <float sw = {0.02}, int8 zw = {0}> {
          y = com.microsoft.MatMulNBits <K = 64, N = 32, bits = 4, block_size = 32> (x, q, s)
          d, ds, dz = DynamicQuantizeLinear (x)
          z = MatMulInteger (d, w, dz, zw)
        }""",
}
