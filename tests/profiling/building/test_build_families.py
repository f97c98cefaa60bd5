"""Names of kernels to families."""

import pytest

from gkestimator.core.kernels import Family
from gkestimator.profiling.building.families import MATRIX, family_of, kernel_words, word_family

# Names as nsys shows them: of PyTorch and its libraries, cuBLAS, cuDNN, CUTLASS and ONNX Runtime.
NAMES = {
    "ampere_sgemm_128x64_tn": MATRIX,
    "volta_sgemm_32x128_nn": MATRIX,
    "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn": MATRIX,
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_stage3_warpsize2x2x1_ffma_aligna4_kernel": MATRIX,
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32": MATRIX,
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(T1::Params)": MATRIX,
    "void cutlass_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x64_16x4>(T1::Params)": MATRIX,
    "nvjet_hsh_128x64_64x8_1x2_h_bz_coopA_TNT": MATRIX,
    "void gemv2T_kernel_val<int, int, float, float, float, 128, 16, 4, 4, false>(T13, T6)": MATRIX,
    "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false>(int, int, int)": MATRIX,
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": MATRIX,
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, true>(T3)": Family.REDUCTION,
    "void splitKreduce_kernel<32, 16, int, float>(T3)": Family.REDUCTION,
    "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(T1)": Family.COPY,
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, 2>(T2)": Family.COPY,
    "void nhwcToNchwKernel<float>(T2)": Family.COPY,
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>>(int)": Family.ELEMENTWISE,
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda>>(int)": Family.COPY,
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)": Family.COPY,
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)": Family.COPY,
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 4, 64, 64>(float*)": Family.COPY,
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*)": Family.SOFTMAX,
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>(float*)": Family.SOFTMAX,
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)": Family.LAYERNORM,
    "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>(long)": Family.LAYERNORM,
    "void cuApplyLayerNorm<float, float, float>(float*)": Family.LAYERNORM,
    "void at::native::batch_norm_transform_input_kernel<float, float, float, true, int>(T1)": Family.BATCHNORM,
    "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>(float)": Family.BATCHNORM,
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float>>>(T3)": Family.REDUCTION,
    "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, long>(int)": Family.POOLING,
    "void at::native::(anonymous namespace)::avg_pool2d_out_cuda_frame<float, float>(int)": Family.POOLING,
    "void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>(int)": Family.RESAMPLE,
    "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(int)": Family.DEPTHWISE,
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2>(T1)": Family.GATHER,
    "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>(int)": Family.GATHER,
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)": Family.ATTENTION,
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)": Family.ATTENTION,
    "void onnxruntime::cuda::_BinaryElementWiseSimple<true, true, float>(float const*)": Family.ELEMENTWISE,
    "void onnxruntime::cuda::Transpose4DKernelParallelizeOneElementPerThread<4>(int)": Family.COPY,
    "void onnxruntime::cuda::_ResizeBilinearKernel<float>(int)": Family.RESAMPLE,
    "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(T1)": Family.SORT,
    "LSTM_elementWise_fp": Family.RNN,
    "aten::addmm": MATRIX,
    "aten::mkldnn_convolution": MATRIX,
    "aten::native_layer_norm": Family.LAYERNORM,
    "aten::_softmax": Family.SOFTMAX,
    "aten::copy_": Family.COPY,
    "aten::max_pool2d_with_indices": Family.POOLING,
    "FusedConv": MATRIX,
    "ReorderInput": Family.COPY,
    "Gemm": MATRIX,
    "MatMul": MATRIX,
    "ArgMax": Family.REDUCTION,
    "CumSum": Family.SCAN,
    "NonMaxSuppression": Family.SORT,
    "LayerNormalization": Family.LAYERNORM,
    "krnl_7f3a": None,
    "": None,
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_names(name, expected):
    assert word_family(name) == expected


def test_words():
    assert kernel_words("void cudnn::nchwToNhwcKernel<float, 2>(T2)") == ("nchw", "to", "nhwc", "kernel")


def test_a_matrix_library_does_what_its_operator_is():
    name = "ampere_sgemm_128x64_tn"
    assert family_of(name, "kernel", [Family.CONV, Family.ELEMENTWISE]) is Family.CONV
    assert family_of(name, "kernel", [Family.ELEMENTWISE, Family.BMM]) is Family.BMM
    assert family_of(name, "kernel", [Family.ELEMENTWISE]) is Family.LINEAR
    assert family_of(name, "kernel", []) is Family.LINEAR


def test_unknown_names_are_of_the_main_family():
    assert family_of("krnl_7f3a", "kernel", [Family.SORT, Family.COPY]) is Family.SORT
    assert family_of(None, "host", [Family.CONV]) is Family.CONV
    assert family_of("anything", "memcpy", [Family.CONV]) is Family.COPY
    assert family_of("anything", "memset", [Family.CONV]) is Family.COPY


@pytest.mark.parametrize(
    "name", ["<" * 5000, ">" * 50, "(" * 50, "a" * 100_000, "void <(>)", "::::", "é\x00"]
)
def test_strange_names_are_names(name):
    assert family_of(name, "kernel", [Family.CONV]) in Family
