"""Build the wheel, install it where nothing else is, and run README's example with it."""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Runs first: what is imported is what was installed, with the version that it says and the marker of typed packages.
INSTALLED = """
import importlib.metadata, importlib.resources, pathlib, sys
import axonym
assert pathlib.Path(axonym.__file__).is_relative_to(sys.prefix), axonym.__file__
assert importlib.metadata.version("axonym") == axonym.__version__
assert importlib.resources.files("axonym").joinpath("py.typed").is_file()
"""


def example() -> str:
    """Return the program under README's heading `## Example`."""
    (code,) = re.findall(r"^## Example\n+```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    return code


def run(*command: object, folder: Path) -> str:
    """Run a command in a folder outside of the project, and return what it prints."""
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def strangers(wheel: Path) -> list[str]:
    """List what a wheel puts into an environment besides the package and its metadata."""
    with zipfile.ZipFile(wheel) as files:
        tops = {name.split("/")[0] for name in files.namelist()}
    return sorted(top for top in tops if top != "axonym" and not top.endswith(".dist-info"))


def local_links(wheel: Path) -> list[str]:
    """List the links of the description that need the files of the repository beside it."""
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        text = files.read(metadata).decode()
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("https://")]


def main() -> None:
    """Check the wheel; what fails stops the program."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT, folder=folder)
        (wheel,) = folder.glob("*.whl")
        print(f"{wheel.name}: {wheel.stat().st_size // 1024} KB")
        if found := strangers(wheel):
            # What lies beside packages, such as a `.pth`, works on every program of the environment.
            sys.exit(f"{wheel.name} has files outside of the package: {', '.join(found)}")
        if links := local_links(wheel):
            sys.exit(f"the description of {wheel.name} has relative links: {', '.join(links)}")

        run(sys.executable, "-m", "venv", folder / "venv", folder=folder)
        python = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        run(python, "-m", "pip", "install", "-q", wheel, folder=folder)

        program = folder / "example.py"
        program.write_text(INSTALLED + example())
        # Isolated: neither the working folder nor the variables of the caller add anything to import from.
        print(run(python, "-I", "-W", "error", program, folder=folder), end="")


if __name__ == "__main__":
    main()
