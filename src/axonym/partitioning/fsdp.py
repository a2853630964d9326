"""Fully sharded data parallelism: compile a function under two mappings, and choose a mapping by size.

Parameters and the state of the optimizer are sharded over all devices, and each layer gathers its weights when it
computes. The mapping of parameters says how they are stored, and the mapping of the computation how activations are
sharded.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax

from ..array import NamedArray, is_named_array
from ..engine.core import axes_of
from ..errors import ArgumentError, OperandError, ShardingError, message, suggestion
from ..layout import assignment, context, partition
from ..layout.assignment import Mappings, MeshAxes, MeshLike, ResourceMapping
from ..transform.leaves import is_hole
from .arguments import check_options
from .jit import NamedJit, named_jit
from .trees import find_layout_names

__all__ = ["fsdp", "fsdp_mapping"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def fsdp(
    fn: Callable[P, R],
    parameter_mapping: ResourceMapping,
    compute_mapping: ResourceMapping,
    *,
    manual: bool = False,
    **options: Any,
) -> NamedJit[P, R]: ...
@overload
def fsdp(
    parameter_mapping: ResourceMapping,
    compute_mapping: ResourceMapping,
    *,
    manual: bool = False,
    **options: Any,
) -> Callable[[Callable[P, R]], NamedJit[P, R]]: ...
def fsdp(*args: Any, manual: bool = False, **options: Any) -> Any:
    """Compile a training step that stores parameters by one mapping and computes by another.

    `fsdp(step, parameters, compute)` is `named_jit(step, Mappings(parameters, compute))`; without the function, a
    decorator. Arguments and results with an axis that only `compute_mapping` maps, such as the batch, are data, sharded
    by `compute_mapping`; all others are stored by `parameter_mapping`.

    Args:
        args: the function, the mapping of parameters, the mapping of activations. The mappings may also be keywords.
        manual: gather weights for products in a `shard_map`; the gradient of the gather is a reduce-scatter. Results
            are the same, up to rounding. The compiler for CPUs, which makes no reduce-scatter by itself, then sends
            less. Three kinds of products are still left to the compiler: those whose input is not split over all mesh
            axes of the gather, those inside of a `shard_map` or `vmap` over these mesh axes, and those with their own
            `dot_general`. So are products on meshes with both Auto and Explicit axes, and products on Explicit axes
            whose operands are split over further mesh axes.
        options: those of `named_jit`, such as `donate_args` and `rings`.

    Returns:
        A `NamedJit`, or a decorator that makes one.

    Raises:
        ArgumentError: if a mapping is missing.
        OperandError: for an unknown option.

    Examples:
        >>> @axn.fsdp({"embed": "data"}, {"batch": "data"})
        ... def forward(layer, x):
        ...     return layer(x)
        >>> Batch, Embed = axn.make_axes(batch=8, embed=4)
        >>> with axn.set_mesh(jax.make_mesh((4,), ("data",))):
        ...     layer = axn.nn.Linear.init(Embed, axn.Axis("mlp", 2), key=jax.random.key(0))
        ...     forward(layer, axn.ones((Batch, Embed))).sharding.spec
        P('data', None)
    """
    mappings = list(args)
    fn = None
    if args and not isinstance(args[0], Mapping):
        fn = mappings.pop(0)
    for keyword in ("parameter_mapping", "compute_mapping")[len(mappings) :]:
        if keyword not in options:
            hint = "write fsdp(step, parameters, compute)"
            raise ArgumentError(message("fsdp", f"{keyword} is missing", hint=hint))
        mappings.append(options.pop(keyword))
    parameters, compute = mappings
    check_options("fsdp", options, ("manual",))
    if not isinstance(manual, bool):
        raise OperandError(message("fsdp", f"manual must be True or False, not {manual!r}"))

    def compile_step(function: Callable[..., Any]) -> NamedJit[..., Any]:
        jitted = named_jit(function, Mappings(parameters, compute), **options)
        # Errors name the function that the user called.
        roles = dataclasses.replace(jitted.roles, function="fsdp", manual=manual)
        return jitted.with_roles(roles)

    return compile_step if fn is None else compile_step(fn)


def fsdp_mapping(
    tree: object,
    mesh_axis: str | Sequence[str] | None,
    mesh: MeshLike | None = None,
    *,
    min_size: int = 2**16,
    mapping: ResourceMapping | None = None,
) -> dict[str, MeshAxes]:
    """Choose the axes along which to shard the arrays of a tree over a mesh axis.

    Each array of at least `min_size` elements is sharded along one axis that the mesh axis divides, if there is one. A
    name applies to all arrays that have it. So names are chosen one by one: first the name that shards most elements,
    and among equals the longer axis.

    Args:
        tree: parameters, or the result of `jax.eval_shape` for them.
        mesh_axis: the mesh axis, or several, to shard over.
        mesh: by default the mesh of `set_mesh`.
        min_size: the smallest number of elements that an array must have to be sharded.
        mapping: entries to keep, such as those of tensor parallelism; their axes are not chosen.

    Returns:
        A mapping with the entries of `mapping` and the chosen ones.

    Raises:
        ShardingError: if there is no mesh, or it lacks the mesh axis.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=512, mlp=2048)
        >>> mlp = jax.eval_shape(lambda key: axn.nn.MLP.init(Embed, Embed, Mlp, 1, key=key), jax.random.key(0))
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> axn.partitioning.fsdp_mapping(mlp, "data", mesh)
        {'mlp': 'data'}
    """
    mesh = context.context_mesh(mesh)
    wanted = assignment.write_entry(mesh_axis)
    if mesh is None:
        hint = 'pass one, or run inside of: with axn.set_mesh(jax.make_mesh((8,), ("data",)))'
        raise ShardingError(message("fsdp_mapping", "there is no mesh", hint=hint))
    for axis in wanted:
        if axis not in mesh.axis_names:
            problem = f"{axis!r} is not an axis of the mesh"
            line, near = f"mesh: {partition.describe_mesh(mesh)}", suggestion(axis, mesh.axis_names)
            raise ShardingError(message("fsdp_mapping", problem, line, hint=near))
    shards = partition.count_shards(mesh, wanted)
    kept = assignment.Mappings(mapping or {}).parameters
    # Names that the given mapping splits over these mesh axes count as chosen.
    used = {
        name
        for name in kept
        if not set(wanted).isdisjoint(itertools.chain.from_iterable(kept.alternatives(name)))
    }
    leaves = jax.tree.leaves_with_path(tree, is_leaf=is_named_array)
    sizes: list[dict[str, int]] = []
    for path, x in leaves:
        if not isinstance(x, NamedArray) or is_hole(x):
            continue
        # A reduced state of an optimizer has names and not their dimensions: it is replicated.
        if find_layout_names("fsdp_mapping", path, x) == x.names:
            sizes.append({axis.name: axis.size for axis in axes_of("fsdp_mapping", x)})
    large = [own for own in sizes if math.prod(own.values()) >= min_size]
    chosen = assignment.check_mapping(mapping or {})
    while True:
        open_ones = [own for own in large if not used & own.keys()]
        gains: dict[str, int] = {}
        for own in open_ones:
            for name, size in own.items():
                # An array cannot be split over one mesh axis along two names.
                clashes = any(name in other and used & other.keys() for other in sizes)
                if name not in kept and size and not size % shards and not clashes:
                    gains[name] = gains.get(name, 0) + math.prod(own.values())
        if not gains:
            return chosen
        longest = {name: max(own.get(name, 0) for own in open_ones) for name in gains}
        # The name decides between equal axes, so that all processes choose the same mapping.
        best = min(gains, key=lambda name: (-gains[name], -longest[name], name))
        chosen[best] = mesh_axis
        used.add(best)
