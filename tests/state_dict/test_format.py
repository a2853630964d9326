"""The format of safetensors files: what the package of that name refuses is refused here, without a bare error."""

import json

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load, load_file

from axonym.errors import ArgumentError
from axonym.state_dict import load_state_dict

X = '"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
DEEP = "[" * 100_000 + "]" * 100_000


def entry(shape, start, end, dtype="F32", **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end], **more}


def with_more(value):
    return '{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":' + value + "}}"


# The header, and the number of bytes after it, or these bytes.
ACCEPTED = {
    "one": (json.dumps({"x": entry([1], 0, 4)}), 4),
    "none": ("{}", 0),
    "no order": (json.dumps({"y": entry([1], 4, 8), "x": entry([1], 0, 4)}), 8),
    "empty at the end": (json.dumps({"y": entry([0], 4, 4), "x": entry([1], 0, 4)}), 4),
    "two empty": (json.dumps({"y": entry([0], 0, 0), "x": entry([0, 3], 0, 0)}), 0),
    "spaces": (f"  {{{X}}} \n\t ", 4),
    "no metadata": (f'{{"__metadata__":null,{X}}}', 4),
    "metadata": (f'{{"__metadata__":{{"a":"1"}},{X}}}', 4),
    "more fields": (with_more("[1,-1.5,null]"), 4),
    "nested": (with_more("[" * 100 + "]" * 100), 4),
    "no key": (json.dumps({"": entry([1], 0, 4)}), 4),
    "two halves of a character": (X.replace('"x"', '{"\\ud83d\\ude00"') + "}", 4),
    "booleans": (json.dumps({"x": entry([2], 0, 2, "BOOL")}), b"\0\1"),
}
NO_HEADER = "a.safetensors has no readable header"
DAMAGED = "'x' in a.safetensors is incomplete or damaged"
REFUSED = {
    "nothing": ("", 0, NO_HEADER),
    "a list": ("[]", 0, NO_HEADER),
    "null": ("null", 0, NO_HEADER),
    "text": ('"x"', 0, NO_HEADER),
    "entry null": ('{"x":null}', 0, NO_HEADER),
    "entry without dtype": ('{"x":{"shape":[1],"data_offsets":[0,4]}}', 4, NO_HEADER),
    "entry without shape": ('{"x":{"dtype":"F32","data_offsets":[0,4]}}', 4, NO_HEADER),
    "a key twice": (f"{{{X},{X.replace('[0,4]', '[4,8]')}}}", 8, NO_HEADER),
    "a field twice": (X.replace('"shape"', '{"dtype":"F32","shape"').replace('"x":{', '{"x":', 1), 4, NO_HEADER),
    "metadata twice": (f'{{"__metadata__":{{}},"__metadata__":{{}},{X}}}', 4, NO_HEADER),
    "metadata of numbers": (f'{{"__metadata__":{{"a":1}},{X}}}', 4, NO_HEADER),
    "metadata of null": (f'{{"__metadata__":{{"a":null}},{X}}}', 4, NO_HEADER),
    "metadata as a list": (f'{{"__metadata__":[],{X}}}', 4, NO_HEADER),
    "half a character in metadata": (f'{{"__metadata__":{{"a":"\\ud800"}},{X}}}', 4, NO_HEADER),
    "half a character": (X.replace('"x"', '{"\\ud800"') + "}", 4, NO_HEADER),
    "a line break in a key": (X.replace('"x"', '{"a\nb"') + "}", 4, NO_HEADER),
    "a mark of byte order": (f"\ufeff{{{X}}}", 4, NO_HEADER),
    "another encoding": (f"{{{X}}}".encode("utf-16-le"), 4, NO_HEADER),
    "no encoding": (b'{"\xff":' + X.encode()[4:] + b"}", 4, NO_HEADER),
    "zeros after it": (f"{{{X}}}\0\0", 4, NO_HEADER),
    "more after it": (f"{{{X}}}{{}}", 4, NO_HEADER),
    "NaN": (with_more("NaN"), 4, NO_HEADER),
    "a number out of range": (with_more("1e999"), 4, NO_HEADER),
    "depth": (DEEP, 0, NO_HEADER),
    "depth inside": (with_more(DEEP), 4, NO_HEADER),
    "some depth inside": (with_more("[" * 200 + "]" * 200), 4, NO_HEADER),
    "negative zero": (f"{{{X.replace('[0,4]', '[-0,4]')}}}", 4, NO_HEADER),
    "a float": (f"{{{X.replace('[1]', '[1.0]')}}}", 4, NO_HEADER),
    "a float as an exponent": (f"{{{X.replace('[1]', '[1e0]')}}}", 4, NO_HEADER),
    "a boolean": (f"{{{X.replace('[1]', '[true]')}}}", 4, NO_HEADER),
    "many digits": (f"{{{X.replace('[1]', f'[{9:0<5000}]')}}}", 4, NO_HEADER),
    "shape as an object": (f"{{{X.replace('[1]', '{}')}}}", 4, NO_HEADER),
    "three offsets": (f"{{{X.replace('[0,4]', '[0,4,8]')}}}", 4, NO_HEADER),
    "an unknown dtype": (json.dumps({"x": entry([1], 0, 4, "Q4")}), 4, "'x' in a.safetensors has dtype Q4"),
    "a dtype in small letters": (json.dumps({"x": entry([1], 0, 4, "f32")}), 4, "'x' in a.safetensors has dtype f32"),
    "a negative size": (json.dumps({"x": entry([-1], 0, 4)}), 4, DAMAGED),
    "two negative sizes": (json.dumps({"x": entry([-1, -1], 0, 4)}), 4, DAMAGED),
    "sizes too large": (json.dumps({"x": entry([2**40, 2**40], 0, 4)}), 4, DAMAGED),
    "none of sizes too large": (json.dumps({"x": entry([2**40, 2**40, 0], 0, 0)}), 0, DAMAGED),
    "a size too large for anything": (json.dumps({"x": entry([0, 2**64], 0, 0)}), 0, DAMAGED),
    "offsets back": (json.dumps({"x": entry([1], 4, 0)}), 4, DAMAGED),
    "bytes that do not fit": (json.dumps({"x": entry([2], 0, 4)}), 4, DAMAGED),
    "bytes that are missing": (json.dumps({"x": entry([1], 0, 4)}), 3, DAMAGED),
    "bytes of no array": (json.dumps({"y": entry([1], 0, 4), "x": entry([1], 8, 12)}), 12, DAMAGED),
    "bytes of no array first": (json.dumps({"x": entry([1], 4, 8)}), 8, DAMAGED),
    "bytes of two arrays": (json.dumps({"y": entry([1], 0, 4), "x": entry([1], 0, 4)}), 4, DAMAGED),
    "some bytes of two arrays": (json.dumps({"y": entry([2], 0, 8), "x": entry([2], 4, 12)}), 12, DAMAGED),
    "empty inside of another": (json.dumps({"y": entry([1], 0, 4), "x": entry([0], 2, 2)}), 4, "is incomplete"),
    "empty beyond": (json.dumps({"y": entry([1], 0, 4), "x": entry([0], 9, 9)}), 4, DAMAGED),
    "bytes after all": (json.dumps({"x": entry([1], 0, 4)}), 5, "a.safetensors has 1 bytes after those of its arrays"),
    "bytes alone": ("{}", 4, "a.safetensors has 4 bytes after those of its arrays"),
}
# What the package accepts, but no array can be, or not without a doubt.
REFUSED_HERE = {
    "the same key twice": (f"{{{X},{X}}}", 4, NO_HEADER),
    "a name in metadata twice": (f'{{"__metadata__":{{"a":"1","a":"2"}},{X}}}', 4, NO_HEADER),
    "sizes for no array": (json.dumps({"x": entry([0, 2**63], 0, 0)}), 0, DAMAGED),
    "more dimensions than NumPy has": (json.dumps({"x": entry([1] * 65, 0, 4)}), 4, DAMAGED),
    "another boolean": (json.dumps({"x": entry([3], 0, 3, "BOOL")}), b"\0\1\2", "has booleans other than 0 and 1"),
}


def file_of(header, data):
    header = header if isinstance(header, bytes) else header.encode()
    return len(header).to_bytes(8, "little") + header + (data if isinstance(data, bytes) else b"\0" * data)


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_accepted(tmp_path, case):
    file = tmp_path / "a.safetensors"
    file.write_bytes(file_of(*ACCEPTED[case]))
    found, expected = load_state_dict(file), load_file(file)
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, strict=True)


@pytest.mark.parametrize("case", [*REFUSED, *REFUSED_HERE])
def test_what_is_refused(tmp_path, case):
    *content, told = {**REFUSED, **REFUSED_HERE}[case]
    file = tmp_path / "a.safetensors"
    file.write_bytes(file_of(*content))
    with pytest.raises(ArgumentError) as error:
        load_state_dict(file)
    assert str(error.value).startswith("load_state_dict: ")
    assert told in str(error.value)
    if case in REFUSED:
        with pytest.raises(SafetensorError):
            load(file.read_bytes())


def test_what_is_said_of_bytes(tmp_path):
    file = tmp_path / "a.safetensors"

    def told(header, data):
        file.write_bytes(file_of(json.dumps(header), data))
        with pytest.raises(ArgumentError) as error:
            load_state_dict(file)
        return str(error.value)

    shape = f"load_state_dict: {DAMAGED}\n  shape (1,) of float32"
    assert told({"x": entry([1], 0, 4)}, 3) == f"{shape}, bytes 0 to 4 of 3"
    assert told({"x": entry([1], 4, 8)}, 8) == f"{shape}, bytes 4 to 8, which follow bytes of no array"
    assert told({"y": entry([1], 0, 4), "x": entry([1], 2, 6)}, 6) == (
        f"{shape}, bytes 2 to 6, which overlap those of another array"
    )
    assert told({"x": entry([2], 0, 4)}, 4) == f"load_state_dict: {DAMAGED}\n  shape (2,) of float32, bytes 0 to 4"
    assert told({"x": entry([1], 0, 1, "BOOL")}, b"\7") == (
        "load_state_dict: 'x' in a.safetensors has booleans other than 0 and 1\n"
        "  operations would disagree on what they are"
    )


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\x64" + b"\0" * 7 + b"{}", b"\0" * 7 + b"\x80{}"])
def test_what_is_no_such_file(tmp_path, data):
    file = tmp_path / "a.safetensors"
    file.write_bytes(data)
    with pytest.raises(ArgumentError) as error:
        load_state_dict(file)
    assert str(error.value) == "load_state_dict: a.safetensors is not a safetensors file, or is incomplete"
