"""What layers with a memory have in common: states, padding, layouts, dtypes and errors."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, OperandError
from tests.nn.layouts import check_on, compiled, draw, fails, same, same_trees
from tests.nn.remembering import (
    BEGINS,
    NAMES,
    NUMBER,
    PLACE,
    REAL,
    B,
    E,
    G,
    H,
    K,
    T,
    V,
    X,
    each_kind,
    first,
    layer,
    named,
    run,
)

pytestmark = pytest.mark.sampled


@each_kind
def test_steps_and_parts_equal_the_whole(kind: Any) -> None:
    model = layer(kind)
    y, last = run(model, X)
    _, state = run(model, X["time", :6])
    rest, end = run(model, X["time", 6:], state)
    same(rest, NAMES, y["time", 6:].array)
    same_trees(end, last)

    # One position at a time in a loop, whose carry is the state.
    def body(state: Any, x: jax.Array) -> Any:
        out, state = model.step(axn.named(x, ("batch", "embed")), state)
        return state, out.array

    late, outs = jax.jit(lambda state, x: lax.scan(body, state, x))(state, jnp.moveaxis(X["time", 6:].array, 1, 0))
    same(rest, NAMES, np.moveaxis(np.asarray(outs), 0, 1))
    same_trees(late, last)
    same(compiled(model.step, X["time", 0])[0], ("batch", "embed"), y["time", 0].array)


@each_kind
def test_padded_prompts_go_on_where_they_ended(kind: Any) -> None:
    """What a prompt with padding leaves behind is what the prompt alone leaves, also for the convolutions."""
    model, counts = layer(kind), np.arange(8) % 5
    _, state = run(model, X["time", :4], **named(where=np.arange(4) < counts[:, None]))
    found, _ = compiled(model.step, X["time", axn.named(counts, "batch")], state)
    same(found, ("batch", "embed"), run(model, X)[0].array[np.arange(8), counts])
    _, state = run(model, X["time", :7], **named(begins=PLACE[:7] == counts[:, None]))
    later = run(model, X["time", 7:], state)[0]
    masks = named(begins=counts[:, None] == PLACE)
    same(later, NAMES, run(model, X, **masks)[0]["time", 7:].array)
    both = {**named(where=REAL[:, 7:]), **named(begins=BEGINS[:, 7:])}
    whole = {"where": np.concatenate([np.ones((8, 7), bool), REAL[:, 7:]], 1), "begins": BEGINS}
    expected = run(model, X, **named(where=whole["where"], begins=whole["begins"] & (PLACE >= 7)))
    same_trees(run(model, X["time", 7:], run(model, X["time", :7])[1], **both)[1], expected[1])


@each_kind
def test_a_state_may_have_axes_that_the_input_lacks(kind: Any) -> None:
    """Such as a batch of states, all of which go on with one input."""
    model = layer(kind)
    (_, state), x = run(model, X), X["batch", 0]
    y, last = run(model, x, state)
    repeated, end = run(model, x.broadcast_axis(B), state)
    same(y, NAMES, repeated.rearrange(NAMES).array)
    same_trees(last, end)
    out, _ = compiled(model.step, x["time", 0], state)
    same(out, ("batch", "embed"), y["time", 0].array)


@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
@each_kind
def test_on_a_mesh(kind: Any, mode: str, request: pytest.FixtureRequest) -> None:
    mesh, model = request.getfixturevalue(mode), layer(kind)
    check_on(mesh, first, model, X)
    # Positions in parts, with masks and from a state.
    x = draw(B, T.resize(32), E)
    masks = {"where": np.arange(32) < 29 - NUMBER, "begins": np.random.default_rng(2).random((8, 32)) < 0.1}
    state = run(model, X)[1]
    expected = run(model, x, state, **named(**masks))
    mapping = {"time": "data", "heads": "model"}
    with axn.set_mesh(mesh):
        call = axn.named_jit(lambda x, state, masks: model(x, state, **masks), mapping, strict=False)
        found = call(axn.shard(x, mapping, strict=False), state, named(**masks))
    real = masks["where"][..., None]
    same(axn.named(found[0].rearrange(NAMES).array * real, NAMES), NAMES, expected[0].array * real, atol=1e-4)
    same_trees(found[1], expected[1], atol=1e-4)


@each_kind
def test_half_precision_is_near(kind: Any) -> None:
    narrow = jax.tree.map(lambda p: p.astype(jnp.bfloat16), (layer(kind), X))
    expected = np.asarray(run(*jax.tree.map(lambda p: p.astype(jnp.float32), narrow))[0].array)
    found = np.asarray(run(*narrow)[0].array, np.float32)
    # Lengths of one enlarge the rounding of short keys, of which there are few.
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)
    assert np.median(np.abs(found - expected)) < 0.004 * np.std(expected)


@each_kind
def test_padded_parameters_are_read_without_padding(kind: Any) -> None:
    model = layer(kind)
    padded = axn.partitioning.pad_axes(model, {"heads": 4, "value_dim": 4})
    same(run(padded, X)[0], NAMES, run(model, X)[0].array)
    same(compiled(padded.step, X["time", 0])[0], ("batch", "embed"), compiled(model.step, X["time", 0])[0].array)


@each_kind
def test_errors(kind: Any) -> None:
    make = functools.partial(kind.init, "time", E, (H, G), K, V, key=jax.random.key(0))
    fails(
        AxisNotFoundError,
        f"{kind.__name__}.init: queries and keys have heads kv_heads=2, which values lack\n"
        "  Heads: heads=2, group=3\n"
        "  hint: grouped heads are two axes of values: Heads=(KeyHeads, Group)",
        lambda: make(KeyHeads=axn.Axis("kv_heads", 2)),
    )
    for name in ("window", "chunk"):
        function = "ShortConv.init" if name == "window" else f"{kind.__name__}.init"
        fails(
            ArgumentError,
            f"{function}: {name} must be an int of at least 1, not 0",
            lambda name=name: make(**{name: 0}),
        )
    model = layer(kind)
    memory, recent = run(model, X)[1]
    fails(
        AxisClashError,
        f"{kind.__name__}: the state has axis 'time', which the layer runs along\n"
        "  memory has: time=11, batch=8, heads=2, group=3, key_dim=4, value_dim=5",
        lambda: model(X, (memory.broadcast_axis(T), recent)),
    )
    fails(
        AxisNotFoundError,
        f"{kind.__name__}: no axis named 'time'\n  array has: batch=8, embed=4",
        lambda: model(X["time", 0]),
    )
    real = axn.named(REAL, ("batch", "time"))
    fails(
        AxisNotFoundError,
        f"{kind.__name__}: the mask 'begins' lacks axis 'time', the positions\n  mask 'begins' has: batch=8",
        lambda: model(X, begins=real["time", 0]),
    )
    fails(
        AxisNotFoundError,
        f"{kind.__name__}: the mask 'where' has axis 'bacth', which the input lacks\n"
        "  mask 'where' has: bacth=8, time=11\n  input has: batch=8, time=11, embed=4\n  hint: did you mean 'batch'?",
        lambda: model(X, where=real.rename({"batch": "bacth"})),
    )
    fails(
        OperandError,
        f"{kind.__name__}: the mask 'where' must be booleans, not int32\n  mask 'where' has: batch=8, time=11",
        lambda: model(X, where=real.astype("int32")),
    )
