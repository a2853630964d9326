"""`check` of functions: keys and patterns of `Mappings` count as in `named_jit`, and arrays that are no arguments."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import axonym as axn
from axonym.errors import ShardingError
from axonym.report.check import check

pytestmark = pytest.mark.sampled

POD = {"data": 64, "model": 8}
B, E = axn.make_axes(batch=64, embed=8)
SEEN = []


class Model(eqx.Module):
    a: axn.NamedArray
    b: list[axn.NamedArray]
    plain: jax.Array

    def __call__(self, x):
        SEEN.append([jax.typeof(own.array).sharding.spec for own in (self.a, *self.b, x)])
        return {"a": self.a, "x": [x, *self.b]}

    def method(self, x):
        return self(x)


def call(model, x):
    return model(x)


def call_all(*args, **kwargs):
    return args[0](kwargs["x"])


def alone(model, x):
    return model(x)["a"]


MODEL = Model(axn.ones(E), [axn.ones(E)], jnp.ones(3))
X = axn.ones((B, E))
CALLS = {
    "function": (call, (MODEL, X), {}),
    "keywords": (call, (), {"x": X, "model": MODEL}),
    "any arguments": (call_all, (MODEL,), {"x": X}),
    "one result": (alone, (MODEL, X), {}),
    "no arguments": (lambda: [X, MODEL.a], (), {}),
    "module": (MODEL, (X,), {}),
    "method": (MODEL.method, (X,), {}),
    "compiled method": (functools.partial(call, MODEL), (X,), {}),
    "partial": (jax.tree_util.Partial(call, MODEL), (X,), {}),
}
# as patterns see them, as the report has them, and as neither does
PATTERNS = [
    *("0", "1", "a", "b.0", "0.a", "0.b.*", "x.1", "model.b", "__self__.a", "0.0.a", "*"),
    *("model", "x", "result", "result.a", "args.0", "kwargs.x", "plain", "1.0.a", "2"),
]


@pytest.mark.parametrize("case", CALLS)
def test_patterns_match_as_in_named_jit(case, explicit_mesh):
    fn, args, kwargs = CALLS[case]
    decided = set()
    for pattern in PATTERNS:
        mappings = axn.Mappings({"embed": "data"}, {"batch": "data"}, {pattern: {"embed": "model"}})
        if case == "compiled method":
            named = functools.partial(axn.named_jit(fn.func, mappings), *fn.args)
            checked = named
        else:
            named, checked = axn.named_jit(fn, mappings), fn
        SEEN.clear()
        report = check(checked, mappings, explicit_mesh, *args, quiet=True, **kwargs)
        found = [problem.kind for problem in report.errors]
        refusal, result = "", None
        try:
            with axn.set_mesh(explicit_mesh):
                result = jax.eval_shape(lambda named=named: named(*args, **kwargs))
        except ShardingError as error:
            refusal = str(error)
        if refusal:
            assert refusal.startswith(f"named_jit: no array has a path that matches {pattern!r}\n")
            assert found == ["unknown path"], pattern
        else:
            assert found == [], pattern
            assert [row.spec for row in report.results] == [leaf.sharding.spec for leaf in jax.tree.leaves(result)]
            if SEEN:  # by the check, and by named_jit
                of_check, of_jit = SEEN
                assert of_check == of_jit, pattern
                rows = [row.spec for row in (*report.model, *report.arguments) if row.names]
                assert sorted(map(str, rows)) == sorted(map(str, of_jit)), pattern
        decided.add(not found)
    assert decided == {True, False}


def test_the_paths_of_the_report_are_told_from_those_of_patterns():
    mappings = axn.Mappings({}, None, {"model.b": {"embed": "data"}, "0.bb": {}, "plain": {}})
    report = check(call, mappings, {"data": 8}, MODEL, X, quiet=True)
    assert [row.path for row in report.arguments] == ["model.a", "model.b.0", "model.plain", "x"]
    assert list(map(str, report.errors)) == [
        "no array has a path that matches 'model.b'; paths: 0.a, 0.b.0, 1, a, x.0, x.1; write positions or keywords "
        "for arguments, and results without a prefix",
        "no array has a path that matches '0.bb'; paths: 0.a, 0.b.0, 1, a, x.0, x.1",
        "no array has a path that matches 'plain'; paths: 0.a, 0.b.0, 1, a, x.0, x.1; write positions or keywords for "
        "arguments, and results without a prefix",
    ]


def test_patterns_that_match_nothing():
    tree = jax.eval_shape(lambda: {"table": axn.ones(E), "down": [axn.ones(axn.Axis("mlp", 16)), axn.ones(E)]})
    mappings = axn.Mappings({}, None, {"dwon.*": {"mlp": "model"}, "down.0": {"mpl": "model"}})
    assert [(problem.kind, str(problem)) for problem in check(tree, mappings, POD, quiet=True).errors] == [
        ("unknown axis", "the mapping has axis 'mpl', which no array here has; did you mean 'mlp'?"),
        (
            "unknown path",
            "no array has a path that matches 'dwon.*'; paths: down.0, down.1, table; did you mean 'down'?",
        ),
    ]


def inside(x, name):
    return axn.auto_sharded(x.rename({"embed": name})).rename({name: "embed"})


def entering(x, name):
    with axn.axis_mapping({"embed": "data", name: "model"}):
        return inside(x, name)


DATA = {"batch": "data"}
KEYS = {
    "parameters": (inside, lambda name: axn.Mappings({"embed": "data", name: "model"}, DATA), False),
    "overrides": (inside, lambda name: axn.Mappings({"embed": "data"}, DATA, {"0": {name: "model"}}), False),
    "compute": (inside, lambda name: axn.Mappings({"embed": "data"}, {**DATA, name: "model"}), True),
    "both": (inside, lambda name: axn.Mappings({"embed": "data", name: "model"}), True),
    "one mapping": (inside, lambda name: {"embed": "data", name: "model"}, True),
    "entered": (entering, lambda name: axn.Mappings({"embed": "data", name: "model"}, DATA), True),
}


@pytest.mark.parametrize("case", KEYS)
def test_keys_that_only_arrays_inside_have(case, auto_mesh):
    fn, of_name, fits = KEYS[case]
    name = f"only in {case}"  # named_jit remembers the names that it met under equal mappings
    report = check(fn, of_name(name), auto_mesh, X, name, quiet=True)
    texts = [
        f"the mapping has axis {name!r}, which only arrays inside of the function have; those are laid out by "
        "`compute` of the Mappings, so write it there"
    ]
    assert list(map(str, report.problems)) == ([] if fits else texts)
    named = axn.named_jit(lambda x: fn(x, name), of_name(name))
    with axn.set_mesh(auto_mesh):
        if fits:
            jax.eval_shape(named, X)
            return
        with pytest.raises(ShardingError, match=f"the mapping has axis '{name}'"):
            jax.eval_shape(named, X)


@pytest.mark.parametrize("mesh", [AbstractMesh((64, 8), ("data", "model"), axis_types=(AxisType.Explicit,) * 2), POD])
def test_an_array_of_another_mesh_that_is_no_argument(mesh, explicit_mesh):
    with axn.set_mesh(explicit_mesh):
        x, scale = axn.shard(X, {"batch": "data"}), axn.ones(E)

    def scaled(x):
        return x * scale

    (problem,) = check(scaled, {"batch": "data"}, mesh, x, quiet=True).problems
    line = scaled.__code__.co_firstlineno + 1
    assert (problem.kind, str(problem)) == (
        "stopped",
        f"tracing stopped in scaled, test_checked_functions.py line {line}: an array that is not an argument is on "
        "another mesh; pass it as an argument",
    )
    report = check(lambda x, scale: x * scale, {"batch": "data"}, mesh, x, scale, quiet=True)
    assert (report.problems, [row.spec for row in report.results]) == ((), [P("data", None)])
