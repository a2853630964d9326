"""Where the devices of a mesh are, against the closed formulas of "How to Scale Your Model" and against JAX."""

import dataclasses
import math

import pytest

from axonym.costs.shared.events import Sending
from axonym.costs.shared.network import find_levels
from axonym.costs.shared.places import Place
from axonym.errors import OperandError
from axonym.partitioning import TARGETS, Domain, Link, Target, Torus

# One axis of a v5p and of a v5e, in both directions; a hop; and the network between slices, for each chip.
V5P, V5E, HOP, DCN = 2e11, 1e11, 1e-6, 6.25e9


def sent(kind, nbytes, mesh, target="v5p", over=None, distance=1, is_one_way=False):
    """Return the seconds of a collective over some mesh axes, by default all; bytes are those of the operand."""
    target = TARGETS[target] if isinstance(target, str) else target
    over = tuple(over or mesh)
    group = math.prod(mesh[axis] for axis in over)
    place = Place("", "forward")
    event = Sending(kind, over, (), place, 1, group, nbytes, (), "u8", is_one_way, distance=distance)
    return event.estimate(target, mesh).seconds


def gathered(whole, mesh, target="v5p", over=None):
    """Return the seconds until all devices of a group have an array of so many bytes."""
    over = over or tuple(mesh)
    return sent("all-gather", whole / math.prod(mesh[axis] for axis in over), mesh, target, over)


@pytest.mark.parametrize("side", [4, 8, 16])
def test_a_gather_uses_all_axes_of_a_slice(side):
    # Part 3: T = V / (W * axes), and at least the hops to the farthest chip, half of each axis away.
    mesh = {"data": side**3}
    assert gathered(470e6, mesh) == pytest.approx(470e6 / (3 * V5P), rel=0.1)
    assert gathered(16384, mesh) == pytest.approx(3 * side / 2 * HOP, rel=0.1)
    # One axis of the mesh on one axis of the slice has a third of the bandwidth.
    one = {"x": side, "y": side, "z": side}
    assert gathered(470e6, one, over=("z",)) == pytest.approx(470e6 / V5P, rel=0.35 if side == 4 else 0.15)
    assert gathered(470e6, one, over=("y", "z")) == pytest.approx(470e6 / (2 * V5P), rel=0.1)
    # A sum is a scatter and a gather; each takes as long.
    assert sent("all-reduce", 470e6, mesh) == pytest.approx(2 * 470e6 / (3 * V5P), rel=0.1)
    assert sent("reduce-scatter", 470e6, mesh) == pytest.approx(470e6 / (3 * V5P), rel=0.1)


def test_short_axes_do_not_wrap_around():
    # Part 3: without wrap-around, a gather takes twice as long. A v5e of 8x16 wraps around its long axis.
    assert gathered(1e9, {"data": 64}, "v5e") == pytest.approx(1e9 * 63 / 64 / V5E, rel=0.01)
    assert gathered(1e9, {"data": 256}, "v5e") == pytest.approx(1e9 / (2 * V5E), rel=0.01)
    assert gathered(1e9, {"x": 8, "y": 16}, "v5e", ("y",)) == pytest.approx(1e9 * 15 / 16 / V5E, rel=0.01)
    assert gathered(1e9, {"x": 8, "y": 16}, "v5e", ("x",)) == pytest.approx(1e9 * 7 / 8 / (V5E / 2), rel=0.01)
    # A v5p has rings from 4x4x4 on: 2x4x4 has none.
    assert gathered(1e9, {"data": 32}) == pytest.approx(1e9 * 31 / 32 / (3 * V5P / 2), rel=0.01)


def test_mesh_axes_take_parts_of_the_slice():
    # Part 5: 512 x 8 on 4096 chips, 8x16x32: the parameters are gathered over two axes, activations over one.
    mesh = {"data": 512, "model": 8}
    assert gathered(1e9, mesh, over=("model",)) == pytest.approx(1e9 * 7 / 8 / V5P, rel=0.01)
    assert gathered(1e9, mesh, over=("data",)) == pytest.approx(1e9 / (2 * V5P), rel=0.01)
    # On 4x4x4, 8 x 8 splits an axis in the middle. The inner part is a line, and the outer ones share their links.
    split = {"data": 8, "model": 8}
    assert gathered(1e9, split, over=("model",)) == pytest.approx(1e9 * 7 / 8 / (V5P + V5P / 2), rel=0.01)
    assert gathered(1e9, split, over=("data",)) == pytest.approx(1e9 * 7 / 8 / (V5P + V5P / 2), rel=0.01)
    assert gathered(1e9, split) == pytest.approx(1e9 / (3 * V5P), rel=0.02)


def test_an_all_to_all_is_bound_by_the_bisection():
    # Part 3: a quarter of a gather along one ring, here of 16; and N^(1/3) / 4 W on a cube.
    array = 1e9
    mesh = {"x": 16, "y": 16, "z": 16}
    assert sent("all-to-all", array / 16, mesh, over=("z",)) == pytest.approx(array / (4 * V5P), rel=0.01)
    each = array / 4096
    assert sent("all-to-all", each, mesh) == pytest.approx(each * 16 / (4 * V5P) + 24 * HOP)
    # Behind a switch, each of 8 sends 7 parts.
    assert sent("all-to-all", 8e6, {"x": 8}, "h100") == pytest.approx(7e6 / 450e9, rel=0.6)


def test_a_permute_takes_the_links_on_its_way():
    ring = {"stage": 16, "y": 16, "z": 16}
    near = sent("collective-permute", 1e9, ring, over=("stage",), is_one_way=True)
    assert near == pytest.approx(1e9 / (V5P / 2), rel=0.01)
    far = sent("collective-permute", 1e9, ring, over=("stage",), is_one_way=True, distance=4)
    assert far == pytest.approx(4 * near, rel=0.01)
    # Both directions at once share the ports of a chip, and nobody is far behind a switch.
    assert sent("collective-permute", 1e9, ring, over=("stage",)) == pytest.approx(near / 2, rel=0.01)
    pairs = [sent("collective-permute", 1e9, {"stage": 8}, "h100", distance=way) for way in (1, 4)]
    assert pairs[0] == pairs[1] == pytest.approx(1e9 / 450e9, rel=0.01)


def test_a_sum_over_slices_sends_parts_between_them():
    # Two slices of 256 chips, and gradients of 940 MB: a scatter and a gather inside, and a sum of 1/256 between.
    mesh, nbytes = {"dcn": 2, "data": 256}, 940e6
    inside = 2 * nbytes * 255 / 256 / (3 * V5P)
    between = 2 * nbytes / 256 / 2 / DCN
    by_name = TARGETS["v5p"].linked(dcn=Link(DCN, 1e-5))
    by_size = TARGETS["v5p"].resize_domains(256)
    for target in (by_name, by_size):
        assert sent("all-reduce", nbytes, mesh, target) == pytest.approx(inside + between, rel=0.03)
        assert sent("all-reduce", nbytes, mesh, target, ("data",)) == pytest.approx(inside, rel=0.03)
        alone = sent("all-reduce", nbytes, mesh, target, ("dcn",))
        assert alone == pytest.approx(nbytes / DCN, rel=0.01)
        # A gather goes between slices first, when it has least to send.
        first, then = nbytes / 512 / DCN, nbytes / (3 * V5P)
        assert gathered(nbytes, mesh, target) == pytest.approx(first + then, rel=0.05)
    # A mesh axis over both networks is split by itself.
    assert sent("all-reduce", nbytes, {"data": 512}, by_size) == sent("all-reduce", nbytes, mesh, by_size)


def test_more_chips_than_a_pod_are_several_slices():
    levels = find_levels(("data",), 512, {"data": 512}, TARGETS["v5e"])
    assert [level.devices for level in levels] == [256, 2]


def test_gpus_send_between_nodes_what_a_node_can():
    # Part 12: a gather among nodes takes the bytes over what a node sends: 8 x 50 GB/s.
    assert gathered(1e9, {"data": 256}, "h100") == pytest.approx(1e9 / 400e9, rel=0.05)
    assert gathered(1e9, {"data": 8}, "h100") == pytest.approx(1e9 * 7 / 8 / 450e9, rel=0.01)
    # The last mesh axis is inside of a node, the first one is not.
    mesh = {"data": 4, "model": 8}
    assert gathered(1e9, mesh, "h100", ("model",)) == pytest.approx(1e9 * 7 / 8 / 450e9, rel=0.01)
    assert gathered(1e9, mesh, "h100", ("data",)) == pytest.approx(1e9 * 3 / 4 / 50e9, rel=0.01)
    # 32 x 2: four neighbours of eight along the first axis are in one node.
    levels = find_levels(("data",), 32, {"data": 32, "model": 2}, TARGETS["h100"])
    assert [level.devices for level in levels] == [4, 8]
    # Of 72 GPUs in a domain, 128 use 64.
    levels = find_levels(("data",), 128, {"data": 128}, TARGETS["gb200"])
    assert [level.devices for level in levels] == [64, 2]


def test_a_part_of_a_mesh_axis():
    levels = find_levels(("data:2",), 2, {"data": 16, "model": 2}, TARGETS["h100"])
    assert [level.devices for level in levels] == [2]
    levels = find_levels(("data:8", "model"), 16, {"data": 16, "model": 2}, TARGETS["h100"])
    assert [level.devices for level in levels] == [8, 2]
    # A group along no known mesh axis is one of neighbours.
    assert find_levels((), 8, {"data": 2}, TARGETS["h100"])[0].devices == 8


def test_a_machine_of_a_user():
    # Rings of four on boards, and boards behind a switch.
    own = Target(
        "own",
        {"bfloat16": 1e14},
        memory=2**34,
        memory_bandwidth=1e12,
        link=Link(4e10, 2e-6, one_way=2e10),
        torus=Torus(1, 1),
        domains=(Domain(4, Link(1e10, 5e-6)), Domain(16, Link(1e9, 1e-5))),
    )
    parts = [1e9 * 3 / 4 / 4e10, 1e9 / 4 * 3 / 4 / 1e10, 1e9 / 16 / 2 / 1e9]
    assert sent("reduce-scatter", 1e9, {"data": 32}, own) == pytest.approx(sum(parts), rel=0.01)


def test_domains_grow():
    link = Link(1.0)
    with pytest.raises(OperandError) as raised:
        Target("t", {"float32": 1.0}, 1, 1.0, link, domains=(Domain(8, link), Domain(4, link)))
    assert str(raised.value) == "Target: domains must grow from the first to the last one, not be of [8, 4] devices"
    with pytest.raises(OperandError) as raised:
        TARGETS["cpu"].resize_domains(4)
    assert str(raised.value) == (
        "resize_domains: cpu has no domains, so it does not say how slices are connected\n"
        "  hint: describe that by Target(..., domains=(Domain(devices, link),))"
    )
    two = dataclasses.replace(TARGETS["h100"], domains=(Domain(8, link), Domain(64, link)))
    assert [one.devices for one in two.resize_domains(32).domains] == [8, 32]
    assert [one.devices for one in two.resize_domains(8).domains] == [8]


def test_mesh_axes_of_size_1_change_nothing():
    """MaxText's meshes have a dozen axes, most of them of size 1: all their orders would take minutes."""
    mesh = {"fsdp": 64, "tensor": 4}
    many = {"data": 1, "stage": 1, "fsdp": 64, "transposed": 1, "sequence": 1, "tensor": 4, "expert": 1, "other": 1}
    for over in mesh:
        assert gathered(470e6, many, over=(over,)) == gathered(470e6, mesh, over=(over,))
