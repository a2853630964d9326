"""The axes of arrays in a state dict, which files keep beside the values."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..base.kinds import Payload

__all__ = ["StoredArray", "StoredAxes", "StoredAxis"]


class StoredAxis(NamedTuple):
    """An axis of a stored array.

    Attributes:
        name: its name.
        size: its size.
        flipped: whether it is stored in reverse.

    Examples:
        >>> state = axn.state_dict.to_state_dict({"x": axn.zeros({"pos": 2})})
        >>> state.axes("x")
        ((StoredAxis(name='pos', size=2, flipped=False),),)
    """

    name: str
    size: int
    flipped: bool = False


StoredAxes: TypeAlias = tuple[tuple[StoredAxis, ...] | None, ...]
"""The axes of each dimension of a stored array: several if they are flattened to one, the last one varying fastest;
None for a dimension without a name."""


class StoredArray(np.ndarray[Any, np.dtype[Any]]):
    """A NumPy array of a state dict, and the axes that it was saved with.

    Only the array itself has these axes. Slices, copies, results of operations and `numpy.asarray(array)` do not have
    them.

    Attributes:
        axes: the axes of each dimension; None if they are not known.
        is_foreign: whether the array is from a file that says `format: pt` and has no axes, as files of torch.

    Examples:
        >>> stored = axn.state_dict.to_state_dict({"x": axn.zeros({"pos": 2})})["x"]
        >>> stored.axes[0][0].name, stored[:1].axes
        ('pos', None)
    """

    axes: StoredAxes | None = None
    is_foreign: bool = False

    def __array_wrap__(
        self, array: Payload, context: object = None, return_scalar: bool = False
    ) -> Any:
        # The result of an operation may have other axes.
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    @staticmethod
    def of(
        array: NDArray[np.generic], axes: StoredAxes | None, is_foreign: bool = False
    ) -> "StoredArray":
        """View an array as one with given axes.

        Args:
            array: the array, whose memory the result shares.
            axes: the axes of each dimension; None if they are not known.
            is_foreign: whether it is from a file of torch.
        """
        stored = array.view(StoredArray)
        stored.axes, stored.is_foreign = axes, is_foreign
        return stored
