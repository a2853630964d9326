"""What lies beside the weights in the folder of a model, for those who serve it."""

import json
import shutil
from pathlib import Path
from typing import Any

from axonym.models import Tokenizer, Vocabulary
from axonym.models.files import read_json

TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
MODEL = ("tokenizer.json", "tokenizer.model", *TOKENIZER, "generation_config.json")


def settings_of(folder: Path) -> dict[str, Any]:
    """Return what a model that was trained further keeps of its settings, for `axonym.models.save`."""
    settings = read_json(folder / "config.json")
    kept = {key: settings[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in settings}
    return {"family": settings["model_type"], **kept}


def copy_files(source: Path, folder: Path, names: tuple[str, ...] = MODEL) -> None:
    """Copy files that are there, where the folders are two."""
    for file in (source / name for name in names):
        if file.exists() and not source.samefile(folder):
            shutil.copy(file, folder)


def write_tokenizer(tokenizer: Tokenizer, file: Path | None, folder: Path) -> None:
    """Write the tokenizer of a new model, with what others need to read it; bytes have none.

    Args:
        tokenizer: of the model.
        file: where it was read; what describes it there comes along.
        folder: of the model.
    """
    if file is None or not isinstance(tokenizer, Vocabulary):
        return
    tokenizer.save(folder / "tokenizer.json")
    if not (file.parent / "tokenizer_config.json").exists():
        # Without a class, others take that of the family, which may cut text in its own way.
        usual: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if tokenizer.ends:
            usual["eos_token"] = tokenizer.decode(tokenizer.ends[:1], special=True)
        (folder / "tokenizer_config.json").write_text(json.dumps(usual, indent=2) + "\n")
    copy_files(file.parent, folder, TOKENIZER)
