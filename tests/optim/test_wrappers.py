"""Optimisers that know the axes: what Optax does to matrices by hand, it does to named, stacked and sharded arrays."""

import functools
import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import axonym as axn
from axonym import nn, optim, state_dict as sd
from axonym.errors import ArgumentError
from tests.optim.table import (
    EXCEPTIONS,
    KEY,
    MAPPING,
    MUONS,
    ON_MESHES,
    ROWS,
    STEPS,
    Block,
    D,
    E,
    H,
    L,
    M,
    Model,
    V,
    X,
    assert_like,
    begin,
    drawn,
    from_rounds,
    in_rounds,
    model_of,
    train,
    trained,
    transformation,
)


def test_no_transformation_is_missing():
    """What says that it is one, in its annotation or its docstring, is in the table."""
    found = {"MultiSteps"}
    for module in (optax, contrib):
        for name, value in inspect.getmembers(module, inspect.isfunction):
            said = f"{inspect.signature(value).return_annotation} {value.__doc__}"
            if "GradientTransformation" in said and not name.startswith("_"):
                found.add(name)
    assert found - {"apply_updates", "init_empty_state"} == {*ROWS, *EXCEPTIONS}


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*ROWS, *MUONS])
def test_training_does_not_depend_on_how_weights_are_stored(name):
    expected, found = trained(name)
    has_moved = any(np.abs(expected[key] - start).max() > 1e-7 for key, start in drawn(0).items())
    assert has_moved or name in ("identity", "set_to_zero")
    assert_like(found, expected)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ON_MESHES)
@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_training_on_a_mesh(name, kind, request):
    """What a state keeps of a parameter in its shape is laid out like the parameter."""
    mesh = request.getfixturevalue(kind)
    with axn.set_mesh(mesh):
        model, target = (axn.shard(in_rounds(drawn(seed)), MAPPING) for seed in (0, 1))
        tx = transformation(name, is_named=True)
        step = functools.partial(train, tx)
        start = axn.named_jit(lambda model: begin(tx, model, name == "lookahead"), MAPPING, strict=False)(model)
        found = axn.named_jit(step, MAPPING, strict=False)(start, target)
    assert_like(from_rounds(model_of(found)), trained(name)[0])
    for leaf in axn.tree.leaves((start, found)):
        if axn.is_named_array(leaf) and getattr(leaf.array, "ndim", -1) == len(leaf.names):
            assert leaf.sharding.is_equivalent_to(
                jax.NamedSharding(mesh, axn.pspec_for(leaf, MAPPING, mesh, strict=False)), leaf.ndim
            )


def unrolled(model: Model) -> Model:
    blocks = model.blocks
    return Model(model.table, nn.BlockSeq(blocks.unstacked(), blocks.Block, blocks.gradient_checkpointing))


@pytest.mark.sampled
@pytest.mark.parametrize("name", ON_MESHES)
def test_training_goes_on_with_unrolled_layers_on_another_mesh(name, auto_mesh, explicit_mesh, tmp_path):
    """A state is saved by a program with layers in rounds, and read by one with unrolled layers."""
    tx = transformation(name, is_named=True)
    make = functools.partial(begin, tx, is_pair=name == "lookahead")
    model, target = (in_rounds(drawn(seed)) for seed in (0, 1))
    with axn.set_mesh(explicit_mesh):
        start, there = axn.shard((jax.jit(make)(model), target), MAPPING)
        saved = axn.named_jit(functools.partial(train, tx), MAPPING, strict=False)(start, there)
    sd.save_state_dict(sd.to_state_dict(saved), tmp_path / "state.safetensors")

    other = {"embed": "model", "vocab": "data"}
    with axn.set_mesh(auto_mesh):
        abstract = jax.eval_shape(lambda model: make(unrolled(model)), model)
        read = sd.load_state_dict(tmp_path / "state.safetensors")
        state = sd.from_state_dict(abstract, read, mapping=other, mesh=auto_mesh)
        there = axn.shard(unrolled(target), other)
        table = model_of(axn.named_jit(functools.partial(train, tx), other, strict=False)(state, there))
    stacked = eqx.tree_at(
        lambda model: model.blocks,
        table,
        nn.Stacked.init(L, Block, rounds=2)(key=KEY).with_layers(table.blocks.blocks),
    )
    assert_like(from_rounds(stacked), trained(name, 2 * STEPS)[0])


def several(seed: int) -> dict[str, Any]:
    """Return layers with heads and experts, a table and what scores it, with drawn values."""

    def make(*, key):
        stacked = nn.Stacked.init(L, lambda key: nn.Attention.init(E, H, D, use_bias=False, key=key))(key=key)
        experts = axn.vmap(lambda key: nn.MoELinear.init(X, E, M, use_bias=False, key=key), L)(jax.random.split(key, 4))
        table, head = nn.Embedding.init(V, E, key=key), nn.Linear.init(E, V, key=key)
        return {"attention": stacked, "experts": experts, "table": table, "head": head}

    leaves, tree = jax.tree.flatten(eqx.filter_eval_shape(make, key=KEY))
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(tree, [jnp.asarray(rng.normal(size=x.shape), x.dtype) for x in leaves])


def pieces(model: dict[str, Any], per_head: bool, per_expert: bool) -> dict[str, jax.Array]:
    """Cut a model into matrices and vectors by hand."""
    found: dict[str, jax.Array] = {"table": model["table"].weight.array, "head": model["head"].weight.array}
    found["bias"] = model["head"].bias.array
    for layer in range(4):
        one = model["attention"].stacked
        for name in ("query", "key", "value"):
            weight = getattr(one, name).weight.array[layer]  # embed, heads, head_dim
            cut = {f" {h}": weight[:, h] for h in range(2)} if per_head else {"": weight.reshape(8, 8)}
            found |= {f"{name} {layer}{h}": matrix for h, matrix in cut.items()}
        weight = one.out.weight.array[layer]  # heads, head_dim, embed
        cut = {f" {h}": weight[h] for h in range(2)} if per_head else {"": weight.reshape(8, 8)}
        found |= {f"out {layer}{h}": matrix for h, matrix in cut.items()}
        weight = model["experts"].weight.array[layer]  # experts, embed, mlp
        whole = {"": jnp.moveaxis(weight, 0, 2).reshape(8, 12)}
        cut = {f" {x}": weight[x] for x in range(2)} if per_expert else whole
        found |= {f"experts {layer}{x}": matrix for x, matrix in cut.items()}
    return found


@pytest.mark.parametrize(
    ("per_head", "per_expert", "adaptive"), [(False, True, True), (True, True, False), (False, False, False)]
)
def test_muon_is_that_of_optax_for_matrices_cut_by_hand(per_head, per_expert, adaptive):
    options = {"weight_decay": 0.1, "adam_learning_rate": 0.3, "consistent_rms": 0.2, "adaptive": adaptive}
    ours = optim.muon(0.02, per_head=per_head, per_expert=per_expert, **options)
    by_adam = {"table", "head", "bias"}

    def numbers(params: dict[str, Any]) -> dict[str, Any]:
        return {name: None if name in by_adam else contrib.MuonDimensionNumbers() for name in params}

    theirs = contrib.muon(0.02, muon_weight_dimension_numbers=numbers, **options)

    @jax.jit
    def both(gradient: Any, model: Any) -> Any:
        cut = functools.partial(pieces, per_head=per_head, per_expert=per_expert)
        found, _ = ours.update(gradient, ours.init(model), model)
        expected, _ = theirs.update(cut(gradient), theirs.init(cut(model)), cut(model))
        return cut(found), expected

    found, expected = both(several(1), several(0))
    for name, matrix in expected.items():
        np.testing.assert_allclose(found[name], matrix, rtol=1e-4, atol=1e-6, err_msg=name)


def test_per_layer_leaves_the_axes_of_a_layer_as_they_are():
    """A transformation that looks at names and shapes, on a layer by itself and on layers in rounds."""
    seen = []

    def look(updates: Any, params: Any) -> Any:
        seen.append([(tuple(x.names), x.array.shape) for x in axn.tree.leaves(updates)])
        return jax.tree.map(lambda x: x / jnp.max(jnp.abs(x)), updates)

    model = in_rounds(drawn(0))
    updates, _ = optim.per_layer(optax.stateless(look)).update(model, optax.EmptyState())
    assert set(seen[0]) == {
        (("embed", "vocab"), (8, 12)),
        (("head_dim", "heads", "embed"), (4, 2, 8)),
        (("head_dim", "heads"), (4, 2)),
        (("embed",), (8,)),
    }
    weight = drawn(0)["weight"]
    np.testing.assert_allclose(
        from_rounds(updates)["weight"], weight / np.abs(weight).max((1, 2), keepdims=True), rtol=1e-6
    )


def test_heads_that_are_not_there():
    with pytest.raises(ArgumentError) as error:
        optim.muon(0.1, per_head=True).init(nn.Linear.init(E, M, key=KEY))
    assert str(error.value) == (
        'muon: no parameter has heads\n  hint: say which axes count them: roles={"heads": "head"}'
    )
