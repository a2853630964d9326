"""What adapters do to results and to errors."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
import axonym.compat.haliax
from axonym.compat.haliax._adapt import KindError, SizeConflictError, adapted, adopt

hax = axonym.compat.haliax
X = axn.arange(axn.Axis("x", 3))


def test_arrays_of_axonym_become_those_of_haliax_wherever_they_are() -> None:
    tree = {"a": X, "b": [X, (None, "text", 1.5)], "c": jnp.ones(2)}
    adopted = adopt(tree)

    assert type(adopted["a"]) is type(adopted["b"][0]) is hax.NamedArray
    assert adopted["a"].array is X.array
    assert adopted["a"].names == X.names
    assert adopted["b"][1] == (None, "text", 1.5)
    assert adopted["c"] is tree["c"]


@pytest.mark.parametrize("value", [None, 1, 2.5, "x", True, (1, 2), {"a": jnp.ones(2)}, [adopt(X)]])
def test_what_has_no_array_of_axonym_stays_the_same_object(value: object) -> None:
    assert adopt(value) is value


def test_the_class_is_a_pytree_of_its_own_and_still_axonyms() -> None:
    x = adopt(X)
    assert isinstance(x, axn.NamedArray)
    assert jax.tree.structure(x) != jax.tree.structure(X)
    assert type(jax.jit(lambda x: x + 1)(x)) is hax.NamedArray
    assert type(axn.exp(x)) is hax.NamedArray


def test_an_adapted_function_keeps_its_signature_and_adopts() -> None:
    @adapted
    def both(size: int, *, more: bool = False) -> tuple[axn.NamedArray, int]:
        """Say."""
        return axn.ones(axn.Axis("x", size)), int(more)

    x, more = both(2, more=True)
    assert (type(x), x.shape, more) == (hax.NamedArray, {"x": 2}, 1)
    assert (both.__name__, both.__doc__) == ("both", "Say.")


def test_errors_are_of_each_type_that_haliax_raises() -> None:
    with pytest.raises(RuntimeError, match="axis 'x' was given with size 4, but has size 3") as size:
        adapted(axn.sum)(X, axn.Axis("x", 4))
    assert type(size.value) is SizeConflictError
    assert isinstance(size.value, ValueError)
    with pytest.raises(ValueError, match="expected a NamedArray, got list") as kind:
        adapted(axn.sum)([1])  # type: ignore[arg-type]
    assert type(kind.value) is KindError
    assert isinstance(kind.value, TypeError)
    with pytest.raises(axn.errors.AxisNotFoundError, match="axis 'y' not found"):
        adapted(axn.sum)(X, "y")


def test_an_error_from_inside_of_another_adapted_function_is_raised_as_it_is() -> None:
    flaw = SizeConflictError("once")

    def fail() -> None:
        raise flaw

    with pytest.raises(SizeConflictError) as caught:
        adapted(adapted(fail))()
    assert caught.value is flaw
