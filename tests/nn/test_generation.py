"""Generation with a cache, against the same model that reads the whole text again for each token."""

import functools

import equinox as eqx
import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import draw, fails

pytestmark = pytest.mark.sampled

Layers, B, V, E, H, D = axn.make_axes(layers=2, batch=4, vocab=16, embed=8, kv_heads=2, head_dim=4)
New = axn.Axis("new", 7)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6], [5, 3, 5]]
COUNT = axn.named([len(prompt) for prompt in PROMPTS], "batch")
PADDED = axn.named([(prompt + 5 * [0])[:5] for prompt in PROMPTS], ("batch", "pos"))


class Model(eqx.Module):
    """Layers of attention alone, with learned positions."""

    table: nn.Embedding
    places: axn.NamedArray
    qkv: axn.NamedArray
    out: axn.NamedArray

    def through(self, x, attend):
        for i in range(Layers.size):
            q, k, v = axn.dot(x, self.qkv["layers", i], axis="embed").unbind("qkv")
            x = x + axn.dot(attend(q, k, v, i), self.out["layers", i], axis=("kv_heads", "head_dim"))
        return self.table.unembed(x)

    def whole(self, tokens):
        def attend(q, k, v, i):
            k, v = k.rename({"pos": "key"}), v.rename({"pos": "key"})
            return nn.dot_product_attention("pos", "key", "head_dim", q, k, v, nn.causal())

        return self.through(self.table(tokens) + self.places["pos", : tokens.axis_size("pos")], attend)

    def extend(self, caches, tokens, count):
        Pos = tokens.resolve_axis("pos") if tokens.has_axis("pos") else None

        def attend(q, k, v, i):
            nonlocal caches
            y, caches = caches.attend(Pos, "head_dim", q, k, v, count=count, layer=("layers", i))
            return y

        places = self.places.take("pos", caches.positions(Pos)["layers", 0])
        logits = self.through(self.table(tokens) + places, attend)
        return caches, logits


MODEL = Model(
    nn.Embedding(draw(V, E), V, (E,)),
    draw(axn.Axis("pos", 16), E, seed=1) * 2,
    draw(Layers, E, axn.Axis("qkv", 3), H, D, seed=2),
    draw(Layers, H, D, E, seed=3),
)


@functools.cache
def greedy(prompt, number=7):
    """Choose tokens by reading the whole text each time; all texts have one size, since later tokens do not count."""
    text = [*prompt]
    for _ in range(number):
        logits = whole(axn.named((text + 16 * [0])[:16], "pos"))
        text.append(int(logits["pos", len(text) - 1].argmax("vocab")))
    return text[len(prompt) :]


whole = jax.jit(lambda tokens: MODEL.whole(tokens))


def caches(lengths=B):
    axes = (B, H, axn.Axis("key", 16), D)
    return nn.KVCache.stacked(Layers, "key", axes, lengths=lengths)


@functools.cache
def alone():
    return [greedy(tuple(prompt)) for prompt in PROMPTS]


@pytest.mark.parametrize("mesh", [None, "auto_mesh", "explicit_mesh"])
def test_prompts_of_different_lengths_go_on_as_each_alone(mesh, request):
    def run(model, prompts, count):
        return nn.generate(model.extend, caches(), prompts, New, count=count)

    if mesh is None:
        found = jax.jit(run)(MODEL, PADDED, COUNT)
    else:
        with axn.set_mesh(request.getfixturevalue(mesh)):
            found = axn.named_jit(run, {"batch": "data", "kv_heads": "model"}, strict=False)(MODEL, PADDED, COUNT)
    assert found.tokens.rearrange(("batch", "new")).tolist() == alone()
    assert found.count.tolist() == 4 * [7]
    assert not found.ended.any()
    assert (found.cache.length["layers", 0] == COUNT + 6).all()


def test_a_stop_token_ends_its_sequence():
    stops = [alone()[0][2], alone()[1][4]]
    found = jax.jit(
        lambda: nn.generate(MODEL.extend, caches(), PADDED, New, count=COUNT, stop=stops, pad=15),
    )()
    for i, tokens in enumerate(alone()):
        end = next((at for at, token in enumerate(tokens) if token in stops), None)
        kept = tokens if end is None else tokens[: end + 1]
        assert found.tokens["batch", i].tolist() == kept + (7 - len(kept)) * [15]
        assert found.count["batch", i].item() == len(kept)
        assert found.ended["batch", i].item() == (end is not None)
        assert found.cache.length["layers", 0, "batch", i].item() == len(PROMPTS[i]) + len(kept) - 1


def test_generation_goes_on_where_it_stopped():
    stops = [alone()[0][1], alone()[2][5]]

    @functools.partial(jax.jit, static_argnames="number")
    def run(caches, prompt, count, seen, number):
        some = New.resize(number)
        return nn.generate(MODEL.extend, caches, prompt, some, count=count, stop=stops, pad=15, seen=seen)

    start = axn.bincount(
        PADDED, V, "pos", weights=(axn.arange(PADDED.axes[1]) < COUNT.broadcast_axis(PADDED.axes)).astype(int)
    )
    at_once = run(caches(), PADDED, COUNT, start, 7)
    first = run(caches(), PADDED, COUNT, start, 3)
    last = axn.stack("pos", [first.tokens["new", -1]])
    then = run(first.cache, last, 1 - first.ended.astype(int), first.seen, 4)
    both = axn.concatenate("new", [first.tokens, then.tokens])
    assert (both == at_once.tokens).all()
    assert (then.count + first.count == at_once.count).all()
    assert (then.seen == at_once.seen).all()
    for i in range(4):
        text = PROMPTS[i] + at_once.tokens["batch", i].tolist()[: at_once.count["batch", i].item()]
        assert at_once.seen["batch", i].tolist() == np.bincount(text, minlength=16).tolist()


def test_one_sequence_and_a_shared_length():
    axes = (H, axn.Axis("key", 16), D)

    @jax.jit
    def both():
        one = nn.generate(MODEL.extend, nn.KVCache.stacked(Layers, "key", axes), PADDED["batch", 0], New)
        alike = axn.stack(B, 4 * [PADDED["batch", 0]])
        return one, nn.generate(MODEL.extend, caches(lengths=()), alike, New)

    one, found = both()
    assert one.tokens.tolist() == alone()[0]
    assert found.tokens["batch", 3].tolist() == alone()[0]


def test_the_choice_gets_what_was_seen_and_a_key_of_its_own():
    new, key = New.resize(5), jax.random.key(0)

    def fresh(logits, seen, key):
        return nn.sample(axn.where(seen > 0, -np.inf, logits), V, key=key)

    def run(cache, tokens, count):
        return cache, axn.zeros((*tokens.axes, V))

    start = axn.bincount(PADDED, V, "pos")
    found = nn.generate(run, None, PADDED, new, choose=fresh, seen=start, key=key)
    for i, row in enumerate(found.tokens.rearrange(("batch", "new")).tolist()):
        assert len({*row}) == 5
        assert not {*row} & {*PADDED["batch", i].tolist()}
    with_keys = nn.generate(run, None, PADDED, new, choose=lambda x, _, key: nn.sample(x, V, key=key), key=key)
    keys = jax.random.split(key, 5)
    for i in range(5):
        expected = nn.sample(axn.zeros((B, V)), V, key=keys[i])
        assert (with_keys.tokens["new", i] == expected).all()


def test_flaws():
    fails(
        AxisNotFoundError,
        "generate: no axis named 'position'\n  array has: batch=4, pos=5",
        lambda: nn.generate(MODEL.extend, caches(), PADDED, New, Pos="position"),
    )
    fails(
        AxisClashError,
        "generate: the prompt has axis 'pos', the axis of new tokens\n  prompt has: batch=4, pos=5\n"
        "  hint: rename one of the two",
        lambda: nn.generate(MODEL.extend, caches(), PADDED, axn.Axis("pos", 3)),
    )
    fails(
        AxisSizeError,
        "generate: there is no token to choose: new=0",
        lambda: nn.generate(MODEL.extend, caches(), PADDED, New.resize(0)),
    )
    fails(
        AxisSizeError,
        "generate: the prompt has no token to continue: pos=0\n  prompt has: batch=4, pos=0\n"
        "  hint: begin it with a token, such as the one that begins or ends a text",
        lambda: nn.generate(MODEL.extend, caches(), PADDED["pos", :0], New),
    )
    fails(
        AxisNotFoundError,
        "generate: the count has axis 'row', along which there are no sequences\n  count has: row=4\n"
        "  prompt has: batch=4, pos=5",
        lambda: nn.generate(MODEL.extend, caches(), PADDED, New, count=COUNT.rename({"batch": "row"})),
    )
    fails(
        OperandError,
        "generate: stop must be a sequence of tokens, not int\n  hint: write stop=(token,) for one of them",
        lambda: nn.generate(MODEL.extend, caches(), PADDED, New, stop=3),
    )
    fails(
        OperandError,
        'generate: count must be a NamedArray, not int\n  hint: axn.named([3, 5], "batch")',
        lambda: nn.generate(MODEL.extend, caches(), PADDED, New, count=5),
    )
    fails(
        AxisNotFoundError,
        "generate: no axis named 'token'\n  array has: batch=4, pos=5, vocab=16",
        lambda: nn.generate(MODEL.extend, caches(), PADDED, New, Vocab="token"),
    )
