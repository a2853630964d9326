"""Internal. Run a function on the devices of a mesh, and measure the time of a run.

`axn.plan` and `calibrate` call it. It must not know costs.
"""

import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ... import Mappings, ResourceMapping
from ...engine import Ledger, MeshLike, Tree
from ...errors import OperandError, message
from ...report import abstract_mesh
from ..shared.arguments import lay_out_arguments

# Runs of a function; the fastest one counts, since other programs make the others slower.
ROUNDS = 5


def measure_run(
    fn: Tree,
    mapping: ResourceMapping | Mappings | None,
    mesh: MeshLike | Mapping[str, int],
    args: tuple[Tree, ...],
    kwargs: dict[str, Tree],
    *,
    rounds: int = ROUNDS,
    function: str = "plan",
) -> float:
    """Return the seconds of one run, the fastest of several.

    Args:
        fn: the function, as in `axn.cost`.
        mapping: its mapping.
        mesh: a mesh; one without devices gets those of this machine.
        args: arguments, whose values do not count: floats become different small numbers, and everything else becomes
            zero.
        kwargs: keyword arguments.
        rounds: the number of runs.
        function: what was called, for the message.

    Raises:
        OperandError: if this machine has too few devices.
    """
    devices = find_devices(mesh, function)
    given = lay_out_arguments(fn, mapping, devices, args, kwargs)
    # The kernels of this machine run, not placeholder calls for kernels of a target.
    with given.enter(devices, Ledger(), None):
        lowered = given.fn.lower(*given.args, **given.kwargs)
        donates = any(info.donated for info in jax.tree.leaves(lowered.args_info))
        program = lowered.compile()
        filled = _fill((given.args, given.kwargs))
        found: list[float] = []
        # The first run does not count: it loads the program.
        for _ in range(rounds + 1):
            # A run that donates its arguments needs new ones the next time.
            own, options = _copy(filled) if donates else filled
            start = time.perf_counter()
            jax.block_until_ready(jax.tree.leaves(program(*own, **options)))
            found.append(time.perf_counter() - start)
    return min(found[1:])


def find_devices(mesh: MeshLike | Mapping[str, int], function: str) -> Mesh:
    """Return a mesh with devices of this machine.

    Raises:
        OperandError: if this machine has too few devices.
    """
    if isinstance(mesh, Mesh):
        return mesh
    abstract = abstract_mesh(mesh, function)
    here = jax.devices()
    if len(here) < abstract.size:
        problem = f"the mesh has {abstract.size} devices, and this machine has {len(here)}"
        raise OperandError(message(function, problem, hint="give a mesh of devices that are here"))
    grid = np.array(here[: abstract.size]).reshape(tuple(abstract.shape.values()))
    return Mesh(grid, abstract.axis_names, axis_types=abstract.axis_types)


def _fill(tree: Tree) -> Any:
    """Return arrays in place of the abstract ones of a tree, made by one program on the devices that need them."""
    leaves, structure = jax.tree.flatten(tree)
    abstract = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.ShapeDtypeStruct)}
    shardings = {i: leaf.sharding for i, leaf in abstract.items()}
    made = jax.jit(
        lambda: {i: _make(leaf) for i, leaf in abstract.items()}, out_shardings=shardings
    )()
    return jax.block_until_ready(
        jax.tree.unflatten(structure, [made.get(i, leaf) for i, leaf in enumerate(leaves)])
    )


def _make(leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Return an array of different small numbers for a floating dtype, and of zeros for other dtypes."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), leaf.shape)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.zeros(leaf.shape, leaf.dtype)
    places = [
        jax.lax.broadcasted_iota(jnp.float32, leaf.shape, i) * (i + 1.7)
        for i in range(len(leaf.shape))
    ]
    return (jnp.sin(sum(places, start=jnp.float32(1))) / 16).astype(leaf.dtype)


def _copy(tree: Tree) -> Any:
    copied = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)
    return jax.block_until_ready(copied)
