"""The programs of examples/plain: equal losses by name and by position, also after the changes that the page shows."""

import functools
import itertools
import re
import types
from pathlib import Path
from typing import Any

import gpt
import gpt_jax
import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from measure import collectives, totals

import axonym as axn

ROOT = Path(__file__).parents[2]
SIZES = {"layers": 2, "embed": 32, "heads": 4, "head_dim": 8, "mlp": 64, "pos": 16, "batch": 8, "steps": 3}
TEXT = (ROOT / "LICENSE").read_bytes()
BY_NAME, BY_POSITION = gpt.Config(**SIZES), gpt_jax.Config(**SIZES)


def change(program: types.ModuleType, diff: str) -> types.ModuleType:
    """Apply a diff of the page to a program."""
    text = Path(program.__file__).read_text()
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
        assert text.count(before) == 1 or not lines, before
        text = text.replace(before, after)
    changed = types.ModuleType(program.__name__)
    exec(compile(text, program.__file__, "exec"), changed.__dict__)
    return changed


def losses(steps, mesh: jax.sharding.Mesh | None = None) -> tuple[object, list[float]]:
    with jax.set_mesh(mesh or make_mesh(data=1, model=1)):
        found = list(steps())
    return found[-1][0], [float(value) for _, value in found]


def make_mesh(kind: AxisType = AxisType.Explicit, **sizes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * len(sizes))


@pytest.fixture(scope="module")
def diffs() -> list[str]:
    page = (ROOT / "docs/guides/plain-jax.md").read_text()
    return re.findall(r"```diff\n(.*?)```", page, flags=re.DOTALL)


def test_layouts_by_name_and_by_position_give_the_losses_of_one_device(diffs: list[str]) -> None:
    by_name, by_position = map(change, (gpt, gpt_jax), diffs)
    _, expected = losses(lambda: gpt.train(BY_NAME, TEXT))
    assert expected[2] < expected[0]
    cases = itertools.product(
        [(gpt, gpt_jax, {"data": 4, "model": 2}), (by_name, by_position, {"data": 2, "model": 2, "context": 2})],
        [AxisType.Auto, AxisType.Explicit],
    )
    for (named, plain, sizes), kind in cases:
        model, found = losses(lambda named=named: named.train(BY_NAME, TEXT, named.LAYOUT), make_mesh(kind, **sizes))
        np.testing.assert_allclose(found, expected, rtol=2e-5)
        # Weights are stored in parts, and positions split where the page says so.
        assert model["blocks"]["up"].array.sharding.shard_shape(model["blocks"]["up"].array.shape)[2] == 32
        if kind is AxisType.Explicit:  # the program by position is for those
            _, found = losses(lambda plain=plain: plain.train(BY_POSITION, TEXT), make_mesh(kind, **sizes))
            np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_the_programs_write_the_same(diffs: list[str]) -> None:
    model, _ = losses(lambda: gpt.train(BY_NAME, TEXT))
    sizes = {"data": 4, "model": 2}
    written = set()
    with jax.set_mesh(make_mesh(**sizes)):
        written.add(gpt.write(BY_NAME, axn.shard(model, gpt.LAYOUT.parameters), b"the ", 8, gpt.LAYOUT))
        arrays = jax.tree.map(lambda x: x.array, model, is_leaf=lambda x: isinstance(x, axn.NamedArray))
        shardings = jax.tree.map(lambda spec: jax.NamedSharding(jax.sharding.get_mesh(), spec), gpt_jax.STORED)
        written.add(gpt_jax.write(BY_POSITION, jax.device_put(arrays, shardings), b"the ", 8))
    assert len(written) == 1


def test_the_page_counts_lines() -> None:
    page = (ROOT / "docs/guides/plain-jax.md").read_text()
    for program in gpt, gpt_jax:
        lines = len(Path(program.__file__).read_text().splitlines())
        assert lines <= 300
        assert f"takes\n{lines} lines" in page or f"takes {lines}" in page


def count_sent(run: Any, *args: Any) -> float:
    """Return the megabytes that a device sends in a step."""
    return sum(one.wire_megabytes for one in totals(collectives(run.lower(*args).compile())).values())


def test_the_page_says_what_a_step_sends(diffs: list[str]) -> None:
    page = (ROOT / "docs/guides/plain-jax.md").read_text()
    named, plain = gpt.Config(), gpt_jax.Config()
    cases = [
        (gpt, gpt_jax, {"data": 4, "model": 2}),
        (*map(change, (gpt, gpt_jax), diffs), {"data": 2, "model": 2, "context": 2}),
    ]
    sent = []
    for by_name, by_position, sizes in cases:
        with jax.set_mesh(make_mesh(**sizes)):
            tokens, _ = next(gpt.batches(named, TEXT, 0))
            start = axn.named_jit(functools.partial(gpt.start, named), out_axis_resources=gpt.STORED)
            step = axn.named_jit(functools.partial(by_name.step, named), by_name.LAYOUT)
            state = jax.eval_shape(start, jax.random.key(0))
            own = count_sent(step, axn.shard(state, gpt.STORED), tokens, tokens)
            model = jax.jit(gpt_jax.init, static_argnums=0, out_shardings=gpt_jax.STORED)(plain, jax.random.key(0))
            state = model, jax.jit(gpt_jax.make_optimizer(plain).init)(model)
            tokens, _ = next(by_position.batches(plain, TEXT, 0))
            sent.append((own, count_sent(jax.jit(by_position.step, static_argnums=0), plain, state, tokens, tokens)))
    (own, other), (split, gathered) = sent
    assert own == other
    assert f"a step sends {split:.1f} MB instead of {gathered:.1f}" in page.replace("\n", " ")
