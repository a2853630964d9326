"""The table of all transformations of Optax, and a small model that each of them trains, stored in two ways."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

import axonym as axn
from axonym import nn, optim, parameters

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


# Ours has the options of that of Optax, and `inject_hyperparams` takes both: numbers, schedules and functions.
MUONS: dict[str, dict[str, Any]] = {
    "optim.muon": {"learning_rate": 0.1},
    "optim.muon, injected": {
        "learning_rate": lambda count: 0.1 / (1 + count),
        "weight_decay": 0.5,
        "weight_decay_mask": matrices,
    },
}


def of_layers(params: Any) -> Any:
    """Return the dimensions of matrices, but not of the table."""
    numbers = jax.tree.map(lambda x: contrib.MuonDimensionNumbers() if getattr(x, "ndim", 0) == 2 else None, params)
    return {**numbers, "table": None}


def transformation(name: str, *, is_named: bool) -> Any:
    """Return what trains a model: what looks at arrays is handed matrices, and what mixes all runs on Auto axes."""
    if name in MUONS:
        factory, own = optim.muon, {}
        if not is_named:
            factory, own = contrib.muon, {"muon_weight_dimension_numbers": of_layers}
        if name.endswith("injected"):
            factory = optax.inject_hyperparams(factory, ("weight_decay_mask", *own))
        return factory(**MUONS[name], **own)
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


ON_MESHES = [
    *("lbfgs", "muon", "ema", "lookahead", "MultiSteps", "inject_hyperparams", "multi_transform", "masked"),
    *("apply_if_finite", "schedule_free", "adafactor", "novograd", "sm3", "clip_by_global_norm", *MUONS),
]
MAPPING = {"embed": "data", "heads": "model"}
