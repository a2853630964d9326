"""Generation by the program of examples/lm, against a model that reads the whole text for each token."""

import dataclasses
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from config import DecoderConfig
from decoder import Decoder
from generate import Generator, Options, main, read_tokenizer
from huggingface import save
from tokenizer import Bytes, Vocabulary, check_tokens, learn
from tokenizers import Tokenizer as Loaded, models, pre_tokenizers

import axonym as axn
from tests.nn.layouts import fails

CONFIG = DecoderConfig(vocab=256, layers=2, embed=32, mlp=48, heads=4, kv_heads=2, head_dim=8, positions=64)
GREEDY = {"temperature": 0.0, "new": 20}


@functools.cache
def model():
    shapes = jax.eval_shape(lambda: Decoder.init(CONFIG, key=jax.random.key(0)))
    rng = np.random.default_rng(1)
    drawn = jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.standard_normal(leaf.shape, np.float32)), shapes)
    # Letters alone, so that all texts can be shown.
    letters = np.isin(np.arange(256), [*b"abcdefgh "])
    kept = drawn.unembedding.weight * axn.named(letters.astype(np.float32), "vocab")
    return dataclasses.replace(drawn, unembedding=dataclasses.replace(drawn.unembedding, weight=kept))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(model(), folder)
    return folder


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


@pytest.mark.parametrize("mesh", [(1, 1), (1, 2)], ids=str)
def test_texts_go_on_as_each_alone(folder, mesh, capsys):
    prompts = ("def main(", "a", "import jax and more")
    found = main(Options(folder, prompts, mesh=mesh, **GREEDY))
    assert found == [by_hand(prompt) for prompt in prompts]
    assert capsys.readouterr().out == "\n---\n".join(p + by_hand(p) for p in prompts) + "\n"


def test_one_text_is_shown_as_it_comes_up_to_a_stop(folder, capsys):
    whole = by_hand("def main(")
    stop = whole[9:12]
    found = main(Options(folder, ("def main(",), stop=(stop, "never"), **GREEDY))
    assert found == [whole[: whole.index(stop)]]
    assert capsys.readouterr().out.startswith(f"def main({whole[: whole.index(stop)]}")


def test_draws_are_those_of_the_seed_and_of_likely_tokens(folder):
    options = Options(folder, ("a", "b"), new=12, top_k=5, top_p=0.9, min_p=0.05, repetition=1.2)
    one, same, other = (main(dataclasses.replace(options, seed=seed)) for seed in (0, 0, 1))
    assert one == same != other
    likely = dataclasses.replace(options, top_k=1, repetition=1.0, new=20)
    assert main(likely) == [by_hand("a"), by_hand("b")]
    never_twice = main(dataclasses.replace(options, top_k=None, top_p=1.0, min_p=0.0, repetition=1e9, temperature=0.1))
    assert all(len({*text[:5]}) == 5 for text in never_twice)


def test_a_tokenizer_of_its_own_is_read_with_the_model(folder, tmp_path):
    learn(iter(["the cat sat on the mat", "the mat"]), 270, tmp_path / "tokenizer.json")
    tokens = Vocabulary(tmp_path / "tokenizer.json")
    assert tokens.vocab <= 270
    assert len(tokens.encode("the mat")) < 7
    assert tokens.decode(tokens.encode("the mat, naïve")) == "the mat, naïve"
    (end,) = tokens.ends
    (tmp_path / "config.json").write_text(f'{{"vocab_size": {tokens.vocab}, "eos_token_id": [{end}, 3]}}')
    assert read_tokenizer(tmp_path).ends == (end, 3)
    # A model may end a turn by further tokens, which only the settings of generations list.
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5]}))
    assert read_tokenizer(tmp_path).ends == (end, 3, 5)
    assert isinstance(read_tokenizer(folder), Bytes)


def test_tokens_outside_of_the_table_are_refused(folder, tmp_path, capsys):
    """Those of a tokenizer to which a token was added: the model would answer with NaN, and token 0 each time."""
    larger = Loaded(models.WordLevel({f"w{i}": i for i in range(256)}, unk_token="w0"))
    larger.pre_tokenizer = pre_tokenizers.Whitespace()
    larger.add_tokens(["<added>"])
    shutil.copytree(folder, tmp_path / "model")
    larger.save(str(tmp_path / "model" / "tokenizer.json"))
    told = (
        "a prompt has token 256, but the table of the model has 256 rows, for the tokens 0 to 255: "
        "is the tokenizer that of the model, and was a token added to it?"
    )
    options = Options(tmp_path / "model", ("w1 w2", "w1 <added>"), **GREEDY)
    fails(ValueError, told, lambda: main(options))
    held = f"{options.model} has a tokenizer of 257 tokens, and a table of 256"
    assert capsys.readouterr().err == f"warning: {held}: a text with one of the last tokens is refused\n"
    assert len(main(dataclasses.replace(options, prompt=("w1 w2",)))[0].split()) == 20
    fails(ValueError, told.replace("256, but", "-1, but"), lambda: check_tokens(np.array([3, -1]), 256, "a prompt"))


def test_scores_that_are_nan_choose_no_token(folder):
    broken = dataclasses.replace(model(), norm=jax.tree.map(lambda weight: weight * jnp.nan, model().norm))
    generator = Generator(broken, Bytes(), Options(folder, **GREEDY))
    text = "scores of the model are NaN: look at its weights, axn.debug.diagnose(model)"
    with axn.set_mesh(jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
        fails(ValueError, text, lambda: list(generator.stream([[97], [98]])))


def test_flaws(folder, tmp_path):
    fails(
        ValueError,
        "the model knows 64 positions, but there are 60 tokens of the longest prompt and 20 new ones",
        lambda: main(Options(folder, ("x" * 60,), **GREEDY)),
    )
    fails(ValueError, "temperature=-0.5 must be at least 0", lambda: main(Options(folder, temperature=-0.5)))
    fails(ValueError, "new=-1 must be at least 0", lambda: main(Options(folder, new=-1)))
    nothing = "there is no text to continue: pass --prompt, which may be an empty text"
    fails(ValueError, nothing, lambda: main(Options(folder, prompt=())))
    (tmp_path / "config.json").write_text('{"vocab_size": 300}')
    fails(
        ValueError,
        f"{tmp_path} has no tokenizer.json, and 300 tokens, which are not bytes",
        lambda: main(Options(tmp_path)),
    )
