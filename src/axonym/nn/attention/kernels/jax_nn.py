"""Attention kernels that come with JAX, by names: cuDNN through `jax.nn`, and splash attention for TPUs.

A kernel takes one axis each of batch, positions, heads and features. Of the axes that queries and keys share, the first
becomes the batch and the others heads, each with a group of the heads that only queries have. On a mesh, a kernel runs
on the block of each device: batch and heads may be split, positions and features are gathered.

Reference:
    Dao (2023), FlashAttention-2.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from ....array import NamedArray, is_named_array, named
from ....axis import Axis
from ....errors import ArgumentError, message
from ....layout import explicit, modes
from ....layout.assignment import Mappings, MeshLike
from ....layout.context import context_mesh, current_mapping, taken_axes
from ....layout.partition import entries_from_mapping
from ....names import plans
from ....names.plans import Names
from ....partitioning.shard import auto_sharded
from ....partitioning.shard_map import shard_map
from ..call import KEYS, QUERIES, AttentionCall, rename_all, renamed
from ..masks.conditions import positions, visible
from ..masks.mask import AttentionMask
from ..travel.context import choose_method

FEATURES, OUT = "features of keys", "features of values"  # which no mapping lays out either
# The smallest number of positions for splash attention.
LANES = 128
BLOCK = 512


def choose(call: AttentionCall) -> str:
    """Choose the implementation of a call, by the platform and by what the kernels support."""
    mapping = current_mapping()
    mapped = mapping is not None and call.q_pos is not None and mapping.get(call.q_pos)
    method = choose_method(call)
    if method is not None:
        return method
    if mapped:  # queries are split by position: each device would compute all of them
        return "plain"

    backend = jax.default_backend()
    nvidia = backend == "gpu" and jax.local_devices()[0].device_kind.startswith("NVIDIA")
    if nvidia and next(_against_cudnn(call), None) is None:
        return "cudnn"
    if backend == "tpu" and next(_against_splash(call), None) is None and _keeps_segments(call):
        return "splash"
    return "plain"


def xla(call: AttentionCall) -> NamedArray:
    """Compute attention by `jax.nn.dot_product_attention`, compiled by XLA alone."""
    return _computed("xla", call, _against_jax_nn(call), functools.partial(_by_jax_nn, "xla"))


def cudnn(call: AttentionCall) -> NamedArray:
    """Compute attention by `jax.nn.dot_product_attention` and cuDNN."""
    return _computed("cudnn", call, _against_jax_nn(call), functools.partial(_by_jax_nn, "cudnn"))


def splash(call: AttentionCall) -> NamedArray:
    """Compute attention by the splash kernel, which is simulated on other platforms than TPUs."""
    return _computed("splash", call, _against_splash(call), _by_splash)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The static part of a call: roles of axes, and numbers."""

    batch: Names
    heads: Names
    group: Names
    out_names: Names
    is_structured: bool
    scale: float
    soft_cap: float | None
    block_size: tuple[int, int]

    @property
    def q_heads(self) -> Names:
        """The axes of query heads; each head of keys serves a run of equally many."""
        return self.heads + self.group


def _shared(call: AttentionCall) -> Names:
    """Return the axes that queries and keys share, except features."""
    names = plans.without(call.query.names, (call.feature,))
    return tuple(name for name in names if name in call.keys.names)


def _against(call: AttentionCall) -> Iterator[str]:
    """Yield what no kernel supports."""
    operands = (call.query, call.keys, call.values)
    shared = _shared(call)
    keys = plans.without(call.keys.names, (call.feature,))
    features = plans.without(call.values.names, keys)
    if call.q_pos is None:
        yield "the queries have no axis of positions"
    elif set(call.keys.names) != {*shared, call.k_pos, call.feature}:
        yield "the keys have an axis that the queries lack"
    elif len(features) != 1 or set(call.values.names) != {*shared, call.k_pos, *features}:
        yield "the values must have the axes of the keys, with one axis of features"
    if any(x.array.ndim > len(x.names) for x in operands):
        yield "an array has anonymous dimensions"
    if len({x.dtype for x in operands}) > 1:
        yield "queries, keys and values have different dtypes"
    if call.dtype != jnp.float32 or call.precision is not None:
        yield "it computes scores in float32 only, with a fixed precision"
    if call.dropout:
        yield "it does not support dropout"


def _against_jax_nn(call: AttentionCall) -> Iterator[str]:
    """Yield what `jax.nn.dot_product_attention` does not support."""
    yield from _against(call)
    if call.soft_cap is not None or call.sinks is not None:
        yield "it does not support soft_cap or sinks"
    if call.keys.size != call.values.size:
        yield "keys and values have different numbers of features"


def _against_checks(call: AttentionCall) -> Iterator[str]:
    """Yield that a kernel does not declare over which mesh axes its result varies, which `shard_map` may check."""
    if any(jax.typeof(x.array).mat.varying for x in (call.query, call.keys, call.values)):
        yield "it runs in a shard_map only with check=False"


def _against_cudnn(call: AttentionCall) -> Iterator[str]:
    """Yield what cuDNN does not support, or only with a mask as large as the scores."""
    yield from _against_jax_nn(call)
    yield from _against_checks(call)
    if call.query.dtype not in (jnp.bfloat16, jnp.float16):
        yield "it supports only bfloat16 and float16"
    size = call.query.axis_size(call.feature)
    if size % 8 or size > LANES:
        yield "the number of features must be a multiple of 8, at most 128"
    if call.bias is not None or (call.mask is not None and not _is_causal(call)):
        yield "it supports only causal masks, with or without a window, for as many queries as keys"


def _against_splash(call: AttentionCall) -> Iterator[str]:
    """Yield what the splash kernel does not support."""
    yield from _against(call)
    yield from _against_checks(call)
    if call.query.dtype not in (jnp.bfloat16, jnp.float32):
        yield "it supports only bfloat16 and float32"
    if call.bias is not None or call.sinks is not None:
        yield "it does not support bias or sinks"
    if any(size % LANES for size in _positions(call)):
        yield f"the number of positions must be a multiple of {LANES}"
    mask = call.mask or AttentionMask()
    pairs = itertools.chain.from_iterable(mask.segment_ids)
    ids = [x for x in pairs if x is not None]
    known = {call.q_pos, call.k_pos, *_shared(call)[:1]}
    is_array = mask.explicit is not None or mask.prefix is not None
    if mask.alternatives or is_array or len(mask.segment_ids) > 1:
        yield "it supports only causal masks, windows and segments, combined by &"
    elif not all(known.issuperset(x.names) for x in ids):
        yield "segment ids have an axis other than positions and batch"
    if not isinstance(call.q_start, int) or not isinstance(call.k_start, int):
        yield "q_start and k_start must be Python ints"
    elif _leaves_out(mask, call.q_start - call.k_start, *_positions(call)):
        yield "a query sees no key"


def _positions(call: AttentionCall) -> tuple[int, int]:
    """Return the numbers of positions of queries and keys."""
    return call.query.axis_size(call.q_pos or call.feature), call.keys.axis_size(call.k_pos)


def _leaves_out(mask: AttentionMask, offset: int, queries: int, keys: int) -> bool:
    """Return whether some query sees no key, because all are after it or out of its window."""
    if mask.window is None:
        return mask.causal and offset < 0
    before = 1 if mask.causal else mask.window
    return offset <= -before or queries + offset - keys >= mask.window


def _keeps_segments(call: AttentionCall) -> bool:
    """Return whether each query certainly sees a key of its segment: itself."""
    mask = call.mask
    if mask is None or not mask.segment_ids:
        return True
    if call.q_start != call.k_start:
        return False
    return all(of_keys is None for _, of_keys in mask.segment_ids)


def _is_causal(call: AttentionCall) -> bool:
    """Return whether a mask is only causal, maybe with a window, for as many queries as keys."""
    mask, (queries, keys) = call.mask, _positions(call)
    if mask is None or not mask.causal or mask.prefix is not None:
        return False
    return queries == keys and _is_structured(call)


def _is_structured(call: AttentionCall) -> bool:
    """Return whether `jax.nn` needs no array for a mask: it is causal, then maybe with a window, or has key lengths."""
    mask = call.mask
    if mask is None or mask.alternatives or mask.segment_ids or mask.explicit is not None:
        return False
    if mask.places is not None:
        return False
    start = call.q_start
    if not isinstance(start, int) or not isinstance(call.k_start, int) or start != call.k_start:
        return False
    if mask.window is not None and not mask.causal:
        return False
    if mask.prefix is None:
        return True
    # The prefix is then the number of keys: for all sequences, or for each.
    axes = mask.prefix.names if isinstance(mask.prefix, NamedArray) else ()
    return start == 0 and set(_shared(call)[:1]).issuperset(axes)


def _computed(
    name: str, call: AttentionCall, problems: Iterator[str], kernel: Callable[..., NamedArray]
) -> NamedArray:
    """Run a kernel on the block of each device."""
    problem = next(problems, None)
    if problem is not None:
        text = f"implementation {name!r} does not support this: {problem}"
        hint = '"plain" and "blockwise" do'
        raise ArgumentError(message("dot_product_attention", text, hint=hint))

    shared, q_pos = _shared(call), str(call.q_pos)
    (features,) = plans.without(call.values.names, (*shared, call.k_pos))
    new = {q_pos: QUERIES, call.k_pos: KEYS}
    for_scores, for_values = {**new, call.feature: FEATURES}, {**new, features: OUT}
    plan = _Plan(
        batch=shared[:1],
        heads=shared[1:],
        group=plans.without(call.query.names, (*shared, q_pos, call.feature)),
        out_names=renamed(call.out_names, for_values),
        is_structured=_is_structured(call),
        scale=call.scale,
        soft_cap=call.soft_cap,
        block_size=call.block_size or (BLOCK, BLOCK),
    )
    query, key = rename_all((call.query, call.keys), for_scores)
    operands = query, key, rename_all(call.values, for_values)
    rest = rename_all((call.mask, call.bias, call.q_start, call.k_start), new)
    run = functools.partial(kernel, plan)
    out = _on_mesh(run, *auto_sharded((operands, rest)), check=name == "xla")
    return auto_sharded(rename_all(out, {QUERIES: q_pos, OUT: features}))


def _on_mesh(
    kernel: Callable[..., NamedArray], operands: Any, rest: Any, *, check: bool
) -> NamedArray:
    """Run a kernel once per device, if there is a mesh and a layout.

    Args:
        kernel: a function of `operands` and `rest`.
        operands: queries, keys and values.
        rest: other arrays with axes of the scores.
        check: whether JAX knows over which mesh axes results vary, which most kernels do not declare.
    """
    mapping: Any = current_mapping()
    leaves = jax.tree.leaves((operands, rest), is_leaf=is_named_array)
    given = [x for x in leaves if isinstance(x, NamedArray)]
    if mapping is None and any(explicit.has_explicit_axes(x.array) for x in given):
        names = dict.fromkeys(itertools.chain.from_iterable(x.names for x in operands))
        own, arrays = [x.names for x in given], [x.array for x in given]
        whole = (QUERIES, KEYS, FEATURES, OUT)
        mapping = explicit.choose(plans.without(tuple(names), whole), own, arrays)
    mesh = context_mesh()
    if mapping is None or mesh is None:
        return kernel(operands, rest)
    run: Callable[..., NamedArray] = kernel
    options: dict[str, Any] = {"check": False}
    # A surrounding vmap uses the mesh axes that would be idle here, and fits no check.
    if not taken_axes():
        compute = Mappings(mapping).compute
        manual: set[str] = set()
        for x in given:
            manual.update(*entries_from_mapping(x.names, x.array.shape, compute, mesh).values())
        idle = _free_axes(mesh) - manual
        if check:
            options["check"] = True
        elif idle:
            run, options["manual_axes"] = functools.partial(_on_idle, kernel, idle), tuple(manual)
    out: NamedArray = shard_map(run, mapping, strict=False, **options)(operands, rest)
    return out


def _free_axes(mesh: MeshLike) -> set[str]:
    return set(mesh.axis_names) - modes.find_manual_axes(mesh)


def _on_idle(
    kernel: Callable[..., NamedArray], idle: set[str], operands: object, rest: object
) -> NamedArray:
    """Run a kernel that leaves mesh axes idle: all devices along them compute the same.

    In a `shard_map` without checks, JAX would sum gradients over these axes, and divide them again.
    """
    floating, others = eqx.partition((operands, rest), eqx.is_inexact_array)
    counting, static = eqx.partition(others, eqx.is_array)

    def everywhere(fn: Callable[..., Any]) -> Callable[..., Any]:
        spec = PartitionSpec()
        return jax.shard_map(fn, in_specs=spec, out_specs=spec, axis_names=idle, check_vma=False)

    def call(counting: Any, floating: Any) -> NamedArray:
        return kernel(*eqx.combine(floating, counting, static))

    def forward(counting: object, floating: object) -> Any:
        return everywhere(
            lambda counting, floating: jax.vjp(functools.partial(call, counting), floating)
        )(counting, floating)

    def backward(pull: object, by_out: NamedArray) -> Any:
        return None, *everywhere(lambda pull, by_out: pull(by_out))(pull, by_out)

    run = jax.custom_vjp(everywhere(call))
    run.defvjp(forward, backward)
    out: NamedArray = run(counting, floating)
    return out


def _folded(x: NamedArray, sizes: Mapping[str, int], *groups: Names) -> jax.Array:
    """Return an array with a dimension for each group of axes, of size one if it has none of them."""
    own = [group if set(group) & set(x.names) else () for group in groups]
    names = tuple(itertools.chain(*own))
    missing = [Axis(name, sizes[name]) for name in plans.without(names, x.names)]
    full = x.broadcast_axis(missing).rearrange(names)
    return lax.reshape(full.array, [math.prod(map(sizes.__getitem__, group)) for group in own])


def _unfolded(plan: _Plan, out: jax.Array, sizes: Mapping[str, int], *groups: Names) -> NamedArray:
    """Give the result of a kernel its axes."""
    names = tuple(itertools.chain(*groups))
    return named(lax.reshape(out, [sizes[name] for name in names]), names).rearrange(plan.out_names)


def _by_jax_nn(
    implementation: Literal["xla", "cudnn"], plan: _Plan, operands: Any, rest: Any
) -> NamedArray:
    """Call `jax.nn`."""
    query, key, value = operands
    mask, bias, q_start, k_start = rest
    sizes = {**value.shape, **key.shape, **query.shape}
    seen = None
    if mask is not None and not plan.is_structured:
        queries = positions(query.resolve_axis(QUERIES), q_start)
        keys = positions(key.resolve_axis(KEYS), k_start)
        seen = visible(mask, queries, keys, QUERIES, KEYS)

    q = _folded(query, sizes, plan.batch, (QUERIES,), plan.q_heads, (FEATURES,))
    k = _folded(key, sizes, plan.batch, (KEYS,), plan.heads, (FEATURES,))
    v = _folded(value, sizes, plan.batch, (KEYS,), plan.heads, (OUT,))
    scores = plan.batch, plan.q_heads, (QUERIES,), (KEYS,)
    structure: Any = {}
    if mask is not None and plan.is_structured:
        structure["is_causal"] = mask.causal
        if mask.window is not None:
            structure["local_window_size"] = (mask.window - 1, 0)
        if mask.prefix is not None:
            lengths = mask.prefix
            if isinstance(lengths, NamedArray):
                lengths = _folded(lengths, sizes, plan.batch)
            lengths = jnp.asarray(lengths, jnp.int32)
            structure["key_value_seq_lengths"] = jnp.broadcast_to(lengths, q.shape[:1])

    out = jax.nn.dot_product_attention(
        q,
        k,
        v,
        None if bias is None else _folded(bias.astype(query.dtype), sizes, *scores),
        None if seen is None else _folded(seen, sizes, *scores),
        scale=plan.scale,
        implementation=implementation,
        **structure,
    )
    return _unfolded(plan, out, sizes, plan.batch, (QUERIES,), plan.q_heads, (OUT,))


def _by_splash(plan: _Plan, operands: Any, rest: Any) -> NamedArray:
    """Call the splash kernel."""
    # Imported on use: few need it, and not every build of jaxlib has what it imports.
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    query, key, value = operands
    mask, _, q_start, k_start = rest
    sizes = {**value.shape, **key.shape, **query.shape}
    shape = sizes[QUERIES], sizes[KEYS]
    q = _folded(query * plan.scale, sizes, plan.batch, plan.q_heads, (QUERIES,), (FEATURES,))
    k = _folded(key, sizes, plan.batch, plan.heads, (KEYS,), (FEATURES,))
    v = _folded(value, sizes, plan.batch, plan.heads, (KEYS,), (OUT,))
    ids = None
    if mask is not None and mask.segment_ids:
        ((of_queries, of_keys),) = mask.segment_ids
        if of_keys is None:
            of_keys = of_queries.rename({QUERIES: KEYS})
        both: list[jax.Array] = []
        for x, at in ((of_queries, QUERIES), (of_keys, KEYS)):
            folded = _folded(x, sizes, plan.batch, (at,))
            both.append(jnp.broadcast_to(folded, (q.shape[0], folded.shape[1])))
        ids = library.SegmentIds(*both)

    def run(q: jax.Array, k: jax.Array, v: jax.Array, ids: object, *, interpret: bool) -> Any:
        of_head = _structure(library, mask, shape, q_start - k_start)
        kernel = library.make_splash_mha(
            mask=library.MultiHeadMask([of_head] * q.shape[1]),
            block_sizes=_block_sizes(library, plan, shape),
            head_shards=1,
            q_seq_shards=1,
            attn_logits_soft_cap=plan.soft_cap,
            interpret=interpret,
        )
        return jax.vmap(kernel)(q, k, v, ids)

    ways = {place: functools.partial(run, interpret=place == "cpu") for place in ("cpu", "tpu")}
    out = lax.platform_dependent(q, k, v, ids, **ways)
    return _unfolded(plan, out, sizes, plan.batch, plan.q_heads, (QUERIES,), (OUT,))


def _structure(
    library: Any, mask: AttentionMask | None, shape: tuple[int, int], offset: int
) -> Any:
    """Make the mask of the splash kernel, for conditions on positions."""
    if mask is not None and mask.window is not None:
        before = mask.window - 1
        after = 0 if mask.causal else before
        return library.LocalMask(shape, (before, after), offset)
    if mask is not None and mask.causal:
        return library.CausalMask(shape, offset)
    return library.FullMask(shape)


def _block_sizes(library: Any, plan: _Plan, shape: tuple[int, int]) -> Any:
    """Choose the largest blocks, up to the requested size, that divide the positions."""

    def largest(size: int, most: int) -> int:
        blocks = range(LANES, max(most, LANES) + 1, LANES)
        return max(block for block in blocks if size % block == 0)

    q, kv = map(largest, shape, plan.block_size)
    # For the forward pass, for gradients of keys and values, and for those of queries.
    return library.BlockSizes(q, kv, kv, q, kv, kv, q, kv)
