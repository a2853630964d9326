"""safetensors files, against the library of that name."""

import json
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, OperandError
from axonym.state_dict import load_state_dict, save_state_dict, to_state_dict, to_torch_compatible_state_dict

DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8"]


def equal(found, expected):
    assert sorted(found) == sorted(expected)
    for key, array in expected.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: (
        hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=3), elements={"allow_nan": False})
        if dtype[0] in "fc"
        else hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
    )
)


@given(state=st.dictionaries(st.text(min_size=1, max_size=5), arrays, max_size=4))
def test_files_are_read_and_written_as_the_library_does(folder, state):
    state.pop("__metadata__", None)
    save_state_dict(state, folder / "mine.safetensors")
    equal(load_file(folder / "mine.safetensors"), state)
    equal(load_state_dict(folder / "mine.safetensors"), state)
    save_file(state, folder / "theirs.safetensors")
    equal(load_state_dict(folder / "theirs.safetensors"), state)


def test_the_library_writes_what_is_stored_in_other_layouts(tmp_path):
    In, Out = axn.make_axes(i=2, o=3)
    key = jax.random.key(0)
    up = nn.ConvTranspose.init("width", In, Out, 3, key=key)
    model = {"linear": nn.Linear.init(In, Out, key=key), "up": up, "none": axn.ones(())}
    state = to_torch_compatible_state_dict(model)
    save_file(dict(state), tmp_path / "a.safetensors")
    found = load_file(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(found["linear.weight"], np.asarray(model["linear"].weight.array).T)
    np.testing.assert_array_equal(found["up.weight"], np.asarray(up.weight.array).transpose(1, 0, 2)[..., ::-1])
    assert found["none"].shape == ()


def test_narrow_floats_and_metadata(tmp_path):
    kinds = [jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2]
    state = {f"{jnp.dtype(kind).name}": np.arange(-3, 4).astype(kind) for kind in kinds}
    file = tmp_path / "a.safetensors"
    save_state_dict(state, file, metadata={"step": "12"})
    equal(load_state_dict(file), state)
    with safetensors.safe_open(file, "np") as opened:
        sums = {key: f"{zlib.crc32(np.asarray(x).tobytes()):08x}" for key, x in state.items()}
        metadata = opened.metadata()
        assert json.loads(metadata.pop("axonym.sums")) == sums
        assert metadata == {"format": "pt", "step": "12"}
        np.testing.assert_array_equal(opened.get_tensor("bfloat16"), state["bfloat16"])
        assert [opened.get_slice(key).get_dtype() for key in state] == ["BF16", "F8_E4M3", "F8_E5M2"]


def test_floats_of_eight_bits_are_those_of_the_library(tmp_path):
    codes = {"float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"}
    state = {name: (2.0 ** np.arange(-3, 4)).astype(jnp.dtype(name)) for name in codes}
    file = tmp_path / "a.safetensors"
    save_state_dict(state, file)
    equal(load_state_dict(file), state)
    with safetensors.safe_open(file, "np") as opened:
        assert {key: opened.get_slice(key).get_dtype() for key in state} == codes


@pytest.mark.parametrize("size", ["5GB", 0, -1])
def test_a_file_has_room_for_something(tmp_path, size):
    text = error_of(save_state_dict, {"x": np.ones(2)}, tmp_path / "a.safetensors", max_bytes=size)
    assert text == f"save_state_dict: max_bytes must be a positive number of bytes, not {size!r}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("metadata", "problem", "hint"),
    [({"step": 3}, "'step' has 3", "{'step': '3'}"), ({3: "step"}, "3 has 'step'", "{'3': 'step'}")],
)
def test_metadata_is_text(tmp_path, metadata, problem, hint):
    with pytest.raises(ArgumentError) as error:
        save_state_dict({}, tmp_path / "a.safetensors", metadata=metadata)
    assert str(error.value) == (
        f"save_state_dict: keys and values of metadata must be strings, but {problem}\n  hint: write {hint}"
    )
    assert not list(tmp_path.iterdir())


def test_a_model_is_no_state_dict(tmp_path):
    with pytest.raises(OperandError) as error:
        save_state_dict(nn.Linear.init(*axn.make_axes(i=2, o=3), key=jax.random.key(0)), tmp_path / "a.safetensors")
    assert str(error.value) == (
        "save_state_dict: a state dict must be a mapping from keys to arrays, not Linear\n"
        "  hint: write save_state_dict(to_state_dict(model), path)"
    )


def test_arrays_are_read_when_looked_at_and_cannot_be_written(tmp_path):
    save_state_dict({"x": np.arange(8.0)}, tmp_path / "a.safetensors")
    x = load_state_dict(tmp_path / "a.safetensors")["x"]
    assert not x.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 1


def test_several_files_with_an_index(tmp_path):
    state = {"a": np.arange(4, dtype="f4"), "b": np.arange(4, dtype="f4"), "c": np.arange(9, dtype="f4")}
    file = tmp_path / "model.safetensors"
    save_state_dict(state, file)
    save_state_dict(state, file, max_bytes=32)
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert sorted(each.name for each in tmp_path.iterdir()) == [*names, "model.safetensors.index.json"]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    number = index["metadata"].pop("axonym.save")
    assert index == {"metadata": {"total_size": 68}, "weight_map": {"a": names[0], "b": names[0], "c": names[1]}}
    for name in names:
        with safetensors.safe_open(tmp_path / name, "np") as opened:
            metadata = opened.metadata()
            assert sorted(json.loads(metadata.pop("axonym.sums"))) == sorted(opened.keys())
            assert metadata == {"format": "pt", "axonym.save": number}
    assert list(load_file(tmp_path / names[1])) == ["c"]
    for path in (tmp_path, file, tmp_path / "model.safetensors.index.json"):
        equal(load_state_dict(path), state)

    save_state_dict({"a": state["b"]}, file)
    equal(load_state_dict(str(tmp_path)), {"a": state["b"]})


def test_a_model_is_written_array_by_array(tmp_path):
    alive, most = [0], [0]

    class Counted(dict):
        def __getitem__(self, key):
            value = super().__getitem__(key)
            return Counting(value)

    class Counting:
        def __init__(self, value):
            self.value, self.dtype, self.shape, self.size = value, value.dtype, value.shape, value.size
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def __array__(self, dtype=None, copy=None):
            return self.value

        def __del__(self):
            alive[0] -= 1

    save_state_dict(Counted({f"{i}": np.ones(3) for i in range(8)}), tmp_path / "a.safetensors")
    assert most[0] <= 2
    assert len(load_state_dict(tmp_path / "a.safetensors")) == 8


def error_of(function, *args, **options):
    with pytest.raises(ArgumentError) as error:
        function(*args, **options)
    return str(error.value)


def test_dtypes_that_the_format_or_jax_lacks(tmp_path):
    file = tmp_path / "a.safetensors"
    assert error_of(save_state_dict, {"x": np.ones(2, "c16")}, file).splitlines()[0] == (
        "save_state_dict: 'x' has dtype complex128"
    )
    assert error_of(save_state_dict, {"x": np.ones(2, ">f4")}, file).splitlines()[0] == (
        "save_state_dict: 'x' has dtype >f4"
    )
    save_state_dict({"x": np.ones(2, "u1")}, file)
    file.write_bytes(file.read_bytes().replace(b'"U8"', b'"Q8"'))
    assert error_of(load_state_dict, file) == "load_state_dict: 'x' in a.safetensors has dtype Q8"


def test_keys_that_the_format_lacks(tmp_path):
    file = tmp_path / "a.safetensors"
    assert error_of(save_state_dict, {"__metadata__": np.ones(2)}, file) == (
        "save_state_dict: no array can have the key '__metadata__', which the format reserves for metadata\n"
        "  hint: pass text as metadata="
    )
    assert error_of(save_state_dict, {1: np.ones(2)}, file) == (
        "save_state_dict: keys of a state dict must be strings, not 1\n  hint: write '1'"
    )
    assert not list(tmp_path.iterdir())


def test_damaged_files(tmp_path):
    file = tmp_path / "a.safetensors"
    save_state_dict(to_state_dict({"x": axn.ones(axn.Axis("embed", 4))}), file)
    data = file.read_bytes()
    for part in (data[:20], b"<!DOCTYPE html> <p> 404 </p>"):
        file.write_bytes(part)
        assert error_of(load_state_dict, file) == (
            "load_state_dict: a.safetensors is not a safetensors file, or is incomplete"
        )
    file.write_bytes(data[:-1])
    assert error_of(load_state_dict, file) == (
        "load_state_dict: 'x' in a.safetensors is incomplete or damaged\n  shape (4,) of float32, bytes 0 to 16 of 15"
    )
    file.write_bytes(data)
    file.write_bytes(data)
    (tmp_path / "b.json").write_text(json.dumps({"weight_map": {"x": file.name, "y": file.name}}))
    assert error_of(load_state_dict, tmp_path / "b.json") == (
        "load_state_dict: b.json lists 1 arrays that its files lack\n  the first: y in a.safetensors"
    )
    with pytest.raises(FileNotFoundError):
        load_state_dict(tmp_path / "c.safetensors")


def record_of(file):
    with safetensors.safe_open(file, "np") as opened:
        return json.loads(opened.metadata()["axonym.axes"])


def test_names_and_sizes_of_axes_are_in_the_metadata(tmp_path):
    E, H, D, L = axn.make_axes(embed=4, heads=2, head_dim=3, layers=2)
    key = jax.random.key(0)
    model = {
        "layers": nn.Stacked.init(L, nn.Linear)(E, (H, D), key=key),
        "up": nn.ConvTranspose.init("width", E, H, 3, key=key),
        "plain": jnp.ones(2),
        "some": axn.NamedArray(jnp.ones((5, 4)), ("embed",)),
        "number": axn.ones(()),
    }
    file = tmp_path / "a.safetensors"
    save_state_dict(to_state_dict(model), file)
    plain = record_of(file)
    assert plain["layers.1.weight"] == [{"embed": 4}, {"heads": 2}, {"head_dim": 3}]
    assert plain["some"] == [None, {"embed": 4}]
    assert not {"plain", "number"} & plain.keys()
    save_state_dict(to_torch_compatible_state_dict(model), file)
    torch = record_of(file)
    assert torch["layers.1.weight"] == [{"heads": 2, "head_dim": 3}, {"embed": 4}]
    assert torch["up.weight"] == [{"groups of heads": 1, "embed": 4}, {"heads": 2}, {"kernel.width": -3}]
    opened = load_state_dict(file)
    assert opened["layers.1.weight"].axes == ((("heads", 2, False), ("head_dim", 3, False)), (("embed", 4, False),))
    assert opened["plain"].axes is None

    # A file that is written again keeps them, in several files too, and an array that was changed has none.
    changed = {**opened, "layers.0.bias": opened["layers.0.bias"] * 2}
    save_state_dict(changed, tmp_path / "b.safetensors", max_bytes=100)
    again = load_state_dict(tmp_path / "b.safetensors")
    for key, array in opened.items():
        assert again[key].axes == (None if key == "layers.0.bias" else array.axes)


def test_metadata_has_no_names_of_the_library(tmp_path):
    text = error_of(save_state_dict, {}, tmp_path / "a.safetensors", metadata={"axonym.axes": "{}"})
    assert text == (
        "save_state_dict: metadata has 'axonym.axes', but names that begin with 'axonym.' are those of this library\n"
        "  hint: leave it out: axes are stored anyway"
    )


@pytest.mark.parametrize(
    "record", ["", "[]", "{", '{"x":3}', '{"x":[3]}', '{"x":[{"a":"2"}]}', '{"x":[{"a":1,"a":2}]}']
)
def test_a_record_of_axes_that_cannot_be_read(tmp_path, record):
    save_file({"x": np.ones(2)}, tmp_path / "a.safetensors", metadata={"axonym.axes": record})
    assert error_of(load_state_dict, tmp_path / "a.safetensors") == (
        "load_state_dict: a.safetensors has no readable names of axes in its metadata"
    )


def test_a_record_of_other_sizes(tmp_path):
    record = json.dumps({"x": [{"a": 3}], "gone": [None]})
    for array in (np.ones(2), np.ones((3, 1))):
        save_file({"x": array}, tmp_path / "a.safetensors", metadata={"axonym.axes": record})
        assert error_of(load_state_dict, tmp_path / "a.safetensors") == (
            f"load_state_dict: 'x' in a.safetensors has shape {array.shape}, "
            "which is not that of the axes it was saved with\n"
            "  hint: a program has changed the array and kept the metadata: remove 'axonym.axes' from it"
        )
    save_file({"x": np.ones(3)}, tmp_path / "a.safetensors", metadata={"axonym.axes": record})
    assert load_state_dict(tmp_path / "a.safetensors")["x"].axes == ((("a", 3, False),),)


def test_a_flipped_bit_is_found_on_request(tmp_path):
    file = tmp_path / "model.safetensors"
    state = {
        "x": np.arange(5),
        "flags": np.array([True, False]),
        "y": jnp.ones(3, jnp.bfloat16),
        "none": np.zeros((0, 2)),
    }
    save_state_dict(state, file)
    assert sorted(load_state_dict(file, check=True)) == sorted(state)
    whole = bytearray(file.read_bytes())
    whole[-3] ^= 1
    file.write_bytes(whole)
    load_state_dict(file)
    assert error_of(load_state_dict, file, check=True) == (
        "load_state_dict: 'y' in model.safetensors has changed since it was saved\n  hint: take a copy of the file"
    )
    save_file({"x": np.ones(2)}, file)
    assert error_of(load_state_dict, file, check=True) == (
        "load_state_dict: model.safetensors has no checksum of 'x'\n"
        "  hint: only save_state_dict stores them; without check=True, the file loads"
    )
