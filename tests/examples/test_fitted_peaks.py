"""No legal layout of eight devices needs much less memory than the one that fits: families, gallery, layers."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import diffusion
import equinox as eqx
import jax
import jax.numpy as jnp
import mixture_of_experts
import pytest
import vit
import weather
from layouts import HEADS
from training import Digits

import axonym as axn
from axonym.errors import AxonymError
from axonym.models import read_config
from axonym.partitioning import fit_mapping
from tests.examples.test_fitting import GALLERY, Batch, count_bytes, numbers, shrink, step
from tests.models.test_families import PUBLISHED
from tests.nn.test_every_layer import ROWS
from tests.sample import SEED

pytestmark = pytest.mark.sampled
DIGITS = Digits(axn.zeros({"image": 80, "height": 8, "width": 8}), axn.zeros({"image": 80}, dtype=jnp.int32))
TEXT = axn.zeros({"byte": 1024}, dtype=jnp.int32)
TRAINED: dict[str, tuple[Callable[..., jax.Array], Any]] = {
    "vit": (vit.loss_fn, DIGITS),
    "diffusion": (diffusion.loss_fn, DIGITS),
    "weather": (weather.loss_fn, None),
    "mixture_of_experts": (mixture_of_experts.loss_fn, TEXT),
}
MESHES = [{"data": 2, "model": 4}, {"data": 4, "model": 2}, {"data": 2, "context": 2, "model": 2}]


@pytest.fixture
def meshes(pytestconfig: pytest.Config) -> list[dict[str, int]]:
    return MESHES if pytestconfig.getoption("--all-rows") else [MESHES[SEED % 3]]


def find_peak(step: Callable[..., Any], mappings: axn.Mappings, sizes: Any, given: tuple[Any, ...]) -> int:
    return axn.cost(step, mappings, sizes, *given, depth="traced").memory.peak


def find_layouts(asked: axn.Mappings, sizes: Mapping[str, int]) -> Iterator[tuple[axn.Mappings, dict[str, int]]]:
    """Yield each layout by which axes have some of the mesh axes of their entries, whose sizes are powers of two.

    An axis with one entry for storage and computation has one here.
    """
    parts = {axis: [f"{axis}_{i}" for i in range(size.bit_length() - 1)] for axis, size in sizes.items()}
    mesh = dict.fromkeys(itertools.chain.from_iterable(parts.values()), 2)
    assert math.prod(mesh.values()) == math.prod(sizes.values())
    entries = sorted({(name, entry) for slot in asked.all() for name, entry in slot.items()})
    every = []
    for _, entry in entries:
        own = [part for axis in entry for part in parts.get(axis, ())]
        every.append([some for count in range(len(own) + 1) for some in itertools.combinations(own, count)])
    seen = set()
    for chosen in itertools.product(*every):
        # Layouts that exchange the parts of a mesh axis are the same.
        users = tuple(sorted((part.rpartition("_")[0], *(part in entry for entry in chosen)) for part in mesh))
        if users not in seen:
            seen.add(users)
            split = dict(zip(entries, chosen, strict=True))
            yield axn.Mappings(*({one[0]: split[one] for one in slot.items()} for slot in asked.all())), mesh


def check_peak(
    step: Callable[..., Any],
    asked: axn.Mappings,
    sizes: dict[str, int],
    given: tuple[Any, ...],
    wider: axn.Mappings | None = None,
) -> None:
    """Compare the peak of the mapping that fits with those of all legal layouts.

    Args:
        step: the step.
        asked: the mapping to fit.
        sizes: the mesh.
        given: what the step takes; the model first.
        wider: the entries to choose from in the other layouts; by default those of `asked`.
    """
    fitted = fit_mapping(step, asked, sizes, *given, limit_bytes=2**40)
    own = find_peak(step, fitted.mapping, dict(fitted.mesh.shape), given)
    for mappings, mesh in find_layouts(wider or asked, sizes):
        # A device has its part of the model and of the gradients.
        least = 2 * count_bytes(given[0], mappings, mesh)
        if 1.1 * least >= own:
            continue
        try:
            is_larger = own <= 1.1 * find_peak(step, mappings, mesh, given)
        except AxonymError:
            is_larger = False
        # To ask whether a layout is legal takes as long as to count, and those that are larger need no answer.
        assert is_larger or axn.check(step, mappings, mesh, *given, quiet=True).errors, mappings


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_layout_of_a_family_needs_much_less_memory(name: str, meshes: list[dict[str, int]]) -> None:
    config = shrink(read_config(PUBLISHED[name][1]))
    # Not the cached function, which would keep abstract arrays.
    given = jax.eval_shape(lambda: numbers.__wrapped__(config))
    asked = {"batch": "data", **HEADS}
    # An axis may take what its neighbour leaves.
    wider = asked if config.kv_heads == config.heads else asked | {"group": "model"}
    for sizes in meshes:
        check_peak(step, axn.Mappings(asked), sizes, given, axn.Mappings(wider))


@pytest.mark.parametrize("name", GALLERY)
def test_no_layout_of_the_gallery_needs_much_less_memory(name: str, meshes: list[dict[str, int]]) -> None:
    init, *entries = GALLERY[name]
    loss, data = TRAINED[name]
    given = jax.eval_shape(lambda key: (init(key), data, key), jax.random.key(0))
    # Buffers of tokens on their way to experts are larger than experts of this size.
    own = [{axis: entry for axis, entry in slot.items() if axis != "experts"} for slot in entries]
    for sizes in meshes:
        check_peak(eqx.filter_value_and_grad(loss), axn.Mappings(*own), sizes, given, axn.Mappings(*entries))


@pytest.mark.parametrize("name", ROWS)
def test_no_layout_of_a_layer_needs_much_less_memory(
    name: str, meshes: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # XLA gathers what it adds to a table that has about as many rows as there are devices.
    monkeypatch.setattr("tests.nn.test_every_layer.V", axn.Axis("vocab", 500))
    if name == "MixtureOfExperts":
        # Experts whose weights are smaller than their tokens need more memory if devices send tokens to them.
        monkeypatch.setattr("tests.nn.test_every_layer.M", axn.Axis("mlp", 60))
    row = ROWS[name]
    given = jax.eval_shape(lambda: (row.make(), row.input(Batch, axn.Axis("seq", 2))))

    def step(layer: Any, x: axn.NamedArray) -> Any:
        def loss(layer: Any) -> jax.Array:
            out = row.call(layer, x)
            return sum(jnp.square(jnp.abs(leaf)).sum() for leaf in jax.tree.leaves(out))

        return eqx.filter_value_and_grad(loss)(layer)

    leaves = jax.tree.leaves(given, is_leaf=axn.is_named_array)
    named = {axis for leaf in leaves if axn.is_named_array(leaf) for axis in leaf.names}
    # Layers are split by pipelines alone, which say how.
    inner = sorted(named - {"batch", "layers"})
    asked = {"batch": "data", **dict(zip(inner, ("model", "context"), strict=False))}
    for sizes in meshes:
        own = {axis: entry for axis, entry in asked.items() if entry in sizes}
        check_peak(step, axn.Mappings(own), sizes, given)
