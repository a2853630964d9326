"""Conversations: as the template of the model writes them; only what the assistant says counts."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizer import learn
from tokenizers import Tokenizer as Loaded, models, normalizers

from axonym.models import Bytes, Vocabulary, conversations, read_template
from axonym.models.tokenizer import END
from tests.nn.layouts import fails

LINES = [{"prompt": "is it? ", "completion": "yes"}, {"prompt": "and that? ", "completion": "no"}]


def test_only_what_the_assistant_says_counts(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]}
    file.write_text(json.dumps(LINES[1]) + "\n" + json.dumps(chat))
    tokens, counted = conversations(file, Bytes(), 30)
    assert bytes(tokens[0][counted[0]].tolist()) == b"no\0"
    assert bytes(tokens[1][counted[1]].tolist()) == b"bc\n\0"
    assert bytes(tokens[1].tolist()) == b"<|user|>\na\n<|assistant|>\nbc\n\0\0\0"
    assert tokens.shape == counted.shape == (2, 31)


def test_a_text_may_have_separators_that_end_no_line_of_json(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    said = "one\u2028two\u0085three\u2029"
    lines = [{"prompt": said, "completion": said}] * 2
    file.write_text("\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    tokens, counted = conversations(file, Bytes(), 80)
    assert len(tokens) == 2
    assert bytes(tokens[1][counted[1]].tolist()).decode() == f"{said}\0"


# Marks turns, begins the text with a token of its own, and refuses two turns of the same role, as those of Llama do.
TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {{- '<' + message['role'] + '>' + message['content'] | trim + '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
{%- endif %}
"""
TURNS = [("user", "hi"), ("assistant", " so "), ("user", "and?"), ("assistant", "no")]


def model_with(folder: Path, **settings: Any) -> Path:
    if "chat_template" in settings:
        pytest.importorskip("jinja2")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, **settings}))
    return folder


@pytest.mark.parametrize("named", [False, True])
def test_a_template_of_the_model_writes_conversations(named: bool, tmp_path: Path) -> None:
    several = [{"name": "tools", "template": ""}, {"name": "default", "template": TEMPLATE}]
    template = read_template(model_with(tmp_path, chat_template=several if named else TEMPLATE))
    file = tmp_path / "data.jsonl"
    messages = [{"role": role, "content": content} for role, content in TURNS]
    file.write_text(json.dumps({"messages": messages}))
    tokens, counted = conversations(file, Bytes(), 80, template)
    written = "<s><user>hi<end><assistant>so<end><user>and?<end><assistant>no<end>"
    assert bytes(tokens[0].tolist()).rstrip(b"\0").decode() == written
    assert bytes(tokens[0][counted[0]].tolist()) == b"so<end>no<end>"
    file.write_text(json.dumps({"messages": messages[1:]}))
    text = f"{file}, line 1: the chat template of {tmp_path}: roles must alternate"
    fails(ValueError, text, lambda: conversations(file, Bytes(), 80, template))


def test_a_tokenizer_adds_its_own_tokens_once_or_not_at_all(tmp_path: Path) -> None:
    learn(iter(["is it yes and that no"]), 300, tmp_path / "tokenizer.json")
    settings = json.loads((tmp_path / "tokenizer.json").read_text())
    first = {"type_id": 0}
    settings["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": END, **first}}, {"Sequence": {"id": "A", **first}}],
        "pair": [{"Sequence": {"id": "A", **first}}, {"Sequence": {"id": "B", **first}}],
        "special_tokens": {END: {"id": END, "ids": [0], "tokens": [END]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    vocabulary = Vocabulary(tmp_path / "tokenizer.json")
    assert vocabulary.encode("is")[0] == 0
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)))
    tokens, counted = conversations(file, vocabulary, 40)
    for i, line in enumerate(LINES):
        expected = [0, *vocabulary.encode(line["prompt"] + line["completion"], bare=True), 0]
        assert tokens[i, : len(expected)].tolist() == expected
        learned = tokens[i][counted[i]].tolist()
        assert learned[-1] == 0
        assert vocabulary.decode(learned).strip() == line["completion"]
    file.write_text(json.dumps({"messages": [{"role": role, "content": content} for role, content in TURNS]}))
    template = read_template(model_with(tmp_path, chat_template=TEMPLATE))
    tokens, _ = conversations(file, vocabulary, 60, template)
    assert not (tokens[0, :10] == 0).any()


def test_a_conversation_is_encoded_as_a_whole(tmp_path: Path) -> None:
    """A tokenizer that begins each text with a space, as that of Llama 2, begins no answer with one."""
    loaded = Loaded(models.BPE(vocab={"a": 0, "b": 1, "\u2581": 2, ":": 3, "<e>": 4}, merges=[]))
    loaded.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    loaded.save(str(tmp_path / "tokenizer.json"))
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"prompt": "a:", "completion": "b b"}))
    tokens, counted = conversations(file, Vocabulary(tmp_path / "tokenizer.json", (4,)), 9)
    assert tokens[0].tolist() == [2, 0, 3, 1, 2, 1, 4, 0, 0, 0]
    assert counted[0].tolist() == [False] * 3 + [True] * 4 + [False] * 3


# Templates with what published ones use, and what transformers 5.24 writes for MESSAGES.
WRITTEN = [
    ("{{ messages[0].content | tojson }}", "\"<a> & 'b' \u00e9\""),
    ("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}", '{\n "b": 1,\n "a": 2\n}'),
    ("{% if tools is none and documents is none %}none{% else %}some{% endif %}", "none"),
    (
        "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}"
        "{{ m.content }}{% break %}{% endfor %}",
        "yes",
    ),
    ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}", "<a> & 'b' \u00e9;yes;"),
    ("{{ strftime_now('%Y') | length }}", "4"),
]


@pytest.mark.parametrize(("source", "text"), WRITTEN)
def test_templates_are_written_as_transformers_does(source: str, text: str, tmp_path: Path) -> None:
    template = read_template(model_with(tmp_path, chat_template=source))
    assert template is not None
    messages = [{"role": "user", "content": "<a> & 'b' \u00e9"}, {"role": "assistant", "content": "yes"}]
    assert template(messages, False) == text


def test_a_template_that_is_no_program_is_named(tmp_path: Path) -> None:
    model = model_with(tmp_path, chat_template="{% if %}")
    with pytest.raises(ValueError, match=f"the chat template of {tmp_path}: Expected an expression"):
        read_template(model)


def test_conversations_without_an_answer_within_the_length_are_left_out(
    tmp_path: Path,
) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(map(json.dumps, [{"prompt": "x" * 20, "completion": "y"}, *LINES])))
    text = f"1 conversations of {file} have no answer within 16 tokens, and are left out: pass a larger length"
    with pytest.warns(UserWarning, match=f"^{re.escape(text)}$"):
        tokens, _ = conversations(file, Bytes(), 16)
    assert len(tokens) == 2


def test_a_template_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    assert read_template(str(tmp_path)) is None
    assert read_template(model_with(tmp_path)) is None
    pytest.importorskip("jinja2")
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    template = read_template(tmp_path)
    assert template is not None
    assert template([{"role": "user", "content": "é"}], False) == "<s>é"


def test_a_template_that_takes_words_back_is_refused(tmp_path: Path) -> None:
    # As those that leave out the thoughts before the last answer.
    template = read_template(model_with(tmp_path, chat_template="{{ messages[-1].content }}"))
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"messages": [{"role": role, "content": content} for role, content in TURNS]}))
    text = f"{file}, line 1: the template changes what was said, so what counts is not known"
    fails(ValueError, text, lambda: conversations(file, Bytes(), 80, template))


def test_a_template_needs_a_package_and_reaches_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    reaching = read_template(model_with(tmp_path, chat_template=source))
    assert reaching is not None
    with pytest.raises(ValueError, match="is unsafe"):
        reaching([], False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    text = "read_template: the library 'jinja2' is not installed\n  hint: pip install 'axonym[models]'"
    fails(ImportError, text, lambda: read_template(tmp_path))


def test_flaws(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n')
    wanted = '{"prompt": "...", "completion": "..."} or {"messages": [...]}'
    fails(ValueError, f"{file}, line 2: expected {wanted}", lambda: conversations(file, Bytes(), 8))
    file.write_text('{"prompt": "a long one", "completion": "b"}\n')
    text = f"{file} has nothing that the assistant says within 8 tokens"
    fails(ValueError, text, lambda: conversations(file, Bytes(), 8))
