"""Optimisers that know the axes: what Optax does to matrices by hand, it does to named, stacked and sharded arrays."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib

import axonym as axn
from axonym import nn, optim, parameters, state_dict as sd
from axonym.errors import ArgumentError, OperandError

L, E, H, D, M, V, X = axn.make_axes(layers=4, embed=8, heads=2, head_dim=4, mlp=6, vocab=12, experts=2)
KEY = jax.random.key(0)
STEPS = 3


class Block(eqx.Module):
    """A matrix with heads and a bias, and a vector."""

    mix: nn.Linear
    norm: nn.RmsNorm

    @staticmethod
    def init(*, key):
        return Block(nn.Linear.init(E, (H, D), key=key), nn.RmsNorm.init(E, use_bias=False))


class Model(eqx.Module):
    table: nn.Embedding
    blocks: nn.BlockFoldable[Block]

    @staticmethod
    def init(kind=nn.Stacked, **options):
        return Model(nn.Embedding.init(V, E, key=KEY), kind.init(L, Block, **options)(key=KEY))


def drawn(seed: int) -> dict[str, np.ndarray]:
    """Draw parameters as an array of matrices, or of vectors, for all layers."""
    shapes = {"table": (12, 8), "weight": (4, 8, 8), "bias": (4, 8), "scale": (4, 8)}
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def by_hand(values: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return what a program without names trains: a matrix or a vector for each layer."""
    layers = [{name: jnp.asarray(values[name][i]) for name in ("weight", "bias", "scale")} for i in range(4)]
    return {"table": jnp.asarray(values["table"]), "layers": layers}


def from_hand(tree: dict[str, Any]) -> dict[str, np.ndarray]:
    stacked = {name: np.stack([layer[name] for layer in tree["layers"]]) for name in ("weight", "bias", "scale")}
    return {"table": np.asarray(tree["table"]), **stacked}


# Where the axes of each array are stored: backwards, those of the layers last.
PLACES = {
    "table": lambda model: model.table.weight,
    "weight": lambda model: model.blocks.stacked.mix.weight,
    "bias": lambda model: model.blocks.stacked.mix.bias,
    "scale": lambda model: model.blocks.stacked.norm.weight,
}
NAMES = {
    "table": ("vocab", "embed"),
    "weight": ("layers_round", "layers", "embed", "heads", "head_dim"),
    "bias": ("layers_round", "layers", "heads", "head_dim"),
    "scale": ("layers_round", "layers", "embed"),
}
ROUNDS = eqx.filter_eval_shape(lambda: Model.init(rounds=2))


def in_rounds(values: dict[str, np.ndarray]) -> Model:
    """Return a model whose layers are stored in rounds, with heads, and with all axes backwards."""

    def one(name: str) -> axn.NamedArray:
        sizes = PLACES[name](ROUNDS).shape
        array = values[name].reshape([sizes[axis] for axis in NAMES[name]])
        return axn.named(jnp.asarray(array), NAMES[name]).rearrange(NAMES[name][::-1])

    return eqx.tree_at(lambda model: [place(model) for place in PLACES.values()], ROUNDS, [*map(one, PLACES)])


def from_rounds(model: Model) -> dict[str, np.ndarray]:
    found = {name: place(model).rearrange(NAMES[name]).array for name, place in PLACES.items()}
    return {name: np.asarray(array).reshape(drawn(0)[name].shape) for name, array in found.items()}


def loss(params: Any, target: Any) -> jax.Array:
    """Sum over all elements: no product mixes them, so that only the optimiser can."""
    terms = jax.tree.map(lambda p, t: (1.5 - jnp.cos(p - t)).sum(), params, target)
    return sum(jax.tree.leaves(terms), jnp.zeros(()))


def begin(tx: Any, params: Any, is_pair: bool = False) -> Any:
    """Return parameters and state; for lookahead, parameters are a pair of models."""
    if is_pair:
        params = optax.LookaheadParams.init_synced(params)
    return params, tx.init(params)


def train(tx: Any, carry: Any, target: Any, steps: Any = STEPS) -> Any:
    """Return the parameters and the state after some steps."""
    tx = optax.with_extra_args_support(tx)
    is_pair = isinstance(carry[0], optax.LookaheadParams)

    def step(_: Any, carry: Any) -> Any:
        params, state = carry
        value_fn = functools.partial(loss, target=target)
        value, gradient = jax.value_and_grad(value_fn)(params.fast if is_pair else params)
        extra = {} if is_pair else {"value": value, "grad": gradient, "value_fn": value_fn}
        updates, state = tx.update(gradient, state, params, **extra)
        return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, steps, step, carry)


def model_of(carry: Any) -> Any:
    return carry[0].fast if isinstance(carry[0], optax.LookaheadParams) else carry[0]


def then_sgd(*args: Any) -> Any:
    return optax.chain(*args, optax.scale(-0.1))


def matrices(params: Any) -> Any:
    """Select matrices: by dimensions where there are no names."""
    if isinstance(params, dict):
        return jax.tree.map(lambda x: x.ndim == 2, params)
    return parameters.decay_mask(params)


def dimensions(params: Any) -> Any:
    return jax.tree.map(lambda x: contrib.MuonDimensionNumbers(), params)


def by_kind(params: Any) -> Any:
    """Label matrices and vectors."""
    return jax.tree.map(lambda is_matrix: "matrix" if is_matrix else "vector", matrices(params))


WITH_A_RATE = [
    *("adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad", "lion"),
    *("optimistic_adam_v2", "optimistic_gradient_descent", "radam", "rmsprop", "rprop", "sgd", "sign_sgd"),
    *("signum", "yogi", "acprop", "ademamix", "adopt", "madgrad", "schedule_free_adamw", "schedule_free_sgd"),
    "simplified_ademamix",
]
WITHOUT = [
    *("scale_by_adadelta", "scale_by_adam", "scale_by_adamax", "scale_by_adan", "scale_by_amsgrad"),
    *("scale_by_belief", "scale_by_lion", "scale_by_optimistic_gradient", "scale_by_radam", "scale_by_rms"),
    *("scale_by_rss", "scale_by_sign", "scale_by_stddev", "scale_by_yogi", "scale_by_acprop", "scale_by_ademamix"),
    *("scale_by_adopt", "scale_by_cocob", "scale_by_simplified_ademamix", "zero_nans", "identity", "set_to_zero"),
    "keep_params_nonnegative",
]


def named(name: str) -> Callable[..., Any]:
    return getattr(optax, name, None) or getattr(contrib, name)


# By what a transformation looks at: each element by itself, each array, or all of them.
ELEMENTS: dict[str, Callable[[], Any]] = {
    **{name: functools.partial(named(name), 0.1) for name in WITH_A_RATE},
    **{name: lambda name=name: then_sgd(named(name)()) for name in WITHOUT},
    "add_decayed_weights": lambda: then_sgd(optax.add_decayed_weights(0.1, matrices)),
    "apply_every": lambda: then_sgd(optax.apply_every(2)),
    "chain": lambda: optax.chain(optax.trace(0.9), optax.scale(-0.1)),
    "clip": lambda: then_sgd(optax.clip(0.01)),
    "cocob": contrib.cocob,
    "conditionally_mask": lambda: then_sgd(optax.conditionally_mask(optax.scale(2.0), lambda step: step > 1)),
    "conditionally_transform": lambda: then_sgd(optax.conditionally_transform(optax.scale(2.0), lambda step: step > 1)),
    "ema": lambda: then_sgd(optax.ema(0.9)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adamw, "mask")(0.1, mask=matrices),
    "lookahead": lambda: optax.lookahead(optax.sgd(0.1), 2, 0.5),
    "masked": lambda: then_sgd(optax.masked(optax.scale(2.0), matrices)),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "named_chain": lambda: optax.named_chain(("trace", optax.trace(0.9)), ("scale", optax.scale(-0.1))),
    "scale": lambda: optax.scale(-0.1),
    "scale_by_learning_rate": lambda: optax.scale_by_learning_rate(0.1),
    "scale_by_madgrad": lambda: contrib.scale_by_madgrad(0.1),
    "scale_by_rprop": lambda: then_sgd(optax.scale_by_rprop(0.1)),
    "scale_by_schedule": lambda: optax.scale_by_schedule(lambda count: -0.1 / (1 + count)),
    "schedule_free": lambda: contrib.schedule_free(optax.sgd(0.1), 0.1),
    "split_real_and_imaginary": lambda: contrib.split_real_and_imaginary(optax.adam(0.1)),
    "stateless": lambda: then_sgd(optax.stateless(lambda updates, _: jax.tree.map(jnp.sin, updates))),
    "stateless_with_tree_map": lambda: then_sgd(optax.stateless_with_tree_map(lambda g, p: g * p)),
    "trace": lambda: then_sgd(optax.trace(0.9)),
    "with_extra_args_support": lambda: optax.with_extra_args_support(optax.sgd(0.1)),
}
ARRAYS: dict[str, Callable[[], Any]] = {
    "adafactor": lambda: optax.adafactor(0.1, min_dim_size_to_factor=4),
    "adaptive_grad_clip": lambda: then_sgd(optax.adaptive_grad_clip(0.01)),
    "centralize": lambda: then_sgd(optax.centralize()),
    "clip_by_block_rms": lambda: then_sgd(optax.clip_by_block_rms(0.01)),
    "fromage": lambda: optax.fromage(0.1),
    "lamb": lambda: optax.lamb(0.1),
    "lars": lambda: optax.lars(0.1),
    "multi_transform": lambda: optax.multi_transform(
        {"matrix": optax.novograd(0.1), "vector": optax.sgd(0.1)}, by_kind
    ),
    "muon": lambda: contrib.muon(0.1, adaptive=True),
    "novograd": lambda: optax.novograd(0.1),
    "partition": lambda: optax.partition({"matrix": optax.lamb(0.1), "vector": optax.adam(0.1)}, by_kind),
    "scale_by_distance_over_gradients": lambda: then_sgd(optax.scale_by_distance_over_gradients()),
    "scale_by_factored_rms": lambda: then_sgd(optax.scale_by_factored_rms(min_dim_size_to_factor=4)),
    "scale_by_muon": lambda: optax.masked(
        then_sgd(contrib.scale_by_muon(weight_dimension_numbers=dimensions)), matrices
    ),
    "scale_by_novograd": lambda: then_sgd(optax.scale_by_novograd()),
    "scale_by_param_block_norm": lambda: then_sgd(optax.scale_by_param_block_norm()),
    "scale_by_param_block_rms": lambda: then_sgd(optax.scale_by_param_block_rms()),
    "scale_by_sm3": lambda: then_sgd(optax.scale_by_sm3()),
    "scale_by_trust_ratio": lambda: then_sgd(optax.scale_by_trust_ratio()),
    "sm3": lambda: optax.sm3(0.1),
}
ALL: dict[str, Callable[[], Any]] = {
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.1), 2),
    "clip_by_global_norm": lambda: then_sgd(optax.clip_by_global_norm(0.1)),
    "dadapt_adamw": contrib.dadapt_adamw,
    "dog": lambda: contrib.dog(0.1),
    "dowg": lambda: contrib.dowg(0.1),
    "flatten": lambda: optax.flatten(optax.adam(0.1)),
    "lbfgs": optax.lbfgs,
    "mechanize": lambda: contrib.mechanize(optax.adam(0.1)),
    "momo": contrib.momo,
    "momo_adam": contrib.momo_adam,
    "normalize": lambda: then_sgd(contrib.normalize()),
    "normalize_by_update_norm": lambda: then_sgd(optax.normalize_by_update_norm()),
    "polyak_sgd": optax.polyak_sgd,
    "prodigy": lambda: contrib.prodigy(1.0),
    "reduce_on_plateau": lambda: then_sgd(contrib.reduce_on_plateau(patience=1)),
    "sam": lambda: optax.GradientTransformation(
        *contrib.sam(optax.sgd(0.1), optax.chain(contrib.normalize(), optax.sgd(0.1)))
    ),  # refuses a value
    "scale_by_backtracking_linesearch": lambda: optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5)),
    "scale_by_lbfgs": lambda: then_sgd(optax.scale_by_lbfgs()),
    "scale_by_polyak": lambda: then_sgd(optax.scale_by_polyak()),
    "scale_by_zoom_linesearch": lambda: optax.chain(optax.sgd(1.0), optax.scale_by_zoom_linesearch(5)),
}
# What is no row of the law, and why.
NOISE = "draws noise for each array, by its place in the tree"
NO_HOLES = "takes no None in a tree, and a layer without bias holds one"
EXCEPTIONS = {
    "add_noise": NOISE,
    "noisy_sgd": NOISE,
    "dpsgd": NOISE,
    "differentially_private_aggregate": NOISE,
    "hutchinson_estimator_diag_hessian": NOISE,
    "sophia": NOISE,
    "freeze": "takes a tree of booleans, made for the tree that it gets: see the table of masks",
    "selective_transform": "is the same with a transformation",
    "galore": NO_HOLES,
    "scale_by_galore": NO_HOLES,
    "optimistic_adam": "deprecated",
    "inject_stateful_hyperparams": "deprecated",
    "snapshot": "measures, and trains nothing",
    "measure_with_ema": "measures, and trains nothing",
}
ROWS = {**ELEMENTS, **ARRAYS, **ALL}


def test_no_transformation_is_missing():
    """What says that it is one, in its annotation or its docstring, is in the table."""
    found = {"MultiSteps"}
    for module in (optax, contrib):
        for name, value in inspect.getmembers(module, inspect.isfunction):
            said = f"{inspect.signature(value).return_annotation} {value.__doc__}"
            if "GradientTransformation" in said and not name.startswith("_"):
                found.add(name)
    assert found - {"apply_updates", "init_empty_state"} == {*ROWS, *EXCEPTIONS}


def of_layers(params: Any) -> Any:
    """Return the dimensions of matrices, but not of the table."""
    numbers = jax.tree.map(lambda x: contrib.MuonDimensionNumbers() if getattr(x, "ndim", 0) == 2 else None, params)
    return {**numbers, "table": None}


def transformation(name: str, *, is_named: bool) -> Any:
    """Return what trains a model: what looks at arrays is handed matrices, and what mixes all runs on Auto axes."""
    if name == "optim.muon":
        return optim.muon(0.1) if is_named else contrib.muon(0.1, muon_weight_dimension_numbers=of_layers)
    if not is_named:
        return ROWS[name]()
    wrap = optim.per_matrix if name in ARRAYS else optim.on_auto_axes if name in ALL else lambda tx: tx
    return wrap(ROWS[name]())


@functools.cache
def program(name: str) -> Callable[..., Any]:
    """Train what is written by hand, and a model that is stored in another way, in one program."""

    @jax.jit
    def both(hand: Any, model: Any, steps: Any) -> Any:
        pairs = zip((hand, model), (False, True), strict=True)
        made = [(transformation(name, is_named=is_named), *given) for given, is_named in pairs]
        return [model_of(train(tx, begin(tx, start, name == "lookahead"), end, steps)) for tx, start, end in made]

    return both


@functools.cache
def trained(name: str, steps: int = STEPS) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    given = drawn(0), drawn(1)
    hand, model = ([make(values) for values in given] for make in (by_hand, in_rounds))
    plain, named = program(name)(hand, model, steps)
    return from_hand(plain), from_rounds(named)


def assert_like(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Compare to a thousandth of the way that parameters went."""
    moved = max(np.abs(value - start).max() for value, start in zip(expected.values(), drawn(0).values(), strict=True))
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, atol=1e-3 * moved, rtol=2e-5, err_msg=key)


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*ROWS, "optim.muon"])
def test_training_does_not_depend_on_how_weights_are_stored(name):
    expected, found = trained(name)
    has_moved = any(np.abs(expected[key] - start).max() > 1e-7 for key, start in drawn(0).items())
    assert has_moved or name in ("identity", "set_to_zero")
    assert_like(found, expected)


ON_MESHES = [
    *("lbfgs", "muon", "ema", "lookahead", "MultiSteps", "inject_hyperparams", "multi_transform", "masked"),
    *("apply_if_finite", "schedule_free", "adafactor", "novograd", "sm3", "clip_by_global_norm", "optim.muon"),
]
MAPPING = {"embed": "data", "heads": "model"}


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


REFUSED = {
    "scale_by_backtracking_linesearch": "calls 'value_fn', a function of the whole model",
    "add_noise": "draws random numbers, which would be the same in all layers",
}


def test_what_mixes_parameters_is_refused_without_stacks_too():
    layer = nn.Linear.init(axn.Axis("embed", 4), axn.Axis("mlp", 3), key=jax.random.key(0))
    for wrapper in (optim.per_matrix, optim.per_layer):
        tx = wrapper(optax.clip_by_global_norm(1.0))
        with pytest.raises(ArgumentError, match="the transformation mixes parameters, or the layers of one"):
            tx.update(layer, tx.init(layer), layer)


def test_what_mixes_parameters_is_refused():
    model = in_rounds(drawn(0))
    others = {"add_noise": lambda: optax.add_noise(0.1, 0.1, key=0)}
    # One looks at the loss alone; lines are searched by the same function.
    skipped = {"reduce_on_plateau", "lbfgs", "scale_by_zoom_linesearch"}
    for name, make in {**ALL, **others}.items():
        tx = optim.per_matrix(make())
        if name not in skipped:
            with pytest.raises(ArgumentError) as error:
                jax.eval_shape(lambda model, tx=tx: train(tx, begin(tx, model), model), model)
            assert str(error.value) == (
                f"per_matrix: the transformation {REFUSED.get(name, 'mixes parameters, or the layers of one')}\n"
                "  hint: leave out what works on the whole model, as the norm of all gradients does: "
                "optax.chain(optax.clip_by_global_norm(1.0), axn.optim.per_matrix(...))"
            )


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


def test_modules_of_equinox_and_arrays_without_names():
    """Arrays of Equinox have outputs first, which the transformation does not see; integers stay as they are."""
    key = jax.random.key(1)
    linear = eqx.filter_vmap(lambda key: eqx.nn.Linear(4, 6, key=key))(jax.random.split(key, 3))
    params = {"linear": linear, "own": jax.random.normal(key, (4, 6)), "count": jnp.arange(3)}
    tx = optim.per_matrix(optax.scale_by_factored_rms(min_dim_size_to_factor=2), roles={"own": ("input", "output")})
    state = tx.init(params)
    assert (state.v_row["linear"].weight.shape, state.v_row["own"].shape) == ((3, 4), (4,))
    updates, after = tx.update(params, state, params)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    by_hand_ = optax.scale_by_factored_rms(min_dim_size_to_factor=2)
    for i in range(3):
        matrix = linear.weight[i].T
        expected, _ = by_hand_.update(matrix, by_hand_.init(matrix), matrix)
        np.testing.assert_allclose(updates["linear"].weight[i].T, expected, rtol=1e-5)


def test_parameters_that_no_module_declares():
    own = {"kernel": axn.ones((E, M)), "scale": axn.ones(E)}
    for tx in (optim.per_matrix(optax.sm3(0.1)), optim.muon(0.1)):
        with pytest.raises(ArgumentError) as error:
            tx.init(own)
        name = "per_matrix" if "per_matrix" in str(error.value) else "muon"
        assert str(error.value) == (
            f"{name}: cannot tell which axes of 'kernel' are inputs, and which are outputs\n"
            "  array has: embed=8, mlp=6\n"
            '  hint: give a role for each, such as roles={"kernel": {"embed": "output", "mlp": "output"}}'
        )
    with pytest.raises(ArgumentError) as error:
        optim.per_matrix(optax.sm3(0.1)).init([jnp.ones((2, 3))])
    assert str(error.value).splitlines()[1:] == [
        "  array has: (2, 3)",
        '  hint: give a role for each, such as roles={"0": ("output", ...)}',
    ]
    roles = {"kernel": {"embed": "input", "mlp": "output"}}
    moments = optim.per_matrix(optax.sm3(0.1), roles=roles).init(own)
    assert [x.array.shape for x in axn.tree.leaves(moments) if axn.is_named_array(x)][:2] == [(8,), (6,)]


def test_mistakes():
    with pytest.raises(ArgumentError) as error:
        optim.muon(0.1, per_head=True).init(nn.Linear.init(E, M, key=KEY))
    assert str(error.value) == (
        'muon: no parameter has heads\n  hint: say which axes count them: roles={"heads": "head"}'
    )
    for wrap in (optim.per_matrix, optim.per_layer, optim.on_auto_axes):
        with pytest.raises(OperandError) as error:
            wrap(optax.adam)
        assert str(error.value) == (
            f"{wrap.__name__}: expected a transformation of Optax, got function\n  hint: write optax.adam(1e-3)"
        )
