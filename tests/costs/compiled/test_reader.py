"""Programs that a compiler makes: what cannot be compiled, and what is not known of them."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.costs.compiled import reader
from axonym.errors import OperandError
from axonym.partitioning import TARGETS

Batch, Embed = axn.make_axes(batch=8, embed=16)
X = axn.ones((Batch, Embed))


class Lowered:
    """What a compiler refuses."""

    def __init__(self, text):
        self.text = text

    def compile(self):
        raise jax.errors.JaxRuntimeError(self.text)


def test_a_program_that_no_device_can_hold():
    text = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, 98.32G exceeds available HBM (15.75G).\nmore"
    with pytest.raises(OperandError) as raised:
        reader.compile_program(Lowered(text), TARGETS["v5e"])
    assert str(raised.value) == (
        "cost: the program does not fit into the memory of v5e\n"
        "  RESOURCE_EXHAUSTED: Ran out of memory on HBM, 98.32G exceeds available HBM (15.75G).\n"
        "  hint: pass a mesh of simulated devices of this machine: then the report says what to change"
    )


def test_other_errors_of_the_compiler_stay():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        reader.compile_program(Lowered("INTERNAL: no"), TARGETS["v5e"])


def test_a_loop_of_unknown_length_is_told():
    def settle(x, count):
        return jax.lax.fori_loop(0, count, lambda _, x: axn.dot(x, X, axis=Batch) * X, x)

    report = axn.cost(settle, {"batch": "data"}, {"data": 8}, X, jnp.array(3))
    (note,) = report.notes
    assert note.startswith("loops whose length the program does not say count as one iteration: ")
    assert note in str(report)


def test_data_is_counted_beside_parameters_that_the_program_does_not_need():
    def half(both, x):
        return axn.dot(x, both["used"], axis=Embed)

    both = {"used": axn.ones((Embed,)), "unused": axn.ones((Embed, axn.Axis("other", 100)))}
    memory = axn.cost(half, {"batch": "data"}, {"data": 8}, both, X).memory
    assert (memory.parameters, memory.data) == (4 * 16 * 101, 4 * 16)


@pytest.mark.parametrize("depth", ["traced", "compiled"])
def test_numbers_of_half_a_byte_are_packed(depth):
    def product(weights, x):
        return axn.dot(x, weights["w"].astype(jnp.float32), axis=Embed)

    weights = {"w": axn.ones((Embed, axn.Axis("other", 100)), dtype=jnp.int4)}
    memory = axn.cost(product, {"batch": "data"}, {"data": 8}, weights, X, depth=depth).memory
    assert memory.parameters + memory.data == 16 * 100 // 2 + 4 * 16


def test_calls_of_libraries_are_told_at_both_depths():
    def several(x):
        root = jnp.linalg.cholesky(x @ x.T)
        return root, jnp.abs(jnp.fft.fft(x)), jax.jit(jnp.linalg.eigh)(x)

    for depth in ("traced", "compiled"):
        report = axn.cost(several, {}, {"data": 1}, jnp.ones((8, 8)), target="h100", depth=depth)
        assert set(report.notes) == {
            f"operations of {name} are not counted: outside of layers" for name in ("cholesky", "eigh", "fft")
        }


def test_branches_are_told():
    """Which branch runs is not known: the program counts all, and a traced step the one that computes most."""

    def choose(i, x):
        return jax.lax.switch(i, [lambda x: x, lambda x: x @ x, lambda x: jnp.tanh(x @ x)], x)

    given = {"data": 1}, jnp.array(1), jnp.ones((8, 8))
    assert axn.cost(choose, {}, *given, depth="traced").totals["flops"] == 2 * 8**3
    report = axn.cost(choose, {}, *given)
    assert report.totals["flops"] == 2 * 2 * 8**3
    assert report.notes == ("all branches of a condition count, of which one runs: outside of layers",)
