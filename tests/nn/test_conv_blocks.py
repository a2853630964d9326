"""Paddings by something other than zeros, against padding by hand, on one device and in blocks."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisNotFoundError, AxisSizeError, OperandError

Batch, Lat, Lon, In, Out = axn.make_axes(batch=2, lat=8, lon=16, inputs=3, outputs=4)
x = axn.random.normal(jax.random.key(0), (Batch, Lat, Lon, In))


def cross_pole(rows: axn.NamedArray) -> axn.NamedArray:
    """Go on behind a pole, on the other side of the earth."""
    return axn.roll(axn.flip(rows, "lat"), 8, "lon")


def make(lat: Any, lon: Any, size: int, stride: int = 1, dilation: int = 1) -> nn.Conv:
    return nn.Conv.init(
        ("lat", "lon"),
        In,
        Out,
        size,
        stride=stride,
        dilation=dilation,
        padding={"lat": lat, "lon": lon},
        key=jax.random.key(1),
    )


def by_hand(conv: nn.Conv, lat: Any, lon: Any, x: jax.Array, weight: jax.Array) -> jax.Array:
    span = conv.dilation[0] * (conv.kernel_size[0] - 1)
    low, high = span // 2, span - span // 2
    if callable(lat):
        north, south = jnp.roll(x[:, :low][:, ::-1], 8, 2), jnp.roll(x[:, 8 - high :][:, ::-1], 8, 2)
        x = jnp.concatenate([north, x, south], 1)
    else:
        x = jnp.pad(x, ((0, 0), (low, high), (0, 0), (0, 0)), mode=lat)
    x = jnp.pad(x, ((0, 0), (0, 0), (low, high), (0, 0)), mode=lon)
    options = {"rhs_dilation": conv.dilation, "dimension_numbers": ("NHWC", "OIHW", "NHWC")}
    y: jax.Array = lax.conv_general_dilated(x, weight, conv.stride, "VALID", **options)
    return y + conv.bias.array if conv.bias is not None else y


CASES: dict[str, tuple[Any, ...]] = {
    "edge": ("edge", "wrap", 3),
    "reflect, an even kernel": ("reflect", "wrap", 4),
    "a pole": (cross_pole, "wrap", 3),
    "a pole, a large kernel": (cross_pole, "wrap", 5),
    "constant, with a stride": ("constant", "symmetric", 3, 2),
    "wrap, dilated": ("wrap", "reflect", 3, 1, 2),
}


def run_all(x: Any, convolve: Any) -> Any:
    def one(case: str) -> Any:
        conv = make(*CASES[case])
        call = convolve(conv, *CASES[case][:2])
        gradient = jax.grad(lambda x, weight: (call(x, weight) ** 2).sum(), (0, 1))
        return call(x, conv.weight.array), *gradient(x, conv.weight.array)

    return {case: one(case) for case in CASES}


def named(conv: nn.Conv, *_: Any) -> Any:
    def call(x: jax.Array, weight: jax.Array) -> jax.Array:
        own = axn.NamedArray(weight, conv.weight.names)
        layer = nn.Conv(**{**vars(conv), "weight": own})
        return layer(axn.NamedArray(x, ("batch", "lat", "lon", "inputs"))).array

    return call


@pytest.fixture(scope="module")
def expected() -> Any:
    return jax.jit(lambda x: run_all(x, lambda conv, lat, lon: lambda *args: by_hand(conv, lat, lon, *args)))(x.array)


def assert_close(got: Any, expected: Any) -> None:
    for case, results in expected.items():
        for own, other in zip(got[case], results, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-3, atol=2e-3, err_msg=case)


def test_on_one_device(expected: Any) -> None:
    assert_close(jax.jit(lambda x: run_all(x, named))(x.array), expected)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize(
    "mapping", [{"lon": "data"}, {"lat": "model", "lon": "data"}, {"batch": "model", "lat": "data"}], ids=str
)
def test_in_blocks(kind: str, mapping: Any, request: Any, expected: Any) -> None:
    with axn.set_mesh(request.getfixturevalue(f"{kind}_mesh")), axn.axis_mapping(mapping):
        program = jax.jit(lambda x: run_all(x, named)).lower(axn.shard(x).array).compile()
        assert_close(program(axn.shard(x).array), expected)
    # A block that a window of five needs whole, and more, is gathered.
    assert not re.search(r" all-gather(-start)?\(", program.as_text() or "") or mapping.get("lat")


def pool_all(x: axn.NamedArray, pad: Any) -> Any:
    window = axn.make_axes(lat=3, lon=4)

    def one(pool: Any, lat: Any) -> Any:
        call = pad(pool, lat, window)
        return call(x).array, jax.grad(lambda x: (call(x).array ** 2).sum())(x).array

    pools = {"max_pool": nn.max_pool, "mean_pool": nn.mean_pool}
    return {f"{name} {lat}": one(pool, lat) for name, pool in pools.items() for lat in ("reflect", cross_pole)}


def by_name(pool: Any, lat: Any, window: Any) -> Any:
    return lambda x: pool(window, x, padding={"lat": lat, "lon": "wrap"})


def after_padding(pool: Any, lat: Any, window: Any) -> Any:
    def call(x: axn.NamedArray) -> axn.NamedArray:
        if callable(lat):
            x = axn.concatenate("lat", [lat(x["lat", :1]), x, lat(x["lat", -1:])])
        else:
            x = axn.pad(x, {"lat": 1}, mode=lat)
        result: axn.NamedArray = pool(window, axn.pad(x, {"lon": (1, 2)}, mode="wrap"))
        return result

    return call


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_pools(kind: str, request: Any) -> None:
    whole = jax.jit(lambda x: (pool_all(x, by_name), pool_all(x, after_padding)))
    got, expected = whole(x)
    assert_close(got, expected)
    with axn.set_mesh(request.getfixturevalue(f"{kind}_mesh")), axn.axis_mapping({"lat": "model", "lon": "data"}):
        program = jax.jit(lambda x: pool_all(x, by_name)).lower(axn.shard(x)).compile()
        assert_close(program(axn.shard(x)), expected)
    assert not re.search(r" all-gather(-start)?\(", program.as_text() or "")


BAD: list[tuple[Any, type[Exception], str]] = [
    (
        lambda: make("wrapped", "wrap", 3),
        ArgumentError,
        "Conv.init: unknown padding of axis 'lat': 'wrapped'\n"
        "  hint: an int, a pair, one of 'constant', 'edge', 'reflect', 'symmetric', 'wrap', or a function",
    ),
    (
        lambda: make("edge", "circular", 3),
        ArgumentError,
        "Conv.init: unknown padding of axis 'lon': 'circular'\n  hint: write 'wrap'",
    ),
    (
        lambda: make(cross_pole, cross_pole, 3),
        ArgumentError,
        "Conv.init: only one axis can be padded by a function\n  hint: pad the other axis by a mode",
    ),
    (
        lambda: nn.Conv.init("lat", In, Out, 3, padding={"lot": "wrap"}, key=jax.random.key(0)),
        AxisNotFoundError,
        "Conv.init: the padding has axis 'lot', along which nothing slides\n  axes: lat\n  hint: did you mean 'lat'?",
    ),
    (
        lambda: make(cross_pole, "wrap", 19)(x),
        AxisSizeError,
        "Conv: a padding of 9 needs as many elements of axis 'lat', which has 8\n"
        "  input has: batch=2, lat=8, lon=16, inputs=3",
    ),
    (
        lambda: make(lambda rows: rows["lat", 0], "wrap", 3)(x),
        OperandError,
        "Conv: the function that pads axis 'lat' must return the axes of its argument\n"
        "  argument has: batch=2, lat=1, lon=16, inputs=3\n"
        "  result has: batch=2, lon=16, inputs=3",
    ),
    (
        lambda: nn.max_pool(axn.make_axes(lat=3), x, padding={"lat": "wrap"}, use_ceil=True),
        ArgumentError,
        "max_pool: use_ceil extends windows beyond the padding, which only zeros allow\n  hint: pad by numbers",
    ),
    (
        lambda: nn.ConvTranspose.init("lat", In, Out, 3, padding={"lat": "wrap"}, key=jax.random.key(0)),
        ArgumentError,
        "ConvTranspose.init: padding must have one non-negative entry for each of 1 axes, not {'lat': 'wrap'}\n"
        '  hint: "SAME", "VALID", an int, one int for each axis, or a pair for each axis',
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD)
def test_bad_input_is_explained(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text
