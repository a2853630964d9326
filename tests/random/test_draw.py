"""How parameters of distributions line up, and where results go; values have their tests in test_random.py."""

from contextlib import nullcontext

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import axonym as axn
from axonym import random
from axonym.errors import OperandError
from tests.laws import assert_close, placed

pytestmark = pytest.mark.sampled

A, B, SAMPLE = axn.make_axes(a=4, b=2, sample=5)
KEY = jax.random.key(1)
OF_A = axn.named(np.float32([0.5, 1.0, 2.0, 3.0]), A)
WEIGHTS = np.float32([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
OF_BX = axn.named(WEIGHTS, ("b", "x"))


@pytest.mark.parametrize("mapping", [None, {"a": "model", "b": "data"}])
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_parameters_may_lie_on_a_mesh_in_any_way(
    kind: str, mapping: dict[str, str] | None, request: pytest.FixtureRequest
) -> None:
    mesh = request.getfixturevalue(f"{kind}_mesh")
    table = axn.named(np.arange(8, dtype=np.float32).reshape(4, 2), (A, "category"))

    def draws(scale: axn.NamedArray, table: axn.NamedArray) -> list[axn.NamedArray]:
        return [
            random.rayleigh(KEY, (axn.Axis("b", 4), A), scale),
            random.categorical(KEY, table, "category"),
            random.dirichlet(KEY, A, table + 1, "category"),
            random.choice(KEY, SAMPLE, table, "a"),
            random.permutation(KEY, table, "category"),
        ]

    with jax.set_mesh(mesh), axn.axis_mapping(mapping) if mapping else nullcontext():
        drawn = jax.jit(draws)(*(placed(x, mesh, {"a": "data", "category": "model"}) for x in (OF_A, table)))
    for result, expected in zip(drawn, draws(OF_A, table), strict=True):
        assert result.names == expected.names
        assert_close(np.asarray(result.array), np.asarray(expected.array))
    if kind == "explicit":
        assert drawn[0].sharding.spec == (PartitionSpec("data", "model") if mapping else PartitionSpec(None, "data"))


def test_anonymous_dimensions_of_parameters_lead_the_result() -> None:
    drawn = random.rayleigh(KEY, (B, A), axn.named(np.float32([[1, 2], [3, 4], [5, 6]]), ("z", "b")).untag("z"))
    assert (drawn.names, drawn.array.shape) == (("b", "a"), (3, 2, 4))
    assert_close(drawn.array, jax.random.rayleigh(KEY, np.float32([[[1], [2]], [[3], [4]], [[5], [6]]]), (3, 2, 4)))
    weights = random.dirichlet(KEY, A, OF_BX.untag("b"), "x")
    assert (weights.names, weights.array.shape) == (("a", "x"), (2, 4, 3))
    assert_close(weights.array, jax.random.dirichlet(KEY, WEIGHTS[:, None], (2, 4)))


def test_a_plain_parameter_is_a_scalar() -> None:
    with pytest.raises(OperandError) as caught:
        random.bernoulli(KEY, (A, B), np.ones(2))
    assert str(caught.value) == (
        "bernoulli: cannot combine a plain parameter of shape (2,) with axes a, b\n"
        "  hint: name it first: axn.named(array, (...))"
    )


def test_a_key_of_plain_integers_is_read_by_the_settings_at_hand(auto_mesh: jax.sharding.Mesh) -> None:
    with jax.set_mesh(auto_mesh), axn.axis_mapping({"a": "data"}):
        for implementation in ("rbg", "unsafe_rbg"):  # which have keys of one shape
            with jax.default_prng_impl(implementation):
                key = jax.random.PRNGKey(0)
                assert random.randint(key, A, 0, 9).tolist() == jax.random.randint(key, (4,), 0, 9).tolist()
                with jax.legacy_prng_key("error"), pytest.raises(ValueError, match="Legacy uint32 key"):
                    random.randint(key, A, 0, 9)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_an_eager_gradient_of_a_shard_map_goes_through_draws(kind: str, request: pytest.FixtureRequest) -> None:
    def noisy(x: axn.NamedArray, key: jax.Array) -> axn.NamedArray:
        return x * random.normal(axn.fold_key(key, "a"), x.axes)

    mapping = {"a": "data", "b": "model"}
    f = axn.shard_map(noisy, mapping, manual_axes="data")
    with axn.set_mesh(request.getfixturevalue(f"{kind}_mesh")):
        x = axn.shard(axn.ones((A, B)), mapping)
        gradient = jax.grad(lambda x: f(x, KEY).sum().scalar())(x)
    assert_close(
        gradient.array, np.concatenate([jax.random.normal(jax.random.fold_in(KEY, i), (1, 2)) for i in range(4)])
    )
