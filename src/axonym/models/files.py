"""Small JSON files of a model; errors name the file."""

import json
from pathlib import Path
from typing import Any


def read_json(file: Path) -> dict[str, Any]:
    """Return the settings of a file.

    Raises:
        ValueError: if it is no JSON, or no object of it.
    """
    try:
        found: object = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file} has no settings, but a {type(found).__name__}")
    return found
