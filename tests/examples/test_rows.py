"""Rows of batches: windows, masked windows, packed documents, drawn ahead; each from the step alone."""

import re
import threading
from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest
from rows import Batch, Packed, Rows, Windows, ahead, batch_of

import axonym as axn
import axonym.nn as nn
from axonym.models import Decoder, DecoderConfig

TEXT = np.random.default_rng(0).integers(1, 256, 10_000).astype(np.uint8)
END = 0


def raises(error: type[Exception], message: str) -> pytest.RaisesExc:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def text_of(sizes: list[int]) -> np.ndarray:
    """Make documents whose tokens are all different, each with its end."""
    assert sum(sizes) < 250
    parts, first = [], 1
    for size in sizes:
        parts.append([*range(first, first + size), END])
        first += size
    return np.concatenate(parts).astype(np.uint8)


def arrays(batch: Batch) -> list[np.ndarray]:
    return [np.asarray(x.array) for x in (batch.tokens, batch.documents, batch.counted) if x is not None]


@pytest.mark.parametrize("make", [Windows, lambda *args: Windows(*args, 7), lambda *args: Packed(*args, 7)])
def test_batches_depend_on_seed_and_step_alone(make: Callable[..., Rows]) -> None:
    first = arrays(batch_of(make(TEXT, 16, 0), 3, 8, 2))
    assert first[0].shape == (2, 4, 17)
    assert first[0].dtype == np.int32
    whole = arrays(batch_of(make(TEXT, 16, 0), 3, 8))
    parts = [arrays(batch_of(make(TEXT, 16, 0), 3, 8, 2, own)) for own in (slice(0, 1), slice(1, 4))]
    again = arrays(batch_of(make(TEXT, 16, 0), 3, 8, 2))
    for i, array in enumerate(first):
        np.testing.assert_array_equal(array, again[i])
        np.testing.assert_array_equal(array.reshape(whole[i].shape), whole[i])
        np.testing.assert_array_equal(array, np.concatenate([part[i] for part in parts], axis=1))
    for other in (batch_of(make(TEXT, 16, 1), 3, 8), batch_of(make(TEXT, 16, 0), 4, 8)):
        assert not np.array_equal(whole[0], other.tokens.array)


def test_windows_are_those_of_the_text() -> None:
    windows = arrays(batch_of(Windows(np.arange(20, dtype=np.uint8), 4, 0), 0, 500))[0][0]
    np.testing.assert_array_equal(windows - windows[:, :1], np.broadcast_to(np.arange(5), (500, 5)))
    # Every window is possible, the last one too.
    assert set(windows[:, 0]) == set(range(16))


def test_text_of_one_window() -> None:
    text = np.arange(5, dtype=np.uint8)
    np.testing.assert_array_equal(batch_of(Windows(text, 4, 0), 0, 1).tokens.array, text[None, None])
    message = (
        "a window takes 6 tokens (length 5, and one more to predict), but the text has 5; "
        "pass a longer text, or a length of at most 4"
    )
    with raises(ValueError, message):
        batch_of(Windows(text, 5, 0), 0, 1)


@pytest.mark.parametrize(("batch", "microbatches"), [(8, 3), (8, 0), (0, 1)])
def test_microbatches_divide_the_batch(batch: int, microbatches: int) -> None:
    message = f"cannot split a batch of {batch} into {microbatches} microbatches; microbatches must divide batch"
    with raises(ValueError, message):
        batch_of(Windows(np.zeros(99, np.uint8), 4, 0), 0, batch, microbatches)


def test_masked_windows_are_divided_at_ends() -> None:
    text = text_of([3, 5, 2, 4])
    batch = batch_of(Windows(text, 8, 0, END), 0, 64)
    windows, documents = (array[0] for array in arrays(batch))
    assert batch.counted is None
    for window, own in zip(windows, documents, strict=True):
        expected, number = [], 0
        for token in window[:-1]:
            number += token == END
            expected.append(number)
        assert own.tolist() == expected


def targets(batch: Batch) -> list[tuple[list[int], int]]:
    """List what is predicted, and from which tokens of its document."""
    found = []
    for window, own, counted in zip(*(array.reshape(-1, array.shape[-1]) for array in arrays(batch)), strict=True):
        for at in np.flatnonzero(counted):
            seen = [int(window[i]) for i in range(at + 1) if own[i] == own[at]]
            found.append((seen, int(window[at + 1])))
    return found


def test_packed_rows_predict_each_token_once_from_its_document() -> None:
    length, sizes = 8, [3, 1, 8, 5, 20, 2, 4, 7, 1, 1]
    text = text_of(sizes)
    source = Packed(text, length, 0, END)
    batch = batch_of(source, 0, len(source))
    expected = []
    documents = np.split(text, np.flatnonzero(text == END) + 1)[:-1]
    for i, document in enumerate(documents):
        # A document begins with the end of the one before it.
        whole = document.tolist() if i == 0 else [END, *document.tolist()]
        for at in range(1, len(whole)):
            start = (at - 1) // length * length
            expected.append((whole[start:at], whole[at]))
    assert sorted(targets(batch)) == sorted(expected)
    # The next epoch has the same rows in another order.
    again = batch_of(source, 1, len(source))
    assert sorted(targets(again)) == sorted(expected)
    assert not np.array_equal(batch.tokens.array, again.tokens.array)
    assert len(source) < 1.3 * (text.size + len(sizes)) / (length + 1)


def test_a_text_without_documents() -> None:
    with raises(ValueError, "a text of 1 tokens has no document of two tokens"):
        Packed(np.zeros(1, np.uint8), 4, 0, END)


def test_documents_of_a_row_do_not_see_each_other() -> None:
    small = DecoderConfig(vocab=64, layers=2, embed=16, mlp=24, heads=2, kv_heads=2, head_dim=8, positions=16)
    model = Decoder.init(small, key=jax.random.key(0))
    model = jax.tree.map(lambda leaf: 5 * leaf, model)
    text = (text_of([4, 6, 3, 5, 2]) % 64).astype(np.uint8)
    batch = batch_of(Packed(text, 12, 0, END), 0, 2).part(0)
    scores = jax.jit(lambda model, batch: model(batch.tokens["pos", :-1], nn.segments(batch.documents)))
    found = np.asarray(scores(model, batch).rearrange(("batch", "pos", "vocab")).array)
    alone = jax.jit(lambda model, tokens: model(tokens).rearrange(("pos", "vocab")).array)
    documents, inputs = np.asarray(batch.documents.array), np.asarray(batch.tokens.array)[:, :-1]
    compared = 0
    for row in range(2):
        for number in range(documents[row].max() + 1):
            at = documents[row] == number
            expected = alone(model, axn.named(inputs[row, at], "pos"))
            np.testing.assert_allclose(found[row, at], expected, rtol=2e-4, atol=2e-4)
            compared += 1
    assert compared >= 3


def test_what_is_drawn_ahead_comes_in_order_and_no_further() -> None:
    drawn, went_on = [], threading.Semaphore(0)

    def draw(step: int) -> int:
        drawn.append(step)
        went_on.release()
        return -step

    steps = ahead(draw, range(3, 100), depth=2)
    assert [next(steps), next(steps)] == [-3, -4]
    for _ in range(4):
        went_on.acquire(timeout=10)
    assert drawn == [3, 4, 5, 6]
    steps.close()
    assert list(ahead(draw, range(2))) == [0, -1]
    assert list(ahead(draw, range(0))) == []


def test_an_error_of_the_thread_is_raised_at_its_step() -> None:
    def draw(step: int) -> int:
        if step == 2:
            raise ValueError("the file is gone")
        return step

    steps: Iterator[int] = ahead(draw, range(9))
    assert [next(steps), next(steps)] == [0, 1]
    with raises(ValueError, "the file is gone"):
        next(steps)
