import jax

import axonym as axn
from axonym.partitioning.options import MICROBATCHES, PRODUCTS, Microbatches, Products


def test_layers_see_what_was_asked_of_the_innermost_block_or_function(auto_mesh: jax.sharding.Mesh) -> None:
    seen: list[object] = []

    def look(x: axn.NamedArray) -> axn.NamedArray:
        seen.append((MICROBATCHES.get(), PRODUCTS.get()))
        return x

    x = axn.ones({"batch": 8})
    with axn.set_mesh(auto_mesh):
        axn.named_jit(look, {"batch": "data"}, rings=True)(x)
        with axn.pipelined("batch", 4):
            axn.named_jit(look, {"batch": "data"})(x)
    assert seen == [
        (None, Products(manual=False, rings=True)),
        (Microbatches("batch", 4), Products()),
    ]
