"""Internal. Files that replace earlier ones in one step: a reader finds either all old files or all new files.

A file is written beside its place, and renamed once it is on the disk. Several files get new names, and one step makes
them valid: their index is renamed, or a single file is removed that would take precedence over the index. Each file and
the index have the number of the save in their metadata, so that files of two saves are never mixed. The next save
removes the files that a killed save left.
"""

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, message
from .format import File, Unreadable, metadata_of, open_file, parse

SAVE = "axonym.save"
UNFINISHED = ".unfinished"


def index_of(target: Path) -> Path:
    """Return the path of the index if several files take the place of one."""
    return target.with_name(f"{target.name}.index.json")


def write(file: Path, parts: Iterable[Any], make_header: Callable[[], bytes] | None = None) -> None:
    """Replace a file by one with the given bytes, once they are all on the disk.

    A final header with checksums of the rest then replaces the first part, which has the same length.
    """
    unfinished = file.with_name(file.name + UNFINISHED)
    try:
        with unfinished.open("wb") as out:
            for part in parts:
                out.write(part)
            if make_header is not None:
                out.seek(0)
                out.write(make_header())
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(file)
    except BaseException:
        # A disk may be full; what is left of the file would keep it so.
        unfinished.unlink(missing_ok=True)
        raise


class Replacement:
    """The files of one save.

    Attributes:
        target: the file that the user named.
        files: those to write, in any order, before `finish`.
        metadata: the number of the save, for each of several files.
    """

    def __init__(self, target: Path, count: int) -> None:
        """Choose names, and remove the files that a killed save left."""
        self.target = target
        self.listed = _list_files(index_of(target))
        self._remove(lambda name: name not in self.listed and self._is_ours(name))
        self.files, self.metadata = [target], dict[str, str]()
        if count > 1:
            save = secrets.token_hex(8)
            self.metadata = {SAVE: save}
            # The plain names, as other libraries write them, unless files of an earlier save have them.
            self.files = self._number_files(target.stem, count)
            if any(map(os.path.lexists, self.files)):
                self.files = self._number_files(f"{target.stem}-{save}", count)

    def finish(self, files_of: Mapping[str, Path], total_size: int) -> None:
        """Make the written files the valid ones, and remove the earlier ones."""
        index, kept = index_of(self.target), {file.name for file in self.files}
        _sync(self.target.parent)
        if self.metadata:
            metadata = {"total_size": total_size, **self.metadata}
            where = {key: file.name for key, file in files_of.items()}
            write(
                index, [json.dumps({"metadata": metadata, "weight_map": where}, indent=2).encode()]
            )
            _sync(index.parent)  # before the files go that the earlier index lists
            self.target.unlink(missing_ok=True)
        else:
            index.unlink(missing_ok=True)
        self._remove(lambda name: name not in kept and (name in self.listed or self._is_ours(name)))
        _sync(index.parent)

    def _number_files(self, stem: str, count: int) -> list[Path]:
        names = (f"{stem}-{at:05}-of-{count:05}" for at in range(1, count + 1))
        return [self.target.with_name(name + self.target.suffix) for name in names]

    def _remove(self, chosen: Callable[[str], bool]) -> None:
        """Remove those files beside the target that have names of a save, and that `chosen` accepts."""
        # Only names that a save writes: users keep other files beside.
        stem, suffix = re.escape(self.target.stem), re.escape(self.target.suffix)
        whole, index = re.escape(self.target.name), re.escape(index_of(self.target).name)
        numbered = rf"{stem}(?:-[0-9a-f]{{16}})?-\d{{5,}}-of-\d{{5,}}{suffix}"
        pattern = re.compile(rf"(?:{whole}|{index}|{numbered}){re.escape(UNFINISHED)}|{numbered}")
        for name in os.listdir(self.target.parent):
            if pattern.fullmatch(name) and chosen(name):
                self.target.with_name(name).unlink(missing_ok=True)

    def _is_ours(self, name: str) -> bool:
        """Return whether a file is unfinished or was saved by Axonym: other programs may use all others."""
        if name.endswith(UNFINISHED):
            return True
        try:
            return SAVE in metadata_of(self.target.with_name(name))
        except ArgumentError:
            return False


def open_set(index: Path) -> dict[str, tuple[Path, File]]:
    """Open all files that an index lists, and return the file of each key.

    Raises:
        ArgumentError: if the index cannot be read, or the files are not those that it was written for.
    """
    text = index.read_bytes()
    where, save = _parse_index(index, text)
    try:
        files = {file: open_file(file) for file in dict.fromkeys(where.values())}
    except OSError:
        if index.read_bytes() != text:  # replaced in the meantime
            return open_set(index)
        for file in where.values():
            if not os.path.isfile(file):
                problem = f"{index.name} lists {file.name}, which is no file here"
                raise ArgumentError(message("load_state_dict", problem)) from None
        raise
    # First the saves, then the arrays: files of another save lack arrays for that reason.
    _require_one_save(index, save, files)
    absent = [key for key, file in where.items() if key not in files[file].arrays]
    if absent:
        problem = f"{index.name} lists {len(absent)} arrays that its files lack"
        first = f"the first: {absent[0]} in {where[absent[0]].name}"
        raise ArgumentError(message("load_state_dict", problem, first))
    return {key: (file, files[file]) for key, file in where.items()}


def _require_one_save(index: Path, save: str | None, files: Mapping[Path, File]) -> None:
    """Raise unless all files have the number of the same save; an index of another program may have no number."""
    lines = [f"{index.name}: save {save or 'unknown'}"]
    found: set[str | None] = set() if save is None else {save}
    for file, opened in files.items():
        own = opened.metadata.get(SAVE)
        found.add(own)
        lines.append(f"{file.name}: save {own or 'unknown'}")
    if len(found) > 1:
        problem = f"{index.name} and its files are not all from one save"
        hint = "copy all files of one save, the index too"
        raise ArgumentError(message("load_state_dict", problem, *lines, hint=hint))


def _parse_index(index: Path, text: bytes) -> tuple[dict[str, Path], str | None]:
    """Read an index: the file of each array, and the number of the save."""
    try:
        content = parse(text)
        where = {key: index.with_name(name) for key, name in content["weight_map"].items()}
        # Other libraries write null, or leave the metadata out.
        metadata = content.get("metadata") or {}
        save = metadata.get(SAVE)
        if not (save is None or isinstance(save, str)) or any(
            "\0" in file.name for file in where.values()
        ):
            raise TypeError
    except Unreadable:
        problem = f"{index.name} is not a readable index of files"
        raise ArgumentError(message("load_state_dict", problem)) from None
    return where, save


def _list_files(index: Path) -> set[str]:
    """Return the names of the files that an index lists; no names if there is no readable index."""
    try:
        return {file.name for file in _parse_index(index, index.read_bytes())[0].values()}
    except (FileNotFoundError, ArgumentError):
        return set()


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "nt":  # which opens no folders
        return
    # A rename is on the disk only when its folder is.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
