"""Grain beside Grain on plain arrays: batches of named rows, in any process, and saved iterators."""

import json

import grain
import jax
import numpy as np
import pytest
from absl import flags

import axonym as axn

PLAIN = np.arange(48, dtype=np.int32).reshape(16, 3)
NAMES = ("batch", "pos")


class Rows:
    """A source that another process can make anew."""

    def __len__(self) -> int:
        return len(PLAIN)

    def __getitem__(self, at: int) -> dict[str, axn.NamedArray]:
        return {"tokens": axn.NamedArray(PLAIN[at], ("pos",))}


def name_batch(batch: dict[str, axn.NamedArray]) -> dict[str, axn.NamedArray]:
    return {"tokens": batch["tokens"].tag("batch")}


def batches(source: object) -> grain.MapDataset:
    return grain.MapDataset.source(source).seed(3).shuffle().batch(4)


def test_named_rows_are_batched_as_plain_ones() -> None:
    named = [batch["tokens"] for batch in batches(Rows()).map(name_batch)]
    assert [x.names for x in named] == [NAMES] * 4
    for x, expected in zip(named, batches(PLAIN), strict=True):
        # A process that reads data has no use for JAX.
        assert isinstance(x.array, np.ndarray)
        np.testing.assert_array_equal(x.array, expected)


def test_repeated_and_ragged_ends() -> None:
    ragged = grain.MapDataset.source(Rows()).repeat(2).batch(5, drop_remainder=False)
    expected = np.concatenate([PLAIN, PLAIN])
    read = [batch["tokens"].tag("batch") for batch in ragged]
    assert [x.shape["batch"] for x in read] == [5] * 6 + [2]
    np.testing.assert_array_equal(np.concatenate([np.asarray(x) for x in read]), expected)


def test_rows_of_other_axes_are_an_error() -> None:
    square = np.zeros((2, 2))
    rows = [axn.NamedArray(square, names) for names in (("a", "b"), ("b", "a"))]
    with pytest.raises(ValueError, match="same structure"):
        grain.MapDataset.source(rows).batch(2)[0]


def test_an_iterator_goes_on_where_it_was_saved() -> None:
    iterator = iter(batches(Rows()).map(name_batch).to_iter_dataset())
    next(iterator)
    text = json.dumps(iterator.get_state())
    rest = [batch["tokens"] for batch in iterator]
    fresh = iter(batches(Rows()).map(name_batch).to_iter_dataset())
    fresh.set_state(json.loads(text))
    again = [batch["tokens"] for batch in fresh]
    assert len(rest) == len(again) == 3
    assert all(axn.array_equal(x, y) for x, y in zip(rest, again, strict=True))


def test_rows_cross_processes_with_their_names() -> None:
    flags.FLAGS([""])
    options = grain.MultiprocessingOptions(num_workers=1)
    iterator = iter(batches(Rows()).map(name_batch).to_iter_dataset().mp_prefetch(options))
    first = next(iterator)["tokens"]
    assert first.names == NAMES
    np.testing.assert_array_equal(np.array(first.array), batches(PLAIN)[0])
    iterator.close()


def test_batches_are_laid_out_by_name(auto_mesh: jax.sharding.Mesh, explicit_mesh: jax.sharding.Mesh) -> None:
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            (first, *_) = batches(Rows()).map(name_batch)
            x = axn.shard(first, {"batch": "data"})["tokens"]
            assert x.sharding.spec[0] == "data"
            np.testing.assert_array_equal(x.array, batches(PLAIN)[0])
