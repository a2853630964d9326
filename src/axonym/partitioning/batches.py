"""Batches whose size devices do not divide."""

from typing import Any, TypeGuard, TypeVar

import jax
import numpy as np

from ..array import NamedArray, is_named_array
from ..axis import Axis, AxisSelector, selector
from ..base.phrases import missing_axis
from ..create import arange
from ..engine.core import wrap
from ..errors import AxisSizeError, message
from ..layout.assignment import MeshLike, ResourceMapping
from ..ops.pad import pad
from ..transform.leaves import is_hole
from .shard import round_axis_for_partitioning
from .trees import collect_names

__all__ = ["pad_batch"]

T = TypeVar("T")


def pad_batch(
    batch: T,
    Batch: AxisSelector,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
) -> tuple[T, NamedArray]:
    """Pad a batch, or any other axis, to a size that devices divide, and return which of the rows are real.

    Pass the mask as `where` to losses, means and `axn.standardize`: value and gradient are those of the original batch.
    Attention over a padded axis, such as positions, needs the mask too: `nn.segments(mask.astype(int))`. The added rows
    are copies of the last row, so they give finite numbers if that row does; an empty batch gets zeros.

    Args:
        batch: a tree of named arrays; all arrays that have the axis have the same size along it. NumPy arrays stay on
            the host.
        Batch: the axis of the rows, or another one. With a size, the batch is padded to that size; for a name alone, to
            the next size that its mesh axes divide.
        mapping: axis names to mesh axes; by default the current mapping.
        mesh: by default the mesh of `set_mesh`.

    Returns:
        The batch, and booleans over the axis: True for rows that were there.

    Raises:
        AxisNotFoundError: if no array has the axis.
        AxisSizeError: if the batch has several sizes, or more rows than wanted.
        ShardingError: as `round_axis_for_partitioning`.

    Examples:
        >>> mesh = jax.sharding.AbstractMesh((4,), ("data",))
        >>> batch = {"x": axn.named([3.0, 4.0, 5.0], "batch")}
        >>> padded, counted = axn.pad_batch(batch, "batch", {"batch": "data"}, mesh)
        >>> padded["x"].tolist(), counted.tolist()
        ([3.0, 4.0, 5.0, 5.0], [True, True, True, False])
        >>> padded["x"].mean(where=counted).tolist()
        4.0
    """
    name, wanted = selector(Batch, "pad_batch")

    def has_rows(leaf: object) -> TypeGuard[NamedArray]:
        return isinstance(leaf, NamedArray) and name in leaf.names and not is_hole(leaf)

    arrays = filter(has_rows, jax.tree.leaves(batch, is_leaf=is_named_array))
    sizes = {x.axis_size(name) for x in arrays}
    if not sizes:
        raise missing_axis("pad_batch", name, collect_names(batch))
    (size, *others) = sorted(sizes)
    if others:
        problem = f"arrays have {name} with the sizes {', '.join(map(str, sorted(sizes)))}"
        raise AxisSizeError(message("pad_batch", problem, hint="rename the axes that are no rows"))
    if wanted is None:
        wanted = round_axis_for_partitioning(Axis(name, size), mapping, mesh).size
    if wanted < size:
        raise AxisSizeError(
            message("pad_batch", f"the batch has {name}={size}, more than {wanted}")
        )
    more = wanted - size
    how: Any = "edge" if size else "constant"

    def longer(leaf: object) -> Any:
        if not has_rows(leaf) or not more:
            return leaf
        if not isinstance(leaf.array, np.ndarray):
            return pad(leaf, {name: (0, more)}, mode=how)
        widths = [(0, 0)] * leaf.array.ndim
        widths[leaf.names.index(name) - len(leaf.names)] = (0, more)
        return wrap(leaf, np.pad(leaf.array, widths, mode=how), leaf.names)

    padded: T = jax.tree.map(longer, batch, is_leaf=is_named_array)
    return padded, arange(Axis(name, wanted)) < size
