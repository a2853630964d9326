"""`check`: what a mapping gives on a mesh, and each kind of problem, without devices."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import axonym as axn
from axonym.errors import AxisNotFoundError, OperandError, ShardingError
from axonym.report.check import Problem, check

pytestmark = pytest.mark.sampled

POD = {"data": 64, "model": 8}
B, E, M, V = axn.make_axes(batch=512, embed=256, mlp=1024, vocab=50257)


def abstract(*axes, dtype=jnp.float32):
    return axn.NamedArray(jax.ShapeDtypeStruct(tuple(axis.size for axis in axes), dtype), axes)


def pod(kind):
    return AbstractMesh((64, 8), ("data", "model"), axis_types=(kind,) * 2)


class Model(eqx.Module):
    table: axn.NamedArray
    up: axn.NamedArray
    down: list[axn.NamedArray]

    def __call__(self, tokens):
        x = self.table.take("vocab", tokens)
        hidden = axn.dot(x, self.up, axis="embed")
        return axn.dot(hidden, self.down[0], axis="mlp") + self.down[1]

    @axn.named_jit(axis_resources={"not": "used"})
    def compiled(self, tokens):
        return self(tokens)

    def embedded(self, tokens):
        return self.table.take("vocab", tokens)


def init(key, vocab=V):
    make = lambda *axes: axn.random.normal(key, axes)  # noqa: E731
    return Model(make(vocab, E), make(E, M), [make(M, E), make(E)])


def step(model, tokens):
    def loss_fn(model):
        return (model(tokens) ** 2).mean().scalar()

    loss, gradients = jax.value_and_grad(loss_fn)(model)
    return jax.tree.map(lambda p, g: p - 0.1 * g, model, gradients), loss


@pytest.fixture(scope="module")
def key():
    return jax.random.key(0)


@pytest.fixture(scope="module")
def model(key):
    return jax.eval_shape(lambda key: init(key, V.resize(50304)), key)


TOKENS = abstract(B, dtype=jnp.int32)


def errors(report):
    return [(problem.kind, str(problem)) for problem in report.errors]


# the report
REPORT = """\
step on the mesh data=64, model=8, mapping {'batch': 'data', 'vocab': 'model', 'mlp': 'model', 'embd': 'data'}

arguments     axes                    dtype    layout          bytes  per device
model.table   vocab=50304, embed=256  float32  vocab→model  49.1 MiB     6.1 MiB
model.up      embed=256, mlp=1024     float32  mlp→model     1.0 MiB   128.0 KiB
model.down.0  mlp=1024, embed=256     float32  mlp→model     1.0 MiB   128.0 KiB
model.down.1  embed=256               float32  replicated    1.0 KiB     1.0 KiB
tokens        batch=512               int32    batch→data    2.0 KiB        32 B
all           5 arrays                                      51.1 MiB     6.4 MiB

results          axes                    dtype    layout          bytes  per device
result.0.table   vocab=50304, embed=256  float32  vocab→model  49.1 MiB     6.1 MiB
result.0.up      embed=256, mlp=1024     float32  mlp→model     1.0 MiB   128.0 KiB
result.0.down.0  mlp=1024, embed=256     float32  mlp→model     1.0 MiB   128.0 KiB
result.0.down.1  embed=256               float32  replicated    1.0 KiB     1.0 KiB
result.1         no axes                 float32  replicated        4 B         4 B
all              5 arrays                                      51.1 MiB     6.4 MiB

laid out inside       layout
batch=512, mlp=1024   batch→data, mlp→model
batch=512, embed=256  batch→data

bytes per device: model 6.4 MiB of 51.1 MiB, tokens 32 B of 2.0 KiB, result 6.4 MiB of 51.1 MiB

1 error, 1 warning
  error: the mapping has axis 'embd', which no array here has; did you mean 'embed'?
  warning: each of 512 devices holds all of an array above 512 B (at model.down.1, result.0.down.1)"""


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_the_report_in_full(model, capsys, kind):
    mapping = {"batch": "data", "vocab": "model", "mlp": "model", "embd": "data"}
    report = check(step, mapping, pod(kind), model, TOKENS, replicated_above=2**9)
    assert str(report).splitlines() == REPORT.splitlines()
    assert capsys.readouterr().out == f"{report}\n"
    check(step, mapping, pod(kind), model, TOKENS, quiet=True)
    assert not capsys.readouterr().out


def test_it_is_reachable_from_the_root():
    assert axn.check is check
    assert axn.partitioning.check is check


def test_the_report_as_data(model):
    report = check(step, {"batch": "data", "vocab": "model"}, POD, model, TOKENS, quiet=True)
    row = report.arguments[0]
    assert (row.path, row.names, row.shape, row.dtype) == ("model.table", ("vocab", "embed"), (50304, 256), "float32")
    assert (row.spec, row.nbytes, row.nbytes_per_device) == (P("model", None), 50304 * 1024, 50304 * 128)
    assert {(own.names, own.shape, own.spec) for own in report.inside} == {
        (("batch", "mlp"), (512, 1024), P("data", None)),
        (("batch", "embed"), (512, 256), P("data", None)),
    }
    whole = sum(x.size * 4 for x in jax.tree.leaves(model))
    assert report.totals["model"] == (whole, whole - 7 * 50304 * 128)
    assert report.totals["tokens"] == (2048, 32)
    assert report.errors == ()
    assert report.warnings == report.problems


def test_long_reports_fit_a_terminal(key):
    block = jax.eval_shape(lambda key: init(key, V.resize(512)), key)
    tree = {f"a_rather_long_name_of_a_block_{c}{d}": [block] * 3 for c in "abcd" for d in "abcd"}
    report = check(tree, {"vocab": "data", "embed": ("data", "model"), "bacth": "data"}, POD, quiet=True)
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= 120
    assert "… 4 more rows" in lines
    assert len(report.model) == 16 * 3 * 4


# on any mesh, without devices
def test_a_pod_is_checked_without_memory():
    Big, Wide, Layers, Words = axn.make_axes(embed=8192, mlp=65536, layers=40, vocab=2**17)

    def initialise(key):
        table = axn.random.normal(key, (Words, Big))
        return {
            "table": table,
            "up": axn.random.normal(key, (Layers, Big, Wide)),
            "down": axn.zeros((Layers, Wide, Big)),
        }

    before = sum(array.nbytes for array in jax.live_arrays())
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype)
    mapping = {"vocab": "model", "mlp": "model", "embed": "data"}
    report = check(initialise, mapping, POD, key, quiet=True, strict=True)
    assert sum(array.nbytes for array in jax.live_arrays()) <= before + 2**10
    total = (2**17 + 2 * 40 * 2**16) * 2**13 * 4  # 176 GB
    assert report.totals["result"] == (total, total // 512)
    assert all(row.nbytes_per_device == row.nbytes // 512 for row in report.results)


def test_bytes_per_device_of_a_pod_are_those_of_jax(model):
    report = check(model, {"vocab": "model", "mlp": ("data", "model"), "embed": None}, POD, quiet=True)
    specs = {
        "table": P("model", None),
        "up": P(None, ("data", "model")),
        "down.0": P(("data", "model"), None),
        "down.1": P(None),
    }
    held = {}
    for row in report.model:
        sharding = NamedSharding(pod(AxisType.Auto), specs[row.path])
        assert row.spec == specs[row.path]
        held[row.path] = 4 * int(np.prod(sharding.shard_shape(row.shape)))
    assert {row.path: row.nbytes_per_device for row in report.model} == held
    assert report.totals == {"model": (sum(x.size * 4 for x in jax.tree.leaves(model)), sum(held.values()))}


MESH_AXES = [None, "data", "model", ("data", "model"), ("model", "data")]


@given(
    names=st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=0, max_size=3, unique=True),
    factors=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    entries=st.lists(st.sampled_from(MESH_AXES), min_size=4, max_size=4),
    dtype=st.sampled_from([np.int8, np.float16, np.int32]),
    multiple=st.sampled_from([1, 2, 4, 8]),
)
def test_what_is_reported_is_what_device_put_does(auto_mesh, names, factors, entries, dtype, multiple):
    sizes = [factor * multiple for factor in factors[: len(names)]]
    mapping = dict(zip("abcd", entries, strict=True))
    x = axn.NamedArray(np.ones(sizes, dtype), tuple(names))
    report = check([x], mapping, auto_mesh, quiet=True)
    (row,) = report.model
    try:
        sharding = NamedSharding(auto_mesh, P(*(mapping[name] for name in names)))
        placed = jax.device_put(x.array, sharding)
    except Exception:  # JAX has a class for each: a mesh axis twice, or a size that does not divide
        assert {problem.kind for problem in report.errors} <= {"conflict", "uneven"}
        assert report.errors
        assert row.spec is None
    else:
        assert not report.errors
        assert {row.nbytes_per_device} == {piece.data.nbytes for piece in placed.addressable_shards}
        assert NamedSharding(auto_mesh, row.spec).is_equivalent_to(placed.sharding, len(names))


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
def test_a_mesh_with_devices_and_a_current_one_of_another_size(request, model, mesh):
    mesh = request.getfixturevalue(mesh)
    with axn.set_mesh(mesh):
        here = check(step, {"batch": "data"}, mesh, model, TOKENS, quiet=True)
        pods = check(step, {"batch": "data"}, POD, model, TOKENS, quiet=True)
        assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh
    assert here.totals["tokens"] == (2048, 512)
    assert pods.totals["tokens"] == (2048, 32)


def test_explicit_axes_are_in_the_types(model):
    seen = []

    def f(model, tokens):
        seen.append([jax.typeof(x.array).sharding.spec for x in (model.table, tokens)])
        return model(tokens)

    for kind in (AxisType.Explicit, AxisType.Auto):
        mesh = AbstractMesh((64, 8), ("data", "model"), axis_types=(kind, AxisType.Auto))
        check(f, {"batch": "data", "vocab": "model", "embed": None}, mesh, model, TOKENS, strict=True, quiet=True)
    check(f, {"batch": "data", "vocab": "model"}, pod(AxisType.Explicit), model, TOKENS, strict=True, quiet=True)
    assert seen == [[P(None, None), P("data")], [P(None, None), P(None)], [P("model", None), P("data")]]


# what can be checked
def test_functions_methods_and_modules(model):
    mapping = {"batch": "data", "mlp": "model"}
    of_module = check(model, mapping, POD, TOKENS, quiet=True)
    assert [row.path for row in of_module.model] == [row.path for row in check(model, mapping, POD, quiet=True).model]
    assert [(row.path, row.layout) for row in of_module.results] == [("result", ("batch→data",))]
    for method in (model.compiled, model.embedded):
        report = check(method, mapping, POD, TOKENS, quiet=True)
        assert report.results == of_module.results
        assert [row.path for row in report.arguments] == ["tokens"]
        assert report.errors == ()
    assert check(model.compiled, mapping, POD, TOKENS, quiet=True).model == of_module.model
    assert check(model.embedded, mapping, POD, TOKENS, quiet=True).model == of_module.model


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, axn.named_jit, eqx.filter_jit], ids=["plain", *"jne"])
def test_initialisers_are_called(wrap):
    make = wrap(lambda: {"x": axn.ones((B, E)), "plain": jnp.ones((3, 4), jnp.int32)})
    report = check(make, {"batch": "data"}, POD, quiet=True)
    assert {row.path: row.spec for row in report.results} == {
        "result.x": P("data", None),
        "result.plain": P(None, None),
    }


def test_what_is_no_array_is_static():
    def f(x, times, *, name, flag=True):
        assert (times, name, flag) == (3, "x", False)
        return {"x": x * times, "name": name}

    numpy = axn.NamedArray(np.ones((512, 2)), ("batch", "pair"))
    report = check(f, {"batch": "data"}, POD, numpy, 3, name="x", flag=False, quiet=True)
    assert [(row.path, row.dtype) for row in (*report.arguments, *report.results)] == [
        ("x", "float32"),  # to JAX, float64 is float32
        ("result.x", "float32"),
    ]


def test_the_current_mapping(model):
    with axn.axis_mapping({"vocab": "model"}):
        assert check(model, None, POD, quiet=True).model[0].spec == P("model", None)
    with pytest.raises(ShardingError) as caught:
        check(model, None, POD)
    assert str(caught.value) == "check: there is no axis mapping\n  hint: pass one, or use axn.axis_mapping"


def test_parameters_and_computation(model):
    mappings = axn.Mappings(
        {"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"}, {"table": {"vocab": "model"}}
    )
    report = check(step, mappings, POD, model, TOKENS, strict=True, quiet=True)
    assert {row.path: row.layout for row in report.arguments} == {
        "model.table": ("vocab→model", "embed→data"),
        "model.up": ("embed→data", "mlp→model"),
        "model.down.0": ("mlp→model", "embed→data"),
        "model.down.1": ("embed→data",),
        "tokens": ("batch→data",),
    }
    assert {own.layout for own in report.inside} == {("batch→data", "mlp→model"), ("batch→data",)}
    assert [row.layout for row in report.results] == [*(row.layout for row in report.arguments[:4]), ("replicated",)]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_state_of_an_optimizer_that_has_less_than_the_parameters(kind):
    params = {"w": abstract(E, M), "b": abstract(M)}
    row = jax.eval_shape(lambda w: jax.tree.map(lambda a: a.sum(1), w), params["w"])
    tree = (params, {"row": {"w": row}, "v": {"b": abstract(axn.Axis("mlp", 1))}})
    report = check(lambda x: x, {"embed": "data", "mlp": "model"}, pod(kind), tree, quiet=True)
    assert report.problems == ()
    for rows in (report.arguments, report.results):
        assert {row.path.partition(".")[2]: (row.names, row.layout) for row in rows} == {
            "0.w": (("embed", "mlp"), ("embed→data", "mlp→model")),
            "0.b": (("mlp",), ("mlp→model",)),
            "1.row.w": ((), ("replicated",)),
            "1.v.b": (("mlp",), ("replicated",)),
        }
    state_alone = check(tree[1]["row"], {"embed": "data", "mpl": "model"}, pod(kind), quiet=True)
    assert list(map(str, state_alone.problems)) == [
        "the mapping has axis 'mpl', which no array here has; did you mean 'mlp'?"
    ]


def test_a_second_check_sees_inside_of_compiled_functions_again(model):
    forward = jax.jit(lambda model, tokens: model(tokens))
    first, second = (
        check(lambda m, t: forward(m, t), {"batch": "data"}, POD, model, TOKENS, quiet=True) for _ in range(2)
    )
    assert first.inside == second.inside
    assert len(first.inside) == 2


# problems
PROBLEMS = {
    "unknown axis": (
        {"bacth": "data", "zebra": "data", "head": "model"},
        "the mapping has axis 'bacth', which no array here has; did you mean 'batch'?",
        "the mapping has axis 'zebra', which no array here has",
        "the mapping has axis 'head', which no array here has; did you mean 'heads'?",
    ),
    "unknown mesh axis": (
        {"batch": ("dta", "pipe"), "embed": "modle"},
        "axis 'batch' is mapped to 'dta', which is not an axis of the mesh; did you mean 'data'?",
        "axis 'batch' is mapped to 'pipe', which is not an axis of the mesh",
        "axis 'embed' is mapped to 'modle', which is not an axis of the mesh; did you mean 'model'?",
    ),
    "conflict": (
        {"batch": "data", "embed": ("model", "data"), "heads": "model"},
        "mesh axis 'data' would shard both 'batch' and 'embed' of one array (at x, result); map one of the two "
        "elsewhere, or rename it there",
        "mesh axis 'model' would shard both 'embed' and 'heads' of one array (at w); map one of the two elsewhere, or "
        "rename it there",
    ),
    "uneven": (
        {"heads": "data", "position": ("data", "model")},
        "heads=12 cannot be split evenly in 64 over mesh axis data (at w); nearest that divide: 64",
        "position=1030 cannot be split evenly in 512 over mesh axis data, model (at x, result); nearest that divide: "
        "1024 or 1536",
    ),
}


@pytest.mark.parametrize("kind", PROBLEMS)
def test_each_kind_of_error(kind):
    mapping, *texts = PROBLEMS[kind]
    x = abstract(B, axn.Axis("position", 1030), E.resize(1024))
    w = abstract(E.resize(1024), axn.Axis("heads", 12))
    report = check(lambda x, w: x, mapping, POD, x, w=w, quiet=True)
    assert sorted(errors(report)) == sorted((kind, text) for text in texts)


CONTRACTIONS = {
    "dot": lambda x, w: axn.dot(x, w, axis="embed"),
    "einsum": lambda x, w: axn.einsum("{embed}, {embed} -> ...", x, w),
    "dot_general": lambda x, w: axn.dot(x, w, axis="embed", dot_general=lambda *a, **kw: jax.lax.dot_general(*a, **kw)),
}


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("contraction", CONTRACTIONS)
@pytest.mark.parametrize(
    ("heads", "entry", "text"),
    [
        (
            12,
            "model",
            "heads=12 cannot be split evenly in 8 over mesh axis model (at w, result); nearest that divide: 8 or 16",
        ),
        (
            64,
            "data",
            "mesh axis 'data' would shard both 'batch' and 'heads' of one array (at result); map one of the two "
            "elsewhere, or rename it there",
        ),
    ],
    ids=["uneven", "conflict"],
)
def test_a_product_that_cannot_be_laid_out_is_replicated(heads, entry, text, contraction, kind):
    x, w = abstract(B, E), abstract(E, axn.Axis("heads", heads))
    report = check(CONTRACTIONS[contraction], {"batch": "data", "heads": entry}, pod(kind), x, w, quiet=True)
    assert [str(problem) for problem in report.errors] == [text]
    assert {(own.names, own.spec) for own in report.inside} == {(("batch", "heads"), P(None, None))}


def test_one_array_has_several_problems_at_once():
    report = check(
        [abstract(axn.Axis("a", 30), axn.Axis("b", 33))], {"a": "model", "b": ("model", "data")}, POD, quiet=True
    )
    assert errors(report) == [
        (
            "conflict",
            "mesh axis 'model' would shard both 'a' and 'b' of one array (at 0); map one of the two elsewhere, or "
            "rename it there",
        ),
        ("uneven", "a=30 cannot be split evenly in 8 over mesh axis model (at 0); nearest that divide: 24 or 32"),
        ("uneven", "b=33 cannot be split evenly in 64 over mesh axis data (at 0); nearest that divide: 64"),
    ]


def test_a_derived_name_gives_way_and_is_known():
    report = check(abstract(E, E.alias("embed.out")), {"embed": "data"}, POD, quiet=True, strict=True)
    assert report.model[0].layout == ("embed→data",)
    report = check(abstract(E.alias("embed.out")), {"embed": "data"}, POD, quiet=True)
    assert report.problems == ()
    assert report.model[0].layout == ("embed.out→data",)


def test_large_replicated_arrays_are_warned_of():
    tree = {"large": abstract(B, E), "small": abstract(E), "split": abstract(B, M)}
    report = check(tree, {"mlp": "model"}, POD, replicated_above=512 * 256 * 4 - 1, quiet=True, strict=True)
    assert report.problems == (
        Problem("replicated", "warning", "each of 512 devices holds all of an array above 512.0 KiB", ("large",)),
    )
    assert check(tree, {"mlp": "model"}, POD, replicated_above=512 * 256 * 4, quiet=True).problems == ()
    assert check(tree, {"mlp": "model"}, {"model": 1}, replicated_above=0, quiet=True).problems == ()


def test_a_model_alone_does_not_show_activations(model, key):
    text = "the mapping has axis 'batch', which no array here has"
    assert check(model, {"batch": "data"}, POD, quiet=True, replicated_above=2**30).warnings == (
        Problem("unknown axis", "warning", text),
    )
    assert check(init, {"batch": "data"}, POD, key, quiet=True, replicated_above=2**30).warnings == (
        Problem("unknown axis", "warning", text),
    )
    apart = axn.Mappings({"embde": "data"}, {"batch": "data"})
    assert errors(check(model, apart, POD, quiet=True)) == [
        ("unknown axis", "the mapping has axis 'embde', which no array here has; did you mean 'embed'?")
    ]


def test_errors_inside_have_the_axes_of_the_array():
    def f(x):
        return axn.auto_sharded(x.rename({"ten": "odd"})).sum("odd")

    report = check(f, {"batch": "data", "odd": "model"}, POD, abstract(B, axn.Axis("ten", 10)), quiet=True)
    text = (
        "odd=10 cannot be split evenly in 8 over mesh axis model (at batch=512, odd=10); nearest that divide: 8 or 16"
    )
    assert errors(report) == [("uneven", text)]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (
            "data",
            "mesh axis 'data' would shard both 'batch' and 'embed' of one array (at batch=512, embed=256); map one of "
            "the two elsewhere, or rename it on this array: x.rename({'embed': ...})",
        ),
        ("zzz", "axis 'embed' is mapped to 'zzz', which is not an axis of the mesh (at batch=512, embed=256)"),
    ],
)
def test_layouts_by_another_mapping_inside(entry, text):
    def f(x):
        with axn.axis_mapping({"batch": "data", "embed": entry}):
            return axn.auto_sharded(x)

    assert errors(check(f, {"batch": "data"}, POD, abstract(B, E), quiet=True)) == [("layout", text)]


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_inside_of_a_shard_map_sizes_are_local(kind):
    def f(x):
        return axn.auto_sharded(x.rename({"wide": "embed"})).rename({"embed": "wide"})

    split = jax.shard_map(f, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    good, bad = (abstract(B, axn.Axis("wide", size)) for size in (16, 12))
    report = check(split, {"batch": "data", "embed": "model"}, pod(kind), good, strict=True, quiet=True)
    assert [(own.shape, own.layout) for own in report.inside] == [((8, 16), ("embed→model",))]
    report = check(split, {"batch": "data", "embed": "model"}, pod(kind), bad, quiet=True)
    text = "embed=12 cannot be split evenly in 8 over mesh axis model (at batch=8, embed=12)"
    hint = "use a multiple of 8, as pad_axes and pad_batch do, or map 'embed' to None"
    assert errors(report) == [("layout", f"{text}; {hint}")]


def test_keys_of_mappings_that_are_entered_inside():
    def f(x):
        with axn.axis_mapping({"batch": "data", "embde": "model"}):
            return axn.auto_sharded(x)

    assert errors(check(f, {"batch": "data"}, POD, abstract(B, E), quiet=True)) == [
        ("unknown axis", "the mapping has axis 'embde', which no array here has; did you mean 'embed'?")
    ]


# strict use, and errors of the function
def test_strict_raises_all_errors_in_one_text():
    mapping = {"batch": "data", "embed": "data", "vocab": "model", "mpl": "model"}
    tree = {"x": abstract(B, E), "table": abstract(V)}
    with pytest.raises(ShardingError) as caught:
        check(lambda tree: tree, mapping, POD, tree, strict=True)
    assert str(caught.value) == (
        "check: <lambda> cannot be laid out, 3 errors\n"
        "  vocab=50257 cannot be split evenly in 8 over mesh axis model (at tree.table, result.table); nearest that "
        "divide: 50256 or 50264\n"
        "  mesh axis 'data' would shard both 'batch' and 'embed' of one array (at tree.x, result.x); map one of the "
        "two elsewhere, or rename it there\n"
        "  the mapping has axis 'mpl', which no array here has\n"
        "  mapping: {'batch': 'data', 'embed': 'data', 'vocab': 'model', 'mpl': 'model'}\n"
        "  mesh: data=64, model=8"
    )


def test_the_place_where_tracing_stopped():
    def laid_out_by_hand(x):
        return axn.shard(x, {"bacth": "data"})

    def f(x):
        return laid_out_by_hand(x)

    (problem,) = check(f, {"batch": "data"}, POD, abstract(B, E), quiet=True).errors
    line = laid_out_by_hand.__code__.co_firstlineno + 1
    assert (problem.kind, problem.text) == (
        "stopped",
        f"tracing stopped in laid_out_by_hand, test_check.py line {line}: shard: the mapping has axis 'bacth', "
        "which no array here has",
    )


def test_an_error_of_jax_that_follows_from_one_of_the_layout():
    def f(x, y):
        return jnp.concatenate([x.array, y.array])

    x, explicit = abstract(B, E), pod(AxisType.Explicit)
    report = check(f, {"batch": "data"}, explicit, x, abstract(B.resize(33), E), quiet=True)
    assert [problem.kind for problem in report.errors] == ["uneven", "stopped"]
    assert report.results == ()
    # without an error of the layout, the function is to blame
    with pytest.raises(Exception, match="All operands should have the same sharding"):
        check(f, {"batch": "data"}, explicit, x, abstract(B.alias("more"), E), quiet=True)


def test_an_error_of_jax_about_a_size_that_follows_from_one_of_the_layout():
    def f(x):
        return jax.reshard(x.array, P("model"))

    odd, explicit = abstract(B.resize(33)), pod(AxisType.Explicit)
    report = check(f, {"batch": "data"}, explicit, odd, quiet=True)
    assert [problem.kind for problem in report.errors] == ["uneven", "stopped"]
    with pytest.raises(ValueError, match="does not evenly divide"):
        check(f, {"batch": None}, explicit, odd, quiet=True)


def test_other_errors_are_those_of_the_function():
    def f(x):
        return x.sum("embde")

    with pytest.raises(AxisNotFoundError, match="embde"):
        check(f, {"batch": "date"}, POD, abstract(B, E))
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        check(step, {"batch": "data"}, POD, abstract(B, E))


def test_sizes_of_a_mesh_may_be_numbers_of_numpy():
    reports = [check(abstract(B), {"batch": "data"}, {"data": size}, quiet=True) for size in (64, np.int64(64))]
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    ("mesh", "spelled"),
    [(8, "8"), (("data",), "('data',)"), ({"data": "8"}, "{'data': '8'}"), ({"data": 0}, "{'data': 0}")],
)
def test_what_is_no_mesh(mesh, spelled):
    with pytest.raises(OperandError) as caught:
        check(abstract(B), {"batch": "data"}, mesh)
    assert str(caught.value) == (
        f"check: a mesh must be a Mesh, an AbstractMesh or a dict of sizes, not {spelled}\n"
        '  hint: write {"data": 64, "model": 8}'
    )
