"""Which implementation a call gets: by its layout, the platform, and what kernels support."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn
from axonym import nn
from axonym.nn.attention.call import AttentionCall
from axonym.nn.attention.choose import IMPLEMENTATIONS, choose
from benchmarks.measure import collectives, totals
from tests.nn import split
from tests.nn.layouts import draw

B, H, G, Q, K, D, F = axn.make_axes(batch=4, heads=2, group=2, pos=128, key_pos=256, head_dim=8, out=8)
IDS = axn.named(np.random.default_rng(1).integers(0, 2, (4, 128)), ("batch", "pos"))
KEY_IDS = axn.named(np.random.default_rng(2).integers(0, 2, (4, 256)), ("batch", "key_pos"))


def inputs(KPos=K):
    return draw(B, H, G, Q, D), draw(B, H, KPos, D, seed=1), draw(B, H, KPos, F, seed=2)


def test_the_platform_chooses(monkeypatch):
    def chosen(backend, q, k, v, mask=None, maker="NVIDIA", **options):
        monkeypatch.setattr(jax, "default_backend", lambda: backend)
        monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(device_kind=f"{maker} 1")])
        found = choose(AttentionCall.of("pos", "key_pos", "head_dim", q, k, v, mask, None, None, **options))
        assert IMPLEMENTATIONS[found.name] is found.compute
        return found.name

    half, square = (tuple(x.astype(jnp.bfloat16) for x in inputs(KPos)) for KPos in (K, Q.alias("key_pos")))
    windowed = nn.causal() & nn.window(8)
    for given, mask, options, on_gpu, on_tpu in (
        (half, None, {}, "cudnn", "splash"),
        (square, windowed, {}, "cudnn", "splash"),
        (half, windowed, {}, "plain", "splash"),
        (square, nn.causal() & nn.prefix(3), {}, "plain", "plain"),
        (square, nn.causal() & nn.segments(IDS), {}, "plain", "splash"),
        (square, nn.causal() & nn.segments(IDS), {"q_start": 1}, "plain", "plain"),
        (half, nn.causal() & nn.segments(IDS, KEY_IDS), {}, "plain", "plain"),
        (half, nn.causal(), {"q_start": 1}, "plain", "splash"),
        (half, nn.causal(), {"q_start": axn.named(1, ())}, "plain", "plain"),
        (half, None, {"soft_cap": 2.0}, "plain", "splash"),
        (half, None, {"bias": draw(H)}, "plain", "plain"),
        (half, None, {"dropout": 0.1, "key": jax.random.key(0)}, "plain", "plain"),
        ([x["head_dim", :4] if x.has_axis("head_dim") else x["out", :4] for x in half], None, {}, "plain", "splash"),
        ([x["pos", :8] if x.has_axis("pos") else x for x in half], None, {}, "cudnn", "plain"),
        (inputs(), None, {}, "plain", "splash"),
        (tuple(x.astype(jnp.float16) for x in inputs()), None, {}, "cudnn", "plain"),
    ):
        assert chosen("gpu", *given, mask, **options) == on_gpu
        assert chosen("tpu", *given, mask, **options) == on_tpu
        assert chosen("cpu", *given, mask, **options) == "plain"
    assert chosen("gpu", *half, maker="AMD") == "plain"
    with axn.axis_mapping({"pos": "data"}):  # a device would compute all queries
        assert chosen("gpu", *half) == chosen("tpu", *half) == "plain"


def test_the_method_that_sends_least_is_chosen(auto_mesh):
    """By the formula: all heads of few keys and values go around; a short window reaches one neighbour."""
    kinds = {}
    q, k, v = split.inputs()
    for name, given, mask in (
        ("heads of their own", (q["group", 0], k, v), nn.causal()),
        ("one head", (q, k["heads", 0], v["heads", 0]), nn.causal()),
        ("a short window", (q["group", 0], k, v), nn.causal() & nn.window(3)),
    ):
        _, program = split.on(auto_mesh, split.MAPPING, lambda *x: split.attend(*x, mask=mask), *given)  # noqa: B023
        (kinds[name],) = totals(collectives(program))
    assert kinds == {
        "heads of their own": "all-to-all",
        "one head": "collective-permute",
        "a short window": "collective-permute",
    }
