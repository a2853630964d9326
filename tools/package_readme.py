"""Write the description of the package: README.md, with links that work on a package index."""

import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent.parent


class Description(MetadataHookInterface):
    """The hook that pyproject.toml names; hatchling calls it for each build."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the field that pyproject.toml lists as dynamic."""
        publish = runpy.run_path(str(ROOT / "tools/links.py"))["publish"]
        readme = ROOT / "README.md"
        text = publish(readme.read_text(encoding="utf-8"), readme, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
