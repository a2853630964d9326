"""What the step of a run costs, as a dry run tells it."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import pytest
from layouts import make_mesh
from options import Options
from run import prepare
from shapes import SHAPES
from train import main
from trainer import Recipe

import axonym as axn
from axonym.models import Decoder
from axonym.report.table import byte_text

# As published: GPT-2 small, and Llama 2.
NUMBERS = {"gpt2": 124_439_808, "llama-7b": 6_738_415_616, "llama-70b": 68_976_648_192}


def test_a_dry_run_tells_the_cost_of_the_program_of_the_run(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes: dict[str, Any] = {"layers": 1, "embed": 32, "heads": 2, "positions": 16, "batch": 16}
    options = Options(Recipe(), mesh="data=4,model=2", data=text, out=text.parent / "run", **sizes)
    main(dataclasses.replace(options, dry_run=True, target="v5e"))
    printed = capsys.readouterr().out
    assert "step, mapping {'kv_heads': 'model', 'mlp': 'model'} on the mesh data=4, model=2, for v5e" in printed

    run = prepare(options)
    mesh = make_mesh(options.mesh_shape)
    state = jax.eval_shape(run.trainer.fresh, jax.random.key(0))
    places = run.trainer.shardings(state, mesh)
    leaves, tree = jax.tree.flatten(state)
    lying: list[jax.ShapeDtypeStruct] = []
    for leaf, place in zip(leaves, jax.tree.leaves(places), strict=True):
        lying.append(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place))
    own = jax.tree.unflatten(tree, lying)
    with axn.set_mesh(mesh):
        program = run.trainer.step.lower(own, run.train_batch(0), jax.random.key(0)).compile()
    needs = program.memory_analysis()
    peak = needs.argument_size_in_bytes + needs.temp_size_in_bytes
    peak += needs.output_size_in_bytes - needs.alias_size_in_bytes
    told = dict(re.findall(r"^(temporaries|peak) +(\S+ \S+) ", printed, re.MULTILINE))
    assert told == {"temporaries": byte_text(needs.temp_size_in_bytes), "peak": byte_text(peak)}


def test_a_traced_cost_needs_no_devices(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes: dict[str, Any] = {"mesh": "data=64,model=4", "batch": 128, "positions": 64}
    options = Options(shape="gpt2", data=text, out=text.parent / "run", dry_run=True, **sizes)
    main(dataclasses.replace(options, target="v5e", depth="traced"))
    told = capsys.readouterr().out
    assert "on the mesh data=64, model=4, for v5e\n" in told
    # Heads and perceptrons, of GPT-2, are divided by four, and the rest is whole.
    divided = 12 * (4 * 768 * 768 + 3 * 768 + 2 * 768 * 3072 + 3072)
    whole = NUMBERS["gpt2"] - divided
    (held,) = re.findall(r"^parameters +(\S+ MiB) ", told, re.MULTILINE)
    assert held == byte_text(4 * (whole + divided // 4))


def test_a_dry_run_of_what_does_not_fit_is_an_error(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes: dict[str, Any] = {"mesh": "data=2", "batch": 2**15, "positions": 64, "dropout": 0.0}
    options = Options(shape="gpt2", data=text, out=text.parent / "run", dry_run=True, **sizes)
    with pytest.raises(ValueError, match="do not fit into the 16") as raised:
        main(dataclasses.replace(options, target="v5e", depth="traced"))
    # The report comes before it, with the same list of what to change.
    problem, *remedies = str(raised.value).splitlines()
    assert remedies
    assert f"error: {problem}" in capsys.readouterr().out


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_have_as_many_numbers_as_is_published(name: Any) -> None:
    model = jax.eval_shape(lambda key: Decoder.init(SHAPES[name], key=key), jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(model)) == NUMBERS[name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "v5e"}, "target=v5e is for a dry run: pass --dry-run"),
        (
            {"shape": "gpt2"},
            "shape=gpt2 has 50257 tokens, and the tokenizer has 256: pass the tokenizer of that model, or --dry-run",
        ),
        (
            {"shape": "gpt2", "start": Path("model")},
            "shape=gpt2 and start=model both say the sizes: pass one of them",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str, text: Path) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the whole message is compared
        main(Options(data=text, out=text.parent / "run", **options))
    assert str(caught.value) == message


def test_a_dry_run_takes_any_tokenizer_for_a_shape(text: Path) -> None:
    options = Options(shape="llama-70b", dropout=0.0, data=text, dry_run=True, mesh=(64, 8), out=text.parent / "run")
    run = prepare(dataclasses.replace(options, batch=128))
    assert run.config == SHAPES["llama-70b"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be, that is the question. " * 100)
    return file
