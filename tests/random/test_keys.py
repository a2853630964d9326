import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import random
from tests.laws import assert_close

KEY = jax.random.key(1)
A, B = axn.make_axes(a=4, b=2)
SIZES = (4, 2)


def same_keys(keys: axn.NamedArray, expected: jax.Array) -> bool:
    return bool(jnp.array_equal(jax.random.key_data(keys.array), jax.random.key_data(expected)))


class TestKeys:
    """Arrays of keys."""

    def test_split_makes_the_keys_of_jax(self) -> None:
        keys = random.split(KEY, (A, B))
        assert keys.axes == (A, B)
        assert same_keys(keys, jax.random.split(KEY, SIZES))
        assert same_keys(keys.rearrange(("b", "a"))["a", 1:3], jax.random.split(KEY, SIZES)[1:3].T)

    def test_keys_of_the_old_kind_become_elements(self) -> None:
        old = jax.random.PRNGKey(1)
        assert same_keys(random.split(old, A), jax.random.split(KEY, 4))
        assert same_keys(random.fold_in(old, axn.arange(A)), random.fold_in(KEY, axn.arange(A)).array)

    def test_fold_in_makes_a_key_for_each_number(self) -> None:
        keys = random.fold_in(KEY, axn.arange((A, B)))
        assert keys.axes == (A, B)
        assert same_keys(keys["a", 3, "b", 1], jax.random.fold_in(KEY, 7))
        one, both = random.fold_in(keys, 5), random.fold_in(keys, axn.arange(B))
        assert one.axes == both.axes == (A, B)
        assert same_keys(one["a", 2, "b", 0], jax.random.fold_in(jax.random.fold_in(KEY, 4), 5))
        assert same_keys(both["a", 2, "b", 1], jax.random.fold_in(jax.random.fold_in(KEY, 5), 1))

    def test_fold_in_of_one_number_makes_one_key(self) -> None:
        assert same_keys(random.fold_in(KEY, 7), jax.random.fold_in(KEY, 7))
        assert same_keys(jax.jit(lambda step: random.fold_in(KEY, step))(7), jax.random.fold_in(KEY, 7))

    def test_scan_and_index_give_single_keys(self) -> None:
        keys = random.split(KEY, A)
        _, drawn = axn.scan(lambda carry, key: (carry, random.normal(key, B)), "a")(0, keys)
        for i in range(A.size):
            assert_close(drawn["a", i].array, random.normal(keys["a", i], B).array)

    @pytest.mark.parametrize("kind", ["auto", "explicit"])
    def test_keys_lie_on_a_mesh(self, kind: str, request: pytest.FixtureRequest) -> None:
        def draw() -> axn.NamedArray:
            return axn.vmap(lambda key: random.normal(key, B), "a")(random.split(KEY, A))

        expected = draw()
        with jax.set_mesh(request.getfixturevalue(f"{kind}_mesh")), axn.axis_mapping({"a": "data", "b": "model"}):
            for drawn in (jax.jit(draw)(), draw()):
                assert_close(np.asarray(drawn.array), np.asarray(expected.array))
