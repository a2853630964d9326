"""Mistakes with names and sizes."""

import jax
import jax.numpy as jnp

import axonym as axn
from axonym import nn
from tests.mistakes.answers import says, theirs

Batch, Pos, Embed, Mlp, Patch = axn.make_axes(batch=8, pos=4, embed=16, mlp=32, patch=4)
KEY = jax.random.key(0)


@says(
    """
    sum: no axis named 'emebd'
      array has: batch=8, pos=4, embed=16
      hint: did you mean 'embed'?
    """
)
def test_misspelt_axis_in_a_reduction(x: axn.NamedArray) -> None:
    x.sum("emebd")


@says(
    """
    sum: axis 'embed' was given with size 32, but has size 16
      array has: batch=8, pos=4, embed=16
    """
)
def test_an_axis_of_another_size_in_a_reduction(x: axn.NamedArray) -> None:
    x.sum(axn.Axis("embed", 32))


@says(
    """
    add: no operand has the axes of all others
      operand 1 has: embed=16
      operand 2 has: batch=8, pos=4
      hint: if the outer product is meant, give an operand the others' axes first: x.broadcast_axis(embed)
    """
)
def test_sum_of_disjoint_axes(x: axn.NamedArray) -> None:
    x["batch", 0, "pos", 0] + x["embed", 0]


@says(
    """
    add: axis 'batch' has two sizes: 8 and 6
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: batch=6, pos=4, embed=16
      hint: if they are the same axis, cut the longer one, x["batch", :6]; if not, rename one: x.rename({"batch": ...})
    """
)
def test_two_batches_in_a_sum(x: axn.NamedArray) -> None:
    x + x["batch", :6]


@says(
    """
    add: axis 'embed' has two sizes: 16 and 1
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: batch=8, pos=4, embed=1
      hint: an axis of size 1 is not stretched: drop it, x["embed", 0]
    """
)
def test_an_axis_of_size_1_that_should_stretch(x: axn.NamedArray) -> None:
    x + x["embed", :1]


@says(
    """
    dot: axis 'embed' is to be summed over, but only operand 1 has it
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: embd=16, mlp=32
      hint: did you mean 'embd'? Or, if it is meant, sum that operand first: x.sum("embed")
    """
)
def test_dot_with_a_misspelt_operand(x: axn.NamedArray) -> None:
    x.dot(axn.ones((axn.Axis("embd", 16), Mlp)), axis="embed")


@says(
    """
    Linear: the input lacks axis 'mlp'
      input has: batch=8, pos=4, embed=16
      the layer works over: mlp=32
    """
)
def test_an_input_that_lacks_the_axis_of_a_layer(x: axn.NamedArray) -> None:
    nn.Linear.init(Mlp, Embed, key=KEY)(x)


@says(
    """
    Linear: axis 'embed' of the input has size 8, but the layer was made for 16
      input has: batch=8, pos=4, embed=8
    """
)
def test_an_input_of_another_size_than_the_layer(x: axn.NamedArray) -> None:
    nn.Linear.init(Embed, Mlp, key=KEY)(x["embed", :8])


@says(
    """
    Linear: expected a NamedArray, got a plain array
      its shape: (8, 4, 16)
      hint: name its dimensions first: axn.named(array, ("batch", "pos", "embed"))
    """
)
def test_a_plain_array_for_a_layer(x: axn.NamedArray) -> None:
    nn.Linear.init(Embed, Mlp, key=KEY)(x.array)


@says(
    """
    add: cannot combine a plain array of shape (16,) with axes batch, pos, embed
      hint: name it first: axn.named(array, (...)); plain operands must be scalars
    """
)
def test_a_plain_vector_in_a_sum(x: axn.NamedArray) -> None:
    x + jnp.ones(16)


@theirs("exp requires ndarray or scalar arguments", page="faq.md", answer="says that it requires ndarray or scalar")
def test_a_function_of_jax_numpy(x: axn.NamedArray) -> None:
    jnp.exp(x)


@theirs("maximum requires ndarray or scalar arguments", page="faq.md", answer="Functions of `jax.numpy` know no names")
def test_a_function_of_jax_nn(x: axn.NamedArray) -> None:
    jax.nn.relu(x)


@says(
    """
    @: a product of named arrays needs the axis to sum over
      hint: write x.dot(y, axis="embed")
    """
)
def test_matmul(x: axn.NamedArray) -> None:
    x @ axn.ones((Embed, Mlp))


@says(
    """
    sum: -1 is a position, but axes have names
      array has: batch=8, pos=4, embed=16
      hint: write "embed"
    """
)
def test_a_negative_position_as_axis(x: axn.NamedArray) -> None:
    x.sum(axis=-1)


@says(
    """
    mean: 0 is a position, but axes have names
      array has: batch=8, pos=4, embed=16
      hint: write "batch"
    """
)
def test_a_position_as_axis(x: axn.NamedArray) -> None:
    x.mean(0)


@says(
    """
    index: an index is a dict, or pairs of an axis and a selector, not (int)
      array has: batch=8, pos=4, embed=16
      hint: write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]
    """
)
def test_a_position_as_index(x: axn.NamedArray) -> None:
    x[0]


@says(
    """
    index: an index is a dict, or pairs of an axis and a selector, not (slice, int)
      array has: batch=8, pos=4, embed=16
      hint: write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]
    """
)
def test_positions_as_indices(x: axn.NamedArray) -> None:
    x[:, 0]


@says(
    """
    at: an index is a dict, or pairs of an axis and a selector, not (int)
      array has: batch=8, pos=4, embed=16
      hint: write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]
    """
)
def test_a_position_in_at(x: axn.NamedArray) -> None:
    x.at[0].set(1.0)


@says(
    """
    reshape: a NamedArray has no such attribute
      hint: x.flatten_axes and x.flatten merge axes, x.unflatten_axis splits one
    """
)
def test_reshape(x: axn.NamedArray) -> None:
    x.reshape(32, 16)


@says(
    """
    T: a NamedArray has no such attribute
      hint: x.rearrange(("embed", ...)) stores the axes in another order
    """
)
def test_transpose(x: axn.NamedArray) -> None:
    x.T


@says(
    """
    permute: a NamedArray has no such attribute
      hint: x.rearrange(("embed", ...)) stores the axes in another order
    """
)
def test_permute(x: axn.NamedArray) -> None:
    x.permute(0, 2, 1)


@says(
    """
    unsqueeze: a NamedArray has no such attribute
      hint: operands are lined up by name, without axes of size 1; x.broadcast_axis(Axis("batch", 8)) repeats
    """
)
def test_unsqueeze(x: axn.NamedArray) -> None:
    x.unsqueeze(0)


@says(
    """
    to: a NamedArray has no such attribute
      hint: x.astype(jnp.float32) converts; axn.shard(x, mapping) or jax.device_put(x, device) moves it
    """
)
def test_to(x: axn.NamedArray) -> None:
    x.to(jnp.bfloat16)


@says(
    """
    chunk: a NamedArray has no such attribute
      hint: x.split("embed", [Axis("first", 4), Axis("second", 12)]) gives parts, x.unbind("embed") its places
    """
)
def test_chunk(x: axn.NamedArray) -> None:
    x.chunk(2, -1)


@says(
    """
    view: a NamedArray has no such attribute
      hint: x.flatten_axes and x.flatten merge axes, x.unflatten_axis splits one
    """
)
def test_view(x: axn.NamedArray) -> None:
    x.view(8, -1)


@says(
    """
    shape: sizes by name cannot be iterated or unpacked, which would give the names
      array has: batch=8, pos=4, embed=16
      hint: write x.shape.values() for the sizes, x.names for the names, x.axes for both; functions of other libraries take x.array, and axn.nmap(f)(x) applies f by name
    """
)
def test_unpacked_shape(x: axn.NamedArray) -> None:
    B, T, C = x.shape


@says(
    """
    shape: 0 is not the name of an axis
      array has: batch=8, pos=4, embed=16
      hint: a position counts in x.axes and in x.array.shape; functions of other libraries take x.array, and axn.nmap(f)(x) applies f by name
    """
)
def test_a_position_in_the_shape(x: axn.NamedArray) -> None:
    x.shape[0]


@says(
    """
    softmax: say over which axis: without one, elements of a batch would be normalised together
      array has: batch=8, pos=4, embed=16
      hint: write softmax(x, "embed"); for all axes, softmax(x, x.names)
    """
)
def test_softmax_without_an_axis(x: axn.NamedArray) -> None:
    axn.softmax(x)


@says(
    """
    log_softmax: say over which axis: without one, elements of a batch would be normalised together
      array has: batch=8, pos=4, embed=16
      hint: write log_softmax(x, "embed"); for all axes, log_softmax(x, x.names)
    """
)
def test_log_softmax_without_an_axis(x: axn.NamedArray) -> None:
    axn.log_softmax(x)


@says(
    """
    concatenate: the axis comes first
      hint: write concatenate("batch", [x, y])
    """
)
def test_concatenate_in_the_order_of_numpy(x: axn.NamedArray) -> None:
    axn.concatenate([x, x], "batch")


@says(
    """
    stack: arrays is missing
      it takes: (axis, arrays)
      hint: the axis goes first
    """
)
def test_stack_without_an_axis(x: axn.NamedArray) -> None:
    axn.stack([x, x])


@says(
    """
    ones: a NamedArray is neither an Axis nor the name of one
      hint: an axis is written as Axis("batch", 32)
    """
)
def test_an_array_that_is_no_axis(x: axn.NamedArray) -> None:
    axn.ones(x)


@says(
    """
    ones: 8 is a size without a name
      hint: name it: Axis("name", 8), or {"name": 8}
    """
)
def test_sizes_without_names() -> None:
    axn.ones((8, 16))


@says(
    """
    Linear.init: 16 is a size without a name
      hint: name it: Axis("name", 16), or {"name": 16}
    """
)
def test_a_layer_of_sizes() -> None:
    nn.Linear.init(16, 32, key=KEY)


@says(
    """
    arange: 10 is a size without a name
      hint: name it: Axis("name", 10), or {"name": 10}
    """
)
def test_a_range_of_a_number() -> None:
    axn.arange(10)


@says(
    """
    ones: axis 'batch' is given twice
      axes: batch, embed, batch
    """
)
def test_an_axis_twice() -> None:
    axn.ones((Batch, Embed, Batch))


@says(
    """
    named: 2 axes for an array of shape (2, 3, 4)
      axes: batch, embed
    """
)
def test_too_few_names() -> None:
    axn.named(jnp.ones((2, 3, 4)), ("batch", "embed"))


@says(
    """
    NamedArray: axis 'batch' was given with size 8, but that dimension has size 2
      axes: batch=8, embed
      shape of the array: (2, 3)
    """
)
def test_a_name_of_another_size() -> None:
    axn.named(jnp.ones((2, 3)), (Batch, "embed"))


@says(
    """
    named: 1 axes for an array of shape (2, 3)
      axes: batch embed
      hint: a string is one name; write ("batch", "embed")
    """
)
def test_names_in_one_string() -> None:
    axn.named(jnp.ones((2, 3)), "batch embed")


@says(
    """
    rename: axis 'embed' would appear twice
      array has: batch=8, pos=4, embed=16
    """
)
def test_rename_onto_another_axis(x: axn.NamedArray) -> None:
    x.rename({"pos": "embed"})


@says(
    """
    rename: no axis named 'time'
      array has: batch=8, pos=4, embed=16
    """
)
def test_rename_of_a_missing_axis(x: axn.NamedArray) -> None:
    x.rename({"time": "pos"})


@says(
    """
    index: no axis named 'time'
      array has: batch=8, pos=4, embed=16
    """
)
def test_index_along_a_missing_axis(x: axn.NamedArray) -> None:
    x["time", 0]
