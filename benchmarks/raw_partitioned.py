"""GPT-2 and an MLP in plain JAX, partitioned by hand in each of JAX's three modes: what Axonym is measured against.

In Auto mode the program says where arguments, results and activations lie, and the compiler does the rest. In Explicit
mode weights are resharded by hand, and products whose result could be laid out in several ways are told. In Manual mode
the program is that of one device, and names every collective. The mesh has the axes "data" and "model".

All forms compute the same function, so each is written once: `Mode` holds what differs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
import raw_gpt2
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.typing import DTypeLike
from raw_gpt2 import GPT2Config, Params, attention, layer_norm

# Where a strategy stores what: FSDP over "data", tensor parallelism over "model".
STRATEGIES = raw_gpt2.STRATEGIES
# In "auto, whole" weights are gathered before they are used; in "auto" the compiler chooses what to move. In "explicit,
# reduced" the type of a gathered weight says that its gradient may wait, unreduced, to be summed with others.
FORMS = ("auto", "auto, whole", "explicit", "explicit, reduced", "manual")


@dataclass(frozen=True)
class Mode:
    """What differs between the forms of a program.

    Attributes:
        whole: gives a parameter, stored by a spec, as the computation wants it: not split over "data". The last
            argument tells matrices, which nothing but products takes, from vectors and tables.
        laid_out: lays an activation out by a spec.
        product: an einsum of an activation and a weight, whose result is to lie by a spec.
        lookup: rows of a table, whose first dimension is to lie over "data".
        mean: the mean over the batch, of the mean over the local part of it.
    """

    whole: Callable[[Array, P, bool], Array]
    laid_out: Callable[[Array, P], Array]
    product: Callable[[str, Array, Array, P], Array]
    lookup: Callable[[Array, Array], Array]
    mean: Callable[[Array], Array]


def without_data(spec: P) -> P:
    """Return the spec of a weight after it has been gathered."""
    return P(*(None if axis == "data" else axis for axis in spec))


def automatic(mesh: Mesh, *, gather: bool) -> Mode:
    """Make the mode in which the compiler places collectives, between constraints."""

    def constrain(x: Array, spec: P) -> Array:
        return lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return Mode(
        whole=lambda w, spec, matrix: constrain(w, without_data(spec)) if gather else w,
        laid_out=constrain,
        product=lambda equation, x, w, spec: constrain(jnp.einsum(equation, x, w), spec),
        lookup=lambda table, ids: constrain(table[ids], P("data")),
        mean=lambda x: x,
    )


def explicit(*, reduced: bool) -> Mode:
    """Make the mode in which shardings are types; weights that are `reduced` have gradients that are not, yet."""

    def whole(w: Array, spec: P, matrix: bool) -> Array:
        # Only products take an operand whose type says so.
        return jax.reshard(w, P(*without_data(spec), reduced={"data"} if reduced and matrix else set()))

    return Mode(
        whole=whole,
        laid_out=jax.reshard,
        product=lambda equation, x, w, spec: jnp.einsum(equation, x, w, out_sharding=spec),
        lookup=lambda table, ids: table.at[ids].get(out_sharding=P("data", None, None)),
        mean=lambda x: x,
    )


def manual(strategy: str) -> Mode:
    """Make the mode in which the program is one device's, with collectives."""
    sums = "tp" in strategy.split("+")

    def whole(w: Array, spec: P, matrix: bool) -> Array:
        if "data" in spec:
            return lax.all_gather(w, "data", axis=list(spec).index("data"), tiled=True)
        # Varying in type only: the gradients of all layers are then summed after the backward pass, at once.
        return lax.pcast(w, "data", to="varying")

    def product(equation: str, x: Array, w: Array, spec: P) -> Array:
        y = jnp.einsum(equation, x, w)
        x_dims, w_dims = equation.split("->")[0].split(",")
        summed = set(x_dims) & set(w_dims) - set(equation.split("->")[1])
        split = sums and "model" in jax.typeof(x).mat.varying and bool(summed)
        if not split:
            return y
        if "model" in spec:
            return lax.psum_scatter(y, "model", scatter_dimension=list(spec).index("model"), tiled=True)
        return lax.psum(y, "model")

    return Mode(
        whole=whole,
        laid_out=lambda x, spec: x,
        product=product,
        lookup=lambda table, ids: table[ids],
        mean=lambda x: lax.pmean(x, "data"),
    )


def mode_of(form: str, mesh: Mesh, strategy: str) -> Mode:
    """Return the mode of one of `FORMS`."""
    if form.startswith("auto"):
        return automatic(mesh, gather=form == "auto, whole")
    return explicit(reduced=form == "explicit, reduced") if form.startswith("explicit") else manual(strategy)


def is_spec(x: Any) -> bool:
    """Tell a spec from a tree of them."""
    return isinstance(x, P)


# GPT-2


def is_matrix(path: Any) -> bool:
    """Tell, by its path, a weight that a block multiplies by."""
    layer, leaf = (str(getattr(key, "key", key)) for key in ("", *path)[-2:])
    return leaf == "weight" and layer in ("qkv", "proj", "fc", "out")


def keep_all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Let the backward pass gather matrices again: kept, those of all layers would be on every device at once."""
    return primitive.name not in ("all_gather", "reshard", "sharding_constraint")


def gpt2_loss(
    params: Params,
    tokens: Array,
    cfg: GPT2Config,
    mode: Mode,
    strategy: str,
    compute_dtype: DTypeLike = jnp.float32,
) -> Array:
    """Return the mean cross entropy of `raw_gpt2.loss`, from and in the layout of a mode."""
    specs = raw_gpt2.parameter_specs(strategy)
    activations = raw_gpt2.activation_specs(strategy)
    params = jax.tree.map(lambda p: p.astype(compute_dtype), params)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    length = inputs.shape[1]

    def early(path: Any, p: Array, spec: P) -> Array:
        # A layer gathers its matrices itself. Vectors and tables are gathered once, before the loop.
        matrix = is_matrix(path)
        return p if matrix and "data" in spec else mode.whole(p, spec, matrix)

    def late(path: Any, p: Array, spec: P) -> Array:
        return mode.whole(p, P(*spec[1:]), True) if is_matrix(path) and "data" in spec else p

    params = jax.tree.map_with_path(early, params, specs)
    x = mode.laid_out(mode.lookup(params["wte"], inputs) + params["wpe"][:length], activations["residual"])
    causal = jnp.tril(jnp.ones((length, length), bool))

    @functools.partial(jax.checkpoint, policy=keep_all_but_gathered, prevent_cse=False)
    def layer(x: Array, p: Params) -> Array:
        p = jax.tree.map_with_path(late, p, specs["blocks"])
        h = layer_norm(p["ln_1"], x)
        qkv = mode.product("bse,ethd->bsthd", h, p["qkv"]["weight"], activations["qkv"]) + p["qkv"]["bias"]
        h = attention(qkv, causal)
        h = mode.product("bshd,hde->bse", h, p["proj"]["weight"], activations["residual"]) + p["proj"]["bias"]
        x = mode.laid_out(x + h, activations["residual"])
        h = layer_norm(p["ln_2"], x)
        h = mode.product("bse,em->bsm", h, p["fc"]["weight"], activations["mlp"]) + p["fc"]["bias"]
        h = jax.nn.gelu(h, approximate=True)
        h = mode.product("bsm,me->bse", h, p["out"]["weight"], activations["residual"]) + p["out"]["bias"]
        return mode.laid_out(x + h, activations["residual"])

    x, _ = lax.scan(lambda x, p: (layer(x, p), None), x, params["blocks"])
    logits = mode.product("bse,ve->bsv", layer_norm(params["ln_f"], x), params["wte"], activations["logits"])
    logits = logits.astype(jnp.float32)
    # A comparison in the place of a gather: it needs no out_sharding, and its backward pass no scatter.
    picked = jnp.where(lax.broadcasted_iota(jnp.int32, logits.shape, 2) == targets[..., None], logits, 0).sum(-1)
    return mode.mean((jax.nn.logsumexp(logits, axis=-1) - picked).mean())


# MLP


@dataclass(frozen=True)
class MLPConfig:
    """Sizes of an MLP with `depth` hidden layers."""

    features: int = 256
    width: int = 1024
    classes: int = 256
    depth: int = 3


def mlp_init(key: Array, cfg: MLPConfig) -> list[Params]:
    """Draw the weight and the bias of each layer."""
    sizes = [cfg.features, *[cfg.width] * cfg.depth, cfg.classes]
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"weight": jax.random.normal(k, (n, m)) * n**-0.5, "bias": jnp.zeros(m)}
        for k, n, m in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def mlp_specs(cfg: MLPConfig, strategy: str) -> list[dict[str, P]]:
    """Return the specs of the parameters: FSDP shards one side of a weight, tensor parallelism the other.

    The hidden dimension is split over "model", whether it goes in or out; between two hidden layers, it goes in.
    """
    data, model = raw_gpt2.axes_of(strategy)
    specs = []
    for i in range(cfg.depth + 1):
        last = i == cfg.depth
        if data and not model:
            weight, bias = (P(data, None), P(None)) if i else (P(None, data), P(data))
            bias = P(None) if last else P(data)
        else:
            weight = P(model, data) if i else P(data, model)
            bias = P(data) if last else P(model)
        specs.append({"weight": weight, "bias": bias})
    return specs


def mlp_loss(
    params: list[Params],
    batch: Array,
    cfg: MLPConfig,
    mode: Mode,
    strategy: str,
    compute_dtype: DTypeLike = jnp.float32,
) -> Array:
    """Return the mean square of the difference to the targets; the batch holds features and, behind them, targets."""
    _, model = raw_gpt2.axes_of(strategy)
    params = jax.tree.map(lambda p: p.astype(compute_dtype), params)
    params = jax.tree.map(lambda p, spec: mode.whole(p, spec, p.ndim > 1), params, mlp_specs(cfg, strategy))
    x, targets = batch[:, : cfg.features].astype(compute_dtype), batch[:, cfg.features :]
    for i, layer in enumerate(params):
        last = i == cfg.depth
        x = mode.product("bi,io->bo", x, layer["weight"], P("data", None if last else model)) + layer["bias"]
        x = x if last else jax.nn.relu(x)
    return mode.mean(jnp.square(x.astype(jnp.float32) - targets).mean())


# Training steps


@dataclass(frozen=True)
class Model:
    """A model to partition: how its parameters are drawn and stored, and its loss."""

    init: Callable[[Array], Any]
    specs: Callable[[str], Any]
    loss: Callable[..., Array]


def gpt2(cfg: GPT2Config, compute_dtype: DTypeLike = jnp.float32) -> Model:
    """Return GPT-2 of these sizes."""
    loss = functools.partial(gpt2_loss, cfg=cfg, compute_dtype=compute_dtype)
    return Model(lambda key: raw_gpt2.init(key, cfg), raw_gpt2.parameter_specs, loss)


def mlp(cfg: MLPConfig, compute_dtype: DTypeLike = jnp.float32) -> Model:
    """Return an MLP of these sizes."""
    loss = functools.partial(mlp_loss, cfg=cfg, compute_dtype=compute_dtype)
    return Model(lambda key: mlp_init(key, cfg), functools.partial(mlp_specs, cfg), loss)


def state_specs(model: Model, optimizer: optax.GradientTransformation, strategy: str) -> tuple[Any, Any]:
    """Return the specs of the parameters and of the optimiser's state, whose moments lie as they do."""
    specs = model.specs(strategy)
    shapes = jax.eval_shape(lambda key: optimizer.init(model.init(key)), jax.random.key(0))
    moments = optax.tree_map_params(optimizer, lambda _, spec: spec, shapes, specs, transform_non_params=lambda _: P())
    return specs, moments


def train_step(
    model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, strategy: str, form: str
) -> jax.stages.Wrapped:
    """Return the jitted function (params, opt_state, batch) -> (params, opt_state, loss) in one of `FORMS`.

    The mesh has axes of that type: Auto, also for the manual form, or Explicit. Arguments lie by `state_specs`, and the
    batch over "data"; the state is donated.
    """
    mode = mode_of(form, mesh, strategy)

    def step(params: Any, opt_state: Any, batch: Array) -> tuple[Any, Any, Array]:
        loss, grads = jax.value_and_grad(model.loss)(params, batch, mode=mode, strategy=strategy)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    if form.startswith("explicit"):
        return jax.jit(step, donate_argnums=(0, 1))
    state = state_specs(model, optimizer, strategy)
    if form == "manual":
        step = jax.shard_map(step, mesh=mesh, in_specs=(*state, P("data")), out_specs=(*state, P()))
        return jax.jit(step, donate_argnums=(0, 1))
    laid_out = jax.tree.map(lambda spec: NamedSharding(mesh, spec), (*state, P("data"), P()), is_leaf=is_spec)
    return jax.jit(step, in_shardings=laid_out[:3], out_shardings=(*laid_out[:2], laid_out[3]), donate_argnums=(0, 1))
