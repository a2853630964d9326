"""What names stand for inside of a shard_map."""

import jax
import pytest

import axonym as axn
from axonym.errors import ShardingError
from axonym.partitioning import addresses

AUTO = jax.sharding.AxisType.Auto
MESH = jax.sharding.AbstractMesh((2, 2, 2), ("x", "y", "z"), axis_types=(AUTO,) * 3)
MAPPINGS = axn.Mappings({"embed": ("y", "x"), "mlp": None, "vocab": "z"}, {"batch": "z", "embed": "x", "pos": "y"})


def inside(look, manual=None):
    """Run a look-up inside of a shard_map over abstract devices, and return what it found."""
    found = []
    x = axn.ones(axn.make_axes(batch=4, embed=4, mlp=4))

    def body(x):
        found.append(look())
        return x

    jax.eval_shape(axn.shard_map(body, MAPPINGS, MESH, manual_axes=manual, strict=False), x)
    return found[0]


@pytest.mark.parametrize(
    ("axis", "names", "expected"),
    [
        ("batch", (), ("z",)),
        # Without names, what computes counts first; data and parameters have mappings of their own.
        ("embed", (), ("x",)),
        ("embed", ("batch", "embed"), ("x",)),
        ("embed", ("embed", "mlp"), ("y", "x")),
        ("embed.out", (), ("x",)),
        ("embed.out", ("embed", "embed.out"), ()),
        ("pos.key", ("batch", "pos.key"), ("y",)),
        ("mlp", (), ()),
        # What only parameters are split by, data have whole.
        ("vocab", ("vocab", "embed"), ("z",)),
        ("vocab", ("batch", "vocab"), ()),
        ("vocab", ("batch", "pos"), ()),
        ("y", (), ("y",)),
        (("batch", "y"), (), ("z", "y")),
        (("embed", "x"), (), ("x",)),
    ],
)
def test_an_axis_stands_for_mesh_axes(axis, names, expected):
    assert inside(lambda: addresses.find_mesh_axes("test", axis, names)) == expected


def test_mesh_axes_that_are_not_manual_need_no_communication():
    assert inside(lambda: addresses.list_manual_axes(), {"x", "z"}) == ("x", "z")
    assert inside(lambda: addresses.find_mesh_axes("test", ("batch", "pos"), ()), {"x", "z"}) == ("z",)
    assert inside(lambda: addresses.find_mesh_axes("test", "embed", ("embed",)), {"x", "z"}) == ("x",)


def test_outside_there_is_nobody_to_talk_to():
    assert addresses.list_manual_axes() == ()
    assert addresses.find_mesh_axes("test", "batch", ()) == ()


def test_devices_are_counted():
    assert inside(lambda: tuple(map(addresses.count_devices, ((), ("x",), ("x", "z"))))) == (1, 2, 4)


def test_a_mesh_axis_stands_for_what_lies_over_it():
    find = addresses.find_targets
    look = lambda name, names: inside(lambda: find("psum_scatter", (name, None), None, names, set(names)))  # noqa: E731
    assert look("y", ("embed", "mlp")) == {"embed": ("y",)}
    assert look("z", ("batch", "mlp")) == {"batch": ("z",)}
    assert look("z", ("embed", "mlp")) == {}
    assert look("embed", ("embed", "mlp")) == {"embed": ("y", "x")}


def gathered(*steps):
    """Gather a block of 2 of 16 step by step, and return the sizes."""
    sizes = []

    def body(x):
        for over in steps:
            x = axn.all_gather(x, "embed", over=over)
            sizes.append(x.axis_size("embed"))
        return x

    mapping = {"embed": ("x", "y", "z")}
    jax.eval_shape(axn.shard_map(body, mapping, MESH, {}, check=False), axn.ones(axn.Axis("embed", 16)))
    return sizes


def test_mesh_axes_that_are_told_come_from_the_last_one_on():
    assert gathered("z", "y", "x") == [4, 8, 16]
    assert gathered("z", ("x", "y")) == [4, 16]
    assert gathered(("y", "z"), "x") == [8, 16]
    # That blocks lie in another order than the mapping says can be told for all of them.
    assert gathered(("z", "x", "y")) == [16]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (
            ["y"],
            "all_gather: axis 'embed' is split over x, y, z: 'z' comes before 'y'\n"
            '  hint: take all by "embed"; or z first, and then axn.all_gather(x, "embed", over="y")',
        ),
        (
            [("x", "z")],
            "all_gather: axis 'embed' is split over x, y, z: 'y' comes before 'x'\n"
            '  hint: take all by "embed"; or y first, and then axn.all_gather(x, "embed", over="x")',
        ),
        (
            ["z", "x"],
            "all_gather: axis 'embed' is split over x, y: 'y' comes before 'x'\n"
            '  hint: take all with over=("x", "y"); or y first, and then axn.all_gather(x, "embed", over="x")',
        ),
    ],
)
def test_mesh_axes_that_are_told_too_early(steps, text):
    with pytest.raises(ShardingError) as caught:
        gathered(*steps)
    assert str(caught.value) == text
