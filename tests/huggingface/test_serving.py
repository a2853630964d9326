"""Folders of the language model's programs, as those who serve models read them: with transformers.

Weights, settings, tokenizer, chat template and ends are read; greedy tokens are those of `axonym.models`.
"""

import json
import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import finetune
import options
import pytest
import torch
import train
import transformers
from tokenizer import learn
from trainer import Recipe

from axonym.models import Sampling, generate, load, read_template, read_tokenizer

TEXT = "the cat sat on the mat. the dog ate what the cat left.\n"
TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<assistant>{% endif %}"
SAID = [{"role": "user", "content": "the cat"}]
PLAIN = {"precision": "params=float32,compute=float32,output=float32"}
NEW = 12


def check(folder: Path, prompt: str) -> tuple[Any, Any]:
    """Compare what transformers reads and generates with ours."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    own = read_tokenizer(folder)
    for text in (prompt, "  two  spaces, é and\n\nlines 123"):
        assert tokenizer(text).input_ids == own.encode(text)
        assert tokenizer.decode(own.encode(text)) == own.decode(own.encode(text))
    ends = theirs.generation_config.eos_token_id
    assert tuple(ends if isinstance(ends, list) else [ends]) == own.ends
    tokens = tokenizer(prompt, return_tensors="pt")
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": own.ends[0]}
    found = theirs.generate(**tokens, **options)[0, tokens.input_ids.shape[1] :]
    text = tokenizer.decode(found, skip_special_tokens=True)
    assert text == generate(load(folder), own, [prompt], Sampling(new=NEW, temperature=0))[0]
    assert len(set(found.tolist())) > 1
    return theirs, tokenizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    (root / "text.txt").write_text(TEXT * 100)
    learn(iter([TEXT]), 290, root / "words.json")
    sizes = {"layers": 1, "embed": 32, "heads": 2, "positions": 48, "batch": 8, "sample": 0}
    recipe = Recipe(strategy="single", steps=40, warmup=2, learning_rate=1e-2, microbatches=1, **PLAIN)
    files = {"data": root / "text.txt", "tokenizer": root / "words.json", "out": root / "run"}
    train.main(options.Options(recipe, **files, **sizes))
    return root / "run"


def test_a_trained_model_is_served(trained: Path) -> None:
    theirs, tokenizer = check(trained, "the dog")
    assert theirs.config.architectures == ["LlamaForCausalLM"]
    assert tokenizer.eos_token == "<|endoftext|>"


def test_a_tuned_model_is_served_with_the_template_and_the_ends_of_the_first(trained: Path, tmp_path: Path) -> None:
    settings = json.loads((trained / "config.json").read_text())
    (trained / "config.json").write_text(json.dumps({**settings, "bos_token_id": 1}))
    (trained / "chat_template.jinja").write_text(TEMPLATE)
    asked = {"eos_token_id": [0, 5], "do_sample": True, "temperature": 0.7, "top_p": 0.9}
    (trained / "generation_config.json").write_text(json.dumps(asked))
    chat = {"messages": [*SAID, {"role": "assistant", "content": "sat on the mat."}]}
    (tmp_path / "chats.jsonl").write_text(json.dumps(chat))
    small = {"length": 40, "batch": 2, "steps": 8, "learning_rate": 3e-2, "layers": ("attention.query", "mlp.up")}
    finetune.main(finetune.Options(trained, tmp_path / "chats.jsonl", tmp_path / "tuned", **PLAIN, **small))
    merged = tmp_path / "tuned" / "merged"
    template = read_template(merged)
    assert template is not None
    prompt = template(SAID, True)
    theirs, tokenizer = check(merged, prompt)
    assert tokenizer.apply_chat_template(SAID, add_generation_prompt=True, tokenize=False) == prompt
    assert theirs.config.bos_token_id == 1
    read = theirs.generation_config
    assert {key: getattr(read, key) for key in asked} == asked
