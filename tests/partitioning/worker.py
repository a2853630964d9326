"""One process of `test_processes.py`: load and save arrays on meshes that span processes, and compare them with numpy.

Run as `python worker.py ADDRESS PROCESS_ID FOLDER` for two processes, with four simulated devices each.
"""

import itertools
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

import axonym as axn
from axonym.errors import OperandError, ShardingError
from axonym.layout import context

SIZES = {"data": 4, "model": 2}
A, B = axn.make_axes(a=16, b=8)
MAPPINGS = (
    {},
    {"a": "data"},
    {"a": "model"},
    {"b": ("data", "model")},
    {"b": ("model", "data")},
    {"a": "data", "b": "model"},
    {"a": "model", "b": "data"},
)
# Which device is at each place of the mesh; the first four belong to the first process.
ARRANGEMENTS = {
    "data over processes": [0, 1, 2, 3, 4, 5, 6, 7],
    "model over processes": [0, 4, 1, 5, 2, 6, 3, 7],
    "data over processes by turns": [0, 1, 4, 5, 2, 3, 6, 7],
}


def message_of(error, function, *args, **kwargs):
    """Return the message of the error that a call raises."""
    try:
        function(*args, **kwargs)
    except error as raised:
        return str(raised)
    raise AssertionError("nothing was raised")


def part_of(place, entry):
    """Return which part of an axis the device at a place of the mesh holds, and of how many."""
    part, ways = 0, 1
    for mesh_axis in (entry,) if isinstance(entry, str) else entry or ():
        part, ways = part * SIZES[mesh_axis] + place[mesh_axis], ways * SIZES[mesh_axis]
    return part, ways


def positions(parts, ways, size):
    return np.concatenate([np.arange(part * size // ways, (part + 1) * size // ways) for part in parts])


def check(mesh, mapping, dtype):
    """Compare what one mapping gives."""
    whole = np.arange(A.size * B.size).reshape(A.size, B.size).astype(dtype)
    places = {}  # of the devices of this process
    for position, device in np.ndenumerate(mesh.devices):
        if device.process_index == jax.process_index():
            place = dict(zip(mesh.axis_names, position, strict=True))
            places[device] = [part_of(place, mapping.get(name)) for name in "ab"]
    own = [sorted({parts[i][0] for parts in places.values()}) for i in range(2)]
    ways = [next(iter(places.values()))[i][1] for i in range(2)]
    mine = [positions(*one) for one in zip(own, ways, whole.shape, strict=True)]
    blocks = {
        device: [positions([part], of, size) for (part, of), size in zip(at, whole.shape, strict=True)]
        for device, at in places.items()
    }

    # each gives its part, and each device has its block
    made = [axn.from_local(axn.NamedArray(whole[np.ix_(*mine)], ("a", "b")), mapping, mesh)]
    asked = []

    def load(at):
        asked.append((at["a"].start, at["b"].start))
        return whole[at["a"], at["b"]]

    made.append(axn.from_callback((A, B), load, mapping, mesh))
    assert sorted(asked) == sorted({(int(rows[0]), int(columns[0])) for rows, columns in blocks.values()})
    for x in made:
        assert x.axes == (A, B)
        assert x.dtype == whole.dtype
        assert len(x.array.addressable_shards) == 4
        for shard in x.array.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), whole[np.ix_(*blocks[shard.device])])

    # what to load
    holes = [name for name, at in zip("ab", mine, strict=True) if len(at) <= at[-1] - at[0]]
    if not holes:
        slices = axn.local_slices((A, B), mapping, mesh)
        assert slices == {name: slice(at[0], at[-1] + 1) for name, at in zip("ab", mine, strict=True)}
    else:
        at = "ab".index(holes[0])
        spelled = str(context.resolve_mapping(mapping))
        assert message_of(ShardingError, axn.local_slices, (A, B), mapping, mesh) == (
            f"local_slices: this process does not hold one range of {holes[0]!r}: "
            f"parts {', '.join(map(str, own[at]))} of {ways[at]}\n"
            f"  array has: a=16, b=8\n  mapping: {spelled}\n  mesh: data=4, model=2\n"
            "  hint: use from_callback, which loads block by block"
        )
    return made[0], whole, bool(holes)


def check_errors(mesh, process):
    rows = axn.NamedArray(np.zeros(3), ("a",))
    assert message_of(ShardingError, axn.from_local, rows, {"a": "data"}, mesh) == (
        "from_local: a=3 cannot be split evenly in 2, the parts that this process holds of 4\n"
        "  array has: a=3\n  mapping: {'a': 'data'}\n  mesh: data=4, model=2\n"
        "  hint: use a multiple of 2"
    )
    whole = axn.from_local(axn.NamedArray(np.zeros(4), ("a",)), {"a": "data"}, mesh)
    assert whole.axes == (axn.Axis("a", 8),)
    assert message_of(OperandError, axn.from_local, whole, {"a": "data"}, mesh) == (
        "from_local: a NamedArray holds a plain array, which is not data of this process\n"
        "  its axes: a=8\n  hint: give it a numpy array, outside of jit"
    )
    others = [device for device in jax.devices() if device.process_index != process]
    foreign = Mesh(np.array(others), ("data",))
    for function, given in ((axn.from_local, rows), (axn.local_slices, A)):
        assert message_of(ShardingError, function, given, {"a": "data"}, foreign) == (
            f"{function.__name__}: no device of the mesh belongs to this process, number {process}\n  mesh: data=4"
        )


def check_keys(mesh, process):
    with axn.set_mesh(mesh):
        keys = jax.random.split(jax.random.key(0), 8)  # on all devices of all processes
        made = axn.from_local(axn.NamedArray(keys, ("a",)), {"a": None})
        local = jax.random.key_data(keys).addressable_shards[0].data
        numbers = np.asarray(local)[4 * process : 4 * process + 4]
    own = jax.random.wrap_key_data(numbers)
    parts = axn.from_local(axn.NamedArray(own, ("a",)), {"a": ("data", "model")}, mesh)
    whole = jax.random.split(jax.random.key(0), 8)  # on one device of each process
    laid_out = axn.shard(axn.NamedArray(whole, ("a",)), {"a": ("data", "model")}, mesh)
    with axn.set_mesh(mesh):
        equal = jax.jit(lambda x, y: (jax.random.key_data(x) == jax.random.key_data(y)).all())
        assert equal(made.array, keys)
        assert equal(parts.array, keys)
        assert equal(laid_out.array, keys)
    assert not parts.array.is_fully_replicated
    assert laid_out.sharding.is_equivalent_to(parts.sharding, 1)


def check_sharding(mesh, process):
    """What is the same in all processes is laid out; parts of each process are not taken for it."""
    for kind in (lambda values: axn.named(values, "a"), lambda values: axn.NamedArray(values, ("a",))):
        for values in (np.arange(16) + process, np.where(np.arange(16) == 15, process, 1.5)):
            assert message_of(ShardingError, axn.shard, kind(values), {"a": "data"}, mesh) == (
                "shard: the processes have different values for one array\n  array has: a=16\n"
                "  hint: use from_local where each process has its part"
            )
        whole = axn.shard(kind(np.arange(16)), {"a": "data"}, mesh)
        for shard in whole.array.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), np.arange(16)[shard.index])
        again = axn.shard(whole, {"a": "model"}, mesh)
        assert again.sharding.spec == jax.P("model")
    own = jax.random.key(process)
    keys = axn.NamedArray(jax.random.split(own, 16), ("a",))
    assert "different values" in message_of(ShardingError, axn.shard, keys, {"a": "data"}, mesh)


def check_printing(mesh):
    ones = np.ones(A.size, np.float32)
    row = axn.from_callback(A, lambda at: ones[at["a"]], {"a": "data"}, mesh)
    with axn.set_mesh(mesh):
        total = jax.jit(lambda x: x.sum())(row)
    assert str(total) == "NamedArray(float32[])\n16.0", str(total)  # each process has it
    assert "1." not in str(row), str(row)


def check_saving(mesh, process, folder):
    whole = np.arange(A.size * B.size, dtype=np.float32).reshape(A.size, B.size)
    x = axn.from_callback((A, B), lambda at: whole[at["a"], at["b"]], {"a": "data", "b": "model"}, mesh)
    state = axn.state_dict.to_state_dict({"x": x, "y": x})
    taken = folder / "taken"
    taken.mkdir(exist_ok=True)
    # where the first process fails, at the start or at the end, no other one waits for it
    for file, at_first in ((folder / "missing" / "x.safetensors", "No such file or directory"), (taken, "directory")):
        told = message_of(OSError, axn.state_dict.save_state_dict, state, file)
        if process == 0:
            assert at_first in told
        else:
            assert told == f"save_state_dict: the first process could not write {file}"
    file = folder / "x.safetensors"
    axn.state_dict.save_state_dict(state, file)
    loaded = axn.state_dict.from_state_dict(
        {"x": x, "y": x}, axn.state_dict.load_state_dict(file), mapping={"b": ("model", "data")}, mesh=mesh
    )
    for _ in range(2):  # several files, and several in their place
        axn.state_dict.save_state_dict(state, folder / "set.safetensors", max_bytes=x.array.nbytes)
    assert len(list(folder.glob("set-*-of-00002.safetensors"))) == 2
    for array in axn.state_dict.load_state_dict(folder / "set.safetensors").values():
        np.testing.assert_array_equal(array, whole)
    for shard in loaded["y"].array.addressable_shards:
        assert shard.data.shape == (16, 1)
        np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index])


def main(address, process, folder):
    jax.config.update("jax_num_cpu_devices", 4)
    jax.distributed.initialize(address, 2, process, heartbeat_timeout_seconds=10)
    devices = np.array(jax.devices())
    assert [device.process_index for device in devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    with_holes = 0
    for kind, order in itertools.product((AxisType.Auto, AxisType.Explicit), ARRANGEMENTS.values()):
        mesh = Mesh(devices[order].reshape(4, 2), tuple(SIZES), axis_types=(kind, kind))
        for mapping in MAPPINGS:
            x, whole, holes = check(mesh, mapping, np.float32 if kind is AxisType.Auto else np.int32)
            with_holes += holes
        with axn.set_mesh(mesh):
            assert jax.jit(lambda x: x.sum().scalar())(x) == whole.sum()
    # for each kind: five by turns, and one tuple of mesh axes in each of the other arrangements
    assert with_holes == 2 * (5 + 1 + 1)
    mesh = Mesh(devices.reshape(4, 2), tuple(SIZES))
    check_errors(mesh, process)
    check_keys(mesh, process)
    check_sharding(mesh, process)
    check_printing(mesh)
    check_saving(mesh, process, folder)
    jax.distributed.shutdown()
    print("all checked", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
