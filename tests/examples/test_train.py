"""The training example: every layout trains alike, costs what it should, and refuses what cannot work."""

import dataclasses
import functools
import importlib.util
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
import pytest
from layouts import STRATEGIES, make_mesh
from metrics import Metrics, open_tracker, read
from options import LEAST, Options, make_config
from report import report
from rows import Batch, Packed, Windows, batch_of
from run import Run, check, prepare
from train import STOPPED, Trace, main, write
from trainer import OptimizerName, Recipe, Trainer, Widths, make_optimizer, make_schedule

import axonym as axn
from axonym.models import Bytes, Decoder, DecoderConfig, save
from benchmarks.measure import collectives
from tests.examples.tracker import Tracker

EXAMPLE = Path(__file__).parents[2] / "examples" / "lm"
FLOAT32 = "params=float32,compute=float32,output=float32"
RECIPE = Recipe(microbatches=2, steps=5, warmup=2, precision=FLOAT32)
SMALL = Options(RECIPE, layers=2, embed=16, heads=4, positions=8, batch=16, dropout=0.1, sample=2)
TEXT = np.random.default_rng(0).integers(0, 256, 4000).astype(np.uint8)


def changed(recipe: dict[str, Any] | None = None, **changes: Any) -> Options:
    return dataclasses.replace(SMALL, recipe=dataclasses.replace(RECIPE, **(recipe or {})), **changes)


@functools.cache
def trainer_of(recipe: Recipe, heads: int = 4) -> Trainer:
    """Make a trainer, whose compiled functions serve all tests of the same recipe."""
    return Trainer(recipe, make_config(dataclasses.replace(SMALL, heads=heads), 256))


def mesh_of(strategy: str, axis_types: Any = "auto") -> jax.sharding.Mesh:
    return make_mesh((1, 1) if strategy == "single" else (4, 2), axis_types)


def tokens_of(step: int) -> Batch:
    """Draw the batch of a step."""
    return batch_of(Windows(TEXT, length=8, seed=0), step, batch=16, microbatches=2)


@functools.cache
def train(strategy: Any, axis_types: Any, optimizer: Any) -> list[float]:
    """Take five steps and return their losses."""
    trainer, losses = trainer_of(dataclasses.replace(RECIPE, strategy=strategy, optimizer=optimizer)), []
    with axn.set_mesh(mesh_of(strategy, axis_types)):
        state = trainer.init(jax.random.key(0))
        for i in range(5):
            state, told = trainer.step(state, trainer.place(tokens_of(i)), jax.random.key(i))
            losses.append(float(told.loss))
    return losses


@pytest.mark.sampled
@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
@pytest.mark.parametrize(
    ("strategy", "optimizer"), [*((name, "adamw") for name in STRATEGIES if name != "single"), ("fsdp+tp", "muon")]
)
def test_every_layout_gives_the_losses_of_one_device(strategy: Any, optimizer: Any, axis_types: Any) -> None:
    losses = train(strategy, axis_types, optimizer)
    np.testing.assert_allclose(losses, train("single", "auto", optimizer), rtol=2e-6)
    assert losses[-1] < losses[0]


@functools.cache
def lowered(strategy: Any, axis_types: Any = "auto") -> tuple[Any, Any]:
    """Return the state after a step, and the compiled step."""
    trainer = trainer_of(dataclasses.replace(RECIPE, strategy=strategy))
    with axn.set_mesh(mesh_of(strategy, axis_types)):
        state, tokens = trainer.init(jax.random.key(0)), trainer.place(tokens_of(0))
        compiled = trainer.step.lower(state, tokens, jax.random.key(0)).compile()
        return trainer.step(state, tokens, jax.random.key(0))[0], compiled


@pytest.mark.parametrize("axis_types", ["auto", "explicit"])
def test_sharded_parameters_and_moments_take_an_eighth_of_their_bytes_on_each_device(axis_types: Any) -> None:
    state, _ = lowered("fsdp+tp", axis_types)
    named = [x for x in axn.tree.leaves(state) if axn.is_named_array(x)]
    matrices = [x for x in named if "embed" in x.names and {"kv_heads", "mlp"} & {*x.names}]
    assert len(matrices) == 7 * 3  # four of attention and three of the perceptron; each as a parameter and two moments
    for x in matrices:
        assert {shard.data.nbytes for shard in x.array.addressable_shards} == {x.nbytes // 8}


def test_fsdp_gathers_weights_and_reduces_gradients() -> None:
    _, step = lowered("fsdp")
    sent = collectives(step)
    kinds = {found.kind for found in sent}
    assert "all-gather" in kinds
    assert kinds & {"all-reduce", "reduce-scatter"}  # XLA for CPU forms no reduce-scatter
    # Rows of the embedding's table, which are fewer than it has.
    rows = [found.bytes * found.count for found in sent if found.kind == "all-to-all"]
    assert 0 < sum(rows) < 256 * SMALL.embed * 4


def test_tensor_parallelism_takes_two_all_reduces_per_block_forward() -> None:
    trainer = trainer_of(dataclasses.replace(RECIPE, strategy="tp"), heads=8)
    with axn.set_mesh(make_mesh((1, 8))):
        model = jax.eval_shape(trainer.init, jax.random.key(0)).model
        tokens = tokens_of(0).part(0)
        forward = trainer.evaluate.lower(model, tokens).compile()
    assert [(c.kind, c.count) for c in collectives(forward)] == [("all-reduce", SMALL.layers)] * 2


def test_no_layout_leaves_an_array_whole_that_its_mapping_shards() -> None:
    state, _ = lowered("fsdp")
    for x in axn.tree.leaves(state):
        if axn.is_named_array(x) and "embed" in x.names:
            assert x.sharding.spec[x.names.index("embed")] == ("data", "model")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be, that is the question. " * 400)
    return file


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_short_run_learns_and_reports(
    family: Any, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = {"steps": 150, "learning_rate": 1e-2}
    options = changed(recipe, data=text, family=family, dropout=0.0, evaluate_every=75, out=tmp_path / "run")
    held_out = main(options)
    printed = capsys.readouterr().out
    entropy = float(printed.split("unigram entropy of the held-out text: ")[1].split()[0])
    assert held_out < entropy
    assert "--- 2 tokens after the held-out text ...'" in printed
    assert f"held-out loss:                        {held_out:.3f}" in printed
    assert (options.out / "loss.png").read_bytes().startswith(b"\x89PNG")
    lines = read(options.out / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == list(range(150))
    assert [line["step"] for line in lines if "held_out" in line] == [74, 149, 150]
    settings = json.loads((options.out / "config.json").read_text())
    assert (settings["model_type"], settings["eos_token_id"]) == (family, [0])
    # A model that was trained is one to start from.
    again = dataclasses.replace(options, start=options.out, out=tmp_path / "again")
    again = dataclasses.replace(again, recipe=dataclasses.replace(again.recipe, steps=0))
    np.testing.assert_allclose(main(again), held_out, rtol=1e-5)


def test_a_model_to_start_from_drops_as_the_options_say(text: Path, tmp_path: Path) -> None:
    config = make_config(changed({}), 256)
    first, out = tmp_path / "model", tmp_path / "run"
    model = Decoder.init(config, key=jax.random.key(0))
    save(model, first, family="mistral", eos_token_id=[0], bos_token_id=7)
    (first / "generation_config.json").write_text('{"eos_token_id": [0, 9], "top_k": 3}')
    options = changed({"strategy": "single"}, data=text, start=first, dropout=0.25, sample=0, out=out)
    run = prepare(options)
    with axn.set_mesh(run.mesh):
        state, _ = run.begin()
        template = jax.eval_shape(run.trainer.init, jax.random.key(0))
        write(run, state)
    assert state.model.dropout.pdrop == 0.25
    # The result is a model of the same family, with the files beside the weights.
    settings = json.loads((out / "config.json").read_text())
    assert [settings[key] for key in ("model_type", "bos_token_id", "eos_token_id")] == ["mistral", 7, [0]]
    assert (out / "generation_config.json").read_bytes() == (first / "generation_config.json").read_bytes()
    # A table of fewer tokens than the text has.
    small = dataclasses.replace(run, config=dataclasses.replace(config, vocab=32))
    with pytest.raises(
        ValueError, match=r"has token \d+, but the table of the model has 32 rows, for the tokens 0 to 31"
    ):
        small.train_batch(0)
    # A checkpoint is read into the template, so that the run goes on with the same losses.
    assert jax.tree.structure(state) == jax.tree.structure(template)


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_matrices_are_decayed_and_nothing_else(name: Any) -> None:
    optimizer = make_optimizer(dataclasses.replace(RECIPE, optimizer=name, warmup=0))
    shapes = jax.eval_shape(lambda key: Decoder.init(trainer_of(RECIPE).config, key=key), jax.random.key(0))
    model, gradients = (
        jax.tree.map(lambda x, fill=fill: np.full(x.shape, fill, x.dtype), shapes) for fill in (1.0, 0.0)
    )
    updates = jax.jit(lambda model, gradients: optimizer.update(gradients, optimizer.init(model), model)[0])
    walked = list(axn.parameters.walk(jax.device_get(updates(model, gradients))))
    kept = {found.path for found in walked if not found.array.array.any()}
    norms = ("blocks.repeated.stacked.0.attention_norm", "blocks.repeated.stacked.0.mlp_norm", "norm")
    assert kept == {f"{norm}.weight" for norm in norms}
    assert len(walked) == 12


def test_muon_orthogonalises_matrices_and_leaves_the_rest_to_adam() -> None:
    model = jax.eval_shape(lambda key: Decoder.init(trainer_of(RECIPE).config, key=key), jax.random.key(0))
    rng = np.random.default_rng(0)
    gradients = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), model)
    recipe = dataclasses.replace(RECIPE, optimizer="muon", warmup=0, weight_decay=0.0, learning_rate=0.01)
    optimizer = make_optimizer(recipe)
    updates = jax.jit(lambda gradients: optimizer.update(gradients, optimizer.init(gradients), gradients)[0])
    both = map(axn.parameters.walk, (gradients, jax.device_get(updates(gradients))))
    for own, moved in zip(*both, strict=True):
        if own.kind != "matrix":
            # With the momentum of Nesterov, the first step goes further than the rate.
            expected = -0.01 * (1 + 0.9 / 1.9) * np.sign(own.array.array)
            np.testing.assert_allclose(moved.array.array, expected, rtol=1e-2)
            continue
        rows, order = own.list_axes("input"), ("layers", *own.list_axes("input", "output"))
        shape = SMALL.layers, math.prod(own.sizes[name] for name in rows), -1
        matrix, found = (x.array.rearrange(order).array.reshape(shape) for x in (own, moved))
        left, sizes, right = np.linalg.svd(np.float64(matrix), full_matrices=False)
        sizes /= np.linalg.norm(sizes, axis=-1, keepdims=True)
        for _ in range(5):  # the polynomial of Jordan et al. (2024)
            sizes = 3.4445 * sizes - 4.775 * sizes**3 + 2.0315 * sizes**5
        expected = -0.01 * 0.2 * max(matrix[0].shape) ** 0.5 * (left * sizes[:, None]) @ right
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_optimizers_that_do_not_exist_or_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^optimizer=lion is none of adamw, muon$"):
        make_optimizer(dataclasses.replace(RECIPE, optimizer="lion"))
    text = "^mup=32 scales the rates of adamw, and optimizer=muon: pass one of them$"
    with pytest.raises(ValueError, match=text):
        _ = Trainer(dataclasses.replace(RECIPE, optimizer="muon", mup=32), trainer_of(RECIPE).config).optimizer


def test_schedules() -> None:
    at = [0, 10, 50, 80, 90, 100]

    def rates(schedule: Any) -> list[float]:
        recipe = Recipe(steps=100, warmup=10, learning_rate=1.0, schedule=schedule)
        return [round(float(make_schedule(recipe)(step)), 3) for step in at]

    assert rates("constant") == [0, 1, 1, 1, 1, 1]
    assert rates("linear") == [0, 1, 1, 1, 0.5, 0]
    half = [0.1 + 0.45 * (1 + np.cos(np.pi * (step - 10) / 90)) for step in at[1:]]
    np.testing.assert_allclose(rates("cosine"), [0, *half], atol=1e-3)


def test_an_average_follows_the_parameters() -> None:
    trainer = trainer_of(dataclasses.replace(RECIPE, strategy="single", ema=0.75))
    with axn.set_mesh(mesh_of("single")):
        state = trainer.init(jax.random.key(0))
        before = np.asarray(state.average.norm.weight.array)
        state, _ = trainer.step(state, trainer.place(tokens_of(0)), jax.random.key(0))
        state, _ = trainer.step(state, trainer.place(tokens_of(1)), jax.random.key(1))
        expected = before  # the first step has no learning rate
        expected = 0.75 * expected + 0.25 * np.asarray(state.model.norm.weight.array)
        np.testing.assert_allclose(state.average.norm.weight.array, expected, rtol=1e-6)
        assert (expected != before).any()


def losses(out: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read(out / "metrics.jsonl") if "loss" in line]


def test_a_run_that_is_killed_at_random_moments_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    quickly = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "programs")}
    quickly |= {"JAX_ENABLE_COMPILATION_CACHE": "true", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    program = [sys.executable, str(Path(__file__).with_name("kills.py")), str(tmp_path / "runs"), "10"]
    done = subprocess.run(program, env=quickly, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("10 kills: ")


def test_a_run_that_is_asked_to_stop_saves_first(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = changed(
        {"strategy": "single", "steps": 8}, data=text, save_every=100, out=tmp_path / "run", log="trackio"
    )
    tracker = Tracker("trackio")
    monkeypatch.setitem(sys.modules, "trackio", tracker)
    add = Metrics.add

    def asked(self: Metrics, step: int, **values: float) -> None:
        add(self, step, **values)
        if step == 4:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Metrics, "add", asked)
        with pytest.raises(SystemExit) as caught:
            main(options)
    assert caught.value.code == STOPPED
    assert "\nstopped after 5 steps\n" in capsys.readouterr().err
    stopped = losses(options.out)
    assert [step for step, _ in stopped] == list(range(5))
    main(options)
    assert "going on after 5 steps\n" in capsys.readouterr().err
    alone = dataclasses.replace(options, out=tmp_path / "alone", log=None)
    main(alone)
    assert losses(options.out) == losses(alone.out)
    assert losses(options.out)[:5] == stopped
    # The tracker has the same numbers, in one run that was opened twice.
    (first, _), (again, _) = tracker.runs
    assert first == again
    assert (first["project"], first["resume"]) == ("axonym", "allow")
    assert first["config"]["recipe"]["steps"] == 8
    logged = [{"step": step, **numbers} for _, run in tracker.runs for step, numbers in run]
    assert logged == read(options.out / "metrics.jsonl")
    assert not tracker.is_open


def test_a_run_goes_on_under_another_layout_but_not_as_another_run(text: Path, tmp_path: Path) -> None:
    at_once = changed({"strategy": "single", "steps": 6, "optimizer": "muon"}, data=text, out=tmp_path / "at_once")
    main(at_once)
    parts = dataclasses.replace(at_once, save_every=2, out=tmp_path / "parts")
    main(dataclasses.replace(parts, recipe=dataclasses.replace(parts.recipe, steps=6)))
    (tmp_path / "parts" / "checkpoints" / "6").rename(tmp_path / "gone")
    spread = dataclasses.replace(parts, mesh=(2, 1), axis_types="explicit")
    main(spread)
    np.testing.assert_allclose([x for _, x in losses(parts.out)], [x for _, x in losses(at_once.out)], rtol=1e-5)
    recipe = dataclasses.replace(spread.recipe, optimizer="adamw")
    with pytest.raises(ValueError, match="has a run of 6 steps with other options") as caught:
        main(dataclasses.replace(spread, seed=1, recipe=recipe))
    told = "seed='1', but it was '0'; recipe.optimizer='adamw', but it was 'muon'; pass another --out"
    assert str(caught.value).endswith(f"with other options: {told}")


def test_a_run_goes_on_with_its_text_and_the_last_checkpoint_that_is_whole(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = changed({"strategy": "single", "steps": 4}, data=text, save_every=2, out=tmp_path / "run")
    main(run)
    expected = losses(run.out)
    # The text counts, not its path.
    monkeypatch.chdir(text.parent)
    moved = dataclasses.replace(run, data=Path(text.name))
    last = run.out / "checkpoints" / "4"
    for file in last.rglob("*"):
        if file.is_file() and file.stat().st_size > 5000:
            whole = bytearray(file.read_bytes())
            whole[len(whole) // 2] ^= 4
            file.write_bytes(whole)
    main(moved)
    told = capsys.readouterr().err
    assert f"warning: the checkpoint of step 4 is damaged, now in {last.parent.absolute() / 'damaged-4'}: " in told
    assert "going on after 2 steps\n" in told
    assert losses(run.out) == expected
    longer = dataclasses.replace(moved.recipe, steps=5, learning_rate=moved.recipe.learning_rate / 2)
    main(dataclasses.replace(moved, recipe=longer))
    told = capsys.readouterr().err
    assert "going on after 4 steps, with recipe.steps='5', but it was '4'; recipe.learning_rate=" in told
    assert "; the state and the text stay as they were, and each step draws the rows that it draws in a run" in told
    assert losses(run.out)[:4] == expected
    text.write_bytes(text.read_bytes()[1:])
    with pytest.raises(ValueError, match="has a run of 5 steps with another text or tokenizer; pass another --out"):
        main(moved)


def test_metrics_of_steps_to_come_go_and_so_does_half_a_line(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    first = Metrics(file)
    for step in range(4):
        first.add(step, loss=float(step))
    first.close()
    file.write_text(file.read_text() + '{"step": 4, "lo')
    second = Metrics(file, start=2)
    second.add(2, loss=7.0)
    second.close()
    assert read(file) == [{"step": 0, "loss": 0.0}, {"step": 1, "loss": 1.0}, {"step": 2, "loss": 7.0}]


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


@pytest.mark.parametrize("name", LEAST)
def test_values_that_make_no_sense_are_refused_before_anything_is_read(name: str) -> None:
    value = LEAST[name] - 1
    own = name.removeprefix("recipe.")
    options = changed(data=Path("/no/text"), **({} if own != name else {name: value}))
    if own != name:
        options = dataclasses.replace(options, recipe=dataclasses.replace(RECIPE, **{own: value}))
    with pytest.raises(ValueError, match=f"^{name}={value} must be at least {LEAST[name]}$"):
        main(options)


def test_a_run_needs_a_folder_around_its_own() -> None:
    with pytest.raises(FileNotFoundError, match="no folder /nowhere for out=/nowhere/run"):
        main(changed(data=Path("/no/text"), out=Path("/nowhere/run")))


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.write_text("a file")
    with pytest.raises(OSError, match=f"^nothing can be written to out={out}: File exists$"):
        main(changed(data=Path("/no/text"), out=out))


@pytest.mark.parametrize(("mesh", "spelled"), [((0, 1), "0 x 1"), ((-1, -1), "-1 x -1")])
def test_a_mesh_without_devices_is_refused(mesh: tuple[int, int], spelled: str) -> None:
    with pytest.raises(ValueError, match=f"^a mesh of {spelled} must have at least 1 device along each axis$"):
        make_mesh(mesh)


def test_results_are_shown_before_the_curve_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError):
        report(changed(out=tmp_path / "missing"), 3.25, 4.5)
    assert capsys.readouterr().out == (
        "---\nunigram entropy of the held-out text: 4.500 nats per token\n"
        "held-out loss:                        3.250 nats per token\n"
    )


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    call = [sys.executable, str(EXAMPLE / "train.py"), "--strategy", "pp"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "single" in done.stderr
    assert "fsdp+tp" in done.stderr


def run_of(options: Options, valid: np.ndarray = TEXT, config: DecoderConfig | None = None) -> Run:
    mesh = make_mesh(options.mesh or (4, 2))
    return Run(options, Bytes(), (TEXT,), (valid,), config or make_config(options, 256), mesh)


def test_heads_that_the_mesh_does_not_divide_are_refused() -> None:
    message = "kv_heads=4 cannot be split evenly in 8 over mesh axis model"
    with pytest.raises(axn.errors.ShardingError, match=message):
        check(run_of(changed({"strategy": "tp"}, mesh=(1, 8))))
    check(run_of(changed(batch=12)))


def test_a_dry_run_shows_layouts_of_more_devices_than_there_are(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = changed(data=text, mesh=(16, 4), batch=32, embed=64, dry_run=True, out=text.parent / "run")
    assert main(options) is None
    printed = capsys.readouterr().out
    assert "embed→data" in printed
    assert "on each device, beside what one layer computes:" in printed
    assert not (options.out / "metrics.jsonl").exists()
    # Microbatches of 8 rows are padded to 16.
    assert main(dataclasses.replace(options, batch=16)) is None


def test_a_trace_and_numbers_for_tensorboard_are_written(text: Path, tmp_path: Path) -> None:
    is_there = importlib.util.find_spec("tensorboardX") is not None
    options = changed({"strategy": "single", "steps": 5}, data=text, profile=2, tensorboard=is_there, sample=0)
    main(dataclasses.replace(options, out=tmp_path / "run"))
    assert [path.suffix for path in (tmp_path / "run" / "profile").rglob("*.pb")] == [".pb"]
    if is_there:
        (written,) = (tmp_path / "run" / "tensorboard").iterdir()
        assert b"tokens_per_s" in written.read_bytes()


@pytest.mark.parametrize(("steps", "taken", "expected"), [(0, 9, ""), (2, 9, "2 on, 4 off"), (9, 4, "2 on, 4 off")])
def test_a_trace_has_the_steps_that_are_asked_for_and_is_written_at_the_end(
    steps: int, taken: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    at = 0
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: told.append(f"{at} on"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: told.append(f"{at} off"))
    trace = Trace(tmp_path, steps)
    for at in range(taken):
        trace.before(at)
    at = taken
    trace.close()
    assert ", ".join(told) == expected


def test_numbers_for_others_need_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    message = "^numbers for TensorBoard are written by tensorboardX: pip install tensorboardX$"
    with pytest.raises(ValueError, match=message):
        Metrics(tmp_path / "metrics.jsonl", tensorboard=tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"^log=wandb needs the package wandb: pip install wandb$"):
        open_tracker("wandb", "axonym", tmp_path, SMALL)


def test_numbers_that_find_no_room_are_told_once_and_the_file_stays_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    metrics.add(0, loss=1.0)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
        for step in range(1, 4):
            metrics.add(step, loss=float(step))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    told = "warning: no numbers of step 1, the run goes on: No space left on device\n"
    assert capsys.readouterr().err == told
    metrics.add(4, loss=4.0)
    metrics.close()
    assert read(tmp_path / "metrics.jsonl") == [{"step": 0, "loss": 1.0}, {"step": 4, "loss": 4.0}]


@pytest.mark.parametrize("documents", ["masked", "packed"])
def test_runs_on_documents_learn_and_go_on_where_they_stopped(documents: Any, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    texts = [json.dumps({"text": "to be or not to be"[: 5 + i % 13]}) for i in range(400)]
    lines.write_text("\n".join(texts))
    options = changed(
        {"strategy": "dp", "steps": 60, "learning_rate": 1e-2}, data=lines, documents=documents, sample=0, save_every=30
    )
    whole = main(dataclasses.replace(options, out=tmp_path / "whole"))
    assert whole is not None
    assert whole < 1.5
    shutil.rmtree(tmp_path / "whole" / "checkpoints" / "60")
    before = losses(tmp_path / "whole")
    assert main(dataclasses.replace(options, out=tmp_path / "whole")) == whole
    assert losses(tmp_path / "whole") == before


def test_parts_of_unequal_counts_have_the_gradient_of_the_whole() -> None:
    config = dataclasses.replace(make_config(SMALL, 256), dropout=0.0)
    batch = batch_of(Packed(np.where(TEXT < 30, 0, TEXT), 8, 0, 0), 0, 16, 4)
    counts = np.asarray(batch.counted.array).sum((1, 2))
    assert len(set(counts.tolist())) > 1
    whole = jax.tree.map(lambda x: x.flatten_axes(("microbatch", "batch"), "batch"), batch, is_leaf=axn.is_named_array)
    whole = jax.tree.map(lambda x: x.broadcast_axis(axn.Axis("microbatch", 1)), whole, is_leaf=axn.is_named_array)
    told = []
    trainer = Trainer(dataclasses.replace(RECIPE, strategy="single", balance=0.0), config)
    with axn.set_mesh(mesh_of("single")):
        for own in (batch, whole):
            state = trainer.init(jax.random.key(0))
            told.append(trainer.step(state, own, jax.random.key(0))[1])
    np.testing.assert_allclose(told[0].loss, told[1].loss, rtol=1e-6)
    np.testing.assert_allclose(told[0].gradient, told[1].gradient, rtol=1e-5)


def test_a_wide_model_moves_like_the_one_its_rates_were_tuned_on() -> None:
    def scores(embed: int, mup: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the spread of the scores before training, and how far three steps move them."""
        options = dataclasses.replace(SMALL, embed=embed, heads=embed // 16, positions=8)
        config = dataclasses.replace(make_config(options, 256), dropout=0.0, mlp=3 * embed)
        recipe = dataclasses.replace(RECIPE, strategy="single", warmup=0, schedule="constant", mup=mup)
        trainer = Trainer(recipe, config)
        part = tokens_of(9).part(0)
        look = jax.jit(lambda model: model(part.tokens["pos", :-1]).array)
        with axn.set_mesh(mesh_of("single")):
            state = trainer.init(jax.random.key(0))
            before = look(state.model)
            for i in range(3):
                state, _ = trainer.step(state, tokens_of(i), jax.random.key(i))
            moved = look(state.model) - before
        return np.std(before), np.sqrt(np.mean(np.square(moved)))

    base, same = scores(32, None), scores(32, 32)
    np.testing.assert_allclose(same, base, rtol=1e-4)
    plain, scaled = scores(256, None), scores(256, 32)
    assert 0.3 < scaled[1] / base[1] < 1.4
    assert plain[1] / base[1] > 2
    assert scaled[0] < base[0]


def test_a_width_that_the_base_does_not_divide_is_refused() -> None:
    config = dataclasses.replace(make_config(SMALL, 256), embed=48, heads=3, kv_heads=3)
    with pytest.raises(ValueError, match=r"^mup=32: a model of that width would have 32/48 of mlp=32$"):
        Widths(dataclasses.replace(config, mlp=32), 32)


def test_what_the_model_or_the_text_cannot_give_is_refused() -> None:
    with pytest.raises(ValueError, match="the held-out text has 5 tokens and must have 9 tokens for one sequence"):
        check(run_of(SMALL, TEXT[:5]))
    short = dataclasses.replace(make_config(SMALL, 256), positions=4)
    with pytest.raises(ValueError, match="positions=8, but the model knows 4"):
        check(run_of(SMALL, config=short))
