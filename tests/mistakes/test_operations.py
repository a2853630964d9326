"""Mistakes with operations on arrays: Fourier transforms, sorting, loops, splitting, random numbers."""

import jax

import axonym as axn
from axonym import nn
from tests.mistakes.answers import says

Batch, Pos, Embed, Mlp = axn.make_axes(batch=8, pos=4, embed=16, mlp=32)
KEY = jax.random.key(0)


@says(
    """
    []: arrays of JAX do not change
      array has: batch=8, pos=4, embed=16
      hint: x.at["batch", 0].set(1.0) returns a new array
    """
)
def test_an_assignment(x: axn.NamedArray) -> None:
    x["batch", 0] = 1.0


@says(
    """
    len: only an array of one dimension has a length, not one of 3
      array has: batch=8, pos=4, embed=16
      hint: x.axis_size("batch") is the length along an axis; np.asarray(x) is an array of NumPy
    """
)
def test_the_length_of_an_array(x: axn.NamedArray) -> None:
    len(x)


@says(
    """
    bool: the truth of an array of several elements is ambiguous
      array has: batch=8, pos=4, embed=16
      hint: reduce it: x.all() or x.any()
    """
)
def test_an_array_in_an_if(x: axn.NamedArray) -> None:
    if x > 0:
        pass


@says(
    """
    iter: cannot iterate over a NamedArray without naming an axis
      array has: batch=8, pos=4, embed=16
      hint: write for part in x.unbind(axis); np.asarray(x) is an array of NumPy
    """
)
def test_a_loop_over_an_array(x: axn.NamedArray) -> None:
    for row in x:
        row.sum()


@says(
    """
    index: an index is a dict, or pairs of an axis and a selector, not (str)
      array has: batch=8, pos=4, embed=16
      hint: write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]
    """
)
def test_a_name_alone_as_index(x: axn.NamedArray) -> None:
    x["batch"]


@says(
    """
    mean: there is no argument 'keepdims'
      it takes: (x, axis=None, *, dtype=None, where=None)
      hint: leave it out: operands are lined up by name, without axes of size 1
    """
)
def test_keepdims(x: axn.NamedArray) -> None:
    x.mean("embed", keepdims=True)


@says(
    """
    mean: there is no argument 'dim'
      it takes: (x, axis=None, *, dtype=None, where=None)
      hint: write axis
    """
)
def test_dim(x: axn.NamedArray) -> None:
    x.mean(dim="embed")


@says(
    """
    dot: axis is missing
      it takes: (*arrays, axis, out_axes=None, precision=None, preferred_element_type=None, dot_general=dot_general)
      hint: name one: axis="embed"
    """
)
def test_a_product_without_its_axis(x: axn.NamedArray) -> None:
    axn.dot(x, axn.ones((Embed, Mlp)))


@says(
    """
    dot: axis is missing
      it takes: (*arrays, axis, out_axes=None, precision=None, preferred_element_type=None, dot_general=dot_general)
      hint: name one: axis="embed"
    """
)
def test_a_product_with_its_axis_first(x: axn.NamedArray) -> None:
    axn.dot("embed", x, axn.ones((Embed, Mlp)))


@says(
    """
    sort: axis is missing
      it takes: (x, axis, *, stable=True, descending=False)
      hint: name one: axis="embed"
    """
)
def test_sort_without_an_axis(x: axn.NamedArray) -> None:
    axn.sort(x)


@says(
    """
    argsort: -1 is a position, but axes have names
      array has: batch=8, pos=4, embed=16
      hint: write "embed"
    """
)
def test_sort_by_position(x: axn.NamedArray) -> None:
    x.argsort(-1)


@says(
    """
    top_k: cannot choose 17 elements of axis 'embed', which has size 16
    """
)
def test_more_of_the_top_than_there_are(x: axn.NamedArray) -> None:
    x.top_k("embed", 17)


@says(
    """
    top_k: the axis comes before the number of elements
      hint: write top_k(x, "embed", 5)
    """
)
def test_top_k_in_the_order_of_jax(x: axn.NamedArray) -> None:
    x.top_k(5, "embed")


@says(
    """
    fft: no axis named 'time'
      array has: batch=8, pos=4, embed=16
    """
)
def test_fft_over_two_axes(x: axn.NamedArray) -> None:
    axn.fft(x, ("pos", "time"))


@says(
    """
    fft: norm='orthogonal' is not one of None, 'backward', 'ortho', 'forward'
    """
)
def test_fft_of_an_unknown_norm(x: axn.NamedArray) -> None:
    axn.fft(x, "pos", norm="orthogonal")


@says(
    """
    rfft: axis 'pos' was given with size 8, but has size 4
      array has: batch=8, pos=4, embed=16
      hint: to crop or pad to this length, write {"pos": 8}
    """
)
def test_irfft_to_another_axis(x: axn.NamedArray) -> None:
    axn.rfft(x, axn.Axis("pos", 8))


@says(
    """
    scan: 3 arguments are given by position, where it takes 2: f, axis
      it takes: (f, axis, *, remat=False, reverse=False, unroll=1, is_scanned=is_scanned_by_default, out_axis=0)
      hint: the others go to what it returns: scan(f, axis)(...)
    """
)
def test_scan_in_the_order_of_jax(x: axn.NamedArray) -> None:
    axn.scan(lambda carry, row: (carry, row), axn.zeros(()), x)


@says(
    """
    scan: axis 'pos' has two sizes: 4 and 3
      argument 0 has: batch=8, pos=4, embed=16
      argument 1 has: batch=8, pos=3, embed=16
    """
)
def test_scan_over_two_sizes(x: axn.NamedArray) -> None:
    axn.scan(lambda carry, a, b: (carry, a), "pos")(axn.zeros(()), x, x["pos", :3])


@says(
    """
    vmap: 0 is a position, but axes have names
      hint: write the name of an axis, such as "batch"
    """
)
def test_vmap_over_a_position(x: axn.NamedArray) -> None:
    axn.vmap(lambda row: row, 0)(x)


@says(
    """
    vmap: there is no argument 'in_axes'
      it takes: (fn, axis, *, default=0, args=(), kwargs=None, out_axis=0)
      hint: name the axis that is mapped: axn.vmap(f, "batch")
    """
)
def test_vmap_with_in_axes(x: axn.NamedArray) -> None:
    axn.vmap(lambda row: row, in_axes=0)(x)


@says(
    """
    split: embed=16 has no 3 equal parts
      array has: batch=8, pos=4, embed=16
      hint: give the pieces names and sizes, such as [Axis(...), Axis(...)]
    """
)
def test_a_split_that_does_not_divide(x: axn.NamedArray) -> None:
    x.split("embed", 3)


@says(
    """
    unflatten_axis: heads=3, head_dim=5 multiply to 15, not to embed=16
      array has: batch=8, pos=4, embed=16
    """
)
def test_a_split_into_sizes_that_do_not_add_up(x: axn.NamedArray) -> None:
    x.unflatten_axis("embed", {"heads": 3, "head_dim": 5})


@says(
    """
    rename: 3 arguments are given by position, where it takes 2: x, renames
      it takes: (x, renames)
      hint: names go in a dict: {"pos": "time"}
    """
)
def test_a_rename_by_two_names(x: axn.NamedArray) -> None:
    x.rename("pos", "time")


@says(
    """
    broadcast_axis: axis 'pos' was given with size 8, but has size 4
      array has: batch=8, pos=4, embed=16
    """
)
def test_a_new_axis_that_is_there(x: axn.NamedArray) -> None:
    x.broadcast_axis(axn.Axis("pos", 8))


@says(
    """
    normal: 8 is a size without a name
      hint: name it: Axis("name", 8), or {"name": 8}
    """
)
def test_numbers_for_no_axes() -> None:
    axn.random.normal(KEY, 8)


@says(
    """
    normal: a PRNG key is neither an Axis nor the name of one
      hint: the key is the first argument, or goes by its name: key=...
    """
)
def test_a_key_that_comes_second() -> None:
    axn.random.normal(Batch, KEY)


@says(
    """
    normal: key must be a PRNG key, not int
      hint: make one from a seed: jax.random.key(0)
    """
)
def test_a_seed_for_a_key() -> None:
    axn.random.normal(0, Batch)


@says(
    """
    where: needs either x and y, or new_axis
      hint: write where(condition, x, y), or where(condition, fill_value=0, new_axis=Axis("found", 10))
    """
)
def test_where_of_one_branch(x: axn.NamedArray) -> None:
    axn.where(x > 0, x)


@says(
    """
    mean: no axis named 'heads'
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: embed=16, heads=2
    """
)
def test_a_mask_with_an_axis_of_its_own(x: axn.NamedArray) -> None:
    x.mean("embed", where=axn.ones({"embed": 16, "heads": 2}, bool))


@says(
    """
    mean: axis 'embed' has two sizes: 16 and 15
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: embed=15
      hint: if one is shifted by a place, cut the longer one: x["embed", :-1] or x["embed", 1:]
    """
)
def test_a_mask_of_another_size(x: axn.NamedArray) -> None:
    x.mean("embed", where=axn.ones({"embed": 15}, bool))


@says(
    """
    cross_entropy_loss: axis 'batch' has two sizes: 8 and 4
      operand 1 has: batch=8, pos=4, embed=16
      operand 2 has: batch=4, pos=4
      hint: if they are the same axis, cut the longer one, x["batch", :4]; if not, rename one: x.rename({"batch": ...})
    """
)
def test_targets_of_another_batch(x: axn.NamedArray) -> None:
    nn.cross_entropy_loss(x, "embed", axn.zeros({"batch": 4, "pos": 4}, int))


@says(
    """
    concatenate: axis 'embed' has two sizes: 16 and 3
      operand 1 has: batch=8, embed=16
      operand 2 has: embed=3
      hint: if they are the same axis, cut the longer one, x["embed", :3]; if not, rename one: x.rename({"embed": ...})
    """
)
def test_concatenate_of_arrays_with_different_axes(x: axn.NamedArray) -> None:
    axn.concatenate("pos", [x, x["batch", 0]["embed", :3]])


@says(
    """
    at: the update has axis 'mlp', which the indexed part lacks
      update has: mlp=32
      indexed part has: pos=4, embed=16
    """
)
def test_an_update_of_other_axes(x: axn.NamedArray) -> None:
    x.at["batch", 0].set(axn.ones(Mlp))


@says(
    """
    axonym: there is no 'reshape'
      hint: x.flatten_axes and x.flatten merge axes, x.unflatten_axis splits one
    """
)
def test_a_function_that_is_not_there(x: axn.NamedArray) -> None:
    axn.reshape(x, (32, 16))


@says(
    """
    axonym.nn: there is no 'Conv2d'
      hint: nn.Conv.init(("height", "width"), In, Out, kernel_size, key=key), over any number of named axes
    """
)
def test_a_layer_that_is_not_there() -> None:
    nn.Conv2d


def test_a_class_token_that_lacks_the_batch(x: axn.NamedArray) -> None:
    joined = axn.concatenate("pos", [axn.zeros({"pos": 1, "embed": 16}), x])
    assert {**joined.shape} == {"pos": 5, "batch": 8, "embed": 16}
    assert (joined["pos", 1:] == x).all()
