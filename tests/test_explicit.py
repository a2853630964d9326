"""On meshes with Explicit axes nothing ends in an ambiguity, whatever layouts the operands have.

What the tables of `tests/ops` cover is not repeated here. Where only types can be wrong, a function is traced and not
compiled.
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from measure import collectives, totals

import axonym as axn
from axonym import nn, random
from tests.laws import count_equations

pytestmark = pytest.mark.sampled

A, B, C, D = axn.make_axes(a=8, b=8, c=8, d=8)
SIZES = {"a": 8, "b": 8, "c": 8, "d": 8}
LAYOUTS: list[dict[str, Any]] = [
    {"a": "data", "b": "model"},
    {"b": "data", "a": "model"},
    {"c": ("model", "data")},
    {"b": ("data", "model")},
    {},
]
MAPPINGS: list[dict[str, Any] | None] = [None, {"b": "data"}, {"a": ("data", "model")}, {"c": "data", "a": "model"}]


@pytest.fixture(params=["explicit", "explicit-auto", "auto-explicit"])
def mesh(request: pytest.FixtureRequest) -> Mesh:
    explicit, auto = AxisType.Explicit, AxisType.Auto
    types = {"explicit": (explicit, explicit), "explicit-auto": (explicit, auto), "auto-explicit": (auto, explicit)}
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=types[request.param])


def drawn(names: str, seed: int = 0) -> axn.NamedArray:
    array = np.random.default_rng(seed).uniform(0.1, 0.9, [SIZES[name] for name in names])
    # `jnp.asarray` would compile a program for each shape and mesh.
    place = None if jax.sharding.get_abstract_mesh().empty else PartitionSpec()
    return axn.named(jax.device_put(array.astype(np.float32), place), tuple(names))


def spread(tree: Any, layout: dict[str, Any]) -> Any:
    """Lay out a tree that comes from the host: to cut up an array of a device takes a program for each shape."""
    return axn.shard(jax.device_get(tree), layout, strict=False)


def under(mapping: dict[str, Any] | None) -> Any:
    return nullcontext() if mapping is None else axn.axis_mapping(mapping)


def explicit_part(spec: PartitionSpec, mesh: Mesh) -> list[tuple[str, ...]]:
    """List the Explicit mesh axes of each dimension."""
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    entries = [(part,) if isinstance(part, str) else tuple(part or ()) for part in spec]
    return [tuple(axis for axis in entry if types[axis] is AxisType.Explicit) for entry in entries]


def same(result: Any, expected: Any, atol: float = 1e-5) -> None:
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=atol)


def creation(x: axn.NamedArray, y: axn.NamedArray, w: axn.NamedArray) -> Any:
    start = x["a", 0, "b", 0, "c", 0].array
    plane = x["c", 0]
    return [
        *(axn.zeros((A, B)), axn.full((A, B), start), axn.full_like(x, start), axn.zeros_like(y), axn.ones_like(w)),
        *(axn.arange((A, B), start=start), axn.linspace(D, start=plane, stop=1), axn.geomspace(D, start=1, stop=plane)),
        *(axn.eye(A, B), axn.tri(A, "c"), axn.hanning(A), axn.kaiser(B, start), axn.fftfreq(A, start)),
        *(axn.fromfunction(lambda a, b: a + b, (A, B)), axn.one_hot((x * 8).astype(int), D)),
    ]


def samplers(x: axn.NamedArray, y: axn.NamedArray, w: axn.NamedArray) -> Any:
    key, axes, p, row = jax.random.key(0), (A, B, C), x, w["d", 0]
    free = (random.normal, random.uniform, random.bits, random.gumbel, random.laplace, random.logistic, random.cauchy)
    one = (random.bernoulli, random.exponential, random.rademacher, random.maxwell)
    shaped = (random.gamma, random.loggamma, random.poisson, random.pareto, random.t, random.chisquare, random.wald)
    two = (random.beta, random.f, random.weibull_min, random.double_sided_maxwell, random.truncated_normal)
    scaled = (random.generalized_normal, random.geometric, random.lognormal, random.rayleigh)
    return [
        *(sample(key, axes) for sample in (*free, *one)),
        *(sample(key, axes, p) for sample in (random.bernoulli, *shaped, *scaled)),
        *(sample(key, axes, p, y + 1) for sample in two),
        *(random.uniform(key, axes, minval=p, maxval=row + 1), random.randint(key, axes, 0, (row * 9).astype(int))),
        *(random.triangular(key, axes, 0.0, p, row + 1), random.binomial(key, axes, 3, p)),
        *(random.ball(key, (A, B), D), random.orthogonal(key, A, C, D), random.dirichlet(key, (A, B), p, "c")),
        *(random.categorical(key, p, "c"), random.categorical(key, p, "b", (A, C, D))),
        random.multinomial(key, (A, B), 5, p / p.sum("c"), "c"),
        *(random.choice(key, D, p, "b"), random.choice(key, D, A, p=p["b", 0, "c", 0] / p["b", 0, "c", 0].sum())),
        *(random.permutation(key, x, "a"), random.permutation(key, x, "b", independent=True)),
        random.multivariate_normal(key, (B,), p["b", 0, "a", 0], axn.eye(C, "c2"), "c", "c2"),
        axn.vmap(lambda key: random.normal(key, (B, C)), "a")(random.split(key, A)),
    ]


def loops(x: axn.NamedArray, y: axn.NamedArray, w: axn.NamedArray) -> Any:
    carry = w["d", 0] * x["a", 0]

    def step(carry: axn.NamedArray, x: axn.NamedArray, y: axn.NamedArray) -> Any:
        return axn.tanh(carry + x * y), axn.dot(carry, w, axis="c")

    return [
        axn.scan(step, "a")(carry, x, y),
        axn.scan(step, "a", reverse=True, remat=True, unroll=2)(carry, x, y),
        axn.scan(step, "a", remat="nested")(carry, x, y),
        axn.fold(lambda carry, x: carry + x, "b")(x["b", 0], y),
        axn.map(lambda x, y: axn.dot(x, y, axis="c"), "b")(x, y),
    ]


def maps(x: axn.NamedArray, y: axn.NamedArray, w: axn.NamedArray) -> Any:
    return [
        axn.vmap(lambda x, y: axn.dot(x, y, axis="c"), "a")(x, y),
        axn.vmap(lambda x, y: axn.dot(x, y, axis="c"), ("a", "b"))(x, y),
        axn.vmap(lambda x, w: axn.dot(axn.auto_sharded(x), w, axis="c").rearrange("b d -> (bd: b d)"), "a")(x, w),
        axn.vmap(lambda x, y: axn.select([x > 0.5], [y]), "a")(x, y),
        axn.vmap(lambda x, y: axn.scan(lambda c, x: (c + x, c), "b")(x["b", 0], y)[1], "a")(x, y),
        axn.nmap(jnp.dot)(x.untag("c"), y.untag("c")),
    ]


def contractions(x: axn.NamedArray, y: axn.NamedArray, w: axn.NamedArray) -> Any:
    return [
        axn.einsum("{a b c}, {b c a}, {c d} -> d a b", x, y, w),
        axn.dot(x, y, w, axis=("b", "c")),
        axn.dot(x, y, axis=None),
        axn.dot(x, w, axis="c", dot_general=lambda *args, **options: jax.lax.dot_general(*args, **options)),
        x.prod("b"),
        x.astype(jnp.bfloat16).astype("int8"),
        x.at["a", axn.named(jnp.array([1, 3]), "d"), "b", 2:4].add(w.rename({"c": "b"})["b", 2:4, "d", :2]),
        x.at["b", 1].set(y["b", 1]),
        jax.lax.cond(True, lambda x: x * 2, lambda x: x + 1, x),
        jax.checkpoint(lambda x: axn.tanh(axn.dot(x, w, axis="c")))(x),
    ]


def references(x: axn.NamedArray, y: axn.NamedArray, w: axn.NamedArray) -> Any:
    ref = axn.new_ref(x)
    ref["a", 0] = y["a", 0]
    part = ref.slice({"a": slice(2, 6)})
    part["b", 1] = 2.0
    before = axn.swap(ref, {"a": axn.named(jnp.array([1, 3]), "d")}, w.rename({"c": "b"})["d", :2])
    return before, part["a", 0], axn.freeze(ref), axn.nmap(jnp.sort)(x.untag("c")).tag("c")


def derivatives(x: axn.NamedArray, y: axn.NamedArray, w: axn.NamedArray) -> Any:
    other, plane = {"c": "c2", "d": "d2"}, x["a", 0]
    return [
        axn.grad(lambda w: (axn.dot(x, w, axis="c") ** 2).sum())(w),
        axn.jacrev(lambda w: axn.dot(plane, w, axis="c"), rename=other)(w),
        axn.jacfwd(lambda w: axn.dot(plane, w, axis="c"), rename=other)(w),
        axn.hessian(lambda w: (w**3).sum(), rename=other)(w),
        jax.jvp(lambda x: axn.dot(x, w, axis="c"), (x,), (y.rearrange(x.names),)),
    ]


FUNCTIONS = [creation, samplers, loops, maps, contractions, references, derivatives]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_accepts_layouts_that_exclude_each_other(fn: Callable[..., Any], mesh: Mesh) -> None:
    def typed(names: str, layout: dict[str, Any]) -> axn.NamedArray:
        sharding = NamedSharding(mesh, PartitionSpec(*(layout.get(name) for name in names)))
        shape = tuple(SIZES[name] for name in names)
        return axn.NamedArray(jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding), tuple(names))

    with jax.set_mesh(mesh):
        for i, mapping in enumerate(MAPPINGS):
            own = [LAYOUTS[(i + j) % len(LAYOUTS)] for j in range(3)]
            with under(mapping):
                jax.eval_shape(fn, *map(typed, ("abc", "bca", "cd"), own))


@pytest.mark.parametrize("fn", [loops, maps, contractions], ids=lambda fn: fn.__name__)
def test_has_gradients_for_layouts_that_exclude_each_other(fn: Callable[..., Any], mesh: Mesh) -> None:
    def total(*named: axn.NamedArray) -> jax.Array:
        floats = [leaf for leaf in jax.tree.leaves(fn(*named)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
        return sum((leaf.astype(jnp.float32).sum() for leaf in floats), jnp.zeros(()))

    with jax.set_mesh(mesh):
        named = [spread(drawn(*pair), layout) for pair, layout in zip(OPERANDS, LAYOUTS, strict=False)]
        for mapping in MAPPINGS[:2]:
            with under(mapping):
                jax.eval_shape(jax.grad(total, (0, 1, 2)), *named)


OPERANDS = [("abc", 0), ("bca", 1), ("cd", 2)]


@pytest.mark.parametrize("fn", [maps, contractions, references], ids=lambda fn: fn.__name__)
def test_has_the_values_of_one_device(fn: Callable[..., Any], mesh: Mesh) -> None:
    expected = jax.jit(fn)(*(drawn(*pair) for pair in OPERANDS))
    with jax.set_mesh(mesh):
        named = [spread(drawn(*pair), layout) for pair, layout in zip(OPERANDS, LAYOUTS, strict=False)]
        with axn.axis_mapping({"c": "data", "a": "model"}):
            same(jax.jit(fn)(*named), expected)


def test_lays_out_both_kinds_of_axes_outside_of_jit(mesh: Mesh) -> None:
    mapping = {"a": "data", "b": "model"}
    with jax.set_mesh(mesh), axn.axis_mapping(mapping):
        x, y = axn.shard(drawn("ac"), {"c": "data"}), axn.shard(drawn("bc", 1), {"b": "data"})
        product = axn.dot(x, y, axis="c")
        assert product.sharding.is_equivalent_to(NamedSharding(mesh, axn.pspec_for(product)), 2)
        np.testing.assert_allclose(product.array, np.asarray(x.array) @ np.asarray(y.array).T, rtol=1e-5)
        layer = nn.Linear.init(C, B, key=jax.random.key(0))(x)  # a program of its own in jax.checkpoint
        assert layer.sharding.is_equivalent_to(NamedSharding(mesh, axn.pspec_for(layer)), 2)


def test_keeps_away_from_mesh_axes_that_a_vmap_has_taken(mesh: Mesh) -> None:
    with jax.set_mesh(mesh), axn.axis_mapping({"b": "data"}):
        x, y = axn.shard(drawn("ab"), {"a": "data"}), axn.shard(drawn("bc"), {"b": "data"})
        result = jax.jit(axn.vmap(lambda x: axn.dot(x, y.rename({"b": "e"}), axis=()), "a"))(x)
        same(axn.einsum("{a b}, {e c} -> a b e c", *(z for z in (drawn("ab"), drawn("bc").rename({"b": "e"})))), result)


# A small transformer, and how it may be laid out.
Batch, Pos, Embed, Mlp, Heads, Head, Vocab, Layers = axn.make_axes(
    batch=8, pos=4, embed=8, mlp=16, heads=2, head=4, vocab=16, layers=2
)
KeyPos = Pos.derive("key")
TP = {"mlp": "model", "heads": "model", "vocab": "model"}
PLANS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dp": ({}, {"batch": ("data", "model")}),
    "fsdp": ({"embed": "data"}, {"batch": "data"}),
    "tp": (TP, TP),
    "fsdp-tp": ({**TP, "embed": "data"}, {**TP, "batch": "data"}),
}


class Block(eqx.Module):
    norm: nn.LayerNorm
    qkv: tuple[nn.Linear, ...]
    out: nn.Linear
    up: nn.Linear
    down: nn.Linear

    @staticmethod
    def init(*, key: jax.Array) -> "Block":
        keys = jax.random.split(key, 6)
        qkv = tuple(nn.Linear.init(Embed, (Heads, Head), key=k) for k in keys[:3])
        out = nn.Linear.init((Heads, Head), Embed, key=keys[3])
        up, down = nn.Linear.init(Embed, Mlp, key=keys[4]), nn.Linear.init(Mlp, Embed, key=keys[5])
        return Block(nn.LayerNorm.init(Embed), qkv, out, up, down)

    def __call__(self, x: axn.NamedArray) -> axn.NamedArray:
        h = self.norm(x)
        query, key, value = (linear(h) for linear in self.qkv)
        key, value = (z.rename({Pos: KeyPos}) for z in (key, value))
        mask = nn.causal_mask(Pos, KeyPos)
        x = x + self.out(nn.dot_product_attention(Pos, KeyPos, Head, query, key, value, mask=mask))
        return x + self.down(nn.gelu(self.up(self.norm(x))))


class Transformer(eqx.Module):
    embedding: nn.Embedding
    blocks: nn.Stacked[Block]

    @staticmethod
    def init(key: jax.Array) -> "Transformer":
        one, two = jax.random.split(key)
        blocks = nn.Stacked.init(Layers, Block, gradient_checkpointing=True)(key=jax.random.split(two, Layers.size))
        return Transformer(nn.Embedding.init(Vocab, Embed, key=one), blocks)

    def __call__(self, ids: axn.NamedArray) -> axn.NamedArray:
        return self.embedding.unembed(self.blocks.fold(self.embedding(ids)))


# Keys have a bias whose gradient is nothing but rounding, which adam would blow up.
OPTIMIZER = optax.adam(1e-2, eps=1e-3)


def train(model: Any, state: Any, ids: axn.NamedArray, targets: axn.NamedArray) -> Any:
    def loss(model: Any) -> jax.Array:
        return nn.cross_entropy_loss(model(ids), Vocab, targets).mean().scalar()

    value, gradients = eqx.filter_value_and_grad(loss)(model)
    updates, state = OPTIMIZER.update(gradients, state, model)
    return eqx.apply_updates(model, updates), state, value


@pytest.fixture(scope="module")
def start() -> tuple[Any, ...]:
    """A model, the state of its optimiser, ids and targets."""
    rng = np.random.default_rng(0)
    shapes = eqx.filter_eval_shape(Transformer.init, jax.random.key(0))
    model = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.3, x.shape), x.dtype), shapes)
    tokens = rng.integers(0, 16, (2, 8, 4))
    ids, targets = (axn.named(part, ("batch", "pos")) for part in tokens)
    return model, OPTIMIZER.init(eqx.filter(model, eqx.is_array)), ids, targets


@pytest.fixture(scope="module")
def trained(start: tuple[Any, ...]) -> Any:
    return eqx.filter_jit(train)(*start)


@pytest.mark.parametrize("plan", PLANS)
def test_a_training_step_has_the_values_of_one_device(
    plan: str, start: tuple[Any, ...], trained: Any, explicit_mesh: Mesh, mixed_mesh: Mesh
) -> None:
    parameters, compute = PLANS[plan]
    for mesh in (explicit_mesh, mixed_mesh) if plan == "fsdp-tp" else (explicit_mesh,):
        with jax.set_mesh(mesh):
            stored, data = spread(start[:2], parameters), spread(start[2:], compute)
            step = axn.named_jit(train, axn.Mappings(parameters, compute), strict=False)
            same(step(*stored, *data), trained, atol=2e-4)


@pytest.mark.parametrize("plan", ["dp", "fsdp-tp"])
def test_a_training_step_accepts_any_other_mapping(plan: str, start: tuple[Any, ...], mesh: Mesh) -> None:
    dynamic, static = eqx.partition(start, eqx.is_array)

    def step(dynamic: Any) -> Any:
        return eqx.filter(train(*eqx.combine(dynamic, static)), eqx.is_array)

    others: list[dict[str, Any] | None] = [None, {"pos": "data", "embed": "model"}, {"heads": "model", "batch": "data"}]
    with jax.set_mesh(mesh):
        laid_out = spread(dynamic, PLANS[plan][0] | PLANS[plan][1] | {"embed": None})
        for mapping in others:
            with under(mapping):
                jax.eval_shape(step, laid_out)


@pytest.mark.parametrize("plan", ["fsdp", "fsdp-tp"])
def test_types_agree_with_the_mapping(plan: str, start: tuple[Any, ...], mesh: Mesh) -> None:
    parameters, compute = PLANS[plan]
    block = jax.tree.map(lambda x: x["layers", 0], start[0].blocks.stacked, is_leaf=axn.is_named_array)

    def results(embedding: nn.Embedding, block: Block, ids: axn.NamedArray) -> list[axn.NamedArray]:
        x = embedding(ids)
        wide = block.up(x)
        made = [axn.zeros((Batch, Mlp)), random.normal(jax.random.key(0), (Batch, Embed)), axn.auto_sharded(x)]
        products = [
            axn.dot(x, wide, axis="pos"),
            axn.einsum("{batch pos embed}, {mlp} -> batch mlp", x, wide["pos", 0]),
        ]
        return [x, wide, block.down(wide), block.qkv[0](x), embedding.unembed(x), *made, *products[:1]]

    with jax.set_mesh(mesh), axn.axis_mapping(compute):
        stored = spread((start[0].embedding, block), parameters)
        ids = spread(start[2], compute)

        @jax.jit
        def check(ids: axn.NamedArray) -> None:
            for x in results(*stored, ids):
                assert explicit_part(jax.typeof(x.array).sharding.spec, mesh) == explicit_part(axn.pspec_for(x), mesh)

        check(ids)


def test_takes_layers_out_of_a_stack_that_is_split_over_them(mesh: Mesh) -> None:
    class Plain(eqx.Module):
        weight: jax.Array

    array = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    with jax.set_mesh(mesh):
        weight = jax.device_put(array, NamedSharding(mesh, PartitionSpec("data", "model")))
        stacked = nn.Stacked(Plain(weight), A, axn.ScanCheckpointPolicy())
        np.testing.assert_array_equal(stacked.get_layer(5).weight, array[5])
        for layer, expected in zip(stacked.unstacked(), array, strict=True):
            np.testing.assert_array_equal(layer.weight, expected)


WITHOUT_A_MESH: dict[str, Callable[[axn.NamedArray, axn.NamedArray], axn.NamedArray]] = {
    "add": lambda x, y: x + y,
    "where": lambda x, y: axn.where(y > 0.5, x, y),
    "dot": lambda x, y: axn.dot(x, y, axis="b"),
    "concatenate": lambda x, y: axn.concatenate("a", [x, y]),
    "solve": lambda x, y: axn.linalg.solve(x + axn.eye(A, B) * 9, y["b", 0], "a", "b"),
    "vmap": lambda x, y: axn.vmap(lambda x, y: x["b", 0] * y.sum(), "a")(x, y),
    "vmap over one": lambda x, y: axn.vmap(lambda y: y.sum(), "c")(y.rename({"a": "c"})) + x["a", 0, "b", 0],
    "scalar": lambda x, y: x * 2 + y["a", 0, "b", 0],
    "index": lambda x, y: x["b", integers(y["b", 0])],
    "index by two arrays": lambda x, y: x["a", integers(y["a", 0]), "b", integers(y["a", 1])],
    "take": lambda x, y: axn.take(x, "b", integers(y).rename({"a": "c", "b": "d"})),
    "take_along_axis": lambda x, y: axn.take_along_axis(x, integers(y), "b"),
    "embedding": lambda x, y: nn.Embedding(x, B, (A,))(integers(y["b", 0]).rename({"a": "c"})),
}


def integers(x: axn.NamedArray) -> axn.NamedArray:
    return (x * 8).astype(int)


@pytest.mark.parametrize("name", WITHOUT_A_MESH)
def test_meets_an_array_that_was_made_without_a_mesh_where_no_mesh_is_current(name: str) -> None:
    x, y = drawn("ab"), drawn("ab", seed=1)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with axn.set_mesh(mesh):
        placed = axn.shard(x, {"a": "data", "b": "model"})
    f = WITHOUT_A_MESH[name]
    expected, turned = jax.jit(lambda x, y: (f(x, y), f(y, x)))(x, y)
    same(f(placed, y), expected)
    same(f(y, placed), turned)


def test_a_mapping_without_a_current_mesh_leaves_a_product_as_its_operands_lie() -> None:
    x, y = drawn("ab"), drawn("bc", seed=1)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with axn.set_mesh(mesh):
        placed = axn.shard(x, {"a": "data"})
    with axn.axis_mapping({"a": "data", "c": "model"}):
        product = axn.dot(placed, y, axis="b")
    assert product.sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec("data", None)), 2)
    np.testing.assert_allclose(product.array, np.asarray(x.array) @ np.asarray(y.array), rtol=1e-5)


# A function of named arrays x and i, the same in raw JAX, the names of i, and how x and i lie.
Raw = Callable[[jax.Array, jax.Array], jax.Array]
READS: dict[str, tuple[Callable[[axn.NamedArray, axn.NamedArray], axn.NamedArray], Raw, str, dict[str, Any]]] = {
    "an axis in common": (
        lambda x, i: x["c", i],
        lambda x, i: jnp.take_along_axis(x, i[..., None], 2)[..., 0],
        "ab",
        {"a": "data"},
    ),
    "an axis in common, in the middle": (
        lambda x, i: x["b", i],
        lambda x, i: jax.vmap(lambda x, i: x[i])(x, i),
        "ad",
        {"a": ("data", "model")},
    ),
    "take": (
        lambda x, i: axn.take(x, "c", i),
        lambda x, i: jnp.take_along_axis(x, i[..., None], 2)[..., 0],
        "ab",
        {"a": "data", "b": "model"},
    ),
    "take_along_axis": (
        lambda x, i: axn.take_along_axis(x, i, "c"),
        lambda x, i: jnp.take_along_axis(x, i, 2),
        "abc",
        {"a": "data"},
    ),
    "a split table": (
        lambda x, i: x["a", 0]["b", i],
        lambda x, i: x[0].at[i].get(out_sharding=PartitionSpec("data", None)),
        "d",
        {"b": "model", "d": "data"},
    ),
    "an even slice": (lambda x, i: x["c", 1:7], lambda x, i: x[..., 1:7], "a", {"a": "data", "c": "model"}),
    "every second": (lambda x, i: x["c", ::2], lambda x, i: x[..., ::2], "a", {"a": "data", "c": "model"}),
    "a position of a split axis": (
        lambda x, i: x["a", 3],
        lambda x, i: jnp.where((np.arange(8) == 3)[:, None, None], x, 0).sum(0),
        "a",
        {"a": "data", "c": "model"},
    ),
    "a traced position of a split axis": (
        lambda x, i: x["a", i],
        lambda x, i: jnp.where((jnp.arange(8) == i)[:, None, None], x, 0).sum(0),
        "",
        {"a": ("data", "model")},
    ),
    "whole": (lambda x, i: x["a", :], lambda x, i: x, "a", {"a": "data", "c": "model"}),
    "argmax": (lambda x, i: x.argmax("c"), lambda x, i: jnp.argmax(x, 2), "a", {"a": "data", "c": "model"}),
    "nanargmin": (lambda x, i: axn.nanargmin(x, "c"), lambda x, i: jnp.nanargmin(x, 2), "a", {"c": "model"}),
    "permutation": (
        lambda x, i: random.permutation(jax.random.key(0), x, "b"),
        lambda x, i: jnp.swapaxes(jax.random.permutation(jax.random.key(0), jnp.swapaxes(x, 1, 2), 2), 1, 2),
        "a",
        {"a": "data", "c": "model"},
    ),
}


@pytest.mark.parametrize("name", READS)
def test_reading_moves_no_more_than_raw_jax_does(name: str, explicit_mesh: Mesh) -> None:
    named, raw, names, layout = READS[name]
    x = drawn("abc")
    i = axn.named(np.random.default_rng(1).integers(0, 8, [SIZES[name] for name in names]), tuple(names))

    def total(x: axn.NamedArray, i: axn.NamedArray) -> jax.Array:
        return (named(x, i) ** 2).sum().scalar()

    def raw_total(x: jax.Array, i: jax.Array) -> jax.Array:
        return (raw(x, i) ** 2).sum()

    with jax.set_mesh(explicit_mesh):
        x, i = spread((x, i), layout)
        pairs: list[tuple[Any, Any]] = [(named, raw)]
        if "arg" not in name:
            pairs.append((jax.grad(total), jax.grad(raw_total)))
        for mine, theirs in pairs:
            program, by_hand = jax.jit(mine).lower(x, i).compile(), jax.jit(theirs).lower(x.array, i.array).compile()
            moved, expected = totals(collectives(program)), totals(collectives(by_hand))
            assert moved == expected
            result, reference = program(x, i), by_hand(x.array, i.array)
            np.testing.assert_allclose(result.array, reference, rtol=1e-6)
            if mine is named:
                np.testing.assert_allclose(mine(x, i).array, reference, rtol=1e-6)
            assert jax.typeof(result.array).sharding == jax.typeof(reference).sharding


@pytest.mark.parametrize("index", [3, slice(1, 6), axn.dslice(1, 3)], ids=str)
def test_a_piece_that_cannot_be_split_is_whole(index: Any, mesh: Mesh) -> None:
    array = np.asarray(drawn("abc").array)
    at: Any = slice(index.start, index.start + index.size) if isinstance(index, axn.dslice) else index
    gradient = np.zeros_like(array)
    gradient[:, at] = 1
    with jax.set_mesh(mesh):
        x = spread(drawn("abc"), {"a": "model", "b": "data"})
        for f in (lambda x: x["b", index], jax.jit(lambda x: x["b", index])):
            part = f(x)
            assert not any(explicit_part(jax.typeof(part.array).sharding.spec, mesh)[1:])
            np.testing.assert_array_equal(part.array, array[:, at])
        np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: f(x).sum().scalar()))(x).array, gradient)


# The current mapping, how an array with axes a and b lies, the new axis, and the mesh axes that it gets.
SPREAD: dict[str, tuple[dict[str, Any] | None, dict[str, Any], axn.Axis, tuple[str, ...]]] = {
    "on what is free": ({"c": "data"}, {"a": "model"}, C, ("data",)),
    "on several mesh axes": ({"c": ("data", "model")}, {}, C, ("data", "model")),
    "on what the array leaves": ({"c": ("data", "model")}, {"a": "data"}, C, ("model",)),
    "nowhere": ({"c": "data"}, {"b": "data"}, C, ()),
    "not unmapped": ({"a": "data"}, {"b": "model"}, C, ()),
    "not without a mapping": (None, {"a": "data"}, C, ()),
    "as its base": ({"c": "model"}, {"a": "data"}, C.derive("out"), ("model",)),
    "not if it does not divide": ({"c": ("model", "data")}, {}, axn.Axis("c", 6), ("model",)),
}


NEW_AXES: list[Callable[[axn.NamedArray, axn.Axis], axn.NamedArray]] = [
    lambda x, axis: x.broadcast_axis(axis),
    lambda x, axis: x.broadcast_to((axis, A, B)),
]


@functools.partial(jax.jit, static_argnums=1)
def with_new_axis(x: axn.NamedArray, axis: axn.Axis) -> list[axn.NamedArray]:
    return [f(x, axis) for f in NEW_AXES]


@pytest.mark.parametrize("name", SPREAD)
def test_a_new_axis_is_laid_out_by_the_mapping(name: str, mesh: Mesh, auto_mesh: Mesh) -> None:
    mapping, own, axis, entry = SPREAD[name]
    has_one_type = len(set(mesh.axis_types)) == 1
    for each in (mesh, auto_mesh) if has_one_type else (mesh,):
        with jax.set_mesh(each), under(mapping):
            x = spread(drawn("ab"), own)
            spec = PartitionSpec(entry or None, own.get("a"), own.get("b"))
            for f, result in zip(NEW_AXES, with_new_axis(x, axis), strict=True):
                f = functools.partial(f, axis=axis)
                assert explicit_part(jax.typeof(f(x).array).sharding.spec, each) == explicit_part(spec, each)
                assert jax.typeof(result.array) == jax.typeof(f(x).array)
                np.testing.assert_array_equal(result.array, np.broadcast_to(np.asarray(x.array), (axis.size, 8, 8)))
                assert count_equations(f, x) <= 1


def test_new_axes_of_an_array_without_a_mesh_or_inside_of_a_vmap(explicit_mesh: Mesh) -> None:
    x = drawn("ab")
    with jax.set_mesh(explicit_mesh), axn.axis_mapping({"c": "data"}):
        assert jax.typeof(x.broadcast_axis(C).array).sharding.spec == PartitionSpec("data", None, None)
        inside = axn.vmap(lambda x: x.broadcast_axis(C), "a")(axn.shard(x, {"a": "data"}))
        assert jax.typeof(inside.array).sharding.spec == PartitionSpec("data", None, None)


def test_a_token_in_front_of_a_split_batch_moves_nothing(explicit_mesh: Mesh) -> None:
    def joined(token: axn.NamedArray, x: axn.NamedArray) -> axn.NamedArray:
        return axn.concatenate("b", [token.broadcast_axis((A, axn.Axis("b", 1))), x])

    with axn.set_mesh(explicit_mesh):
        token, x = axn.shard(drawn("c"), {}), axn.shard(drawn("abc"), {"a": "data"})
        forward = axn.named_jit(joined, {"a": "data"}).lower(token, x).compile()
        backward = axn.named_jit(
            jax.grad(lambda *both: (joined(*both) ** 2).sum().scalar()), {"a": "data"}, strict=False
        )
        moved = totals(collectives(backward.lower(token, x).compile()))
        assert totals(collectives(forward)) == {}
        assert {kind: total.megabytes for kind, total in moved.items()} == {"all-reduce": 8 * 4 / 1e6}  # the token
