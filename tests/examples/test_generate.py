"""The command line of generations: what it shows, on one device and on several."""

import subprocess
import sys
from pathlib import Path

import pytest
from generate import Options, main
from tokenizers import Tokenizer as Loaded, decoders, models, pre_tokenizers, processors

from axonym.models import save
from tests.models.test_generation import by_hand, model
from tests.nn.layouts import fails

GREEDY = {"temperature": 0.0, "new": 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save(model(), folder)
    return folder


@pytest.mark.parametrize("mesh", [(1, 1), (1, 2)], ids=str)
def test_texts_go_on_as_each_alone(folder, mesh, capsys):
    prompts = ("def main(", "a", "import jax and more")
    found = main(Options(model=folder, prompt=prompts, mesh=mesh, **GREEDY))
    assert found == [by_hand(prompt) for prompt in prompts]
    assert capsys.readouterr().out == "\n---\n".join(p + by_hand(p) for p in prompts) + "\n"


def test_one_text_is_shown_as_it_comes_up_to_a_stop(folder, capsys):
    whole = by_hand("def main(")
    stop = whole[9:12]
    found = main(Options(model=folder, prompt=("def main(",), stop=(stop, "never"), **GREEDY))
    assert found == [whole[: whole.index(stop)]]
    assert capsys.readouterr().out.startswith(f"def main({whole[: whole.index(stop)]}")


def test_a_prompt_is_needed(folder):
    nothing = "there is no text to continue: pass --prompt, which may be an empty text"
    fails(ValueError, nothing, lambda: main(Options(model=folder, prompt=())))


PROGRAM = Path(__file__).parents[2] / "examples" / "lm" / "generate.py"
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }};{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)


def test_a_conversation_is_answered_line_by_line(tmp_path):
    save(model(), tmp_path)
    letters = Loaded(models.WordLevel({chr(i): i for i in range(256)}, unk_token="?"))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    # A token in front of a text, but for one that a template wrote.
    letters.post_processor = processors.TemplateProcessing(single="# $A", special_tokens=[("#", ord("#"))])
    letters.decoder = decoders.Fuse()
    letters.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    given = [sys.executable, str(PROGRAM), "--model", str(tmp_path), "--chat", "--temperature", "0", "--new", "20"]
    done = subprocess.run(given, input="hi\n\n  bye ", capture_output=True, text=True, check=False)
    first = by_hand("uhi;a")
    second = by_hand(f"uhi;a{first};ubye;a")
    assert (done.returncode, done.stdout) == (0, f"{first}\n{second}\n"), done.stderr


def test_a_conversation_needs_a_template_and_no_prompt(folder):
    put = "put one into chat_template.jinja there, or leave --chat out and pass --prompt"
    fails(ValueError, f"{folder} has no chat template: {put}", lambda: main(Options(model=folder, chat=True)))
    both = "chat reads from the input what you say: leave --prompt out"
    fails(ValueError, both, lambda: main(Options(model=folder, chat=True, prompt=("a",))))
