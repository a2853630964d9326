"""GPT-2 in plain JAX, laid out by hand: what Axonym's GPT-2 is measured against.

Dicts, einsum and scan, as a careful user of JAX writes them; no library of modules or of names. The model is
that of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). The layouts are for a
mesh whose axes, "data" and "model", are Auto.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.typing import DTypeLike

Params = dict[str, Any]
Constrain = Callable[[Array, str], Array]
Step = Callable[[Params, optax.OptState, Array], tuple[Params, optax.OptState, Array]]

STRATEGIES = ("dp", "fsdp", "tp", "fsdp+tp")


@dataclass(frozen=True)
class GPT2Config:
    """Sizes of a GPT-2; the defaults are those of its smallest release."""

    vocab: int = 50257
    layers: int = 12
    embed: int = 768
    heads: int = 12
    positions: int = 1024

    @property
    def head_dim(self) -> int:
        return self.embed // self.heads

    @property
    def mlp(self) -> int:
        return 4 * self.embed


def init(key: Array, cfg: GPT2Config) -> Params:
    """Draw float32 parameters as GPT-2 does; those of the blocks are stacked on a leading axis of layers."""
    if cfg.embed % cfg.heads:
        raise ValueError(f"heads must divide embed, got embed={cfg.embed} and heads={cfg.heads}")
    k_wte, k_wpe, k_qkv, k_proj, k_fc, k_out = jax.random.split(key, 6)
    layers, embed, heads, head_dim, mlp = cfg.layers, cfg.embed, cfg.heads, cfg.head_dim, cfg.mlp
    # Two residual branches per layer add up: their outputs are scaled so that the sum keeps its variance.
    residual = 0.02 / math.sqrt(2 * layers)

    def normal(key: Array, std: float, *shape: int) -> Array:
        return std * jax.random.normal(key, shape)

    def norm(*shape: int) -> Params:
        return {"weight": jnp.ones(shape), "bias": jnp.zeros(shape)}

    def linear(key: Array, std: float, *shape: int, bias: tuple[int, ...]) -> Params:
        return {"weight": normal(key, std, layers, *shape), "bias": jnp.zeros((layers, *bias))}

    return {
        "wte": normal(k_wte, 0.02, cfg.vocab, embed),
        "wpe": normal(k_wpe, 0.01, cfg.positions, embed),
        "blocks": {
            "ln_1": norm(layers, embed),
            "qkv": linear(k_qkv, 0.02, embed, 3, heads, head_dim, bias=(3, heads, head_dim)),
            "proj": linear(k_proj, residual, heads, head_dim, embed, bias=(embed,)),
            "ln_2": norm(layers, embed),
            "fc": linear(k_fc, 0.02, embed, mlp, bias=(mlp,)),
            "out": linear(k_out, residual, mlp, embed, bias=(embed,)),
        },
        "ln_f": norm(embed),
    }


def unstack(params: Params, cfg: GPT2Config) -> Params:
    """Return parameters whose blocks are a list of one dict per layer, for `unrolled` programs."""
    blocks = [jax.tree.map(lambda leaf, i=i: leaf[i], params["blocks"]) for i in range(cfg.layers)]
    return {**params, "blocks": blocks}


def layer_norm(p: Params, x: Array) -> Array:
    """Normalise the last axis in float32, whatever the dtype of `x`, which is also that of the result."""
    x32 = x.astype(jnp.float32)
    x32 = x32 - x32.mean(-1, keepdims=True)
    x32 = x32 * lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + 1e-5)
    return (x32 * p["weight"] + p["bias"]).astype(x.dtype)


@jax.custom_jvp
def softmax(x: Array) -> Array:
    """Apply softmax over the last axis, and keep its result alone for the backward pass."""
    return jax.nn.softmax(x, axis=-1)


@softmax.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y = softmax(*primals)
    product = y * tangents[0]
    return y, product - y * product.sum(-1, keepdims=True)


def fused_attention(qkv: Array) -> Array:
    """Do what `attention` does by the kernel of cuDNN, which needs an NVIDIA GPU and half precision."""
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


def attention(qkv: Array, causal: Array, softmax: Callable[[Array], Array] = jax.nn.softmax) -> Array:
    """Attend from (batch, position, 3, heads, head_dim); the result lacks the 3. Softmax is in float32."""
    return attention_apart((qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]), causal, softmax)


def attention_apart(
    qkv: tuple[Array, Array, Array], causal: Array, softmax: Callable[[Array], Array] = jax.nn.softmax
) -> Array:
    """Do what `attention` does, with queries, keys and values apart."""
    q, k, v = qkv
    # Scaling the queries costs positions * head_dim products per head; scaling the scores, positions squared.
    scores = jnp.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k).astype(jnp.float32)
    weights = softmax(jnp.where(causal, scores, -jnp.inf)).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def block(p: Params, x: Array, causal: Array, constrain: Constrain, recompute: bool, fused: bool = False) -> Array:
    """Apply one pre-LayerNorm transformer block to (batch, position, embed)."""
    norm, act, weigh = layer_norm, jax.nn.gelu, jax.nn.softmax
    if recompute:
        norm, act, weigh = jax.checkpoint(layer_norm), jax.checkpoint(jax.nn.gelu), softmax
    h = norm(p["ln_1"], x)
    if "qkv" in p:
        qkv = constrain(jnp.einsum("bse,ethd->bsthd", h, p["qkv"]["weight"]) + p["qkv"]["bias"], "qkv")
        h = fused_attention(qkv) if fused else attention(qkv, causal, weigh)
    else:  # of three weights, as in examples/lm
        names = ("query", "key", "value")
        parts = (jnp.einsum("bse,ehd->bshd", h, p[name]["weight"]) + p[name]["bias"] for name in names)
        h = attention_apart(tuple(parts), causal, weigh)
    h = jnp.einsum("bshd,hde->bse", h, p["proj"]["weight"]) + p["proj"]["bias"]
    x = constrain(x + h, "residual")
    h = norm(p["ln_2"], x)
    h = constrain(jnp.einsum("bse,em->bsm", h, p["fc"]["weight"]) + p["fc"]["bias"], "mlp")
    h = act(h)
    h = jnp.einsum("bsm,me->bse", h, p["out"]["weight"]) + p["out"]["bias"]
    return constrain(x + h, "residual")


def unconstrained(x: Array, kind: str) -> Array:
    """Leave an activation where it is."""
    return x


def gather_small(params: Params, constrain: Constrain) -> Params:
    """Put whole copies of the embeddings and of all layers' vectors over `embed` on every device.

    Under FSDP a look-up in a table that is sharded over `embed` would exchange activations, and a scan would
    gather the vectors of one layer at a time, in the forward and in the backward pass. The price is that the
    gradient of the table is summed over the devices in two parts, that of the look-up and that of the logits.
    """

    def whole(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: constrain(leaf, "whole"), tree)

    if constrain is unconstrained:
        return params
    blocks = dict(params["blocks"])
    for name in ("ln_1", "ln_2"):
        blocks[name] = whole(blocks[name])
    for name in ("proj", "out"):
        blocks[name] = {"weight": blocks[name]["weight"], "bias": whole(blocks[name]["bias"])}
    return {name: whole(p) for name, p in params.items() if name != "blocks"} | {"blocks": blocks}


def forward(
    params: Params,
    tokens: Array,
    cfg: GPT2Config,
    *,
    unrolled: bool = False,
    remat: Callable[..., Any] | None = None,
    recompute: bool = False,
    fused: bool = False,
    constrain: Constrain = unconstrained,
) -> Array:
    """Return logits (batch, position, vocab), in the dtype of the parameters, for tokens (batch, position).

    Args:
        params: as `init` makes them, in any floating dtype; with `unrolled`, blocks are a list, see `unstack`.
        tokens: integers below `cfg.vocab`.
        cfg: the sizes.
        unrolled: write the layers out instead of scanning over them.
        remat: a policy from `jax.checkpoint_policies` that says what a block keeps for its backward pass
            (`nothing_saveable` keeps its input alone); None keeps everything that autodiff wants.
        recompute: keep for the backward pass the inputs of norms and gelu and the results of softmax, and nothing else
            of them.
        fused: attend by the kernel of cuDNN.
        constrain: lays an array out on a mesh, given its kind, a key of `activation_specs`.
    """
    length = tokens.shape[1]
    if length > cfg.positions:
        raise ValueError(f"{length} tokens per sequence, but the model has {cfg.positions} positions")
    params = gather_small(params, constrain)
    x = constrain(params["wte"][tokens] + params["wpe"][:length], "residual")
    causal = jnp.tril(jnp.ones((length, length), bool))

    def layer(x: Array, p: Params) -> Array:
        return block(p, x, causal, constrain, recompute, fused)

    if remat is not None:
        # Inside a scan nothing can be merged across the checkpoint, so the barrier against it is not needed.
        layer = jax.checkpoint(layer, policy=remat, prevent_cse=unrolled)
    if unrolled:
        for p in params["blocks"]:
            x = layer(x, p)
    else:
        x, _ = lax.scan(lambda x, p: (layer(x, p), None), x, params["blocks"])
    return constrain(jnp.einsum("bse,ve->bsv", layer_norm(params["ln_f"], x), params["wte"]), "logits")


def loss(
    params: Params,
    tokens: Array,
    cfg: GPT2Config,
    *,
    compute_dtype: DTypeLike = jnp.float32,
    unrolled: bool = False,
    remat: Callable[..., Any] | None = None,
    recompute: bool = False,
    fused: bool = False,
    constrain: Constrain = unconstrained,
) -> Array:
    """Return the mean cross entropy, in nats, of tokens[:, 1:] given tokens[:, :-1].

    Tokens are (batch, position + 1). The model computes in `compute_dtype`, the cross entropy in float32.
    """
    params = jax.tree.map(lambda p: p.astype(compute_dtype), params)
    logits = forward(
        params,
        tokens[:, :-1],
        cfg,
        unrolled=unrolled,
        remat=remat,
        recompute=recompute,
        fused=fused,
        constrain=constrain,
    )
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def train_step(
    cfg: GPT2Config,
    optimizer: optax.GradientTransformation,
    *,
    compute_dtype: DTypeLike = jnp.float32,
    unrolled: bool = False,
    remat: Callable[..., Any] | None = None,
    recompute: bool = False,
    fused: bool = False,
    constrain: Constrain = unconstrained,
) -> Step:
    """Return the function (params, opt_state, tokens) -> (params, opt_state, loss) of one optimiser step.

    Tokens are (batch, position + 1), or (microbatch, batch, position + 1): then the gradients of the
    microbatches are computed one after the other and averaged. Jit the result with `donate_argnums=(0, 1)`.
    """

    def objective(params: Params, tokens: Array) -> Array:
        return loss(
            params,
            tokens,
            cfg,
            compute_dtype=compute_dtype,
            unrolled=unrolled,
            remat=remat,
            recompute=recompute,
            fused=fused,
            constrain=constrain,
        )

    def step(params: Params, opt_state: optax.OptState, tokens: Array) -> tuple[Params, optax.OptState, Array]:
        if tokens.ndim == 2:
            value, grads = jax.value_and_grad(objective)(params, tokens)
        else:

            def add(total: tuple[Array, Params], tokens: Array) -> tuple[tuple[Array, Params], None]:
                return jax.tree.map(jnp.add, total, jax.value_and_grad(objective)(params, tokens)), None

            zero = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
            total, _ = lax.scan(add, zero, tokens)
            value, grads = jax.tree.map(lambda x: x / tokens.shape[0], total)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return step


def parameter_specs(strategy: str) -> Params:
    """Return the PartitionSpec of every parameter: FSDP shards embed, tensor parallelism heads and mlp."""
    data, model = axes_of(strategy)

    def pair(weight: P, bias: P) -> Params:
        return {"weight": weight, "bias": bias}

    norms = pair(P(None, data), P(None, data))
    return {
        "wte": P(None, data),
        "wpe": P(None, data),
        "blocks": {
            "ln_1": norms,
            "qkv": pair(P(None, data, None, model, None), P(None, None, model, None)),
            "proj": pair(P(None, model, None, data), P(None, data)),
            "ln_2": norms,
            "fc": pair(P(None, data, model), P(None, model)),
            "out": pair(P(None, model, data), P(None, data)),
        },
        "ln_f": pair(P(data), P(data)),
    }


def activation_specs(strategy: str) -> dict[str, P]:
    """Return the PartitionSpec of each kind of array that `forward` constrains; "whole" is for parameters."""
    _, model = axes_of(strategy)
    return {
        "whole": P(),
        "residual": P("data", None, None),
        "qkv": P("data", None, None, model, None),
        "mlp": P("data", None, model),
        "logits": P("data", None, None),
    }


def constrain_on(mesh: Mesh, strategy: str) -> Constrain:
    """Return the `constrain` of `forward` for a strategy on a mesh with the Auto axes "data" and "model"."""
    shardings = {kind: NamedSharding(mesh, spec) for kind, spec in activation_specs(strategy).items()}
    return lambda x, kind: lax.with_sharding_constraint(x, shardings[kind])


def state_shardings(
    cfg: GPT2Config, optimizer: optax.GradientTransformation, mesh: Mesh, strategy: str
) -> tuple[Params, optax.OptState]:
    """Return the shardings of the parameters and of the optimiser's state, whose moments lie as they do."""
    params = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        parameter_specs(strategy),
        is_leaf=lambda node: isinstance(node, P),
    )
    shapes = jax.eval_shape(lambda key: optimizer.init(init(key, cfg)), jax.random.key(0))
    opt_state = optax.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        shapes,
        params,
        transform_non_params=lambda _: NamedSharding(mesh, P()),
    )
    return params, opt_state


def sharded_init(
    key: Array, cfg: GPT2Config, optimizer: optax.GradientTransformation, mesh: Mesh, strategy: str
) -> tuple[Params, optax.OptState]:
    """Draw parameters and optimiser state where they will stay: no device ever holds all of them."""
    params, opt_state = state_shardings(cfg, optimizer, mesh, strategy)
    state = jax.jit(init, static_argnums=1, out_shardings=params)(key, cfg)
    return state, jax.jit(optimizer.init, out_shardings=opt_state)(state)


def sharded_train_step(
    cfg: GPT2Config,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    strategy: str,
    *,
    microbatches: bool = False,
    compute_dtype: DTypeLike = jnp.float32,
    unrolled: bool = False,
    remat: Callable[..., Any] | None = None,
) -> jax.stages.Wrapped:
    """Return `train_step`, jitted with shardings and donation, for state from `sharded_init`.

    `microbatches` says that tokens will have the leading microbatch dimension; their batch is over "data".
    """
    state = state_shardings(cfg, optimizer, mesh, strategy)
    tokens = NamedSharding(mesh, P(None, "data") if microbatches else P("data"))
    step = train_step(
        cfg,
        optimizer,
        compute_dtype=compute_dtype,
        unrolled=unrolled,
        remat=remat,
        constrain=constrain_on(mesh, strategy),
    )
    return jax.jit(
        step,
        in_shardings=(*state, tokens),
        out_shardings=(*state, NamedSharding(mesh, P())),
        donate_argnums=(0, 1),
    )


def axes_of(strategy: str) -> tuple[str | None, str | None]:
    """Return the mesh axis that shards `embed` of the parameters, and the one of heads and `mlp`."""
    if strategy not in STRATEGIES:
        raise ValueError(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")
    return "data" if "fsdp" in strategy else None, "model" if "tp" in strategy.split("+") else None
