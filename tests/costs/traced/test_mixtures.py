"""How devices share mixtures of experts in a template."""

import pytest

from axonym.costs.traced.mixtures import share_mixture
from axonym.engine import Mixture, normalized
from axonym.report import abstract_mesh

MIXTURE = Mixture((("batch", 8), ("pos", 64)), ("experts", 8), ("mlp", 32))
LIMITED = MIXTURE._replace(is_limited=True)
MESH = abstract_mesh({"data": 4, "model": 2, "third": 2, "single": 1}, "cost")


def share(mixture=MIXTURE, mesh=MESH, **mapping):
    return share_mixture(0, mixture, normalized(mapping), mesh)


def count_devices(found, name):
    """Return the number of devices of the template that share an axis."""
    count = 1
    for axis in dict(found.entries)[name]:
        count *= found.sizes[axis]
    return count


@pytest.mark.parametrize("mixture", [MIXTURE, LIMITED])
@pytest.mark.parametrize(
    ("mapping", "tokens", "experts", "hidden"),
    [
        ({}, 1, 1, 1),
        ({"batch": "data"}, 4, 1, 1),
        ({"batch": ("data", "model"), "experts": "model"}, 8, 2, 1),
        ({"batch": ("data", "single"), "experts": "model", "mlp": "third"}, 4, 2, 2),
        ({"batch": "data", "pos": "model", "experts": ("model", "third")}, 8, 4, 1),
    ],
)
def test_a_template_has_as_many_devices_along_each_axis(mixture, mapping, tokens, experts, hidden):
    found = share(mixture, **mapping)
    assert count_devices(found, "batch") * count_devices(found, "pos") == tokens
    assert (count_devices(found, "experts"), count_devices(found, "mlp")) == (experts, hidden)
    # What stands for the mesh axes of the mapping has their devices.
    for axis, entry in found.real.items():
        size = 1
        for own in entry:
            size *= MESH.shape[own]
        assert found.sizes[axis] == size


def test_mappings_share_a_template_if_a_device_does_the_same():
    assert share(batch="data").key == share(pos=("model", "third")).key
    assert share(batch="model", experts="model").key == share(pos="third", experts="third").key
    assert share(batch="model").key != share(batch="data").key
    assert share(experts="model").key != share(batch="model", experts="model").key
    # Places in queues depend on which axes of tokens are split.
    assert share(LIMITED, batch="data").key != share(LIMITED, pos="data").key


def test_an_axis_of_tokens_stands_for_its_own_mesh_axes():
    found = share(batch="data", pos="model", experts="model")
    axes = {**found.routed, **found.real}
    batch, pos = (
        [own for axis in found.choose(dict(found.entries)[name]) for own in axes[axis]] for name in ("batch", "pos")
    )
    assert (batch, pos) == (["data"], ["model"])


def test_what_all_devices_keep_stands_for_the_mesh_axes_of_all_tokens():
    found = share(batch="data", pos="model", experts="model")
    axes = {**found.routed, **found.real}
    kept = found.choose((*found.routed, *found.real))
    assert sorted(own for axis in kept for own in axes[axis]) == ["data", "model"]


def test_tokens_that_no_axis_can_divide_are_refused():
    mesh = abstract_mesh({"data": 8, "model": 64}, "cost")
    small = MIXTURE._replace(tokens=(("batch", 8), ("pos", 12)))
    with pytest.raises(NotImplementedError) as raised:
        share(small, mesh, batch="model")
    assert str(raised.value).startswith("no axis of tokens can be divided by 64")


def test_experts_on_alternating_mesh_axes_are_refused():
    with pytest.raises(NotImplementedError) as raised:
        share(batch=("data", "third"), experts=("data", "model", "third"))
    assert str(raised.value) == "mesh axes of experts and of tokens alternate"
