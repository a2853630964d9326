"""What layers demand of their inputs, in the words of the layer."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, LostAxisError, OperandError
from axonym.nn.inputs import check_input

In, Out = axn.make_axes(embed=4, mlp=8)


def test_other_axes_and_any_order_are_welcome() -> None:
    check_input("Layer", axn.ones((axn.Axis("batch", 2), In)), (In,), (Out,))
    check_input("Layer", axn.ones((In, axn.Axis("batch", 2))), (In,), (In,))


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (
            axn.ones(axn.Axis("embde", 4)),
            AxisNotFoundError,
            "Layer: the input lacks axis 'embed'\n  input has: embde=4\n  the layer works over: embed=4\n"
            "  hint: did you mean 'embde'?",
        ),
        (
            axn.ones(axn.Axis("embed", 5)),
            AxisSizeError,
            "Layer: axis 'embed' of the input has size 5, but the layer was made for 4\n  input has: embed=5",
        ),
        (
            axn.ones((In, Out)),
            AxisClashError,
            "Layer: the input already has axis 'mlp', which the layer adds\n  input has: embed=4, mlp=8\n"
            "  hint: rename it first: x.rename({'mlp': ...})",
        ),
        (
            jnp.ones(4),
            OperandError,
            "Layer: expected a NamedArray, got a plain array\n"
            "  its shape: (4,)\n"
            '  hint: name its dimensions first: axn.named(array, "embed")',
        ),
    ],
)
def test_what_does_not_fit_is_refused(x: axn.NamedArray, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        check_input("Layer", x, (In,), (Out,))
    assert str(raised.value) == text


def test_a_lost_axis_is_told() -> None:
    lost = jax.tree.map(lambda array: array[0], axn.ones((axn.Axis("batch", 2), In)))
    with pytest.raises(LostAxisError, match="cannot have the 2 axes batch, embed"):
        check_input("Layer", lost, (In,), (Out,))
