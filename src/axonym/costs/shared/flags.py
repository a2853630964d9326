"""Internal. Compiler flags that published runs set: without them, a program may be slower than its estimated cost.

Reports list them for their target. The list is short: flags that costs rely on, because costs assume that sending and
copies overlap with computing.
"""

from collections.abc import Mapping

from .targets import Platform

# By platform: the source, and each flag with its effect.
_FLAGS: Mapping[Platform, tuple[str, Mapping[str, str]]] = {
    "tpu": (
        "MaxText, benchmarks/xla_flags_library.py; of scatters: tpu-recipes, training/ironwood/deepseek3-671b",
        {
            "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter=true": "scatters over all axes of a torus",
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather=true": "gathers run beside products",
            "xla_tpu_overlap_compute_collective_tc=true": "collectives run beside products",
            "xla_tpu_enable_data_parallel_all_reduce_opt=true": "sums between slices overlap",
            "xla_tpu_host_transfer_overlap_limit=24": "copies to host memory overlap",
            "xla_tpu_scoped_vmem_limit_kib=98304": "larger blocks in fast memory, for dense models on v6e",
        },
    ),
    "cuda": (
        "NVIDIA JAX-Toolbox, rosetta/docs/GPU_performance.md",
        {
            "xla_gpu_enable_latency_hiding_scheduler=true": "collectives run beside products",
            "xla_gpu_enable_pipelined_all_gather=true": "gathers of the next layer run early",
            "xla_gpu_enable_pipelined_reduce_scatter=true": "sums of the layer before run late",
            "xla_gpu_enable_while_loop_double_buffering=true": "loops over layers need no copies for that",
        },
    ),
}


def list_flags(platform: Platform) -> tuple[str, ...]:
    """Return the flags that published runs on a platform set, each with its effect, and the source at the end."""
    if platform not in _FLAGS:
        return ()
    source, flags = _FLAGS[platform]
    return (*(f"--{flag}: {why}" for flag, why in flags.items()), f"source: {source}")
