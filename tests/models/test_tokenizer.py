"""Tokenizers: bytes, and those of files, with the tokens that end a text."""

import json
import re

import numpy as np
import pytest
from tokenizer import learn
from tokenizers import Tokenizer as Loaded, models, pre_tokenizers

from axonym.models import Bytes, Vocabulary, read_tokenizer
from axonym.models.tokenizer import check_tokens
from tests.nn.layouts import fails


def test_a_tokenizer_of_its_own_is_read_with_the_model(tmp_path):
    learn(iter(["the cat sat on the mat", "the mat"]), 270, tmp_path / "tokenizer.json")
    tokens = Vocabulary(tmp_path / "tokenizer.json")
    assert tokens.vocab <= 270
    assert len(tokens.encode("the mat")) < 7
    assert tokens.decode(tokens.encode("the mat, naïve")) == "the mat, naïve"
    (end,) = tokens.ends
    (tmp_path / "config.json").write_text(f'{{"vocab_size": {tokens.vocab}, "eos_token_id": [{end}, 3]}}')
    assert read_tokenizer(tmp_path).ends == (end, 3)
    # A model may end a turn by further tokens, which only the settings of generations list.
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5]}))
    assert read_tokenizer(tmp_path).ends == (end, 3, 5)


def test_tokens_outside_of_the_table_are_refused(tmp_path):
    """Those of a tokenizer to which a token was added: the model would answer with NaN, and token 0 each time."""
    larger = Loaded(models.WordLevel({f"w{i}": i for i in range(256)}, unk_token="w0"))
    larger.pre_tokenizer = pre_tokenizers.Whitespace()
    larger.add_tokens(["<added>"])
    larger.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"vocab_size": 256}')
    sizes = f"{tmp_path} has a tokenizer of 257 tokens, and a table of 256"
    text = f"{sizes}: a text with one of the last tokens is refused"
    with pytest.warns(UserWarning, match=f"^{re.escape(text)}$"):
        read = read_tokenizer(tmp_path)
    told = (
        "a prompt has token 256, but the table of the model has 256 rows, for the tokens 0 to 255: "
        "is the tokenizer that of the model, and was a token added to it?"
    )
    fails(ValueError, told, lambda: check_tokens(np.array(read.encode("w1 <added>")), 256, "a prompt"))
    fails(ValueError, told.replace("256, but", "-1, but"), lambda: check_tokens(np.array([3, -1]), 256, "a prompt"))
    check_tokens(np.array(read.encode("w1 w2")), 256, "a prompt")


def test_a_folder_without_a_tokenizer_has_bytes(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 256}')
    assert isinstance(read_tokenizer(str(tmp_path)), Bytes)
    (tmp_path / "config.json").write_text('{"vocab_size": 300}')
    text = f"{tmp_path} has no tokenizer.json, and 300 tokens, which are not bytes"
    fails(ValueError, text, lambda: read_tokenizer(tmp_path))
