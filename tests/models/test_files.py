"""Small files of a model: whatever is wrong with one, the error names it."""

import json

import pytest

from axonym.models import conversations, read_config, read_tokenizer
from axonym.models.files import read_json
from axonym.models.tokenizer import Bytes, Vocabulary
from tests.nn.layouts import fails


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b'{"a": "\xe9"}', "is no JSON: 'utf-8' codec can't decode byte 0xe9 in position 7: invalid continuation byte"),
        (b"[1]", "has no settings, but a list"),
    ],
)
def test_settings_that_cannot_be_read(content, text, tmp_path):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    fails(ValueError, f"{file} {text}", lambda: read_json(file))
    fails(ValueError, f"{file} {text}", lambda: read_tokenizer(tmp_path))


def test_a_file_that_is_no_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 5}')
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=f"{tmp_path}/tokenizer.json is no tokenizer: "):
        read_tokenizer(tmp_path)


def test_texts_that_are_no_texts(tmp_path):
    file, line = tmp_path / "data.jsonl", json.dumps({"prompt": "a\ud800", "completion": "b"})
    file.write_text(line)
    half = "a text has a lone surrogate, '\\ud800', at character 1: it is half of a character"
    fails(ValueError, f"{file}, line 1: {half}", lambda: conversations(file, Bytes(), 8))
    fails(ValueError, half, lambda: Bytes().encode("a\ud800"))
    file.write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(ValueError, match=f"{file} is no text of UTF-8: 'utf-8' codec can't decode byte 0xe9"):
        conversations(file, Bytes(), 8)


def test_a_model_type_is_needed():
    with pytest.raises(ValueError, match="unknown model_type None; known: gpt2, "):
        read_config({})
    assert Vocabulary.__doc__
