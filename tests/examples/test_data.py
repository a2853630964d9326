import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data import load_tokens, main, train_valid_split, unigram_entropy, write_tokens
from texts import STDLIB_LIMIT, load_text
from tokenizer import learn, pieces
from tokenizers import Tokenizer as Loaded, models

from axonym.models import Bytes, Vocabulary


def text_of(*files: str) -> np.ndarray:
    return np.frombuffer("".join(file + "\0" for file in files).encode(), np.uint8)


def raises(error: type[Exception], message: str) -> pytest.RaisesExc:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


@pytest.fixture(scope="module")
def stdlib() -> np.ndarray:
    return load_text()


def test_stdlib_is_python_source_and_the_same_every_time(stdlib: np.ndarray) -> None:
    assert stdlib.dtype == np.uint8
    assert STDLIB_LIMIT / 2 < stdlib.size <= STDLIB_LIMIT
    assert b"def dumps(obj, *, skipkeys=False" in stdlib.tobytes()
    np.testing.assert_array_equal(load_text(), stdlib)


def test_stdlib_loses_whole_files_to_the_limit(monkeypatch: pytest.MonkeyPatch, stdlib: np.ndarray) -> None:
    monkeypatch.setattr("texts.STDLIB_LIMIT", 100_000)
    head = load_text()
    assert 0 < head.size <= 100_000
    assert head[-1] == 0
    np.testing.assert_array_equal(head, stdlib[: head.size])


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_text("bee")
    (tmp_path / "sub" / "a.md").write_text("ä")
    (tmp_path / ".hidden").write_bytes(b"\0")
    np.testing.assert_array_equal(load_text(tmp_path / "b.txt"), text_of("bee"))
    np.testing.assert_array_equal(load_text(tmp_path), text_of("bee", "ä"))


def test_missing_path(tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    message = f"no file or folder {missing}; pass a text file or a folder of them"
    with raises(FileNotFoundError, message):
        load_text(missing)


def test_empty_folder(tmp_path: Path) -> None:
    with raises(FileNotFoundError, f"no files in the folder {tmp_path}; pass a text file or a folder of them"):
        load_text(tmp_path)


def test_no_stdlib_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    with raises(FileNotFoundError, f"no Python source in the standard library's folder {tmp_path}; pass a path"):
        load_text()


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"ab\0c")
    message = f"{path} is not text: it has a zero byte; pass a text file or a folder of them"
    with raises(ValueError, message):
        load_text(path)


def test_split_of_the_stdlib_holds_out_whole_files(stdlib: np.ndarray) -> None:
    train, valid = train_valid_split(stdlib)
    assert train.size + valid.size == stdlib.size
    assert 0.025 <= valid.size / stdlib.size <= 0.1
    files = stdlib.tobytes().split(b"\0")[:-1]
    held_out = valid.tobytes().split(b"\0")[:-1]
    assert held_out == files[10::20]
    assert train.tobytes().split(b"\0")[:-1] == [file for i, file in enumerate(files) if i % 20 != 10]


@pytest.mark.parametrize("files", [["x" * 999], ["x" * 99] * 7 + ["y" * 9999]])
def test_split_of_few_or_unequal_files_holds_out_the_tail(files: list[str]) -> None:
    text = text_of(*files)
    train, valid = train_valid_split(text, 0.1)
    assert valid.size == round(0.1 * text.size)
    np.testing.assert_array_equal(np.concatenate([train, valid]), text)


@pytest.mark.parametrize("fraction", [0.0, 0.7])
def test_split_fraction(fraction: float) -> None:
    with raises(ValueError, f"valid_fraction must be above 0 and at most 0.5, got {fraction}"):
        train_valid_split(text_of("text"), fraction)


def test_entropy() -> None:
    assert unigram_entropy(np.arange(256, dtype=np.uint8)) == pytest.approx(np.log(256))
    assert unigram_entropy(np.frombuffer(b"aaab", np.uint8)) == pytest.approx(0.562335, abs=1e-6)
    assert unigram_entropy(np.frombuffer(b"aaaa", np.uint8)) == 0
    with raises(ValueError, "the entropy of an empty text is not defined"):
        unigram_entropy(np.zeros(0, np.uint8))


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    learn(iter(["the cat sat on the mat", "the dog sat on the mat"]), 300, file)
    return Vocabulary(file)


def test_files_of_tokens_are_those_of_the_texts(tmp_path: Path, words: Vocabulary) -> None:
    folder, out = tmp_path / "texts", tmp_path / "tokens.npy"
    folder.mkdir()
    (folder / "a.txt").write_text("the cat")
    (folder / "b.jsonl").write_text('{"text": "sat on"}\n{"text": "the mat", "id": 3}\n')
    expected = [token for text in ("the cat", "sat on", "the mat") for token in (*words.encode(text), *words.ends)]
    assert load_tokens(folder, words).tolist() == expected
    assert write_tokens(folder, words, out) == len(expected)
    tokens = load_tokens(out, words)
    assert isinstance(tokens, np.memmap)
    assert (tokens.dtype, tokens.tolist()) == (np.uint16, expected)


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": {"eos_token_id": 1}},
        {"tokenizer_config.json": {"eos_token": "</s>"}},
        {"tokenizer_config.json": {"eos_token": {"content": "</s>"}}},
    ],
)
def test_the_files_of_a_model_say_which_token_ends_a_text(tmp_path: Path, files: dict[str, Any]) -> None:
    Loaded(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n' * 2)
    given = ["data.py", str(tmp_path / "text.jsonl"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    given += ["--out", str(tmp_path / "tokens.npy")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", given)
        with raises(ValueError, f"{tmp_path}/tokenizer.json does not say which token ends a text: pass --end"):
            main()
        patch.setattr("sys.argv", [*given, "--end", "1"])
        main()
        assert np.load(tmp_path / "tokens.npy").tolist() == [0, 1, 0, 1]
        for name, settings in files.items():
            (tmp_path / name).write_text(json.dumps(settings))
        patch.setattr("sys.argv", given)
        main()
    assert np.load(tmp_path / "tokens.npy").tolist() == [0, 1, 0, 1]


def test_a_text_may_have_separators_that_end_no_line_of_json(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three\u2029"
    (tmp_path / "b.jsonl").write_text(2 * (json.dumps({"text": text}, ensure_ascii=False) + "\n"))
    assert bytes(load_tokens(tmp_path / "b.jsonl", Bytes())).decode() == 2 * f"{text}\0"


def test_tokens_in_a_mapped_file_are_not_copied_to_be_split(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(200, dtype=np.uint8))
    train, valid = train_valid_split(load_tokens(tmp_path / "tokens.npy", Bytes()), 0.25)
    assert train.tolist() == list(range(150))
    assert valid.tolist() == list(range(150, 200))
    assert isinstance(train, np.memmap)


def test_what_is_no_file_of_tokens_is_refused(tmp_path: Path, words: Vocabulary) -> None:
    file = tmp_path / "tokens.npy"
    np.save(file, np.arange(500, dtype=np.uint16))
    with raises(ValueError, f"{file} has token 499, but the tokenizer has {words.vocab} tokens"):
        load_tokens(file, words)
    np.save(file, np.zeros((2, 3), np.float32))
    with raises(ValueError, f"{file} has float32 numbers of shape (2, 3), not tokens; see data.py --help"):
        load_tokens(file, words)
    np.save(file, np.arange(50, dtype=np.uint8))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match="is damaged, or no file of tokens: "):
        load_tokens(file, words)
    np.save(file, np.zeros(0, np.uint8))
    with raises(ValueError, f"{file} has no tokens"):
        load_tokens(file, words)
    lines = tmp_path / "lines.jsonl"
    lines.write_text("")
    with raises(ValueError, f"{lines} has no texts"):
        load_tokens(lines, Bytes())
    lines.write_text('{"text": "a"}\n{"txt": "b"}\n')
    with raises(ValueError, f'{lines}, line 2: expected {{"text": "..."}}'):
        load_tokens(lines, Bytes())


def test_parquet_files_are_read_by_rows_and_flaws_are_told(tmp_path: Path, words: Vocabulary) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "texts"
    folder.mkdir()
    file = folder / "a.parquet"
    texts = ["the cat", "sat on", "the mat"]
    parquet.write_table(pyarrow.table({"id": [1, 2, 3], "text": texts}), file, row_group_size=2)
    (folder / "b.jsonl").write_text('{"text": "the dog"}\n')
    expected = [token for text in (*texts, "the dog") for token in (*words.encode(text), *words.ends)]
    assert load_tokens(folder, words).tolist() == expected
    assert bytes(load_tokens(folder, Bytes()).tolist()) == b"the cat\0sat on\0the mat\0the dog\0"
    parquet.write_table(pyarrow.table({"id": [1], "txt": ["a"]}), file)
    with raises(ValueError, f'{file} has no column "text", but id, txt'):
        load_tokens(file, words)
    parquet.write_table(pyarrow.table({"text": ["a", None]}), file)
    with raises(ValueError, f"{file}, row 2: expected a text, not None"):
        load_tokens(file, words)
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(ValueError, match="is damaged, or no Parquet file: "):
        load_tokens(file, words)


def test_a_parquet_file_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "a.parquet"
    file.write_bytes(b"")
    with raises(ValueError, f"{file} is a Parquet file, to read it: pip install pyarrow"):
        load_tokens(file, Bytes())


def test_only_words_that_no_token_could_be_are_cut_before_a_tokenizer_learns():
    text = "some words\n" * 300
    assert list(pieces(text)) == [text]
    cut = list(pieces(f"{text}{'x' * 2500} {text}"))
    assert [len(piece) for piece in cut] == [len(text), 1000, 1000, 500, len(text) + 1]
    assert "".join(cut) == f"{text}{'x' * 2500} {text}"
