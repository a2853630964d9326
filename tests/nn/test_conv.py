"""`Conv` and `ConvTranspose`, against Equinox and loops of numpy."""

import itertools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, ShardingError
from tests.laws import count_equations
from tests.nn.layouts import (
    apply,
    check_on,
    compiled,
    differentiated,
    draw,
    lies,
    same,
    same_trees,
    value_and_gradients,
)

pytestmark = pytest.mark.sampled

B, S, H, W, C, F = axn.make_axes(batch=8, seq=2, height=6, width=5, channels=4, mlp=6)
KEY = jax.random.key(0)


def drawn(init, *args, **options):
    """Make a layer whose parameters numpy draws, which needs no program."""
    layer = eqx.filter_eval_shape(lambda: init(*args, **options, key=KEY))
    leaves, tree = jax.tree.flatten(layer)
    random = np.random.default_rng(5)
    arrays = [random.normal(size=p.shape, scale=0.3).astype(p.dtype) for p in leaves]
    return jax.tree.unflatten(tree, jax.device_put(arrays))


def theirs_of(layer, x):
    """Apply the layer of Equinox with the same parameters, batch dimensions first, and name what comes out."""
    spatial = [axis if isinstance(axis, str) else axis.name for axis in layer.Spatial]
    options = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation, "groups": layer.groups}
    kind = eqx.nn.Conv
    if isinstance(layer, nn.ConvTranspose):
        kind, options["output_padding"] = eqx.nn.ConvTranspose, layer.output_padding
    sizes = (len(spatial), layer.In.size, layer.Out.size, layer.kernel_size)
    module = kind(*sizes, use_bias=layer.bias is not None, **options, key=KEY)
    bias = None if layer.bias is None else layer.bias.array.reshape(-1, *[1] * len(spatial))
    module = eqx.tree_at(lambda n: (n.weight, n.bias), module, (layer.weight.array, bias), is_leaf=lambda n: n is None)
    batch = [name for name in x.names if name not in (layer.In.name, *spatial)]
    run = module
    for _ in batch:
        run = jax.vmap(run)
    out = jax.jit(lambda array: run(array))(x.rearrange((*batch, layer.In.name, *spatial)).array)
    names = tuple(layer.Out.name if name == layer.In.name else name for name in x.names)
    return axn.named(out, (*batch, layer.Out.name, *spatial)).rearrange(names)


SETTINGS = [
    {"use_bias": False},
    {"stride": 2, "padding": ((2, 0), (0, 1))},
    {"stride": (1, 2), "padding": "SAME", "dilation": (2, 1), "groups": 2},
]


@pytest.mark.parametrize("kind", [nn.Conv, nn.ConvTranspose])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_equals_equinox_wherever_axes_stand(kind, settings):
    layer = drawn(kind.init, ("height", W), C, F, (3, 2), **settings)
    for order in ((S, H, B, C, W), (W, H, C)):
        x = draw(*order)
        result, expected = compiled(lambda layer, x: (layer(x), theirs_of(layer, x)), layer, x)
        same(result, expected.names, expected.array)


def test_three_spatial_axes():
    axes = (H, W, axn.Axis("depth", 4))
    layer, x = drawn(nn.Conv.init, axes, C, F, 2), draw(*axes, B, C)
    expected = theirs_of(layer, x)
    same(layer(x), expected.names, expected.array)
    turned = drawn(nn.ConvTranspose.init, axes, C, F, 2, stride=2, output_padding=1)
    same(turned(x), expected.names, theirs_of(turned, x).array)


def test_against_a_loop():
    layer = drawn(nn.Conv.init, "time", C, F, 3, stride=2, padding=((1, 0),), dilation=2, groups=2)
    x = draw(C, axn.Axis("time", 8))
    padded = np.pad(np.asarray(x.array, np.float64), ((0, 0), (1, 0)))
    out = np.zeros((6, 3))
    for o, t, i, k in itertools.product(range(6), range(3), range(2), range(3)):
        out[o, t] += padded[2 * (o // 3) + i, 2 * t + 2 * k] * float(layer.weight.array[o, i, k])
    same(layer(x), ("mlp", "time"), out + np.asarray(layer.bias.array)[:, None])


def test_the_transpose_is_that_of_the_linear_map():
    conv = drawn(nn.Conv.init, "height", C, F, 3, stride=2, padding=1, use_bias=False)
    x = draw(B, C, H)
    y, pull = jax.vjp(conv, x)
    back = drawn(nn.ConvTranspose.init, "height", F, C, 3, stride=2, padding=1, output_padding=1, use_bias=False)
    flipped = conv.weight.array[..., ::-1].swapaxes(0, 1)
    back = eqx.tree_at(lambda n: n.weight, back, axn.named(flipped, back.weight.names))
    same(back(y), ("batch", "channels", "height"), pull(y)[0].array)


def test_gradients_equal_those_of_equinox():
    layer, x = drawn(nn.Conv.init, (H, W), C, F, 3, padding=1), draw(B, C, H, W)
    out, (gradients, (dx,)) = value_and_gradients(apply)(layer, x)
    theirs, (d_theirs, (dx_theirs,)) = value_and_gradients(theirs_of)(layer, x)
    same(out, theirs.names, theirs.array)
    same(gradients.weight, layer.weight.names, d_theirs.weight.array, atol=1e-4)
    same(gradients.bias, ("mlp",), d_theirs.bias.array, atol=1e-4)
    same(dx, x.names, dx_theirs.array, atol=1e-4)


def test_half_precision():
    layer, x = drawn(nn.Conv.init, "height", C, F, 3), draw(B, C, H)
    narrow, cut = jax.tree.map(lambda p: p.astype(jnp.bfloat16), (layer, x))
    assert narrow(cut).dtype == jnp.bfloat16
    assert layer(cut).dtype == jnp.float32
    same(narrow(cut), ("batch", "mlp", "height"), layer(x).array, rtol=0.03, atol=0.05)


def test_names_of_the_weight():
    axes = lambda layer: layer.weight.axes  # noqa: E731
    kernel = (axn.Axis("kernel.height", 3), axn.Axis("kernel.width", 2))
    assert axes(drawn(nn.Conv.init, (H, "width"), C, F, (3, 2))) == (F, C, *kernel)
    layer = drawn(nn.Conv.init, (H, "width"), C, C.resize(8), (3, 2))
    assert axes(layer) == (axn.Axis("channels.out", 8), C, *kernel)
    assert layer.bias.axes == (C.resize(8),)
    assert layer(draw(B, H, W, C)).names == ("batch", "height", "width", "channels")
    layer = drawn(nn.Conv.init, (H, "width"), C, C, (3, 2), groups=4)
    assert axes(layer) == (C, axn.Axis("group.channels", 1), *kernel)
    expected = theirs_of(layer, draw(B, H, W, C))
    same(layer(draw(B, H, W, C)), expected.names, expected.array)


def test_parameters_at_the_start():
    layer = nn.Conv.init("width", axn.Axis("channels", 50), axn.Axis("mlp", 60), 2, groups=2, key=KEY)
    for p in (layer.weight, layer.bias):
        assert 0.13 < float(abs(p).max().item()) <= 1 / np.sqrt(50)
    other = nn.Conv.init("width", C, F, 2, initializer=nn.initializer.he_normal(), key=KEY)
    same(
        other.weight,
        ("mlp", "channels", "kernel.width"),
        nn.initializer.he_normal(In=("channels", "kernel.width"), Out="mlp")(
            jax.random.split(KEY)[0], other.weight.axes
        ).array,
    )


def test_transformations():
    layer, x = drawn(nn.Conv.init, H, C, F, 3), draw(B, S, C, H)
    expected = layer(x).array
    same(layer(x.untag("batch", "seq")), ("mlp", "height"), expected)
    same(axn.vmap(layer, B)(x), ("batch", "seq", "mlp", "height"), expected)
    _, scanned = axn.scan(lambda c, x: (c, layer(x)), "batch")(0, x)
    same(scanned, ("batch", "seq", "mlp", "height"), expected)


def test_one_batch_axis_needs_one_operation():
    layer = drawn(nn.Conv.init, (H, W), C, F, 3, use_bias=False)
    for order in ((C, H, B, W), (B, H, W, C)):
        assert count_equations(layer, draw(*order)) == 1
    assert count_equations(layer, draw(S, B, C, H, W)) == 3  # between two reshapes


@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
def test_on_a_mesh(mode, request):
    mesh = request.getfixturevalue(mode)
    embed = axn.Axis("embed", 4)
    check_on(
        mesh,
        apply,
        drawn(nn.Conv.init, (H, "width"), embed, F, 3, stride=(1, 2), padding=1),
        draw(H, B, embed, W),
    )
    # Depthwise, and with several batch axes of which two lie on the mesh.
    heads = axn.Axis("heads", 4)
    layer = drawn(nn.ConvTranspose.init, "width", embed, embed, 3, stride=2, groups=4)
    check_on(mesh, apply, layer, draw(S, heads, W, B, embed))


@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
def test_no_batch_axis_is_gathered(mode, request):
    mesh, mapping = request.getfixturevalue(mode), {"batch": "data", "heads": "model"}
    layer, x = drawn(nn.Conv.init, "width", C, F, 3, padding=1), draw(W, S, axn.Axis("heads", 4), B, C)
    with axn.set_mesh(mesh):
        run = axn.named_jit(apply, mapping, strict=False)
        given = axn.shard(x, mapping)
        text = run.lower(layer, given).compile().as_text()
        same(run(layer, given), ("width", "seq", "heads", "batch", "mlp"), layer(x).array)
    assert not re.findall(r"all-gather|all-to-all|all-reduce|collective-permute", text)
    with axn.set_mesh(mesh):
        # A spatial axis exchanges its edges with its neighbours.
        run = axn.named_jit(apply, {"height": "model"}, strict=False)
        spread = drawn(nn.Conv.init, "height", C, F, 3, padding=1)
        text = run.lower(spread, axn.shard(draw(B, H, C), {"height": "model"})).compile().as_text()
    assert "all-gather" not in text
    assert "collective-permute" in text
    with axn.set_mesh(mesh):
        # So do gradients, and several groups.
        run = axn.named_jit(differentiated(apply), {"batch": "data", "height": "model"}, strict=False)
        grouped = drawn(nn.Conv.init, "height", C, F, 3, padding=1, groups=2)
        text = run.lower(grouped, axn.shard(draw(B, H, C), {"batch": "data", "height": "model"})).compile().as_text()
    assert not re.findall(r"all-gather|all-to-all", text)


def several(layers, x):
    return sum(axn.sin(layer(x)).sum() for layer in layers)


LINES, CHANNELS, FEATURES = axn.make_axes(height=16, channels=8, features=8)
LAYERS = [
    (nn.Conv.init, FEATURES, {"padding": 1}),
    (nn.Conv.init, FEATURES, {"padding": ((3, 1),), "stride": 2, "dilation": 2, "groups": 2, "use_bias": False}),
    (nn.Conv.init, CHANNELS, {"padding": 1, "groups": 8, "use_bias": False}),
    (nn.ConvTranspose.init, FEATURES, {"padding": "SAME", "stride": 2, "use_bias": False}),
]


@pytest.mark.parametrize(
    ("mode", "mapping"),
    [
        ("auto_mesh", {"batch": "data"}),
        ("auto_mesh", {"height": "data", "features": "model"}),
        ("explicit_mesh", {"height": "model", "channels": "data"}),
        ("auto_mesh", {"height": ("model", "data")}),
        ("mixed_mesh", {"height": "data"}),
    ],
    ids=str,
)
def test_gradients_where_mesh_axes_are_idle(mode, mapping, request):
    layers = [drawn(init, "height", CHANNELS, Out, 3, **options) for init, Out, options in LAYERS]
    x = draw(B, LINES, CHANNELS)
    out, gradients = value_and_gradients(several)(layers, x)
    with axn.set_mesh(request.getfixturevalue(mode)):
        run = axn.named_jit(differentiated(several), mapping, in_axis_resources=mapping, strict=False)
        result, others = run(layers, x)
    same(result, (), out.array, rtol=1e-3, atol=1e-3)
    same_trees(others, gradients, rtol=1e-3, atol=1e-3)


# Windows need more than the next blocks, start elsewhere in each block, or are none at the end of the last one.
@pytest.mark.parametrize("settings", [(7, 1, 3), (3, 3, 16), (3, 1, 0)], ids=str)
@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
def test_blocks_that_do_not_fit_the_windows(mode, settings, request):
    size, stride, padding = settings
    layer = drawn(nn.Conv.init, "height", C, F, size, stride=stride, padding=padding)
    mapping = {"height": "model"} if size == stride or not padding else {"height": ("data", "model")}
    x = draw(LINES, C)
    out, gradients = value_and_gradients(apply)(layer, x)
    with axn.set_mesh(request.getfixturevalue(mode)):
        result, others = axn.named_jit(differentiated(apply), mapping, in_axis_resources=mapping, strict=False)(
            layer, x
        )
    same(result, out.names, out.array)
    same_trees(others, gradients, atol=5e-5)


def test_a_mapped_batch_axis_and_groups(auto_mesh):
    layer, x = drawn(nn.Conv.init, "height", CHANNELS, CHANNELS, 3, groups=8), draw(B, LINES, CHANNELS)
    call = lambda layer, x: axn.vmap(layer, B)(x)  # noqa: E731
    _, gradients = value_and_gradients(call)(layer, x)
    with axn.set_mesh(auto_mesh):
        _, others = axn.named_jit(differentiated(call), {"batch": "data"}, strict=False)(layer, x)
    same_trees(others, gradients, atol=5e-5)


@pytest.mark.parametrize("mode", ["auto_mesh", "explicit_mesh"])
def test_half_precision_on_a_mesh(mode, request):
    # Sums of bfloat16 over some mesh axes crash XLA for CPUs.
    wide = drawn(nn.Conv.init, "height", CHANNELS, FEATURES, 3, use_bias=False), draw(B, LINES, CHANNELS)
    mapping = {"height": "model", "channels": "data"}
    layer, x = jax.tree.map(lambda p: p.astype(jnp.bfloat16), wide)
    _, gradients = value_and_gradients(apply)(*wide)
    with axn.set_mesh(request.getfixturevalue(mode)):
        _, others = axn.named_jit(differentiated(apply), mapping, in_axis_resources=mapping, strict=False)(layer, x)
    for ours, theirs in zip(jax.tree.leaves(others), jax.tree.leaves(gradients), strict=True):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(ours, np.float32), theirs, rtol=0.05, atol=0.02 * abs(theirs).max())


def test_inside_of_a_shard_map(auto_mesh):
    layer, x = drawn(nn.Conv.init, "width", C, F, 3), draw(B, S, W, C)
    same(axn.shard_map(layer, {"batch": "data"}, auto_mesh)(x), ("batch", "seq", "width", "mlp"), layer(x).array)


def test_the_result_lies_as_the_mapping_says(auto_mesh):
    layer, x = drawn(nn.Conv.init, "width", C, F, 3), draw(B, W, C)
    with axn.set_mesh(auto_mesh), axn.axis_mapping({"batch": "data", "mlp": "model"}):
        assert lies(jax.jit(lambda x: layer(x))(x), auto_mesh, {"batch": "data", "mlp": "model"})


def test_errors_of_init():
    with pytest.raises(ArgumentError) as error:
        nn.Conv.init((), C, F, 3, key=KEY)
    assert str(error.value) == "Conv.init: there is no spatial axis\n  hint: use nn.Linear without spatial axes"
    with pytest.raises(ArgumentError) as error:
        nn.ConvTranspose.init("width", C, F, 3, groups=4, key=KEY)
    assert str(error.value) == (
        "ConvTranspose.init: 4 groups do not divide both axes evenly\n  In: channels=4\n  Out: mlp=6"
    )
    for axes in ((C, F), (F, C)):
        with pytest.raises(AxisClashError, match=r"^Conv.init: axis 'channels' would appear twice$"):
            nn.Conv.init(("height", "channels"), *axes, 3, key=KEY)
    with pytest.raises(ArgumentError) as error:
        nn.ConvTranspose.init("width", C, F, 3, stride=2, output_padding=2, key=KEY)
    assert str(error.value) == (
        "ConvTranspose.init: output_padding must be less than the stride, not 2 where the stride is 2"
    )


def test_errors_of_a_call():
    layer = drawn(nn.Conv.init, (H, "width"), C, F, 3)
    with pytest.raises(AxisNotFoundError) as error:
        layer(draw(H, W))
    assert str(error.value) == (
        "Conv: the input lacks axis 'channels'\n  input has: height=6, width=5\n"
        "  the layer works over: channels=4, height=6"
    )
    with pytest.raises(AxisNotFoundError) as error:
        layer(draw(H, C))
    assert str(error.value) == "Conv: no axis named 'width'\n  array has: height=6, channels=4"
    with pytest.raises(AxisSizeError) as error:
        layer(draw(H.resize(7), W, C))
    assert str(error.value) == (
        "Conv: axis 'height' of the input has size 7, but the layer was made for 6\n"
        "  input has: height=7, width=5, channels=4"
    )
    with pytest.raises(AxisClashError) as error:
        layer(draw(H, W, C, F))
    assert str(error.value) == (
        "Conv: the input already has axis 'mlp', which the layer adds\n"
        "  input has: height=6, width=5, channels=4, mlp=6\n  hint: rename it first: x.rename({'mlp': ...})"
    )
    with pytest.raises(AxisSizeError) as error:
        layer(draw(H, W.resize(2), C))
    assert str(error.value) == (
        "Conv: a window of 3 does not fit into axis 'width' of size 2\n  input has: height=6, width=2, channels=4"
    )
    short = drawn(nn.ConvTranspose.init, ("height", "width"), C, F, (1, 2), stride=(1, 2), padding=((0, 1), (2, 3)))
    assert short(draw(H.resize(2), W.resize(3), C)).axes == (H.resize(1), W.resize(1), F)
    with pytest.raises(AxisSizeError) as error:
        short(draw(H, W.resize(2), C))
    assert str(error.value) == (
        "ConvTranspose: axis 'width' of size 2 becomes 4, less than the padding of 5 to remove\n"
        "  input has: height=6, width=2, channels=4\n"
        "  hint: give the axis a size of at least 3, or the layer less padding"
    )


def test_a_spatial_axis_that_cannot_be_split_is_told(auto_mesh):
    layer = drawn(nn.Conv.init, "height", C, F, 2)
    with axn.set_mesh(auto_mesh), pytest.raises(ShardingError, match="height=5 cannot be split evenly in 2"):
        axn.named_jit(apply, {"height": "model"}, strict=False)(layer, axn.shard(draw(B, H, C), {"height": "model"}))
