"""A call that stands for a kernel has its shapes, and depends on all operands."""

import jax
import jax.numpy as jnp

from axonym.current.machine import MACHINE, Machine
from axonym.partitioning.counted import count_kernel


def call(x, order):
    return count_kernel("one", 10, 20, lambda given: (given[0] * 2).astype(jnp.bfloat16), (x, order, "static"))


def differentiate(x, order):
    return jax.grad(lambda x: call(x, order).sum().astype(jnp.float32))(x)


def test_a_stand_in_has_the_types_of_the_kernel():
    x, order = jnp.ones((4, 3)), jnp.arange(4)
    with MACHINE.using(Machine("tpu")):
        assert jax.eval_shape(call, x, order) == jax.ShapeDtypeStruct((4, 3), jnp.bfloat16)
        program = jax.make_jaxpr(differentiate)(x, order).jaxpr
    calls = [one.params["name"] for one in program.eqns if one.params.get("name", "").startswith("kernel[")]
    assert calls == ["kernel[one 10 20 12]", "kernel[one 20 0 12]"]
    (order_read,) = [one.invars[1] for one in program.eqns if one.params.get("name") == calls[0]]
    assert order_read is program.invars[1]


def test_a_kernel_that_compiles_here_is_itself():
    x, order = jnp.full((4, 3), 3.0), jnp.arange(4)
    with MACHINE.using(Machine("cpu", has_compiler=True)):
        assert jax.jit(call)(x, order).tolist() == [[6.0] * 3] * 4
        assert jax.jit(differentiate)(x, order).tolist() == [[2.0] * 3] * 4
