"""Continued texts, against a model that reads the whole text for each token."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer as Loaded, decoders, models

import axonym as axn
from axonym.models import (
    Bytes,
    Decoder,
    DecoderConfig,
    Sampling,
    TextGenerator,
    Vocabulary,
    generate,
    read_sampling,
)
from tests.nn.layouts import fails

CONFIG = DecoderConfig(vocab=256, layers=2, embed=32, mlp=48, heads=4, kv_heads=2, head_dim=8, positions=64)
GREEDY = Sampling(temperature=0.0, new=20)


@functools.cache
def model():
    shapes = jax.eval_shape(lambda: Decoder.init(CONFIG, key=jax.random.key(0)))
    rng = np.random.default_rng(1)
    drawn = jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.standard_normal(leaf.shape, np.float32)), shapes)
    # Letters alone, so that all texts can be shown.
    letters = np.isin(np.arange(256), [*b"abcdefgh "])
    kept = drawn.unembedding.weight * axn.named(letters.astype(np.float32), "vocab")
    return dataclasses.replace(drawn, unembedding=dataclasses.replace(drawn.unembedding, weight=kept))


@jax.jit
def scores(tokens):
    return model()(tokens)


@functools.cache
def by_hand(prompt):
    text = [*prompt.encode()]
    for _ in range(20):
        padded = axn.named((text + 64 * [0])[:64], "pos")
        text.append(int(scores(padded)["pos", len(text) - 1].argmax("vocab")))
    return bytes(text).decode()[len(prompt) :]


def test_texts_go_on_as_each_alone_up_to_a_stop():
    prompts = ("def main(", "a", "import jax and more")
    assert generate(model(), Bytes(), prompts, GREEDY) == [by_hand(prompt) for prompt in prompts]
    whole = by_hand("def main(")
    stop = whole[9:12]
    stopped = dataclasses.replace(GREEDY, stop=(stop, "never"))
    assert generate(model(), Bytes(), ["def main("], stopped) == [whole[: whole.index(stop)]]


def test_draws_are_those_of_the_seed_and_of_likely_tokens():
    def draw(**options):
        return generate(model(), Bytes(), ["a", "b"], Sampling(**options))

    options = {"new": 12, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "repetition": 1.2}
    one, same, other = (draw(**options, seed=seed) for seed in (0, 0, 1))
    assert one == same != other
    assert draw(new=20, top_k=1, top_p=0.9, min_p=0.05) == [by_hand("a"), by_hand("b")]
    never_twice = draw(new=12, temperature=0.1, repetition=1e9)
    assert all(len({*text[:5]}) == 5 for text in never_twice)


def test_scores_that_are_nan_choose_no_token():
    broken = dataclasses.replace(model(), norm=jax.tree.map(lambda weight: weight * jnp.nan, model().norm))
    text = "scores of the model are NaN: look at its weights, axn.debug.diagnose(model)"
    fails(ValueError, text, lambda: generate(broken, Bytes(), ["a", "b"], GREEDY))


def test_flaws():
    fails(
        ValueError,
        "the model knows 64 positions, but there are 60 tokens of the longest prompt and 20 new ones",
        lambda: generate(model(), Bytes(), ["x" * 60], GREEDY),
    )
    fails(ValueError, "temperature=-0.5 must be at least 0", lambda: Sampling(temperature=-0.5))
    fails(ValueError, "new=-1 must be at least 0", lambda: Sampling(new=-1))
    text = "prompts must be a list of texts, not one text: pass ['def']"
    fails(TypeError, text, lambda: generate(model(), Bytes(), "def"))


def test_sampling_is_that_of_the_model_unless_it_is_given(tmp_path):
    assert read_sampling(tmp_path, new=3) == Sampling(new=3)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": 2}))
    assert read_sampling(tmp_path) == Sampling(temperature=0.0)
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1, "min_p": None}
    file.write_text(json.dumps({**settings, "max_new_tokens": 7}))
    read = Sampling(new=7, temperature=0.6, top_k=50, top_p=0.9, repetition=1.1)
    assert read_sampling(tmp_path) == read
    assert read_sampling(tmp_path, top_k=None, seed=3) == dataclasses.replace(read, top_k=None, seed=3)


def test_a_continuation_keeps_its_space_and_stops_at_special_tokens(tmp_path):
    pieces = ["<unk>", "\u2581yes", "\u2581no", "n", "<turn>"]
    loaded = Loaded(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    loaded.decoder = decoders.Metaspace()
    loaded.add_special_tokens(["<turn>"])
    loaded.save(str(tmp_path / "tokenizer.json"))
    tokens = Vocabulary(tmp_path / "tokenizer.json")

    def until(new, *stops):
        return TextGenerator(model(), tokens, Sampling(stop=stops)).text_until([1], new)

    assert tokens.decode([2]) == "no"
    assert until([2, 1]) == (" no yes", False)
    assert until([2, 4, 1]) == (" no yes", False)
    assert until([2, 4, 1], "never", "<turn>") == (" no", True)
    assert until([2, 1], " y") == (" no", True)
    assert until([2, 4, 1], "es") == (" no y", True)
