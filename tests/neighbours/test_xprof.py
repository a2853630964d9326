"""Paths of layers in what JAX records and xprof shows, beside the same program with scopes written by hand."""

import re
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.profiler import ProfileData
from xprof.convert import raw_to_tool_data

import axonym as axn

Embed, Mlp = axn.make_axes(embed=8, mlp=16)
PATH = re.compile(r'%([\w.-]+) = .*op_name="(.*?)"')


class Block(eqx.Module):
    up: axn.nn.Linear
    down: axn.nn.Linear

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        return self.down(axn.tanh(self.up(x)))


class Model(eqx.Module):
    first: Block
    second: Block

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        return self.second(self.first(x))


def block(seed: int) -> Block:
    up = axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(seed))
    return Block(up, axn.nn.Linear.init(Mlp, Embed, key=jax.random.key(seed + 1)))


MODEL = Model(block(0), block(2))
X = axn.random.normal(jax.random.key(4), {"batch": 4, "embed": 8})


def loss(model: Model, x: axn.NamedArray) -> jax.Array:
    return (model(x) ** 2).sum().scalar()


def by_hand(model: Model, x: jax.Array) -> jax.Array:
    for name in ("first", "second"):
        for part in ("up", "down"):
            layer = getattr(getattr(model, name), part)
            with jax.named_scope(f"{name}/{part}"):
                x = x @ layer.weight.array + layer.bias.array
            if part == "up":
                x = jnp.tanh(x)
    return jnp.sum(x**2)


def products(compiled: jax.stages.Compiled) -> list[str]:
    """Return the paths of the matrix products of a program."""
    paths = re.findall(r' dot\(.*op_name="(.*?)"', compiled.as_text())
    assert paths
    found = [re.sub(r"^jit\(\w+\)/|/(dot_general|transpose)$|(?<=\()Model/|Model/", "", path) for path in paths]
    return sorted(re.sub(r"jvp\(\)/", "", path) for path in found)


@pytest.fixture
def no_cache() -> Iterator[None]:
    """Compile anew: a trace has no text of programs that were read from the disk."""
    was = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", was)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("no_cache")
def test_names_in_a_trace_and_in_xprof(tmp_path: Path) -> None:
    compiled = jax.jit(jax.grad(loss)).lower(MODEL, X).compile()
    paths = dict(PATH.findall(compiled.as_text()))
    with jax.profiler.trace(tmp_path):
        jax.block_until_ready(compiled(MODEL, X))
    (file,) = tmp_path.rglob("*.xplane.pb")
    planes = ProfileData.from_file(str(file)).planes
    stats = [dict(event.stats) for plane in planes for line in plane.lines for event in line.events]
    ran = [each for each in stats if each.get("hlo_module") == "jit_loss"]
    assert ran
    seen = {paths[each["hlo_op"]] for each in ran if each["hlo_op"] in paths}
    layers = {"first/up", "first/down", "second/up", "second/down"}
    assert {layer for layer in layers if any(layer in path for path in seen)} == layers

    # Writes the programs of the trace beside it, where the viewer looks for them.
    assert "memory_viewer" in raw_to_tool_data.xspace_to_tool_names([str(file)])
    options = {"program_id": str(ran[0]["program_id"])}
    content, _ = raw_to_tool_data.xspace_to_tool_data([str(file)], "memory_viewer", options)
    # Of the arrays that were in memory at its peak.
    shown = set(re.findall(r"jit\(loss\)[^\"]*", content.decode()))
    assert shown
    assert shown <= set(paths.values())
    assert any(layer in path for layer in layers for path in shown)


def test_names_are_those_of_scopes_by_hand() -> None:
    named = jax.jit(jax.grad(loss)).lower(MODEL, X).compile()
    plain = jax.jit(jax.grad(by_hand)).lower(MODEL, X.array).compile()
    assert products(named) == products(plain)
