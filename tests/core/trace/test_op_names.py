"""Tests of how a GPU op's category and name classify it."""

from __future__ import annotations

import pytest

from overlapscope.trace.model import Kind, Memory
from overlapscope.trace.op_names import (
    GPU_CATEGORIES,
    hides_direction,
    is_work,
    kernel_names,
    kind,
    looks_like_communication,
    memory_kinds,
    short_kernel,
)

COMMUNICATION = [
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_Generic(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymDevArgs const*)",
    "ncclSymDevKernel_AllGather_LL(ncclSymDevArgs)",
    "void mscclKernel_Sum_float_LL(mscclAlgo*)",
    "void mscclpp::allreduce7<__half>(mscclpp::Handle*)",
    "oneccl_allreduce_small",
    "nvshmemi_barrier_kernel",
    "void nvshmem_all_to_all_vdev_2d<long>(void*)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals)",
    "void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*)",
    "void aiter::allreduce_fusion_kernel_1stage<8>(aiter::Args)",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true>(AllReduceParams)",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8, true>(AllReduceParams)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<4>(Params)",
    "void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16, 8>(float**)",
    "one_shot_all_reduce_kernel",
    "void c10d::symmetric_memory::multimem_all_gather_kernel<16>(char*)",
    "void c10d::symmetric_memory::barrier_kernel(unsigned int**)",
    "void deep_ep::intranode::dispatch<8, 768>(int4*, float*)",
    "void dpsk::ep::internode::cached_notify<false>(int, int, int*, void**, bool, int)",
    "void mine::internode_ll::combine<true, 8>(void*, void*, int)",
    "void kuserbuffers_userbuffers_fp16_sum_inplace_gpu_rr<8>(int)",
    "void quickreduce::allreduce_prototype_twoshot<Codec>(void*)",
    "moeA2ADispatchKernel",
    "void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<__nv_bfloat16, 8>(Params)",
    "void flashinfer::moeAllToAllKernel<8>(Params)",
    "helixAllToAllKernel",
    "ulysses_a2a_kernel",
    "void pplx::a2a_dispatch_send_kernel<true>(void*)",
    "a2a_combine_recv_kernel",
    "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(Args)",
    "EpCombineInterNodeV1KernelLowLatency_bf16",
    "OneShotAll2allSdmaKernel",
    "void hybrid_ep::dispatch_kernel<4, 8>(Params)",
    "hybrid_ep::device_sync_kernel(int*)",
    "nccl_ep_jit_ht_combine_kernel",
    "ncclKernelAllToAllvDynamic(int*)",
    "void deep_ep::elastic::hybrid_dispatch_impl<8>(int*)",
    "ipc_topo_rsag8_push_param_kernel",
    "_ZN7deep_ep9internode8dispatchILb0ELi8EEEvPi",
    "_ZN4vllm26cross_device_reduce_1stageI6__halfLi2EEEvPNS_8RankDataE",
]

COMPUTE = [
    "SyncBatchNorm",
    "void at::native::batch_norm_collect_statistics_kernel<InvStd, float>(float)",
    "void at::native::reduce_kernel<512, 1, ReduceOp<float>>(ReduceOp)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4, reduce_add>(int)",
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_cublas",
    "void softmax_warp_forward<AllReduce<float>, 8>(float*)",
    "void oneflow::cuda::softmax::BlockAllReduceSoftmax<float>(float*)",
    "void warp_all_reduce_layer_norm(float*)",
    "triton_poi_fused_all_gather_into_tensor_wait_tensor_3",
    "triton_red_fused__to_copy_all_reduce_mul_5",
    "hipMemcpyAsync",
    "Memcpy HtoD (Pinned -> Device)",
    "void checkForNaN<float>(float*)",
    "void flash::flash_fwd_splitkv_combine_kernel<Traits, 64>(Params)",
    "void groupnorm_kernel_dispatch_up<float>(float*)",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
    "moeA2APrepareDispatchKernel",
    "computeSendRecvIndicesKernel",
    "_precompute_combine_offsets_kernel",
    "moe_combine_kernel",
    "_ZN7cutlass13device_kernelIN5flash9AllReduceI6__halfEEEEvPi",
    "void deepspeed::step_kernel(float*)",
    "",
]


@pytest.mark.parametrize("name", COMMUNICATION)
def test_kernels_of_collective_libraries_are_communication(name: str) -> None:
    assert kind("kernel", name) is Kind.COMM


@pytest.mark.parametrize("name", COMPUTE)
def test_every_other_kernel_is_compute(name: str) -> None:
    assert kind("kernel", name) is Kind.COMPUTE


@pytest.mark.parametrize("name", COMMUNICATION)
def test_category_is_judged_before_name(name: str) -> None:
    assert kind("gpu_memset", name) is Kind.OTHER
    assert kind("gpu_memcpy", name) is not Kind.COMM


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Memcpy HtoD (Pinned -> Device)", (Kind.H2D, Memory.PINNED, Memory.DEVICE)),
        ("Memcpy HtoD (Pageable -> Device)", (Kind.H2D, Memory.PAGEABLE, Memory.DEVICE)),
        ("Memcpy HtoD (Managed -> Device)", (Kind.H2D, Memory.MANAGED, Memory.DEVICE)),
        ("Memcpy HtoD (Managed Static -> Device Static)", (Kind.H2D, Memory.MANAGED, Memory.DEVICE)),
        ("Memcpy HtoA (Pageable -> Array)", (Kind.H2D, Memory.PAGEABLE, Memory.ARRAY)),
        ("Memcpy AtoH (Array -> Pinned)", (Kind.D2H, Memory.ARRAY, Memory.PINNED)),
        ("Memcpy DtoH (Device -> Pinned)", (Kind.D2H, Memory.DEVICE, Memory.PINNED)),
        ("Memcpy DtoH (Device -> Unknown)", (Kind.D2H, Memory.DEVICE, Memory.UNKNOWN)),
        ("Memcpy DtoD (Device -> Device)", (Kind.OTHER, Memory.DEVICE, Memory.DEVICE)),
        ("Memcpy AtoD (Array -> Device)", (Kind.OTHER, Memory.ARRAY, Memory.DEVICE)),
        ("Memcpy HtoH (Pageable -> Pinned)", (Kind.OTHER, Memory.PAGEABLE, Memory.PINNED)),
        ("Memcpy PtoP (Device -> Device)", (Kind.P2P, Memory.DEVICE, Memory.DEVICE)),
        ("Memcpy <unknown> (Pinned -> Device)", (Kind.H2D, Memory.PINNED, Memory.DEVICE)),
        ("Memcpy <unknown> (Unrecognized -> Force Int)", (Kind.OTHER, Memory.UNKNOWN, Memory.UNKNOWN)),
        ("Memcpy HtoD (Host -> Device)", (Kind.H2D, Memory.UNKNOWN, Memory.DEVICE)),
        ("Memcpy DtoH (Device -> Host)", (Kind.D2H, Memory.DEVICE, Memory.UNKNOWN)),
        ("Memcpy <unknown> (? -> ?)", (Kind.OTHER, Memory.UNKNOWN, Memory.UNKNOWN)),
        ("Memcpy M2D (MEMORY(Unknown) -> DEVICE)", (Kind.H2D, Memory.UNKNOWN, Memory.DEVICE)),
        ("Memcpy D2M (DEVICE -> MEMORY(Unknown))", (Kind.D2H, Memory.DEVICE, Memory.UNKNOWN)),
        ("Memcpy D2D (DEVICE -> DEVICE)", (Kind.OTHER, Memory.DEVICE, Memory.DEVICE)),
        ("Memcpy S2D (SHARED -> DEVICE)", (Kind.OTHER, Memory.MANAGED, Memory.DEVICE)),
        ("Memcpy HtoD", (Kind.H2D, Memory.UNKNOWN, Memory.UNKNOWN)),
        ("CopyHostToDevice", (Kind.H2D, Memory.UNKNOWN, Memory.UNKNOWN)),
        ("", (Kind.OTHER, Memory.UNKNOWN, Memory.UNKNOWN)),
    ],
)
def test_copies_have_a_direction_and_memory_kinds(name: str, expected: tuple[Kind, Memory, Memory]) -> None:
    for category in ("gpu_memcpy", "Memcpy"):
        assert (kind(category, name), *memory_kinds(category, name)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MEMORY_COPY_HOST_TO_DEVICE", Kind.H2D),
        ("MEMORY_COPY_DEVICE_TO_HOST", Kind.D2H),
        ("MEMORY_COPY_DEVICE_TO_DEVICE", Kind.OTHER),
        ("MEMORY_COPY_HOST_TO_HOST", Kind.OTHER),
        ("__amd_rocclr_copyBuffer", Kind.OTHER),
        ("__amd_rocclr_copyBufferAligned.kd", Kind.OTHER),
        ("__amd_rocclr_fillBufferAligned", Kind.OTHER),
    ],
)
def test_copies_that_rocm_records_as_kernels_are_no_compute(name: str, expected: Kind) -> None:
    assert kind("kernel", name) is expected


def test_mtia_records_kernels_copies_and_waits_in_one_category() -> None:
    category = "mtia_ccp_events"
    assert kind(category, "fc-dtype_Float") == Kind.COMPUTE and is_work(category, "fc-dtype_Float")
    assert kind(category, "dma_request") == Kind.OTHER and hides_direction("dma_request")
    assert not is_work(category, "event_wait") and not is_work(category.upper(), "event_record")
    assert is_work("kernel", "event_wait")


def test_memory_kinds_are_for_copies_only() -> None:
    assert memory_kinds("gpu_memset", "Memset (Device)") == (Memory.UNKNOWN, Memory.UNKNOWN)
    assert memory_kinds("kernel", "f (Pinned -> Device)") == (Memory.UNKNOWN, Memory.UNKNOWN)


def test_annotations_and_synchronisation_are_no_gpu_categories() -> None:
    assert not GPU_CATEGORIES & {
        "gpu_user_annotation",
        "cuda_sync",
        "overhead",
        "cuda_event",
        "collective_comm",
    }


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic_1"),
        ("nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_NTN", "nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_NTN"),
        (
            "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 6, 7, false, cublasGemvTensorStridedBatched<float const> >"
            "(cublasGemmSmallNParams<cublasGemvTensorStridedBatched<float const>, float>)",
            "gemmSN_TN_kernel",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nt_align1>"
            "(cutlass_80_simt_sgemm_64x64_8x5_nt_align1::Params)",
            "cutlass_80_simt_sgemm_64x64_8x5_nt_align1",
        ),
        (
            "void at::native::(anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>"
            "(float*, float const*, int, int, int, bool const*, int, bool)",
            "softmax_warp_forward",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, "
            "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)",
            "vectorized_elementwise_kernel<MulFunctor>",
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, "
            "float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)",
            "reduce_kernel<MeanOps>",
        ),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("(odd)", "(odd)"),
        ("a<<b", "a"),
        ("", ""),
    ],
)
def test_a_kernel_is_called_what_people_know(name: str, short: str) -> None:
    assert short_kernel(name) == short


def test_kernels_of_one_short_name_keep_what_tells_them_apart() -> None:
    cat, gemm = "at::native::(anonymous namespace)::Cat<at::native::X<4>, {}>(at::native::X<4>*)", "void {}::gemm<1>()"
    names = {cat.format(2): "Cat<X<4>, 2>(X<4>*)", cat.format(3): "Cat<X<4>, 3>(X<4>*)"}
    names |= {gemm.format("a"): "a::gemm<1>()", gemm.format("b"): "b::gemm<1>()", "void at::sort<1>()": "sort"}
    assert kernel_names(names) == names


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("Memcpy <unknown> (Device -> Device)", False),
        ("Memcpy <unknown> (Managed -> Managed)", True),
        ("Memcpy DtoD (Unknown -> Unknown)", False),
        ("Memcpy PtoP", False),
        ("Memset (Device)", False),
        ("MEMORY_COPY_DEVICE_TO_DEVICE", False),
        ("__amd_rocclr_copyBuffer", True),
        ("__amd_rocclr_fillBufferAligned", False),
        ("MEMORY_COPY_NONE", True),
        ("Memcpy", True),
        ("", True),
    ],
)
def test_names_of_device_work_that_may_be_host_copies(name: str, hidden: bool) -> None:
    assert hides_direction(name) is hidden


@pytest.mark.parametrize(
    ("name", "looks"),
    [
        ("void (anonymous namespace)::dispatchKernel<8>(Params)", True),
        ("my_send_kernel", True),
        ("sendRecvKernel", True),
        ("moe_combine_kernel", True),
        ("dispatch_tokens_kernel", True),
        ("computeSendRecvIndicesKernel", False),
        ("void flash::flash_fwd_splitkv_combine_kernel<Traits, 64>(Params)", False),
        ("void groupnorm_kernel_dispatch_up<float>(float*)", False),
        ("void at::native::send_kernel<float>(float*)", False),
        ("gemm", False),
    ],
)
def test_kernels_that_may_communicate_are_known_as_unclear(name: str, looks: bool) -> None:
    assert looks_like_communication(name) is looks and kind("kernel", name) is Kind.COMPUTE
