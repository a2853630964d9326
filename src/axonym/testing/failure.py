"""The error of a claim that does not hold, with its parts as attributes."""

from collections.abc import Mapping

from ..errors import AxonymError

__all__ = ["ClaimError"]


class ClaimError(AxonymError, AssertionError):
    """A claim about an axis does not hold.

    Attributes:
        claim: what was claimed, such as "causal".
        axis: the axis of the claim.
        source: the coordinates that were changed, by name.
        target: the coordinates that must not have changed, by name; a path where there are none.
        effect: the largest change, as a share of the largest number.
        layer: the path of the layer where it first appears; empty outside of layers, None if unknown.
        operation: the operation where it first appears, or None.
        parameter: the parameter whose gradient or update differs, or None.
        factor: the factor by which all elements are off, or None if there is no common one.

    Examples:
        >>> x = axn.ones({"batch": 2, "pos": 3})
        >>> try:
        ...     axn.testing.assert_causal(lambda x: x - x.mean("pos"), "pos", x)
        ... except axn.testing.ClaimError as error:
        ...     error.source, error.target, error.operation
        ({'pos': 1}, {'batch': 0, 'pos': 0}, 'reduce_sum')
    """

    claim: str
    axis: str | None
    source: Mapping[str, int]
    target: Mapping[str, int]
    effect: float
    layer: str | None
    operation: str | None
    parameter: str | None
    factor: float | None
