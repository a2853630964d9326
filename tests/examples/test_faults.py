"""Where numbers first stop being finite: the layer, and along which axes."""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from faults import first_fault
from layouts import layout_of, make_mesh
from options import Options, make_config
from rows import Batch, Windows, batch_of
from train import main
from trainer import Recipe, State, Trainer

import axonym as axn
from axonym.models import Decoder

FLOAT32 = "params=float32,compute=float32,output=float32"
RECIPE = Recipe(microbatches=2, steps=5, warmup=0, precision=FLOAT32)
SMALL = Options(RECIPE, layers=3, embed=16, heads=4, positions=8, batch=16, dropout=0.1, sample=0)
TEXT = np.random.default_rng(0).integers(0, 255, 4000).astype(np.uint8)
RARE = 255  # the token of one place alone


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(RECIPE, make_config(SMALL, 256))


@functools.cache
def trainer_of(strategy: Any) -> Trainer:
    """Make a trainer, whose compiled functions serve all cases."""
    return Trainer(dataclasses.replace(RECIPE, strategy=strategy), make_config(SMALL, 256))


def with_leaf(model: Any, where: Any, value: float, **at: Any) -> Any:
    """Return a model with a number in place of some of an array."""
    return eqx.tree_at(where, model, where(model).at[at].set(value))


def block(model: Any) -> Any:
    return model.blocks.repeated.stacked[0]


def with_huge(model: Any, norm: Any, weight: Any, layer: int, **at: Any) -> Any:
    """Return a model in which a weight is finite, and of each sum of its products one term is infinite."""
    model = with_leaf(model, norm, 1e10, layers=layer)
    return with_leaf(model, weight, 3e38, layers=layer, embed=0, **at)


# What is wrong with the model, and what is told: a huge weight is finite, its products are not.
CASES = {
    "parameter": (
        lambda model: with_leaf(model, lambda m: block(m).mlp.up.weight, jnp.nan, layers=1, embed=3),
        "argument 0.blocks.repeated.stacked.0.mlp.up.weight: NaN at layers=1, embed=3, all of mlp",
    ),
    "columns of a layer": (
        lambda model: with_huge(
            model, lambda m: block(m).mlp_norm.weight, lambda m: block(m).mlp.up.weight, 1, mlp=slice(4, 7)
        ),
        "infinity at all of batch, pos=0 to 7, mlp=4 to 6; first appears: layer blocks.repeated.0.mlp.up, "
        "operation dot_general (turn 1 of its loop)",
    ),
    "a head": (
        lambda model: with_huge(
            model, lambda m: block(m).attention_norm.weight, lambda m: block(m).attention.query.weight, 2, kv_heads=1
        ),
        "infinity at all of batch, pos=0 to 7, kv_heads=1, all of group, all of head_dim; first appears: "
        "layer blocks.repeated.0.attention.query, operation dot_general (turn 2 of its loop)",
    ),
    "a token": (
        # Dropout scales it beyond what is finite.
        lambda model: with_leaf(model, lambda m: m.embedding.weight, 3.3e38, vocab=RARE),
        "infinity at batch=5, pos=3, all of embed; first appears: layer dropout, operation div",
    ),
    "the last norm": (lambda model: with_leaf(model, lambda m: m.norm.weight, 3.3e38, embed=5), "infinity at batch="),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strategy", ["single", "fsdp+tp"])
def test_the_first_operation_and_its_axes_are_told(name: str, strategy: Any) -> None:
    spoil, expected = CASES[name]
    trainer = trainer_of(strategy)
    batch = batch_of(Windows(TEXT, 8, 0), 0, 16, 2)
    tokens = np.array(batch.tokens.array)
    tokens[0, 5, 3] = RARE
    batch = Batch(axn.NamedArray(tokens, batch.tokens.names))
    with axn.set_mesh(make_mesh((1, 1) if strategy == "single" else (4, 2))):
        model = spoil(trainer.init(jax.random.key(0)).model)
        told = first_fault(trainer, model, trainer.place(batch), jax.random.key(1))
    assert told.startswith(f"microbatch 0: {expected}")
    if name == "the last norm":
        assert ", embed=5; first appears: layer norm, operation mul" in told


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["columns of a layer", "a token"])
def test_the_same_is_told_of_a_pipeline_in_rounds(name: str) -> None:
    spoil, expected = CASES[name]
    sizes = {"data": 2, "stage": 2}
    config = make_config(dataclasses.replace(SMALL, layers=4), 256)
    trainer = Trainer(RECIPE, dataclasses.replace(config, rounds=2), layout_of(sizes, microbatches=2))
    batch = batch_of(Windows(TEXT, 8, 0), 0, 16, 1)
    tokens = np.array(batch.tokens.array)
    tokens[0, 5, 3] = RARE
    batch = Batch(axn.NamedArray(tokens, batch.tokens.names))
    with axn.set_mesh(make_mesh(sizes)):
        plain = jax.jit(functools.partial(Decoder.init, config))(key=jax.random.key(0))
        model = jax.eval_shape(trainer.init, jax.random.key(0)).model
        spoilt = spoil(plain)
        blocks = model.blocks.with_layers(spoilt.blocks.unstacked())
        model = dataclasses.replace(spoilt, blocks=blocks, config=model.config)
        told = first_fault(trainer, model, trainer.place(batch), jax.random.key(1))
    # Both turns, the one in time and the one among the layers of a stage, are told.
    where, operation = expected.partition("; ")[::2]
    assert where.rpartition(", ")[2] in told
    assert operation.partition(" (turn")[0] in told


def test_a_run_stops_with_the_layer_the_axis_and_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be, that is the question. " * 400)
    recipe = dataclasses.replace(RECIPE, strategy="single")
    options = dataclasses.replace(SMALL, recipe=recipe, data=file, save_every=2, out=tmp_path / "run")
    spoil, _ = CASES["columns of a layer"]
    take = Trainer.__dict__["step"].func

    def spoiling(trainer: Trainer) -> Any:
        step, count = take(trainer), itertools.count(1)

        def run(state: State, batch: Batch, key: jax.Array) -> Any:
            state, told = step(state, batch, key)
            if next(count) == 3:
                state = dataclasses.replace(state, model=spoil(state.model))
            return state, told

        return run

    monkeypatch.setattr(Trainer, "step", functools.cached_property(spoiling))
    Trainer.step.__set_name__(Trainer, "step")
    with pytest.raises(FloatingPointError) as caught:
        main(options)
    told = str(caught.value)
    assert told.startswith("the loss of step 3 is nan, its gradient ")
    assert "; not finite first: microbatch 0: infinity at all of batch, pos=0 to 7, mlp=4 to 6; first appears: " in told
    assert told.endswith(f"; the last good checkpoint: {options.out / 'checkpoints' / '2'}")


def test_a_step_that_is_not_finite_changes_nothing(trainer: Trainer) -> None:
    with axn.set_mesh(make_mesh((1, 1))):
        single = Trainer(dataclasses.replace(RECIPE, strategy="single"), trainer.config)
        state = single.init(jax.random.key(0))
        state = dataclasses.replace(state, model=CASES["the last norm"][0](state.model))
        kept = jax.tree.map(np.asarray, state)
        batch = single.place(batch_of(Windows(TEXT, 8, 0), 0, 16, 2))
        state, told = single.step(state, batch, jax.random.key(0))
        assert not np.isfinite(told.loss)
        for mine, old in zip(jax.tree.leaves(state), jax.tree.leaves(kept), strict=True):
            np.testing.assert_array_equal(mine, old)
