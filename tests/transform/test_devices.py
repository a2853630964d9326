"""Derivatives inside of a `shard_map`: each sentence of docs/guides/shard-map.md about sums, against NumPy.

The loss of a row is the square of a product, so that its gradient is `2 (x w) x`, and each row has another.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as axn
from axonym.errors import ShardingError

pytestmark = pytest.mark.sampled

B, E = axn.make_axes(batch=8, embed=4)
rng = np.random.default_rng(0)
X, W = rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=4).astype(np.float32)
x, w = axn.named(X, (B, E)), axn.named(W, E)
ROWS = 2 * (X @ W)[:, None] * X
DATA = {"batch": "data"}
FSDP = axn.Mappings({"embed": "data"}, {"batch": "data"})


@pytest.fixture(params=[AxisType.Auto, AxisType.Explicit], ids=str)
def mesh(request):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(request.param,) * 2)


def outputs(w, x):
    return axn.dot(x, w, axis="embed") ** 2


def loss(w, x):
    return outputs(w, x).sum().scalar()


def each_device(w):
    return axn.pcast(w, "batch")


def stacked(x):
    """Show what each device has."""
    return each_device(x).broadcast_axis(axn.Axis("device", 1))


def run(mesh, f, *, mapping=DATA, check=True):
    """Return the results of a dict: what each device has of those without a batch."""

    def shown(w, x):
        return {name: y if "batch" in y.names else stacked(y) for name, y in f(w, x).items()}

    out = {"batch": "data", "device": "data"}
    got = axn.shard_map(shown, mapping, mesh, out_mapping=out, check=check, strict=False)(w, x)
    return {name: np.asarray(y.array) for name, y in got.items()}


TOTAL = ROWS.sum(0)
OWN = ROWS.reshape(4, 2, 4).sum(1)  # of each of four devices


def test_what_is_summed(mesh):
    """The gradient by what all devices have is the sum of those of the devices; a cast one is that of the device."""

    def f(w, x):
        summed = lambda w: axn.psum(loss(w, x), "batch")  # noqa: E731
        mean = lambda w: axn.pmean(loss(w, x), "batch")  # noqa: E731
        own = axn.grad(loss)(each_device(w), x)
        rows = lambda total, row: total + axn.grad(loss)(w, row)  # noqa: E731
        return {
            "grad": axn.grad(loss)(w, x),
            "jax.grad": jax.grad(loss)(w, x),
            "value_and_grad": axn.value_and_grad(loss)(w, x)[1],
            "of a sum": axn.grad(summed)(w),
            "of a mean": axn.grad(mean)(w),
            "accumulated": axn.fold(rows, "batch")(axn.zeros(E), x),
            "own": own,
            "own, summed": axn.psum(own, "batch"),
            "own, averaged": axn.pmean(own, "batch"),
            "own, of a sum": axn.grad(summed)(each_device(w)),
        }

    got = run(mesh, f)
    means = {"of a mean", "own, averaged"}
    for name, value in got.items():
        expected = np.broadcast_to(TOTAL / 4 if name in means else TOTAL, (4, 4))
        if name in ("own", "own, of a sum"):
            expected = OWN
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_without_the_check_nothing_is_summed_but_what_a_sum_in_the_loss_is(mesh):
    """The gradient of a sum is then the sum of what comes back from each device, once for each device."""

    def f(w, x):
        own = axn.grad(loss)(w, x)
        return {
            "own": own,
            "cast": axn.grad(loss)(each_device(w), x),
            "averaged": axn.pmean(own, "batch"),
            "of a sum": axn.grad(lambda w: axn.psum(loss(w, x), "batch"))(w),
            "of a mean": axn.grad(lambda w: axn.pmean(loss(w, x), "batch"))(w),
        }

    got = run(mesh, f, check=False)
    expected = {"own": OWN, "cast": OWN, "averaged": TOTAL[None] / 4, "of a sum": 4 * OWN, "of a mean": OWN}
    for name, value in got.items():
        np.testing.assert_allclose(value, np.broadcast_to(expected[name], (4, 4)), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("check", [True, False])
def test_gathered_parameters_get_parts_of_the_sum(mesh, check):
    """With a mean over devices, the gradient is that of the mean loss; without one, of the sum of the losses."""

    def f(w, x):
        gather = lambda w: axn.all_gather(w, "data")  # noqa: E731
        averaged = axn.grad(lambda w: axn.pmean(loss(gather(w), x), "batch"))(w)
        alone = axn.grad(lambda w: loss(gather(w), x))(w)
        return averaged, alone

    averaged, alone = axn.shard_map(f, FSDP, mesh, check=check)(w, x)
    np.testing.assert_allclose(alone.array, TOTAL, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(averaged.array, TOTAL / 4 if check else TOTAL, rtol=1e-4, atol=1e-5)


# Jacobians, and gradients of each row
def jacobian(transform):
    return lambda w, x: transform(outputs)(w, x)


MAPS = {
    "vmap": lambda w, x: axn.vmap(axn.grad(loss), "batch")(w, x),
    "vmap of a closure": lambda w, x: axn.vmap(lambda row: axn.grad(loss)(w, row), "batch")(x),
    "vmap of the value, too": lambda w, x: axn.vmap(axn.value_and_grad(loss), "batch")(w, x)[1],
    "map": lambda w, x: axn.map(lambda row: axn.grad(loss)(w, row), "batch")(x),
    "nmap": lambda w, x: axn.nmap(lambda row: axn.grad(lambda w: (row * w.sum()) ** 2)(w))(x["embed", 0]),
}
JACOBIANS = {
    "jacrev": jacobian(axn.jacrev),
    "jacrev of a part of a tree": lambda w, x: axn.jacrev(lambda p, x: {"y": outputs(p["w"], x)})({"w": w}, x)["y"][
        "w"
    ],
    "hessian": lambda w, x: axn.hessian(outputs, rename=({}, {"embed": "embed_2"}))(w, x),
}
SECOND = 2 * X[:, :, None] * X[:, None, :]


def test_cast_arguments_have_the_rows_of_their_device(mesh):
    rows = {name: f for name, f in {**MAPS, **JACOBIANS}.items() if name != "nmap"}

    def f(w, x):
        found = {name: f(each_device(w), x) for name, f in rows.items()}
        return {**found, "jacfwd": axn.jacfwd(outputs)(w, x)}

    for name, value in run(mesh, f).items():
        np.testing.assert_allclose(value, SECOND if name == "hessian" else ROWS, rtol=1e-4, atol=1e-5, err_msg=name)
    without = run(mesh, lambda w, x: {name: f(w, x) for name, f in rows.items()}, check=False)
    for name, value in without.items():
        np.testing.assert_allclose(value, SECOND if name == "hessian" else ROWS, rtol=1e-4, atol=1e-5, err_msg=name)


def test_rows_that_would_be_added_up_over_devices_are_refused(mesh):
    raised = {}

    def f(w, x):
        for name, call in {**MAPS, **JACOBIANS}.items():
            with pytest.raises(ShardingError) as error:
                call(w, x)
            raised[name] = str(error.value)
        return x

    jax.eval_shape(axn.shard_map(f, DATA, mesh), w, x)
    functions = {"vmap of the value, too": "value_and_grad", "hessian": "hessian"}
    for name in MAPS:
        assert raised[name] == (
            f"{functions.get(name, 'grad')}: the argument is the same on all devices of mesh axis 'data', and the rows "
            "of a surrounding map are split over it: the gradient would add up rows of all devices\n"
            "  argument has: embed=4\n"
            '  hint: for the gradient of each row, cast the argument: axn.pcast(x, over="data"); for that of a sum, '
            "map inside of the gradient"
        )
    for name in JACOBIANS:
        assert raised[name] == (
            f"{functions.get(name, 'jacrev')}: the argument is the same on all devices of mesh axis 'data', and the "
            "output is not: reverse mode would add up the Jacobians of all devices\n"
            "  argument has: embed=4\n"
            '  hint: for the Jacobian of each device, cast the argument: axn.pcast(x, over="data"), or use axn.jacfwd; '
            'for that of a sum, let the function return it: axn.psum(..., over="data")'
        )


def test_maps_and_jacobians_in_which_no_rows_are_mixed_ask_for_nothing(mesh):
    """Over an axis that no device splits, of sums over devices, and of arguments that differ."""

    def f(w, x):
        models = axn.vmap(lambda w: axn.grad(loss)(w, x), "model_of")(axn.stack("model_of", [w, 2 * w]))
        total = lambda w: axn.psum(outputs(w, x).sum("batch"), "batch")  # noqa: E731
        return {
            "models": models,
            "jacrev": axn.jacrev(total)(w),
            "hessian": axn.hessian(total, rename={"embed": "embed_2"})(w),
            "by data": axn.jacrev(lambda x: outputs(w, x).sum("batch"))(x).rearrange(("batch", "embed")),
            "by rows": axn.vmap(lambda row: axn.grad(lambda row: loss(w, row))(row), "batch")(x),
        }

    got = run(mesh, f)
    slopes = np.stack([TOTAL, 2 * TOTAL])
    by_data = 2 * (X @ W)[:, None] * W
    expected = {
        "models": np.broadcast_to(slopes, (4, 2, 4)),
        "jacrev": np.broadcast_to(TOTAL, (4, 4)),
        "hessian": np.broadcast_to(SECOND.sum(0), (4, 4, 4)),
        "by data": by_data,
        "by rows": by_data,
    }
    for name, value in got.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_forward_mode_needs_no_cast_and_transforms_of_jax_add_up_rows(mesh):
    """A device sends its outputs to the next one; the rows of `jax` are those of all devices at the same place."""

    def f(w, x):
        def raw(w):
            return outputs(axn.named(w, E), x).array

        gradients = jax.vmap(lambda row: axn.grad(loss)(w, axn.named(row, E)).array)(x.array)
        return {
            "sent": axn.jacfwd(lambda w: axn.ppermute(outputs(w, x), "batch"))(w),
            "jacrev": axn.named(jax.jacrev(raw)(w.array), (x.axes[0], E)),
            "cast": axn.named(jax.jacrev(raw)(each_device(w).array), (x.axes[0], E)),
            "vmap": axn.named(gradients, (x.axes[0], E)),
        }

    got = run(mesh, f)
    summed = np.tile(ROWS.reshape(4, 2, 4).sum(0), (4, 1))
    expected = {"sent": np.roll(ROWS, 2, axis=0), "jacrev": summed, "cast": ROWS, "vmap": summed}
    for name, value in got.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_integers_and_holes_have_no_rows(mesh):
    """The gradient of a filtered tree, in which only the cast arrays count."""
    tree = {"w": w, "steps": jnp.int32(2), "hole": axn.NamedArray(None, ("embed",))}

    def f(tree, x):
        cast = {**tree, "w": each_device(tree["w"])}
        rows = axn.vmap(lambda row: axn.grad(lambda t: loss(t["w"], row), allow_int=True)(cast)["w"], "batch")
        return rows(x)

    got = axn.shard_map(f, DATA, mesh)(tree, x)
    np.testing.assert_allclose(got.array, ROWS, rtol=1e-4, atol=1e-5)
