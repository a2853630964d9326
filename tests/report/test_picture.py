"""Pictures of layouts: their structure, and the devices of each block against what JAX says."""

import itertools
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import axonym as axn
import axonym.nn as nn
from axonym.partitioning import show
from axonym.report.picture import Picture, cut

SVG = "{http://www.w3.org/2000/svg}"
Batch, Embed, Mlp = axn.make_axes(batch=8, embed=16, mlp=32)
POD = AbstractMesh((4, 2), ("data", "model"))


def struct(*axes):
    return axn.NamedArray(jax.ShapeDtypeStruct(tuple(axis.size for axis in axes), jnp.float32), axes)


def drawn(picture: Picture):
    """Return the texts, and what the block of each rectangle is held by."""
    root = ET.fromstring(picture.svg())
    texts = [text.text for text in root.iter(f"{SVG}text")]
    return texts, [rect.find(f"{SVG}title").text for rect in root.iter(f"{SVG}rect")], root


def test_the_blocks_of_a_matrix():
    picture = show({"weight": struct(Embed, Mlp)}, {"embed": "data", "mlp": "model"}, POD).picture()
    texts, held, _ = drawn(picture)
    assert texts[:5] == [
        "mesh data=4, model=2",
        "weight",
        "mlp=32 → model",
        "embed=16 → data",
        "2.0 KiB, on each device 256 B",
    ]
    assert held == [f"device {i}" for i in range(8)]
    assert texts[5:] == [str(i) for i in range(8)]


def test_what_several_devices_hold_and_what_all_hold():
    _, held, root = drawn(show([struct(Embed, Mlp), struct(Batch)], {"mlp": "model"}, POD).picture())
    assert held == ["devices 0, 2, 4, 6", "devices 1, 3, 5, 7", "devices 0-7"]
    colours = [rect.get("fill") for rect in root.iter(f"{SVG}rect")]
    assert colours == ["hsl(0 75% 55% / 0.55)", "hsl(41 75% 55% / 0.55)", "rgb(128 128 128 / 0.25)"]


@pytest.mark.parametrize(
    "spec", [P("data", "model"), P("model"), P(None, ("data", "model")), P(("model", "data")), P()]
)
def test_the_devices_of_blocks_are_those_of_jax(auto_mesh, spec):
    entries = [() if axes is None else (axes,) if isinstance(axes, str) else axes for axes in (*spec, None, None)[:2]]
    held = cut(([entries[0]], [entries[1]]), tuple(auto_mesh.shape.items()))
    number = {device: i for i, device in enumerate(auto_mesh.devices.flat)}
    expected: dict[tuple[int, ...], list[int]] = {}
    for device, index in NamedSharding(auto_mesh, spec).devices_indices_map((8, 16)).items():
        start = tuple(part.indices(size)[0] for part, size in zip(index, (8, 16), strict=True))
        expected.setdefault(start, []).append(number[device])
    assert held == tuple(tuple(sorted(expected[start])) for start in sorted(expected))


def test_of_many_dimensions_those_that_are_split_are_drawn():
    axes = axn.make_axes(layers=3, embed=16, heads=4, head_dim=8)
    for mapping, down, across in [
        ({}, "heads=4", "head_dim=8"),
        ({"embed": "data"}, "embed=16 → data", "head_dim=8"),
        ({"head_dim": "data"}, "heads=4", "head_dim=8 → data"),
        ({"heads": "model", "embed": "data"}, "embed=16 → data", "heads=4 → model"),
    ]:
        texts, held, _ = drawn(show([struct(*axes)], mapping, POD).picture())
        assert texts[2:4] == [across, down]
        assert len(held) == np.prod([POD.shape[axis] for axis in mapping.values()], dtype=int)


def test_arrays_without_a_mesh_and_without_dimensions():
    tree = {"host": np.ones(3), "scalar": axn.zeros(()), "none": struct()}
    texts, held, _ = drawn(show(tree).picture())
    assert texts[0] == "no mesh"
    assert {"host", "one device", "not known"} < set(texts)
    assert len(held) == 3


def test_equal_layers_are_drawn_once_and_many_arrays_not_at_all():
    layers = [struct(Embed, Mlp)] * 3
    texts, _, _ = drawn(show({"layers": layers}, {"embed": "data"}, POD).picture())
    assert "layers.* (3x)" in texts
    sizes = itertools.count(1)
    texts, held, _ = drawn(show([struct(axn.Axis("a", next(sizes))) for _ in range(43)], {}, POD).picture())
    assert texts[-1] == "… 3 more arrays"
    assert len(held) == 40


def test_a_report_has_the_picture_of_what_was_checked():
    model = jax.eval_shape(lambda key: nn.Linear.init(Embed, Mlp, key=key), jax.random.key(0))
    mapping = {"batch": "data", "mlp": "model"}
    report = axn.check(lambda model, x: model(x), mapping, POD, model, struct(Batch, Embed), quiet=True)
    texts, _, _ = drawn(report.picture())
    assert {"model.weight", "model.bias", "x", "result"} < set(texts)


def test_in_a_file_and_in_a_notebook(tmp_path):
    picture = show({"<w>": struct(Embed)}, {"embed": "data"}, POD).picture()
    picture.save(tmp_path / "layout.svg")
    alone = (tmp_path / "layout.svg").read_text()
    assert ET.fromstring(alone).find(f"{SVG}style") is not None
    assert "prefers-color-scheme:dark" in alone
    # In a page, the colours are those of the page, and no style reaches other elements.
    assert picture._repr_html_() == picture.svg()
    assert "<style>" not in picture.svg()
    assert "&lt;w&gt;" in picture.svg()
    assert repr(picture) == "<Picture of <w> on mesh data=4, model=2>"
