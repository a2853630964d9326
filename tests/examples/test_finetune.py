"""Tuning by thin matrices: only they learn, only what the assistant says counts, and the sum is one model."""

import dataclasses
import functools
import json
import operator
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adapters import read_adapter
from finetune import Options, main, read
from layouts import make_mesh
from metrics import read as read_lines

import axonym as axn
import axonym.nn as nn
from axonym import state_dict as sd
from axonym.models import Bytes, Decoder, DecoderConfig, load, save
from tests.examples.tracker import Tracker
from tests.nn.layouts import fails

CONFIG = DecoderConfig(vocab=256, layers=2, embed=32, mlp=48, heads=4, kv_heads=2, head_dim=8, positions=32)
LINES = [{"prompt": "is it? ", "completion": "yes"}, {"prompt": "and that? ", "completion": "no"}]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    model = jax.jit(functools.partial(Decoder.init, CONFIG))(key=jax.random.key(0))
    # With logits as large as those of a model that has learnt.
    save(jax.tree.map(lambda leaf: 5 * leaf, model), tmp_path / "model", eos_token_id=0)
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    small = {"length": 16, "batch": 4, "steps": 40, "learning_rate": 3e-2, "rank": 2}
    small |= {"layers": ("attention.query", "mlp.up", "mlp.down")}
    precision = "params=float32,compute=float32,output=float32"
    return Options(tmp_path / "model", tmp_path / "data.jsonl", tmp_path / "out", precision=precision, **small)


@pytest.mark.parametrize(("strategy", "optimizer"), [("single", "muon"), ("fsdp+tp", "adamw")])
def test_thin_matrices_learn_and_are_added_to_the_weights(
    options: Options, strategy: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dataclasses.replace(
        options,
        peft=True,
        strategy=strategy,
        optimizer=optimizer,
        mesh=(2, 2) if strategy != "single" else (1, 1),
        log="wandb",
    )
    tracker = Tracker("wandb")
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    losses = main(options)
    assert losses[-1] < 0.6 * losses[0]
    ((opened, logged),) = tracker.runs
    assert opened["name"] == f"out-{opened['id']}" == (options.out / "run-id.txt").read_text()
    assert logged == [(i, {"loss": loss}) for i, loss in enumerate(losses)]
    assert [(line["step"], line["loss"]) for line in read_lines(options.out / "metrics.jsonl")] == [*enumerate(losses)]
    before, merged = load(options.model), load(options.out / "merged")
    changed = [
        found.path
        for found, new in zip(axn.parameters.walk(before), axn.parameters.walk(merged), strict=True)
        if (np.asarray(found.array.array) != np.asarray(new.array.array)).any()
    ]
    assert changed == [f"blocks.repeated.stacked.0.{layer}.weight" for layer in options.layers]
    kept = sd.load_state_dict(options.out / "adapters.safetensors")
    assert {key.split(".")[-2] for key in kept} == {"down", "up"}
    assert sum(array.size for array in kept.values()) == 2 * 2 * ((32 + 32) + (32 + 48) + (48 + 32))
    assert json.loads((options.out / "merged" / "config.json").read_text())["eos_token_id"] == 0
    # Read again, and beside the weights, the thin matrices are what was merged.
    tokens = axn.named(np.arange(8, dtype=np.int32), "pos")
    run = jax.jit(lambda model: model(tokens))
    with axn.set_mesh(make_mesh((1, 1))):
        again = read(before, dataclasses.replace(options, strategy="single"))
        found = np.asarray(run(again).array)
    exchanged = read_adapter(before, options.out / "adapter")
    for mine, its in zip(jax.tree.leaves(again), jax.tree.leaves(exchanged), strict=True):
        np.testing.assert_array_equal(mine, its)
    # The model is steep: what rounding changes in early layers grows on the way to the logits.
    expected = np.asarray(run(merged).array)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    own, other = (model.blocks.repeated.stacked[0] for model in (again, merged))
    for path in options.layers:
        layer, plain = (operator.attrgetter(path)(block) for block in (own, other))
        weights = [part.weight for part in (layer.down, layer.up, layer.base)]
        letters = dict(zip({name for weight in weights for name in weight.names}, "abcdefgh", strict=False))
        down, up, whole = ("".join(map(letters.__getitem__, weight.names)) for weight in weights)
        product = np.einsum(f"{down},{up}->{whole}", *(np.float64(weight.array) for weight in weights[:2]))
        total = weights[2].array + product * layer.alpha / options.rank
        np.testing.assert_allclose(plain.weight.array, total, rtol=0, atol=1e-6 * np.abs(total).max())
    thin = eqx.filter(again, nn.lora_filter(again))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(thin))


@pytest.mark.parametrize("name", ["length", "batch", "steps"])
def test_numbers_that_are_too_small_are_refused(name: str, tmp_path: Path) -> None:
    options = Options(tmp_path, tmp_path, tmp_path, **{name: 0})
    fails(ValueError, f"{name}=0 must be at least 1", lambda: main(options))


def test_tokens_outside_of_the_table_are_refused(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bytes, "encode", lambda self, text, bare=False: [256] * len(text))
    told = (
        f"{options.data} has token 256, but the table of the model has 256 rows, for the tokens 0 to 255: "
        "is the tokenizer that of the model, and was a token added to it?"
    )
    fails(ValueError, told, lambda: main(options))


def test_a_loss_that_is_not_finite_ends_the_tuning_before_anything_is_written(options: Options) -> None:
    model = load(options.model)
    broken = eqx.tree_at(lambda model: model.norm.weight, model, model.norm.weight * jnp.nan)
    save(broken, options.model, eos_token_id=0)
    told = "loss=nan in step 0: lower --learning-rate, or look at the data"
    fails(FloatingPointError, told, lambda: main(options))
    assert [file.name for file in options.out.iterdir()] == ["metrics.jsonl"]
