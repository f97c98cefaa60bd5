"""Tiles of matrix libraries, the grids that follow from them, and files of learned choices from strangers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.core.stored import StoredArrays, StoredObject
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.geometry import Geometry, tile_launch
from gkestimator.kernel_models.launch import launch_geometry
from gkestimator.kernel_models.tiles import Tile, parse_tile, recorded_tile, tile_blocks

V100 = gpu_catalogue().resolve("V100-SXM2-16GB")[0]
A100 = gpu_catalogue().resolve("A100-PCIE-40GB")[0]
H100 = gpu_catalogue().resolve("H100-SXM")[0]


def product(batch: int, m: int, n: int, k: int, variant: str = "matmul") -> Kernel:
    return Kernel(
        name="p", family=Family.LINEAR if batch == 1 else Family.BMM, variant=variant, precision=Precision.FP32,
        flops=2 * batch * m * n * k, read_bytes=4 * batch * (m * k + n * k), write_bytes=4 * batch * m * n, rows=m,
        cols=n, inputs=2, gemm=GemmShape(batch=batch, m=m, n=n, k=k),
    )  # fmt: skip


def convolution(n: int, c: int, k: int, size: int, kernel: int = 3, stride: int = 1) -> Kernel:
    out = (size - 1) // stride + 1
    return Kernel(
        name="c", family=Family.CONV, variant="conv", precision=Precision.FP32,
        flops=2 * n * out * out * k * c * kernel * kernel, read_bytes=4 * n * c * size * size,
        write_bytes=4 * n * k * out * out, inputs=2, gemm=GemmShape(batch=1, m=n * out * out, n=k, k=c * kernel**2),
        conv=ConvShape(
            batch=n, in_channels=c, out_channels=k, groups=1, in_h=size, in_w=size, out_h=out, out_w=out,
            kernel_h=kernel, kernel_w=kernel, stride_h=stride, stride_w=stride, dilation_h=1, dilation_w=1,
        ),
    )  # fmt: skip


def table(*kernels: Kernel) -> KernelTable:
    return KernelTable.from_kernels(kernels)


@pytest.mark.parametrize(
    ("name", "threads", "convolution", "expected"),
    [
        ("volta_sgemm_128x64_tn", 128, False, "gemm_128x64_128"),
        ("ampere_sgemm_32x32_sliced1x4_tn", 128, False, "gemm_32x32_128_s4"),
        ("volta_sgemm_64x64_nn", 64, True, "nonfused_64x64_64"),
        ("cudnn_infer_volta_scudnn_128x64_relu_small_nn_v1", 128, True, "direct_128x64_128"),
        ("cudnn_infer_volta_scudnn_128x64_3dconv_fprop_small_nn_v1", 128, True, "direct_128x64_128"),
        (
            "cudnn_infer_ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
            256,
            True,
            "fused_148_256",
        ),
        ("ampere_gcgemm_64x64_nt", 256, True, "fft_64x64_256"),
        (
            "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false, true>(int)",
            64,
            True,
            "simple_32x32_64",
        ),
        ("void at::native::vectorized_elementwise_kernel<4>", 128, False, ""),
        ("sgemm_0x0_nn", 128, False, ""),
    ],
)
def test_kernel_names_give_their_tile(name: str, threads: int, convolution: bool, expected: str) -> None:
    found = recorded_tile(name, threads, convolution=convolution)
    assert found == expected
    if expected:
        tile = parse_tile(found)
        assert tile is not None and tile.name == expected


@pytest.mark.parametrize(
    ("tile", "kernel", "blocks"),
    [
        # Recorded by NeuSight: (B, M, N -> K) is m = B M, n = K, k = N here.
        ("gemm_128x32_256", product(1, 58, 141, 13), 2 * 2),
        ("gemm_128x64_128", product(13, 27, 29, 15), 13),
        ("fused_148_256", convolution(36, 228, 60, 34), 72 * 5 * 3),
        ("fused_244_256", convolution(8, 107, 519, 23), 68 * 3 * 3),
        ("fused_442_256", convolution(20, 582, 1551, 6), 245 * 1 * 2),
        ("nonfused_128x128_256", convolution(48, 197, 90, 33), 31 * 36),
        ("nonfused_32x128_256", convolution(37, 464, 1086, 9), 14 * 9 * 36),  # 37 images count as 48
        ("direct_128x64_128", convolution(5, 390, 844, 11), 5 * 14),
        ("simple_32x32_64", convolution(14, 3, 589, 5), 11 * 19),
        ("fft_64x64_256", convolution(59, 332, 188, 26), 3 * 544),
        ("fft_64x64_256", convolution(57, 347, 147, 14), 3 * 144),
    ],
)
def test_the_grid_follows_from_tile_and_shape(tile: str, kernel: Kernel, blocks: int) -> None:
    parsed = parse_tile(tile)
    assert parsed is not None
    assert tile_blocks(parsed, table(kernel)).tolist() == [blocks]


def test_registers_limit_the_tiles_as_profilers_show() -> None:
    # 64 outputs a thread: 122 registers, allotted as 128, so 16 of a V100's 64 warps; 16 outputs: 60, as 64, so 32.
    tiles = [
        parse_tile(n) for n in ("gemm_128x64_128", "gemm_128x128_256", "gemm_64x64_64", "gemm_32x128_256")
    ]
    launch, fit = tile_launch([t for t in tiles if t is not None], V100)
    assert launch.registers_per_thread.tolist() == [122, 122, 122, 60]
    assert (fit * np.ceil(launch.block_threads / 32)).tolist() == [16, 16, 16, 32]


def geometry() -> Geometry:
    found = load_bundle().geometry
    assert found is not None
    return found


def test_the_shipped_choices_are_tiles_of_their_chip() -> None:
    kernels = [product(1, 4096, 1024, 1024), product(1, 77, 64, 8192), product(1, 5, 5, 3)]
    for gpu in (V100, A100, H100):
        picker = geometry().pickers["linear"]
        tile, blocks, split = picker.pick(table(*kernels), gpu)
        assert picker.candidates(gpu)[tile].all()
        for i, kernel in enumerate(kernels):
            assert blocks[i] == split[i] * tile_blocks(picker.tiles[tile[i]], table(kernel))[0]
        assert split[2] == 1  # 3 of k are not cut


def test_only_dense_three_by_three_filters_take_winograd_kernels() -> None:
    picker = geometry().pickers["conv"]
    other = [
        convolution(16, 64, 128, 28, 1),
        convolution(16, 64, 128, 28, 3, 2),
        convolution(16, 64, 128, 28, 7),
    ]
    dense = [convolution(32, 256, 256, 28)]
    algorithms = [picker.tiles[i].algorithm for i in picker.pick(table(*other, *dense), V100)[0]]
    assert not {"fused", "nonfused"} & set(algorithms[:3])
    assert algorithms[3] in ("fused", "nonfused")


def test_half_precision_and_shapeless_kernels_keep_the_rules() -> None:
    half = Kernel(
        name="h", family=Family.LINEAR, variant="matmul", precision=Precision.FP16, flops=1, read_bytes=1,
        write_bytes=2 * 512 * 512, gemm=GemmShape(batch=1, m=512, n=512, k=512),
    )  # fmt: skip
    rows = table(half, Kernel(name="r", family=Family.RNN, variant="lstm", precision=Precision.FP32, flops=1,
                              read_bytes=1, write_bytes=4))  # fmt: skip
    before = launch_geometry(rows, V100)
    after = geometry().apply(before, rows, V100)
    assert np.array_equal(before.grid_blocks, after.grid_blocks)
    assert np.array_equal(before.block_threads, after.block_threads)


def test_a_product_by_a_plain_matrix_is_answered_as_the_batched_ones() -> None:
    shape = (1, 8192, 768, 768)
    rows = table(product(*shape, variant="matmul_nn"))
    tile, blocks, _ = geometry().pickers["bmm"].pick(rows, V100)
    launch = geometry().apply(launch_geometry(rows, V100), rows, V100)
    assert launch.grid_blocks[0] == blocks[0]
    assert launch.block_threads[0] == geometry().pickers["bmm"].tiles[tile[0]].threads


def test_choices_survive_writing() -> None:
    found = geometry()
    again = Geometry.read(
        StoredObject(json.loads(json.dumps(found.document())), "g"), StoredArrays(found.arrays(), "g")
    )
    rows = table(*[product(1, m, 768, 3072) for m in (1, 60, 512, 5000)])
    before, after = (g.pickers["linear"].pick(rows, V100) for g in (found, again))
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


Break = Callable[[dict, dict], object]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda d, a: d.update(schema_version=2), "schema_version: found 2"),
        (lambda d, a: d.update(splits=[1]), "splits: found"),
        (lambda d, a: d.update(pickers=[]), "pickers: found a list of 0"),
        (lambda d, a: d["pickers"].update(pooling={}), "pickers: found 'pooling'"),
        (lambda d, a: d["pickers"].update(conv=3), "pickers.conv: found 3, expected an object"),
        (
            lambda d, a: d["pickers"]["conv"].update(tiles=["gemm_128x64_128"]),
            "pickers.conv.tiles: found a list of 1",
        ),
        (lambda d, a: d["pickers"]["conv"]["tiles"].__setitem__(0, "gemm_0x64_128"), "is no kernel class"),
        (lambda d, a: d["pickers"]["conv"]["tiles"].__setitem__(0, 5), "pickers.conv.tiles: found a list"),
        (lambda d, a: d["pickers"]["conv"].update(chips=[[7, 0]]), "pickers.conv.chips: found"),
        (lambda d, a: d["pickers"]["conv"].update(offered=[[0]]), "pickers.conv.offered: found"),
        (lambda d, a: d["pickers"]["conv"].update(splits_k=1), "pickers.conv.splits_k: found 1"),
        (lambda d, a: d["pickers"]["conv"].update(splits_k=True), "array 'conv.split.leaf': found nothing"),
        (lambda d, a: a.pop("linear.split.leaf"), "array 'linear.split.leaf': found nothing"),
        (lambda d, a: a.update({"bmm.tile.leaf": np.zeros((3, 3), np.float32)}), "a power of two"),
        (
            lambda d, a: a.update({"bmm.tile.threshold": np.zeros((1, 63), np.float32)}),
            "array 'bmm.tile.threshold'",
        ),
        (lambda d, a: a.update({"bmm.tile.feature": a["bmm.tile.feature"] + 100}), "or leave 0 .. 29"),
        (lambda d, a: a.update({"bmm.tile.leaf": a["bmm.tile.leaf"] * np.nan}), "not finite"),
    ],
)
def test_strange_files_are_refused_in_one_line(broken: Break, message: str) -> None:
    found = geometry()
    document, arrays = json.loads(json.dumps(found.document())), found.arrays()
    broken(document, arrays)
    where = "folder/geometry.json"
    with pytest.raises(BundleError) as caught:
        Geometry.read(StoredObject(document, where), StoredArrays(arrays, where))
    assert message in str(caught.value) and where in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bundle_without_the_file_keeps_the_rules(tmp_path: Path) -> None:
    import shutil
    from importlib.resources import files

    copy = tmp_path / "bundle"
    shutil.copytree(str(files("gkestimator.models") / "default"), copy)
    (copy / "geometry.json").unlink()
    (copy / "geometry.npz").unlink()
    bare = load_bundle(copy)
    assert bare.geometry is None
    rows = table(product(1, 300, 300, 300))
    assert bare.predict(rows, V100).grid_blocks[0] == launch_geometry(rows, V100).grid_blocks[0]


def test_tiles_of_nonsense_are_none() -> None:
    for name in ("", "gemm_128x64", "gemm_128x64_99999", "fused_044_256", "gemm_128x64_16", "other_1x1_32"):
        assert parse_tile(name) is None
    assert Tile(algorithm="gemm", m=64, n=32, threads=256, slices=4).name == "gemm_64x32_256_s4"
