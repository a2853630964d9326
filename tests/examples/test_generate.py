"""The command line of generations: what it shows, on one device and on several."""

import pytest
from generate import Options, main

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
