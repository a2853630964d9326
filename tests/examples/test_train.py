"""The training example: every layout trains alike, costs what it should, and refuses what cannot work."""

import dataclasses
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from data import batches
from model import Gpt2, Gpt2Config
from train import STRATEGIES, Options, Trainer, check, main, make_mesh, make_optimizer, report

import axonym as axn
from benchmarks.measure import collectives

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt2"
SMALL = Options(
    layers=2,
    embed=16,
    heads=4,
    positions=8,
    batch=16,
    microbatches=2,
    steps=5,
    warmup=2,
    dropout=0.1,
    precision="params=float32,compute=float32,output=float32",
)
TEXT = np.random.default_rng(0).integers(0, 256, 4000).astype(np.uint8)


@functools.cache
def trainer_of(options: Options) -> Trainer:
    """Make a trainer, whose compiled functions serve all tests of the same options."""
    config = Gpt2Config(options.layers, options.embed, options.heads, options.positions, 256, options.dropout)
    return Trainer(options, config)


def tokens_of(options: Options, step: int) -> np.ndarray:
    """Draw the batch of a step."""
    sizes = {"microbatches": options.microbatches, "batch": options.batch, "length": options.positions}
    return batches(TEXT, **sizes, seed=0, step=step)


def train(options: Options) -> list[float]:
    """Take five steps and return their losses."""
    trainer, losses = trainer_of(options), []
    with axn.set_mesh(make_mesh(options)):
        state = trainer.init(jax.random.key(0))
        for i in range(5):
            tokens = trainer.place(tokens_of(options, i))
            state, loss = trainer.step(state, tokens, jax.random.key(i))
            losses.append(float(loss))
    return losses


@pytest.fixture(scope="module")
def single_device_losses() -> list[float]:
    return train(dataclasses.replace(SMALL, strategy="single"))


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "single"])
def test_every_layout_gives_the_losses_of_one_device(
    single_device_losses: list[float], strategy: Any, axis_types: Any
) -> None:
    losses = train(dataclasses.replace(SMALL, strategy=strategy, axis_types=axis_types))
    np.testing.assert_allclose(losses, single_device_losses, rtol=2e-6)


@functools.cache
def lowered(options: Options) -> tuple[Any, Any]:
    """Return the state after a step, and the compiled step."""
    trainer = trainer_of(options)
    with axn.set_mesh(make_mesh(options)):
        state, tokens = trainer.init(jax.random.key(0)), trainer.place(tokens_of(options, 0))
        compiled = trainer.step.lower(state, tokens, jax.random.key(0)).compile()
        return trainer.step(state, tokens, jax.random.key(0))[0], compiled


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_sharded_parameters_and_moments_take_an_eighth_of_their_bytes_on_each_device(axis_types: Any) -> None:
    state, _ = lowered(dataclasses.replace(SMALL, strategy="fsdp+tp", axis_types=axis_types))
    named = [x for x in axn.tree.leaves(state) if axn.is_named_array(x)]
    matrices = [x for x in named if "embed" in x.names and {"heads", "mlp"} & {*x.names}]
    assert len(matrices) == 4 * 3  # qkv, proj, fc and out; each as a parameter and two moments
    for x in matrices:
        assert {shard.data.nbytes for shard in x.array.addressable_shards} == {x.nbytes // 8}


def test_fsdp_gathers_weights_and_reduces_gradients() -> None:
    _, step = lowered(dataclasses.replace(SMALL, strategy="fsdp"))
    kinds = {found.kind for found in collectives(step)}
    assert "all-gather" in kinds
    assert kinds & {"all-reduce", "reduce-scatter"}  # XLA for CPU forms no reduce-scatter
    assert "all-to-all" not in kinds


def test_tensor_parallelism_takes_two_all_reduces_per_block_forward() -> None:
    options = dataclasses.replace(SMALL, strategy="tp", mesh=(1, 8), heads=8)
    trainer = trainer_of(options)
    with axn.set_mesh(make_mesh(options)):
        model = jax.eval_shape(trainer.init, jax.random.key(0)).model
        tokens = axn.NamedArray(tokens_of(options, 0)[0], ("batch", "pos"))
        forward = trainer.evaluate.lower(model, tokens).compile()
    assert [(c.kind, c.count) for c in collectives(forward)] == [("all-reduce", options.layers)] * 2


def test_no_layout_leaves_an_array_whole_that_its_mapping_shards() -> None:
    state, _ = lowered(dataclasses.replace(SMALL, strategy="fsdp"))
    for x in axn.tree.leaves(state):
        if axn.is_named_array(x) and "embed" in x.names:
            assert x.sharding.spec[x.names.index("embed")] == ("data", "model")


def test_a_short_run_learns_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 400)
    options = dataclasses.replace(SMALL, data=text, steps=150, dropout=0.0, sample=20)
    options = dataclasses.replace(options, learning_rate=1e-2, out=tmp_path / "loss.png")
    held_out = main(options)
    printed = capsys.readouterr().out
    entropy = float(printed.split("unigram entropy of the held-out text: ")[1].split()[0])
    assert held_out < entropy
    assert f"held-out loss:                        {held_out:.3f}" in printed
    assert options.out.read_bytes().startswith(b"\x89PNG")


def test_matrices_are_decayed_and_nothing_else() -> None:
    optimizer = make_optimizer(dataclasses.replace(SMALL, warmup=0))
    shapes = jax.eval_shape(lambda key: Gpt2.init(trainer_of(SMALL).config, key=key), jax.random.key(0))
    model, gradients = (
        jax.tree.map(lambda x, fill=fill: np.full(x.shape, fill, x.dtype), shapes) for fill in (1.0, 0.0)
    )
    updates = jax.jit(lambda model, gradients: optimizer.update(gradients, optimizer.init(model), model)[0])
    walked = axn.parameters.walk(jax.device_get(updates(model, gradients)))
    changed = {found.path for found in walked if found.array.array.any()}
    layers = ("attention.qkv", "attention.proj", "mlp.fc", "mlp.out")
    assert changed == {"embed.weight", "positions", *(f"blocks.stacked.{layer}.weight" for layer in layers)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "/nowhere"], "no file or folder /nowhere; pass a text file or a folder of them"),
        (["--batch", "30", "--microbatches", "4"], "batch=30 is not a multiple of microbatches=4"),
        (["--heads", "3"], "heads must divide embed: embed=128 is not a multiple of heads=3"),
        (["--mesh", "5", "2"], "a mesh of 5 x 2 needs 10 devices, this machine has 8"),
    ],
)
def test_what_cannot_work_is_refused_before_it_is_compiled(arguments: list[str], message: str) -> None:
    call = [sys.executable, str(EXAMPLE / "train.py"), *arguments]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] == f"error: {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: 0}, f"{name}=0 must be at least 1")
            for name in ("layers", "embed", "heads", "positions", "batch", "microbatches")
        ),
        *(({name: -1}, f"{name}=-1 must be at least 0") for name in ("steps", "warmup", "seed", "sample")),
        ({"out": Path("/nowhere/a.png")}, "no folder /nowhere for out=/nowhere/a.png"),
        ({"out": Path("a.xyz")}, "out=a.xyz has an unsupported image format; use .png, .pdf or .svg"),
    ],
)
def test_values_that_make_no_sense_are_refused_before_anything_is_read(changes: dict[str, Any], message: str) -> None:
    options = dataclasses.replace(SMALL, data=Path("/no/text"), **changes)
    with pytest.raises((ValueError, FileNotFoundError)) as raised:
        main(options)
    assert str(raised.value) == message


@pytest.mark.parametrize(("mesh", "spelled"), [((0, 1), "0 x 1"), ((-1, -1), "-1 x -1")])
def test_a_mesh_without_devices_is_refused(mesh: tuple[int, int], spelled: str) -> None:
    with pytest.raises(ValueError, match=f"^a mesh of {spelled} must have at least 1 device along each axis$"):
        make_mesh(dataclasses.replace(SMALL, mesh=mesh))


def test_results_are_shown_before_the_curve_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = dataclasses.replace(SMALL, out=tmp_path / "missing" / "a.png", sample=2)
    with pytest.raises(FileNotFoundError):
        report(options, [5.0], 3.25, 4.5, b"to be", axn.named([111, 114], "sample"))
    assert capsys.readouterr().out == (
        "\n--- 2 bytes after the held-out text ...'to be':\nor\n"
        "---\nunigram entropy of the held-out text: 4.500 nats per byte\n"
        "held-out loss:                        3.250 nats per byte\n"
    )


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    call = [sys.executable, str(EXAMPLE / "train.py"), "--strategy", "pp"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "single" in done.stderr
    assert "fsdp+tp" in done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 12}, "pspec_for: batch=6 cannot be split evenly in 4 over mesh axis data"),
        (
            {"strategy": "tp", "mesh": (1, 8)},
            "pspec_for: heads=4 cannot be split evenly in 8 over mesh axis model",
        ),
    ],
)
def test_sizes_that_the_mesh_does_not_divide_are_refused(changes: dict[str, Any], message: str) -> None:
    options = dataclasses.replace(SMALL, **changes)
    with pytest.raises(axn.errors.ShardingError) as raised:
        check(options, trainer_of(options).config, make_mesh(options), TEXT, TEXT)
    assert str(raised.value).splitlines()[0] == message


def test_a_text_too_short_for_one_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="the held-out text has 5 bytes and must have 9 bytes for one sequence"):
        check(SMALL, trainer_of(SMALL).config, make_mesh(SMALL), TEXT, TEXT[:5])
