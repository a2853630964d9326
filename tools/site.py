"""Make what the pages show when mkdocs builds them: notebooks are run, and pictures are drawn.

Pages of the API get the public names, from tools/api_pages.py, and links to programs their public address, from
tools/links.py. Nothing of it is kept in the repository. A page asks for a picture by a comment,
`<!-- picture: name -->`, where the name is a function of tools/pictures.py, and for the version by `<!-- version -->`.
"""

import concurrent.futures
import json
import re
import runpy
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

import axonym

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "docs/notebooks"
COMMENT = re.compile(r"^<!-- picture: (\S+) -->$", re.MULTILINE)
API = runpy.run_path(str(ROOT / "tools/api_pages.py"))
publish = runpy.run_path(str(ROOT / "tools/links.py"))["publish"]
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
# What was made for which sources, for `mkdocs serve`, which builds anew after each change of a page.
made: dict[tuple[str, str], str] = {}


def on_files(files: Files, config: Any) -> Files:
    """Replace the files of notebooks by pages, and draw the pictures."""
    notebooks = sorted(NOTEBOOKS.glob("*.py"))
    for path in notebooks:
        source = files.get_file_from_path(f"notebooks/{path.name}")
        if source is not None:
            files.remove(source)
    # Two at a time: each waits for its compiler on one core.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        pictures = pool.submit(output_of, ROOT / "tools/pictures.py", "*.py")
        ran = pool.map(lambda path: output_of(ROOT / "tools/notebook.py", path.name, path), notebooks)
        found = dict(zip(notebooks, ran, strict=True))
        config["extra"]["pictures"] = json.loads(pictures.result())
    write = runpy.run_path(str(ROOT / "tools/notebook.py"))["page"]
    for path, content in found.items():
        download = f"{path.stem}.ipynb"
        text = write(json.loads(content), download)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        files.append(File.generated(config, f"notebooks/{download}", content=content))
    return files


def output_of(tool: Path, what: str, *arguments: Path) -> str:
    """Return what a tool writes to the file that is its last argument; say how long it took."""
    sources = "".join(path.read_text(encoding="utf-8") for path in (tool, *arguments))
    if (what, sources) in made:
        return made[what, sources]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "output"
        command = [sys.executable, str(tool), *map(str, arguments), str(target)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise PluginError(f"{tool.name} failed for {what}:\n{done.stderr[-3000:]}")
        made[what, sources] = target.read_text(encoding="utf-8")
    print(f"{tool.stem} {what}: {time.perf_counter() - start:.0f} s", flush=True)
    return made[what, sources]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Put pictures, public names and links to programs into a page."""

    def picture(comment: re.Match[str]) -> str:
        drawn = config["extra"]["pictures"]
        if comment[1] not in drawn:
            raise PluginError(f"{page.file.src_path} asks for the picture {comment[1]}, which tools/pictures.py lacks")
        return f'<div class="output">\n{drawn[comment[1]]}\n</div>'

    if page.file.src_path.startswith("api/"):
        markdown = API["expanded"](markdown).replace(
            API["INDEX"], API["index"](ROOT / "docs/api", _in_order(config["nav"]))
        )
    markdown = markdown.replace("<!-- version -->", axonym.__version__)
    markdown = publish(markdown, ROOT / "docs" / page.file.src_path, SOURCE, shown=ROOT / "docs")
    return COMMENT.sub(picture, markdown)


def _in_order(nav: Any) -> list[str]:
    """Return the paths of the pages of the API, as the navigation has them."""
    if isinstance(nav, str):
        return [nav.removeprefix("api/")] * nav.startswith("api/")
    parts = nav.values() if isinstance(nav, dict) else nav
    return [path for part in parts for path in _in_order(part)]
