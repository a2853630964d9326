"""Internal. Code that all kernel adapters share: the form of a kernel, the roles of axes, and how it runs on a mesh.

A kernel takes one axis each of batch, positions, heads and features. The first axis that queries and keys share becomes
the batch, and the others become heads; heads that only queries have form groups within these. On a mesh, a kernel runs
on each device's block: batch and heads may be split; positions and features are gathered. `choose` calls `attend` with
a `Kernel`; each adapter defines one `Kernel` for each implementation. This file must not know any library.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding

from ....array import NamedArray, is_named_array, named
from ....axis import Axis
from ....current.machine import MACHINE, Machine
from ....engine.core import wrap
from ....errors import ArgumentError, message
from ....faults.idle_mesh_axes import run_on_idle_axes
from ....layout import explicit, modes
from ....layout.assignment import Mappings
from ....layout.context import context_mesh, current_mapping, get_taken_axes
from ....layout.partition import assign_mesh_axes, find_layout
from ....names import plans
from ....names.plans import Names
from ....partitioning.counted import count_kernel
from ....partitioning.shard import auto_sharded
from ....partitioning.shard_map import shard_map
from ..call import FUNCTION, KEYS, QUERIES, AttentionCall, rename, rename_all
from ..masks.conditions import Near, Prefix, SameSegment, is_made_of
from ..masks.mask import AttentionMask

# No mapping splits these names either: a kernel needs all features.
FEATURES, OUT = "features of keys", "features of values"


@dataclasses.dataclass(frozen=True)
class Roles:
    """The static part of a call that a kernel computes: roles of axes, and numbers.

    Attributes:
        batch: the axis of the batch, if there is one.
        heads: the axes of the heads of keys.
        group: the axes of heads that only queries have.
        out_names: the axes of the result.
        scale: the factor for the scores.
        soft_cap: the bound of the scores.
        block_size: the numbers of query and key positions in a block, if asked.
    """

    batch: Names
    heads: Names
    group: Names
    out_names: Names
    scale: float
    soft_cap: float | None
    block_size: tuple[int, int] | None

    @property
    def q_heads(self) -> Names:
        """The axes of query heads; each head of keys serves equally many consecutive query heads."""
        return self.heads + self.group


class Rest(NamedTuple):
    """The operands of a kernel besides queries, keys and values."""

    mask: AttentionMask | None
    bias: NamedArray | None
    q_start: Any
    k_start: Any
    sinks: NamedArray | None = None


Operands = tuple[NamedArray, NamedArray, NamedArray]
"""Queries, keys and values."""


class Kernel(NamedTuple):
    """An implementation that a library offers.

    Attributes:
        name: its name in `implementation=`.
        list_obstacles: yields what it does not support of a call, as texts for an error.
        list_drawbacks: yields why it is not the default for a call that it supports.
        compute: computes the result from the roles of axes, the operands and the rest.
        is_checked: whether JAX knows over which mesh axes the result varies, which most kernels do not declare.
        platforms: where it is a kernel that no compiler looks into, and a cost counts it by formula.
        backward: how many products its gradient computes for each pair of a query and a key: over the features of keys,
            and over those of values.
        skips: whether it computes no scores that conditions on positions hide.
    """

    name: str
    list_obstacles: Callable[[AttentionCall], Iterator[str]]
    list_drawbacks: Callable[[AttentionCall], Iterator[str]]
    compute: Callable[[Roles, Operands, Rest], NamedArray]
    is_checked: bool = False
    platforms: Names = ()
    # Scores once more, and their gradients by queries and by keys; by the weights, and by values.
    backward: tuple[int, int] = (3, 2)
    skips: Callable[[Roles, Rest], bool] = lambda roles, rest: True

    def is_fit(self, call: AttentionCall) -> bool:
        """Return whether the kernel may be the default for a call."""
        return not self.find_obstacle(call)

    def find_obstacle(self, call: AttentionCall) -> str:
        """Return why the kernel is not the default for a call; an empty text if it may be."""
        return next(itertools.chain(self.list_obstacles(call), self.list_drawbacks(call)), "")


def list_shared(call: AttentionCall) -> Names:
    """Return the axes that queries and keys share, except features."""
    names = plans.without(call.query.names, (call.feature,))
    return tuple(name for name in names if name in call.keys.names)


def count_positions(call: AttentionCall) -> tuple[int, int]:
    """Return the numbers of positions of queries and keys."""
    return call.query.axis_size(call.q_pos or call.feature), call.keys.axis_size(call.k_pos)


def list_obstacles(call: AttentionCall) -> Iterator[str]:
    """Yield what no kernel supports."""
    operands = (call.query, call.keys, call.values)
    shared = list_shared(call)
    # Without shared axes there is no batch, and without further ones one head: `fold` makes dimensions of one element.
    keys = plans.without(call.keys.names, (call.feature,))
    features = plans.without(call.values.names, keys)
    if call.q_pos is None:
        yield "the queries have no axis of positions"
    elif set(call.keys.names) != {*shared, call.k_pos, call.feature}:
        yield "the keys have an axis that the queries lack"
    elif len(features) != 1 or set(call.values.names) != {*shared, call.k_pos, *features}:
        yield "the values must have the axes of the keys, with one axis of features"
    if any(x.array.ndim > len(x.names) for x in operands):
        yield "an array has anonymous dimensions"
    if len({x.dtype for x in operands}) > 1:
        yield "queries, keys and values have different dtypes"
    if call.dtype != jnp.float32 or call.precision is not None:
        yield "it computes scores in float32 only, with a fixed precision"
    if call.dropout:
        yield "it does not support dropout"


def list_obstacles_of_checks(call: AttentionCall) -> Iterator[str]:
    """Yield that a kernel does not declare the mesh axes that its result varies over; `shard_map` may check."""
    if any(jax.typeof(x.array).mat.varying for x in (call.query, call.keys, call.values)):
        yield "it runs in a shard_map only with check=False"


def attend(kernel: Kernel, call: AttentionCall) -> NamedArray:
    """Compute a call by a kernel, on the block of each device."""
    problem = next(kernel.list_obstacles(call), None)
    if problem is not None:
        text = f"implementation {kernel.name!r} does not support this: {problem}"
        raise ArgumentError(message(FUNCTION, text, hint='"plain" and "blockwise" do'))

    shared, q_pos = list_shared(call), str(call.q_pos)
    (features,) = plans.without(call.values.names, (*shared, call.k_pos))
    # Features of keys and of values may have one name and two sizes.
    new = {q_pos: QUERIES, call.k_pos: KEYS}
    for_scores, for_values = {**new, call.feature: FEATURES}, {**new, features: OUT}
    roles = Roles(
        batch=shared[:1],
        heads=shared[1:],
        group=plans.without(call.query.names, (*shared, q_pos, call.feature)),
        out_names=rename(call.out_names, for_values),
        scale=call.scale,
        soft_cap=call.soft_cap,
        block_size=call.block_size,
    )
    # No mapping has the new names, so that positions and features are gathered.
    query, keys = rename_all((call.query, call.keys), for_scores)
    operands = query, keys, rename_all(call.values, for_values)
    rest = rename_all(Rest(call.mask, call.bias, call.q_start, call.k_start, call.sinks), new)
    compute, given = functools.partial(_compute, kernel, roles), auto_sharded((operands, rest))
    machine = _find_machine(kernel)
    if machine is not None and machine.is_typed and current_mapping() is not None:
        # The layouts in the types say what each device computes, whatever the sizes of mesh axes.
        out = compute(*given)
    else:
        out = _run_on_mesh(compute, *given, is_checked=kernel.is_checked)
    return auto_sharded(rename_all(out, {QUERIES: q_pos, OUT: features}))


def _compute(kernel: Kernel, roles: Roles, operands: Operands, rest: Rest) -> NamedArray:
    """Compute the block of a device; for a cost report, count what the kernel computes on the real platform."""
    if _find_machine(kernel) is None:
        return kernel.compute(roles, operands, rest)
    sizes = find_sizes(operands)
    mask = rest.mask if kernel.skips(roles, rest) else None
    pairs = count_pairs(sizes[QUERIES], sizes[KEYS], rest._replace(mask=mask))
    pairs *= 2 * math.prod(sizes[name] for name in (*roles.batch, *roles.q_heads))
    by_keys, by_values = kernel.backward
    return count_kernel(
        kernel.name,
        pairs * (sizes[FEATURES] + sizes[OUT]),
        pairs * (by_keys * sizes[FEATURES] + by_values * sizes[OUT]),
        lambda given: kernel.compute(roles, *given),
        (operands, rest),
        _describe(operands[0], roles.out_names, sizes, operands[0].dtype),
        # The logarithm of the sum of exponentials of each query.
        _describe(operands[0], (*roles.batch, *roles.q_heads, QUERIES), sizes, jnp.float32),
    )


def _find_machine(kernel: Kernel) -> Machine | None:
    """Return the machine of a cost that counts a kernel by formula; None if the kernel is traced."""
    machine = MACHINE.get()
    return machine if machine is not None and machine.platform in kernel.platforms else None


def _describe(like: NamedArray, names: Names, sizes: Mapping[str, int], dtype: Any) -> NamedArray:
    """Return an array without values, of the class of another one, sharded by the mapping on Explicit mesh axes."""
    shape = tuple(map(sizes.__getitem__, names))
    mapping, mesh = current_mapping(), context_mesh()
    sharding = None
    if mapping is not None and mesh is not None and modes.has_explicit(mesh):
        mesh_axes = modes.find_explicit_axes(mesh) - {*get_taken_axes()}
        layout = find_layout(names, shape, mapping, mesh).only(mesh_axes)
        sharding = NamedSharding(mesh, layout.spec)
    return wrap(like, jax.ShapeDtypeStruct(shape, dtype, sharding=sharding), names)


def count_pairs(queries: int, keys: int, rest: Rest) -> int:
    """Count the pairs of a query and a key that conditions on their positions show; other conditions hide no pair.

    Segments and lengths of keys are runtime values, so no kernel can plan to skip their hidden pairs.
    """
    mask = rest.mask
    is_known = isinstance(rest.q_start, int) and isinstance(rest.k_start, int)
    if mask is None or not is_known or not is_made_of(mask, Near, Prefix, SameSegment):
        return queries * keys
    # The index of the key at the position of each query.
    own = np.arange(queries) + (rest.q_start - rest.k_start)
    end = own + 1 if mask.causal else own + (mask.window or keys + queries)
    begin = own - (mask.window or keys + queries) + 1
    return int((np.clip(end, 0, keys) - np.clip(begin, 0, keys)).clip(0).sum())


def _run_on_mesh(
    compute: Callable[[Operands, Rest], NamedArray],
    operands: Operands,
    rest: Rest,
    *,
    is_checked: bool,
) -> NamedArray:
    """Run a kernel once per device, if there is a mesh and a layout."""
    mapping: Any = current_mapping()
    leaves = jax.tree.leaves((operands, rest), is_leaf=is_named_array)
    given = [x for x in leaves if isinstance(x, NamedArray)]
    # On Explicit axes without a mapping, types say which axes are split.
    if mapping is None and any(explicit.has_explicit_axes(x.array) for x in given):
        names = dict.fromkeys(itertools.chain.from_iterable(x.names for x in operands))
        own, arrays = [x.names for x in given], [x.array for x in given]
        whole = (QUERIES, KEYS, FEATURES, OUT)
        mapping = explicit.choose(plans.without(tuple(names), whole), own, arrays)
    mesh = context_mesh()
    if mapping is None or mesh is None:
        return compute(operands, rest)
    run: Callable[..., NamedArray] = compute
    options: dict[str, Any] = {"check": False}
    # A surrounding vmap uses the mesh axes that would be idle here, and fits no check.
    if not get_taken_axes():
        manual: set[str] = set()
        for x in given:
            found = assign_mesh_axes(x.names, x.array.shape, Mappings(mapping).compute, mesh)
            manual.update(*found.values())
        idle = set(mesh.axis_names) - modes.find_manual_axes(mesh) - manual
        if is_checked:
            options["check"] = True
        elif idle:
            run = functools.partial(run_on_idle_axes, compute, idle)
            options["manual_axes"] = tuple(manual)
    out: NamedArray = shard_map(run, mapping, strict=False, **options)(operands, rest)
    return out


def fold(x: NamedArray, sizes: Mapping[str, int], *groups: Names) -> jax.Array:
    """Return an array with a dimension for each group of axes, of size one if it has none of them."""
    # A mask that is the same for all heads keeps a dimension of one element, which kernels broadcast.
    own = [group if set(group) & set(x.names) else () for group in groups]
    names = tuple(itertools.chain(*own))
    missing = [Axis(name, sizes[name]) for name in plans.without(names, x.names)]
    full = x.broadcast_axis(missing).rearrange(names)
    return lax.reshape(full.array, [math.prod(map(sizes.__getitem__, group)) for group in own])


def unfold(roles: Roles, out: jax.Array, sizes: Mapping[str, int], *groups: Names) -> NamedArray:
    """Give the result of a kernel its axes: undo `fold`."""
    # The kernel has put its dimensions in an order of its own; the result has that of other implementations.
    names = tuple(itertools.chain(*groups))
    array = lax.reshape(out, [sizes[name] for name in names])
    return named(array, names).rearrange(roles.out_names)


def find_sizes(operands: Operands) -> dict[str, int]:
    """Return the sizes of all axes of queries, keys and values on a device."""
    query, keys, values = operands
    return {**values.shape, **keys.shape, **query.shape}
