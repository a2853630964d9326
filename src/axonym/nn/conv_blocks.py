"""Internal. Convolutions of arrays by position: on complete arrays, or on blocks that exchange their edges.

`conv` derives the dimensions and the layout from names, and calls these functions. They know no names.
"""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import jax
from jax import lax

from ..base.dtypes import at_least_float32
from ..faults.shared_paddings import separate_padding
from ..faults.split_windows import Slide, add_edges, choose_blocks, pad_ends, trim
from ..layout import assignment, context, partition, tracing
from ..layout.blocks import find_mesh
from ..layout.layout import Layout
from ..names import plans
from .windows import Counts


def convolve_whole(
    x: jax.Array,
    weight: jax.Array,
    *beyond: jax.Array,
    core: Sequence[int],
    padding: Counts,
    modes: Mapping[int, str],
    **options: Any,
) -> jax.Array:
    """Pad an input as the modes say, and convolve."""
    if modes and not isinstance(padding, str):
        sides = dict(zip(core[1:], padding, strict=True))
        x = pad_ends(x, {at: sides[at] for at in modes}, modes, beyond)
        padding = tuple((0, 0) if at in modes else side for at, side in sides.items())
    return convolve_dimensions(x, weight, core=core, padding=padding, **options)


def convolve_blocks(
    x: jax.Array,
    weight: jax.Array,
    *beyond: jax.Array,
    core: Sequence[int],
    entries: Sequence[assignment.Entry],
    filters: Sequence[assignment.Entry],
    manual: Set[str],
    padding: Counts,
    modes: Mapping[int, str],
    **options: Any,
) -> jax.Array:
    """Convolve each block of an input on its own device; blocks of a spatial dimension exchange their edges.

    Args:
        x: the input.
        weight: the weight.
        beyond: what lies beyond the ends of the dimension whose mode is "given".
        core: the dimensions of the input to convolve over, the feature first.
        entries: the mesh axes of each dimension of the input.
        filters: those of the weight; its output axes also split the result if they split no axis of the input.
        manual: the mesh axes that become Manual.
        padding: as in `lax`, like all other options.
        modes: the modes of dimensions that are padded by something other than zeros.
    """
    mesh, sharding = find_mesh(x), list(entries)
    feature, *spatial = core

    # A mesh axis can split one axis of the result: where `x` has it, the outputs of the weight are gathered.
    summed, out = sharding[feature], filters[0]
    if set(out).intersection(*entries):
        out = ()
    groups = options["feature_group_count"]
    if groups > 1:
        # A device that has an input of a group has all inputs of the group, and computes its outputs.
        even = [
            entry for entry in (summed, out) if not groups % partition.count_shards(mesh, entry)
        ]
        summed, out = (), max(even, key=bool, default=())
        sharding[feature] = out
        options["feature_group_count"] = groups // partition.count_shards(mesh, out)

    slides = _find_slides(x, weight, spatial, padding, options)
    sharding, edges, sides = choose_blocks(mesh, sharding, slides, modes)

    # Sums over devices, also those of gradients, are more exact in float32.
    dtype, wide = x.dtype, at_least_float32(x.dtype)
    spread = set(out).union(*sharding)

    def convolve(*blocks: jax.Array) -> jax.Array:
        # All vary before the cast: transposed, the sum of gradients over devices then comes after it, in `wide`.
        x, weight, *beyond = (tracing.varying(block, spread).astype(dtype) for block in blocks)
        x = add_edges(x, edges, sharding, None, modes, beyond)
        y = convolve_dimensions(x, weight, core=core, shards=[1] * x.ndim, padding=sides, **options)
        if summed:  # each device has the sum over its block of the input channels
            y = lax.psum(y.astype(wide), summed).astype(dtype)
        return y

    # The inputs of the weight are split as those of `x`, its outputs as the result; all else of it is gathered.
    results = list(sharding)
    results[feature] = out
    kernel = [out, summed, *[()] * len(spatial)]
    ends = [() if modes.get(at) == "given" else entry for at, entry in enumerate(sharding)]
    y = jax.shard_map(
        convolve,
        in_specs=(Layout(sharding).spec, Layout(kernel).spec, *[Layout(ends).spec] * len(beyond)),
        out_specs=Layout(results).spec,
        axis_names=manual,
        mesh=context.mesh_for_blocks(mesh),
    )(*(array.astype(wide) for array in (x, weight, *beyond)))
    return trim(y, slides)


def _find_slides(
    x: jax.Array,
    weight: jax.Array,
    spatial: Sequence[int],
    padding: Counts,
    options: Mapping[str, Any],
) -> dict[int, Slide]:
    """Return how the kernel slides along each spatial dimension."""
    sizes, steps = plans.values_at(x.shape, spatial), options["window_strides"]
    apart = options.get("lhs_dilation", (1,) * len(spatial))
    dilations = zip(weight.shape[2:], options["rhs_dilation"], strict=True)
    windows = [dilation * (size - 1) + 1 for size, dilation in dilations]
    # Blocks pad differently, at the ends of the whole array or between them: "SAME" becomes numbers first.
    if isinstance(padding, str):
        padding = tuple(lax.padtype_to_pads(sizes, windows, steps, padding))
    slides = map(Slide, sizes, windows, steps, padding, apart)
    return dict(zip(spatial, slides, strict=True))


def convolve_dimensions(
    x: jax.Array, weight: jax.Array, *, core: Sequence[int], shards: Sequence[int], **options: Any
) -> jax.Array:
    """Convolve over the dimensions `core`, the feature first; `lax` has one batch dimension beside them.

    A reshape merges several batch dimensions into one. It moves no element to another device if the split dimension is
    the first one. If several are split, each becomes two, blocks and positions within a block, and blocks come first.
    """
    x = separate_padding(x)
    kernel = tuple(range(weight.ndim))
    batch = sorted(set(range(x.ndim)) - set(core), key=lambda at: shards[at] == 1)
    if len(batch) == 1:
        places = (batch[0], *core)
        spec = lax.ConvDimensionNumbers(places, kernel, places)
        result: jax.Array = lax.conv_general_dilated(x, weight, dimension_numbers=spec, **options)
        return result
    split = [at for at in batch if shards[at] > 1]
    if len(split) == 1:  # it is the first one already, by the order of `batch`
        split = []
    # Where each dimension of `x` begins after the split ones have become two.
    firsts: list[int] = []
    sizes: list[int] = []
    for at, size in enumerate(x.shape):
        firsts.append(len(sizes))
        sizes += [shards[at], size // shards[at]] if at in split else [size]

    blocks = [firsts[at] for at in split]
    within = [block + 1 for block in blocks]
    others = [firsts[at] for at in batch if at not in split]
    last = [firsts[at] for at in sorted(core)]
    order = [*blocks, *within, *others, *last]
    apart = lax.transpose(x.reshape(sizes), order)

    lead = len(order) - len(core)
    merged = apart.reshape(math.prod(apart.shape[:lead]), *apart.shape[lead:])
    places = (0, *(1 + sorted(core).index(at) for at in core))
    spec = lax.ConvDimensionNumbers(places, kernel, places)
    y = lax.conv_general_dilated(merged, weight, dimension_numbers=spec, **options)

    # The way back: only the dimensions of `core` have other sizes now.
    y = y.reshape(*apart.shape[:lead], *y.shape[1:])
    y = lax.transpose(y, [order.index(i) for i in range(len(order))])
    shape = list(x.shape)
    for at in core:
        shape[at] = y.shape[firsts[at]]
    return y.reshape(shape)
