"""Meshes by names: their mappings, losses like those of one device, and what is refused."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from costs import plan
from layouts import STRATEGIES, Layout, abstract_mesh, layout_of, make_mesh, read_mesh
from metrics import read
from options import Options
from rows import Batch, Packed, Rows, Windows, batch_of
from train import main
from trainer import Recipe, Trainer

import axonym as axn
from axonym.models import DecoderConfig, ExpertsConfig

RECIPE = Recipe(warmup=1, learning_rate=1e-2, precision="params=float32,compute=float32,output=float32")
SIZES = DecoderConfig(vocab=32, layers=2, embed=8, mlp=16, heads=2, kv_heads=2, head_dim=4, positions=8)
MIXTURE = dataclasses.replace(SIZES, experts=ExpertsConfig(4, 2, 8))
TEXT = np.random.default_rng(0).integers(0, 32, 2000).astype(np.uint8)
WINDOWS = Windows(TEXT, length=8, seed=0)


def train(
    config: DecoderConfig, layout: Layout, mesh: jax.sharding.Mesh, batch: int = 16, source: Rows = WINDOWS
) -> list[float]:
    """Take three steps, and return their losses and that of another batch."""
    trainer, losses = Trainer(RECIPE, config, layout), []
    parts = 1 if layout.pipelined else 2

    def draw(step: int, parts: int) -> Batch:
        padded = trainer.count_rows(batch // parts, mesh)
        return trainer.place(batch_of(source, step, batch, parts, padded=padded))

    with axn.set_mesh(mesh):
        state = trainer.init(jax.random.key(0))
        for i in range(3):
            state, told = trainer.step(state, draw(i, parts), jax.random.key(i))
            losses.append(float(told.loss))
        return [*losses, float(trainer.evaluate(state.model, draw(9, 1).part(0)))]


@functools.cache
def alone(config: DecoderConfig) -> list[float]:
    return train(config, Layout({}, {}), make_mesh((1, 1)))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("mesh", "fsdp", "axis_types"),
    [
        ("stage=2,data=2", False, "explicit"),
        ("stage=2,model=2", False, "auto"),
        ("data=2,stage=2", True, "auto"),
        ("data=2,context=2", True, "auto"),
        ("context=4", False, "explicit"),
        ("expert=4", False, "auto"),
        ("data=2,expert=2", True, "auto"),
        ("stage=2,context=2,model=2", False, "auto"),
    ],
)
def test_each_product_of_mesh_axes_trains_like_one_device(mesh: str, fsdp: bool, axis_types: Any) -> None:
    sizes = read_mesh(mesh)
    config = MIXTURE if "expert" in sizes else SIZES
    losses = train(config, layout_of(sizes, fsdp=fsdp), make_mesh(sizes, axis_types))
    expected = alone(config)
    assert len(set(expected)) == len(expected)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("mesh", "fsdp", "axis_types"),
    [("data=8", True, "auto"), ("data=4,model=2", False, "explicit"), ("data=2,stage=2", False, "auto")],
)
def test_batches_that_devices_do_not_divide_train_like_one_device(mesh: str, fsdp: bool, axis_types: Any) -> None:
    sizes = read_mesh(mesh)
    # Rows of documents have masks of their own, which the padding must keep.
    source: Rows = Packed(np.where(TEXT < 6, 0, TEXT), 8, 0, 0) if "model" in sizes else WINDOWS
    layout = layout_of(sizes, fsdp=fsdp)
    assert Trainer(RECIPE, SIZES, layout).count_rows(6, make_mesh(sizes)) == 8
    expected = train(SIZES, Layout({}, {}), make_mesh((1, 1)), 12, source)
    losses = train(SIZES, layout, make_mesh(sizes, axis_types), 12, source)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_documents_train_in_stages_like_one_device() -> None:
    """The mask of each row goes with it, from stage to stage."""
    source = Packed(np.where(TEXT < 6, 0, TEXT), 8, 0, 0)
    expected = train(SIZES, Layout({}, {}), make_mesh((1, 1)), source=source)
    assert expected != alone(SIZES)
    losses = train(SIZES, layout_of({"stage": 2, "data": 2}), make_mesh({"stage": 2, "data": 2}), source=source)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_pipeline_of_several_rounds_trains_like_one_device() -> None:
    config = dataclasses.replace(SIZES, layers=4, pattern=("local", "global"), window=4)
    expected, deep = alone(config), dataclasses.replace(config, layers=8)
    losses = train(dataclasses.replace(config, rounds=2), layout_of({"data": 2}), make_mesh({"data": 2}))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    sizes = {"data": 2, "stage": 2}
    losses = train(dataclasses.replace(deep, rounds=2), layout_of(sizes, fsdp=True), make_mesh(sizes))
    np.testing.assert_allclose(losses, alone(deep), rtol=1e-5)


def test_mappings_follow_from_the_names_of_the_mesh() -> None:
    dp, fsdp = layout_of({"data": 8}), layout_of({"data": 8}, fsdp=True)
    assert (dp.parameters, dp.compute) == ({}, {"batch": ("data",)})
    assert (fsdp.parameters, fsdp.compute) == ({"embed": ("data",)}, {"batch": ("data",)})
    both = layout_of({"data": 4, "model": 2}, fsdp=True)
    stored, computed = STRATEGIES["fsdp+tp"]
    assert both == Layout({**stored, "embed": ("data",)}, {**computed, "batch": ("data",)})
    every = layout_of({"model": 2, "stage": 4, "context": 2, "data": 2, "expert": 2}, fsdp=True)
    heads = {"kv_heads": "model", "mlp": "model"}
    assert every == Layout(
        {"embed": ("data", "context"), "layers": "stage", "experts": "expert", **heads},
        {"batch": ("data", "expert", "stage"), "pos": "context", "layers": "stage", "experts": "expert", **heads},
        pipelined=8,
    )
    assert every.rows == {"batch": ("data", "expert")}
    # Rows of a process are one range where its devices are neighbours in the mesh.
    assert layout_of({"stage": 2, "expert": 2, "data": 2}).compute["batch"] == ("expert", "data", "stage")
    assert layout_of({"stage": 4}, microbatches=12).pipelined == 12
    assert str(layout_of({"stage": 4})).splitlines() == [
        "parameters:   {'layers': 'stage'}",
        "computation:  {'batch': ('stage',), 'layers': 'stage'}",
        "pipeline:     8 microbatches",
    ]


@pytest.mark.parametrize("text", ["", "data", "data=", "data=-1", "rows=2", "data=2,data=2", "data=2, model=2", "4x2"])
def test_a_mesh_that_cannot_be_read_is_refused(text: str) -> None:
    part = {"data=2,data=2": "data=2", "data=2, model=2": " model=2"}.get(text, text)
    known = "data, stage, context, expert, model"
    message = f"mesh={text}: {part!r} should be the size of one of {known}, each once, such as data=4"
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the whole message is compared
        read_mesh(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "recipe", "message"),
    [
        ({"mesh": "data=0"}, {}, "a mesh of data=0 must have at least 1 device along each axis"),
        ({"mesh": "data=3,stage=3"}, {}, "a mesh of data=3,stage=3 needs 9 devices, this machine has 8"),
        (
            {"mesh": "stage=4"},
            {"fsdp": True},
            "fsdp divides parameters by mesh axes data and context, but mesh=stage=4",
        ),
        (
            {"mesh": "data=4"},
            {"strategy": "dp"},
            "strategy=dp and mesh=data=4 both say the mappings: pass one of them",
        ),
        (
            {"mesh": (4, 2)},
            {"fsdp": True},
            "fsdp is for a mesh by names, and mesh=4 2: pass strategy=fsdp, or mesh=data=8",
        ),
        ({"mesh": "stage=2", "batch": 18}, {}, "batch=18 is not a multiple of microbatches=4"),
        ({"mesh": "stage=4", "layers": 2}, {}, "layers=2 cannot be split evenly in 4 over mesh axis stage"),
        ({"mesh": "stage=2", "rounds": 3}, {}, "layers=2 cannot be split evenly into 3 rounds"),
        (
            {"start": Path("model"), "rounds": 2},
            {},
            "rounds=2 is for new models, and start=model has one: leave one out",
        ),
        ({"mesh": "context=3"}, {}, "pos=8 cannot be split evenly in 3 over mesh axis context"),
        ({"family": "gpt2", "experts": 4}, {}, "experts=4, but family=gpt2 has none: pass family=llama"),
        ({"mesh": "expert=2"}, {}, "mesh=expert=2 divides experts, and the model has none: pass experts=4"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: dict[str, Any], recipe: dict[str, Any], message: str, text: Path
) -> None:
    sizes: dict[str, Any] = {"layers": 2, "embed": 16, "heads": 2, "positions": 8, "batch": 16, **options}
    given = Options(dataclasses.replace(RECIPE, **recipe), data=text, out=text.parent / "run", **sizes)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is compared
        main(given)
    assert message in str(caught.value).splitlines()[0]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be, that is the question. " * 100)
    return file


@pytest.mark.parametrize(
    ("mesh", "more"),
    [
        ("data=2,stage=2,context=2", {}),
        ("data=2,expert=2,model=2", {"experts": 4}),
    ],
)
def test_a_run_tells_its_mappings_learns_and_goes_on_elsewhere(
    mesh: str, more: dict[str, Any], text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = dataclasses.replace(RECIPE, steps=4, microbatches=4, balance=0.0)
    sizes = {"layers": 2, "embed": 16, "heads": 2, "positions": 8, "batch": 16, "sample": 4, **more}
    options = Options(recipe, mesh=mesh, data=text, dropout=0.0, save_every=2, out=tmp_path / "run", **sizes)
    held_out = main(options)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{options.layout}\n")
    assert "--- 4 tokens after the held-out text" in printed
    alone = dataclasses.replace(recipe, strategy="single")
    single = dataclasses.replace(options, recipe=alone, mesh=None, out=tmp_path / "single", sample=0)
    np.testing.assert_allclose(held_out, main(single), rtol=1e-5)
    (tmp_path / "run" / "checkpoints" / "4").rename(tmp_path / "gone")
    np.testing.assert_allclose(main(dataclasses.replace(single, out=options.out)), held_out, rtol=1e-5)
    (first, *_, last) = [line["loss"] for line in read(options.out / "metrics.jsonl") if "loss" in line]
    assert last < first


def test_a_plan_counts_the_layers_and_rows_of_a_stage() -> None:
    config = dataclasses.replace(SIZES, layers=8, positions=64)
    sizes = {"data": 2, "stage": 4}
    told = plan(Trainer(RECIPE, config, layout_of(sizes)), abstract_mesh(sizes), 4096, 64)
    (line,) = [line for line in told.splitlines() if line.startswith("what is kept")]
    # Two of the layers, and half of the rows.
    assert line.split()[-2] == f"{2 * 2048 * 64 * 8 * 4 / 2**20:,.3f}"
