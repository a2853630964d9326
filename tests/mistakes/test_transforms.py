"""Mistakes with transformations."""

import jax
import jax.numpy as jnp

import axonym as axn
from axonym import nn
from tests.mistakes.answers import says, silent, theirs

Batch, Pos, Embed, Mlp = axn.make_axes(batch=8, pos=4, embed=16, mlp=32)
KEY = jax.random.key(0)


@theirs(
    "(a named array: x.scalar() is a plain one, and axn.grad takes named ones)",
    page="faq.md",
    answer="`.scalar()` makes one",
)
def test_a_gradient_of_a_named_loss(x: axn.NamedArray) -> None:
    jax.grad(lambda x: (x**2).mean())(x)


@says(
    """
    grad: the function must return a scalar
      it returned: batch=8, pos=4
      hint: reduce it: x.sum()
    """
)
def test_a_gradient_of_an_array(x: axn.NamedArray) -> None:
    axn.grad(lambda x: (x**2).mean("embed"))(x)


@says(
    """
    scalar: the array has dimensions
      array has: batch=8, pos=4
      hint: reduce them first, as x.mean().scalar() does
    """
)
def test_a_scalar_of_an_array(x: axn.NamedArray) -> None:
    x.mean("embed").scalar()


@says(
    """
    sum: an array of shape (4, 16) cannot have the 3 axes batch, pos, embed
      raw jax.vmap, lax.scan and indexing remove the leading dimension, but not its name
      hint: use axn.vmap(f, "batch") or axn.scan(f, "batch"), or make the axis anonymous first: x.untag("batch")
    """
)
def test_vmap_of_jax_over_a_named_axis(x: axn.NamedArray) -> None:
    jax.vmap(lambda row: row.sum("embed"))(x)


@says(
    """
    sum: an array of shape (4, 16) cannot have the 3 axes batch, pos, embed
      raw jax.vmap, lax.scan and indexing remove the leading dimension, but not its name
      hint: use axn.vmap(f, "batch") or axn.scan(f, "batch"), or make the axis anonymous first: x.untag("batch")
    """
)
def test_scan_of_jax_over_a_named_axis(x: axn.NamedArray) -> None:
    jax.lax.scan(lambda carry, row: (carry + row.sum(), None), axn.zeros(()), x)


@silent("no code of ours runs", page="guides/transforms.md", answer="take a dimension, and leave its name")
def test_vmap_of_jax_over_another_axis_that_only_passes_through(x: axn.NamedArray) -> None:
    assert jax.vmap(lambda row: row, in_axes=1)(x).axes[0].size == 4


@says(
    """
    scan: no argument has axis 'post', so its size is unknown
      an argument has: batch=8, pos=4, embed=16
      hint: did you mean 'pos'? Or, for a new axis, give its size: Axis("post", size)
    """
)
def test_a_misspelt_axis_of_scan(x: axn.NamedArray) -> None:
    axn.scan(lambda carry, row: (carry, row), "post")(axn.zeros(()), x)


@says(
    """
    vmap: no argument has axis 'bach', so its size is unknown
      an argument has: batch=8, pos=4, embed=16
      hint: did you mean 'batch'? Or, for a new axis, give its size: Axis("bach", size)
    """
)
def test_a_misspelt_axis_of_vmap(x: axn.NamedArray) -> None:
    axn.vmap(lambda row: row, "bach")(x)


@says(
    """
    fold: a step changes the axes of the carry
      before: a NamedArray with no axes
      after: a NamedArray with batch=8
      hint: start with the axes that a step returns, or reduce what it returns
    """
)
def test_a_carry_that_changes_axes(x: axn.NamedArray) -> None:
    axn.fold(lambda carry, row: carry + row["embed", 0], "pos")(axn.zeros(()), x)


@says(
    """
    fold: a step changes the dtype of the carry
      before: a NamedArray with no axes, bfloat16
      after: a NamedArray with no axes, float32
      hint: cast what it returns, x.astype("bfloat16"), or start with float32
    """
)
def test_a_carry_that_changes_its_dtype(x: axn.NamedArray) -> None:
    axn.fold(lambda carry, row: carry + row.sum(), "pos")(axn.zeros((), jnp.bfloat16), x)


@says(
    """
    fold: a step changes what an entry of the carry is
      before: a plain array of shape ()
      after: a NamedArray with no axes
      hint: start with a named array too, such as axn.zeros(())
    """
)
def test_a_carry_that_starts_as_a_number(x: axn.NamedArray) -> None:
    axn.fold(lambda carry, row: carry + row.sum(), "pos")(0.0, x)


@says(
    """
    scan: the step must return a pair of carry and output, not NamedArray
      hint: use fold for a step that returns the carry alone
    """
)
def test_a_step_that_returns_no_pair(x: axn.NamedArray) -> None:
    axn.scan(lambda carry, row: carry + row.sum(), "pos")(axn.zeros(()), x)


def turned(x: axn.NamedArray) -> axn.NamedArray:
    return x.rearrange(("embed", ...))


STORED = "('batch', 'pos', 'embed') (as axn.rearrange(x, ('batch', 'pos', 'embed')) stores it)"
TURNED = "('embed', 'batch', 'pos') (as axn.rearrange(x, ('embed', 'batch', 'pos')) stores it)"
WHERE_ORDERS_DIFFER = {"page": "faq.md", "answer": "Both branches must return axes in the same order"}


@theirs(f"with pytree metadata {STORED} but false_fun output is a", **WHERE_ORDERS_DIFFER)
def test_branches_in_different_orders(x: axn.NamedArray) -> None:
    jax.lax.cond(True, lambda x: x, turned, x)


@theirs(f"carry output is a <class 'axonym.array.NamedArray'> with pytree metadata {TURNED}", **WHERE_ORDERS_DIFFER)
def test_a_carry_of_jax_that_changes_the_order_of_axes(x: axn.NamedArray) -> None:
    jax.lax.scan(lambda carry, _: (turned(carry), None), x, None, length=2)


@theirs(
    f"The input carry x is a <class 'axonym.array.NamedArray'> with pytree metadata {STORED}", **WHERE_ORDERS_DIFFER
)
def test_a_loop_of_jax_that_changes_the_order_of_axes(x: axn.NamedArray) -> None:
    jax.lax.while_loop(lambda x: x.sum().array < 1, turned, x)


@theirs(f"bwd output structure PyTreeDef((CustomNode(NamedArray[{TURNED}], [*]),))", **WHERE_ORDERS_DIFFER)
def test_a_cotangent_in_another_order(x: axn.NamedArray) -> None:
    double = jax.custom_vjp(lambda x: 2 * x)
    double.defvjp(lambda x: (2 * x, None), lambda _, g: (turned(2 * g),))
    axn.grad(lambda x: double(x).sum())(x)


@theirs(f"PyTreeDef(CustomNode(NamedArray[{STORED}], [*])) and", **WHERE_ORDERS_DIFFER)
def test_a_tangent_in_another_order(x: axn.NamedArray) -> None:
    double = jax.custom_jvp(lambda x: 2 * x)
    double.defjvp(lambda primals, tangents: (2 * primals[0], turned(2 * tangents[0])))
    axn.grad(lambda x: double(x).sum())(x)


@theirs("this argument was not marked as static", page="faq.md", answer="close over the axis")
def test_jit_of_jax_with_an_axis(x: axn.NamedArray) -> None:
    jax.jit(lambda x, axis: x.sum(axis))(x, Embed)


@theirs("unbound axis name: e", page="faq.md", answer="`axn.tree.map` passes named arrays whole")
def test_tree_map_of_jax_over_names(x: axn.NamedArray) -> None:
    jax.tree.map(lambda p: p.mean("embed"), nn.LayerNorm.init(Embed))


@says(
    """
    scan: got only the initial carry, which has axis 'batch'
      hint: write axn.scan(f, "batch")(init, x); for a loop without arrays, give its size: Axis("batch", size)
    """
)
def test_a_scan_without_its_carry(x: axn.NamedArray) -> None:
    axn.scan(lambda total, row: (total + row, row), "batch")(x)


@says(
    """
    fold: got only the initial carry, and nothing with axis 'layers'
      hint: write axn.fold(f, "layers")(init, x); for a loop without arrays, give its size: Axis("layers", size)
    """
)
def test_a_fold_of_nothing(x: axn.NamedArray) -> None:
    axn.fold(lambda total: total, "layers")(x)
