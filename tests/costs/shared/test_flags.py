"""Flags of compilers in reports."""

import jax.numpy as jnp

import axonym as axn
from axonym.costs.shared.flags import list_flags


def test_a_report_lists_the_flags_of_its_platform():
    x = jnp.ones(8)
    on_gpu, here = (axn.cost(jnp.sin, {}, {"data": 1}, x, target=name, depth="traced") for name in ("h100", "cpu"))
    assert here.flags == list_flags("cpu") == ()
    assert "flags" not in str(here)
    assert on_gpu.flags[-1] == "source: NVIDIA JAX-Toolbox, rosetta/docs/GPU_performance.md"
    first = "  --xla_gpu_enable_latency_hiding_scheduler=true: collectives run beside products"
    assert f"published runs set these flags of the compiler:\n{first}\n" in str(on_gpu)
