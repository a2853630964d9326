"""Internal. Descriptions of absent GPUs, for which JAX's GPU plugin can compile.

`devices` asks for them. A new generation is one entry of `_CHIPS`.
"""

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

import jax
from jax.experimental import topologies

# The plugin looks for a driver, and is not loaded without one, unless this variable tells it not to.
SKIP_CHECK = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
# The description of a device for the compiler, as in OpenXLA's xla/tools/hlo_opt/gpu_specs/h100_sxm.txtpb.
_CHIPS: Mapping[str, str] = {
    "h100": """
        gpu_device_info {
          cuda_compute_capability { major: 9 }
          core_count: 132
          fpus_per_core: 128
          clock_rate_ghz: 1.98
          threads_per_warp: 32
          threads_per_block_limit: 1024
          threads_per_core_limit: 2048
          registers_per_block_limit: 65536
          registers_per_core_limit: 65536
          shared_memory_per_block: 49152
          shared_memory_per_block_optin: 232448
          shared_memory_per_core: 233472
          l2_cache_size: 52428800
          memory_bandwidth: 3352320000000
          device_memory_size: 84929347584
          block_dim_limit_x: 2147483647
          block_dim_limit_y: 65535
          block_dim_limit_z: 65535
        }
        runtime_version { major: 12 minor: 8 }
        dnn_version_info { major: 9 minor: 7 }
        platform_name: "CUDA"
        device_description_str: "NVIDIA H100 80GB HBM3"
    """
}
# GPUs of one host.
_TOGETHER = 8


def describe_gpus(name: str, count: int) -> list[Any]:
    """Return descriptions of absent GPUs that JAX can compile for; empty if it cannot."""
    is_whole = count <= _TOGETHER or count % _TOGETHER == 0
    if name not in _CHIPS or not is_whole or jax.default_backend() == "gpu" or not _has_plugin():
        return []
    hosts = max(1, count // _TOGETHER)
    try:
        described = topologies.get_topology_desc(
            topology_name=name,
            platform="cuda",
            target_config=_CHIPS[name],
            topology=f"1x{hosts}x{count // hosts}",
        )
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        # JAX looked for plugins before, without the variable.
        return []
    return list(described.devices)


def write_hint(name: str) -> str:
    """Return a text that says what to install to compile for such GPUs here; empty if nothing helps."""
    if name not in _CHIPS:
        return ""
    return (
        f"; jax[cuda13] compiles for them without one, if {SKIP_CHECK}=1 is set before JAX starts"
    )


def _has_plugin() -> bool:
    os.environ.setdefault(SKIP_CHECK, "1")
    if importlib.util.find_spec("jax_plugins") is None:
        return False
    return any(importlib.util.find_spec(plugin) is not None for plugin in _PLUGINS)
