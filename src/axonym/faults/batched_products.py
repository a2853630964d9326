"""Internal. XLA loses most of a product whose batch axis and summed axis swap mesh axes.

The batch axis of the result is on a mesh axis that splits the summed axis of the operands, whose batch axis is on
another mesh axis. All versions, on Auto axes; `tests/upstream/test_batched_products.py` shows it.
"""

from collections.abc import Sequence, Set

import jax

from ..layout.constraints import constrain_dimensions, find_free_auto_axes
from ..layout.context import map_names
from ..layout.partition import only


def shard_batch(array: jax.Array, labels: Sequence[object], batch: Set[str]) -> jax.Array:
    """On Auto mesh axes, shard the batch axes of an operand of a product as the mapping shards them in the result.

    Args:
        array: the operand.
        labels: the labels of its dimensions.
        batch: the labels that are names of batch axes; other dimensions stay as they are.
    """
    sizes = dict(zip(labels, array.shape, strict=True))
    found = map_names({label: sizes[label] for label in batch if label in sizes})
    if not found:
        return array
    # Explicit and Manual axes are safe: there XLA does not choose the layout of an operand.
    free = find_free_auto_axes()
    entries = [only(found.get(label, ()), free) for label in labels]  # type: ignore[call-overload]
    wanted = {at: entry for at, entry in enumerate(entries) if entry}
    return constrain_dimensions(array, wanted)
