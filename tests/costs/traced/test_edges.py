"""The edges of blocks that devices exchange for a convolution, against the elements that each window needs."""

import jax
import jax.numpy as jnp
import pytest

import axonym as axn
from axonym.costs.shared.targets import TARGETS
from axonym.costs.traced.edges import find_edge_moves
from axonym.costs.traced.equations import find_layout
from axonym.costs.traced.template import Template
from axonym.report import abstract_mesh
from tests.costs.equations_made import array, equation

MESH = {"data": 4, "model": 2}


def find_edges(size, window, stride, pads, dilation):
    """Return how many elements before and after its block the device with most neighbours reads."""
    count = (size + sum(pads) - (window - 1) * dilation - 1) // stride + 1
    block, own = size // 4, -(-count // 4)
    read = [start * stride - pads[0] + k * dilation - block for start in range(own, 2 * own) for k in range(window)]
    return max(0, -min(read)), max(0, max(read) - block + 1)


@pytest.mark.parametrize(
    ("window", "stride", "pads", "dilation"),
    [(3, 1, (1, 1), 1), (3, 2, (1, 1), 1), (2, 1, (0, 1), 1), (3, 1, (2, 2), 2)],
)
def test_devices_send_the_elements_that_windows_of_their_neighbours_need(window, stride, pads, dilation):
    def convolve(image, kernel):
        options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "rhs_dilation": (dilation, 1)}
        return jax.lax.conv_general_dilated(image, kernel, (stride, 1), (pads, (0, 0)), **options)

    one = equation("conv_general_dilated", convolve, array((2, 32, 6, 3)), array((window, 1, 3, 5)))
    image, kernel = one.invars
    values = [find_layout(image)._replace(entries=(("model",), ("data",), (), ())), find_layout(kernel)]
    found = find_edge_moves(one, values, MESH)
    edges = [edge for edge in find_edges(32, window, stride, pads, dilation) if edge]
    assert [part.move.shape for part, _ in found] == [(1, edge, 6, 3) for edge in edges]
    assert {part.move.mesh_axes for part, _ in found} == {("data",)}
    assert {pair for _, pairs in found for pair in pairs} <= {(a, b) for a in range(4) for b in (a - 1, a + 1)}
    assert not find_edge_moves(
        one, [find_layout(image)._replace(entries=(("data",), (), (), ())), find_layout(kernel)], MESH
    )


@pytest.mark.parametrize("computed", [{"height": "data"}, {"height": "data", "width": "model"}])
def test_an_estimate_sends_the_edges_that_a_compiled_program_sends(computed):
    Channels, Features = axn.make_axes(channels=4, features=8)
    conv = axn.nn.Conv.init(("height", "width"), Channels, Features, 3, padding=1, key=jax.random.key(0))
    x = axn.ones({"batch": 2, "height": 16, "width": 16, "channels": 4}, jnp.float32)

    def run(conv, x):
        return jax.grad(lambda conv: axn.square(conv(x)).mean().scalar())(conv)

    mappings = axn.Mappings({}, computed)
    names = {"parameters": ("channels", "features"), "names": ("batch", "height", "width", "channels", "features")}
    target = TARGETS["cpu"]
    template = Template(run, (conv, x), {}, target, **names, states=())
    estimate = template.estimate(mappings, abstract_mesh(MESH, "cost"), target)
    compiled = axn.cost(run, mappings, MESH, conv, x, depth="compiled")
    sent = [
        sum(one.sent for one in cost.communication if one.kind == "collective-permute") for cost in (estimate, compiled)
    ]
    assert sent[0] == sent[1] > 0
