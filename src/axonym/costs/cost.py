"""Report the costs of a mapping: communication, memory and time, from the program that a compiler makes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from .. import Mappings, ResourceMapping
from ..engine import MeshLike, Tree, type_text
from ..errors import ArgumentError, OperandError, message
from .shared.targets import Target

if TYPE_CHECKING:
    from .report.cost import Cost

__all__ = ["cost"]


def cost(
    fn: Tree,
    mapping: ResourceMapping | Mappings | None,
    mesh: MeshLike | Mapping[str, int],
    *args: Tree,
    target: Target | str = "cpu",
    depth: Literal["compiled", "traced"] = "compiled",
    **kwargs: Tree,
) -> "Cost":
    """Report the costs of a mapping: the collectives with the named axes that cause them, memory, and estimated time.

    By default, the function is compiled for the mesh and the program is read; nothing is computed. If `libtpu` is
    installed, programs for the TPUs among the targets are compiled for them. Otherwise, the function is compiled for
    this machine, which must have as many devices as the mesh; they may be simulated. At the traced depth, neither a
    compiler nor devices are needed.

    Args:
        fn: a function or a module. Donations of a `named_jit` function count; its mappings are replaced by the given
            one.
        mapping: the mapping, as in `axn.check`. With None, a `named_jit` function keeps its own mappings, other
            functions use the current one, and arguments that are already on a mesh of these sizes keep their layouts.
        mesh: a mesh, an `AbstractMesh`, or sizes such as `{"data": 4, "model": 2}`, whose axes are then Auto.
        args: arguments: trees of arrays or of `jax.ShapeDtypeStruct`s, named or not. Other leaves are static.
        target: the device for which times and memory are estimated: a name in `axn.partitioning.TARGETS`, or a
            `Target`.
        depth: the source of the numbers: `compiled` reads the program of a compiler; `traced` counts from the types in
            the function on Explicit mesh axes.
        kwargs: keyword arguments.

    Returns:
        The report, which prints as tables and has its content in attributes. All numbers are for one device.

    Raises:
        ShardingError: if there is no mapping, or it does not fit; if a function to trace needs Auto mesh axes.
        OperandError: if `fn` cannot be called; for an unknown target; if this machine has too few devices.
        ArgumentError: for an unknown depth.

    Examples:
        >>> Batch, Embed, Mlp = axn.make_axes(batch=64, embed=32, mlp=128)
        >>> up, down = axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(0)), axn.ones((Mlp, Embed))
        >>> def layer(up, down, x):
        ...     return axn.dot(up(x), down, axis="mlp")
        >>> report = axn.cost(layer, {"mlp": "model"}, {"model": 8}, up, down, axn.ones((Batch, Embed)))
        >>> for one in report.communication:
        ...     print(one.kind, one.mesh_axes, one.axis, one.nbytes, "bytes")
        all-reduce ('model',) mlp 8192 bytes
    """
    # Imported here, so that a program that asks for no cost does not wait for the readers.
    from ..report import abstract_mesh
    from .compiled.devices import find_target
    from .compiled.reader import compile_cost
    from .traced.reader import trace_cost

    if depth not in ("compiled", "traced"):
        problem = f"there is no depth {depth!r}"
        raise ArgumentError(message("cost", problem, "depths: compiled, traced"))
    if not callable(fn):
        problem = f"it takes a function or a module, not {type_text(fn)}"
        hint = "axn.check tells how a tree is laid out"
        raise OperandError(message("cost", problem, hint=hint))
    known = find_target(target)
    if depth == "traced":
        return trace_cost(fn, mapping, abstract_mesh(mesh, "cost"), known, args, kwargs)
    return compile_cost(fn, mapping, mesh, abstract_mesh(mesh, "cost"), known, args, kwargs)
