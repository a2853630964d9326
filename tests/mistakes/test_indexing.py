"""Mistakes in indices and expressions."""

import jax
import jax.numpy as jnp

import axonym as axn
from axonym import nn
from tests.mistakes.answers import says, silent, warns

Batch, Pos, Embed, Mlp, Vocab = axn.make_axes(batch=8, pos=4, embed=16, mlp=32, vocab=10)


@says(
    """
    index: index 7 is out of range for pos=4
      array has: batch=8, pos=4, embed=16
    """
)
def test_an_index_out_of_range(x: axn.NamedArray) -> None:
    x["pos", 7]


@silent("Python and NumPy cut slices", page="guides/indexing.md", answer="Slices are cut to what is there")
def test_a_slice_out_of_range(x: axn.NamedArray) -> None:
    assert x["pos", 2:9].shape["pos"] == 2


@silent("JAX cannot raise in a program", page="guides/indexing.md", answer="The value of a traced index is not known")
def test_a_traced_index_out_of_range(x: axn.NamedArray) -> None:
    jax.eval_shape(lambda i: x["pos", i], jnp.int32(7))


@says(
    """
    take: index 10 is out of range for vocab=10
      array has: vocab=10, embed=16
    """
)
def test_a_token_out_of_range_where_that_is_checked() -> None:
    table = nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
    with axn.debug.checks():
        table(axn.named(jnp.array([1, 10]), "pos"))


@says(
    """
    index: the index over 'pos' must have an integer dtype, not bool
      hint: use where() to choose by a mask, or compress() to select by one
    """
)
def test_a_mask_as_index(x: axn.NamedArray) -> None:
    x["pos", x["batch", 0, "embed", 0] > 0]


@says(
    """
    rearrange: no axis named 'time'
      {batch time} -> batch time
             ^^^^
      array has: batch=8, pos=4, embed=16
    """
)
def test_rearrange_of_a_missing_axis(x: axn.NamedArray) -> None:
    x.rearrange("{batch time} -> batch time")


@says(
    """
    rearrange: 'head' is not on the left
      batch pos embed -> batch pos embed head
                                         ^^^^
      array has: batch=8, pos=4, embed=16
    """
)
def test_rearrange_that_makes_an_axis_of_nothing(x: axn.NamedArray) -> None:
    x.rearrange("batch pos embed -> batch pos embed head")


@says(
    """
    rearrange: the result leaves out batch, pos
      {(embed: head dim)} -> head dim
                             ^^^^^^^^
      array has: batch=8, pos=4, embed=16
      hint: name all axes, or write ... for the others
    """
)
def test_rearrange_that_cannot_split(x: axn.NamedArray) -> None:
    x.rearrange("{(embed: head dim)} -> head dim", head=3)


@says(
    """
    rearrange: unexpected '->' in a group
      batch (pos embed -> batch pos embed
                       ^^
      array has: batch=8, pos=4, embed=16
      hint: close the group with )
    """
)
def test_rearrange_with_unbalanced_brackets(x: axn.NamedArray) -> None:
    x.rearrange("batch (pos embed -> batch pos embed")


@says(
    """
    rearrange: 'embed' is not on the right
      batch pos embed -> batch pos
                ^^^^^
      array has: batch=8, pos=4, embed=16
      hint: rearrange keeps all axes; x.sum("embed") removes one
    """
)
def test_rearrange_that_drops_an_axis(x: axn.NamedArray) -> None:
    x.rearrange("batch pos embed -> batch pos")


@says(
    """
    rearrange: 'embed' is the name of another axis, but stands for 'pos' by its position
      batch embed pos -> batch pos embed
            ^^^^^
      array has: batch=8, pos=4, embed=16
      hint: braces find axes by name, in any order: {batch pos embed}
    """
)
def test_rearrange_in_an_order_that_is_not_the_stored_one(x: axn.NamedArray) -> None:
    x.rearrange("batch embed pos -> batch pos embed")


@says(
    """
    einsum: the expression has no ->
      {batch embed}, {embed mlp}
                                ^
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: embed=16, mlp=32
      hint: write -> and the axes of the result, or just -> for the sum over all of them: "a b, b ->"
    """
)
def test_einsum_without_an_arrow(x: axn.NamedArray) -> None:
    axn.einsum("{batch embed}, {embed mlp}", x, axn.ones((Embed, Mlp)))


@says(
    """
    einsum: braces are for the left side
      {embed}, {embed mlp} -> {mlp}
                              ^^^^^
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: embed=8, mlp=32
      hint: the result has its axes in the order in which they are written
    """
)
def test_einsum_of_two_sizes(x: axn.NamedArray) -> None:
    axn.einsum("{embed}, {embed mlp} -> {mlp}", x, axn.ones({"embed": 8, "mlp": 32}))


@says(
    """
    einsum: operand 1 has 3 axes, but the expression has 1
      bpe,em->bpm
      ^^^
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: embed=16, mlp=32
      hint: separate names by spaces: "b p e"
    """
)
def test_einsum_in_the_words_of_numpy(x: axn.NamedArray) -> None:
    axn.einsum("bpe,em->bpm", x, axn.ones((Embed, Mlp)))


@says(
    """
    einsum: 'q' is not on the left
      b p e, e m -> b p q
                        ^
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: embed=16, mlp=32
      hint: an axis of the result is one of: b, p, e, m
    """
)
def test_einsum_of_an_unknown_output(x: axn.NamedArray) -> None:
    axn.einsum("b p e, e m -> b p q", x, axn.ones((Embed, Mlp)))


@says(
    """
    einsum: the expression has 2 operands, but 1 were given
      b p e, e m -> b p m
      ^^^^^^^^^^
      array has: batch=8, pos=4, embed=16
      hint: commas separate the operands: one part for each array
    """
)
def test_einsum_of_too_few_operands(x: axn.NamedArray) -> None:
    axn.einsum("b p e, e m -> b p m", x)


@warns(
    """
    shape: sizes by name are never equal to (8, 4, 16)
      array has: batch=8, pos=4, embed=16
      hint: write x.shape == {"batch": 8}, or x.array.shape == (8,)
    """
)
def test_a_shape_compared_with_sizes(x: axn.NamedArray) -> None:
    assert x.shape != (8, 4, 16)
