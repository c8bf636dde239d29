"""Folders that are on disk whole or not at all.

A folder is written beside its place, checksummed, flushed and renamed: whoever is killed on the
way, or runs out of disk, leaves what was there before. What lies in a hidden folder beside it,
``.NAME.marlogue-partial``, was never finished; ``-removed`` was being removed, and ``-old`` made
way for a new folder of the same name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from safetensors import SafetensorError

MANIFEST = "manifest.json"
_KIND = "marlogue folder"
_FORMAT = 1
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


class CheckpointError(ValueError):
    """A folder that is no intact checkpoint; the message says what is wrong with it."""


def write_folder(folder: Path, write: Callable[[Path], None], about: Mapping[str, Any]) -> None:
    """Write a folder that appears, or replaces the one of that name, when it is complete.

    Args:
        folder: where it shall be.
        write: fills an empty folder.
        about: what :func:`check_folder` gives back; goes through JSON.

    Raises:
        FileExistsError: when there is a file or folder of that name that was not made by this.
        OSError: when it cannot be written, with a note of what to do. As after any other exception
            (of ``write``, or KeyboardInterrupt), what was there before stays, and nothing else.
    """
    partial = _beside(folder, "partial")
    with _explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        tidy_folder(folder)
        _refuse_what_is_not_ours(folder)
        try:
            partial.mkdir()
            write(partial)
            _seal(partial, about)
            _put_in_place(partial, folder)
        except BaseException:
            with suppress(OSError):
                tidy_folder(folder)
            raise


def check_folder(path: Path) -> dict[str, Any]:
    """What ``about`` was when the folder was written.

    Raises:
        CheckpointError: when a file is missing, or not what was written, or when the folder was
            not made by :func:`write_folder`.
    """
    manifest = _read_manifest(path)
    for name, wanted in manifest["files"].items():
        file = path / name
        _check_size(file, wanted["size"])
        with open(file, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != wanted["sha256"]:
            raise CheckpointError(f"{file} is damaged: its checksum is not that of what was saved.")
    about: dict[str, Any] = manifest["about"]
    return about


def read_about(path: Path) -> dict[str, Any]:
    """What :func:`check_folder` gives, of a folder that it has checked already: that takes long for
    large ones.

    Raises:
        CheckpointError: when the folder was not made by :func:`write_folder`.
    """
    about: dict[str, Any] = _read_manifest(path)["about"]
    return about


def sync_folder(folder: Path) -> None:
    """Make what a folder lists (names, renames) durable."""
    if os.name == "nt":  # which cannot open a folder, and flushes names by itself
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tidy_folder(folder: Path) -> None:
    """Finish or undo what a process that was killed had begun at this place; only for whoever
    writes there."""
    old = _beside(folder, "old")
    if old.exists() and not folder.exists():
        os.rename(old, folder)
        sync_folder(folder.parent)
    elif old.exists():
        remove_folder(old, _beside(folder, "removed"))
    for state in ("partial", "removed"):
        _delete(_beside(folder, state))


def remove_folder(place: Path, aside: Path | None = None) -> None:
    """Remove a folder; it loses its name first (to ``aside``), so that it never looks damaged."""
    aside = aside or _beside(place, "removed")
    _delete(aside)
    os.rename(place, aside)
    _delete(aside)


# -- writing --------------------------------------------------------------------------------


def _seal(partial: Path, about: Mapping[str, Any]) -> None:
    """Flush all that is in the folder, and leave a manifest of it."""
    files: dict[str, dict[str, int | str]] = {}
    for entry in sorted(partial.rglob("*")):
        if entry.is_dir():
            sync_folder(entry)
            continue
        with open(entry, "rb+") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            os.fsync(stream.fileno())
        name = entry.relative_to(partial).as_posix()
        files[name] = {"size": entry.stat().st_size, "sha256": digest}
    told = {"about": dict(about), "files": files}
    manifest = {"kind": _KIND, "format": _FORMAT, "sha256": _checksum(told), **told}
    with open(partial / MANIFEST, "w", encoding="utf-8") as stream:
        json.dump(manifest, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    sync_folder(partial)


def _put_in_place(partial: Path, folder: Path) -> None:
    """Folders cannot be exchanged in one step everywhere: the old one makes way first, and
    :func:`tidy_folder` puts it back should the new one not have arrived."""
    old = _beside(folder, "old")
    if folder.exists():
        os.rename(folder, old)
    os.rename(partial, folder)
    sync_folder(folder.parent)
    if old.exists():
        with suppress(OSError):  # the new one is there: no reason to fail
            remove_folder(old, _beside(folder, "removed"))


def _checksum(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _refuse_what_is_not_ours(folder: Path) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if state_of(folder) == "foreign":
        raise FileExistsError(
            errno.EEXIST, "there is something else of that name, which is not replaced", str(folder)
        )


def _delete(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _beside(folder: Path, state: str) -> Path:
    return folder.with_name(f".{folder.name}.marlogue-{state}")


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """What the disk says comes as an OSError, with a note of what to do."""
    try:
        yield
    except SafetensorError as error:
        if (found := _OS_ERROR.search(str(error))) is None:
            raise
        number = int(found[1])
        raised = OSError(number, os.strerror(number), str(folder))
        raised.add_note(_what_to_do(number, folder))
        raise raised from error
    except OSError as error:
        error.add_note(_what_to_do(error.errno, folder))
        raise


def _what_to_do(number: int | None, folder: Path) -> str:
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        mend = "the disk (or your share of it) is full; free some space, or choose another folder."
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
        mend = "it may not be written; make it writable, or choose another folder."
    elif number == errno.EEXIST:
        mend = "move what is there away, or choose another folder."
    else:
        mend = "see whether the disk is there and writable, or choose another folder."
    return f"{folder} was not saved: {mend} What was saved before is untouched."


# -- reading --------------------------------------------------------------------------------


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.exists():
        old = _beside(path, "old")
        hint = f" Its predecessor is in {old}: rename it." if old.exists() else ""
        raise CheckpointError(f"{path} does not exist.{hint}")
    if not path.is_dir():
        raise CheckpointError(f"{path} is a file, not a folder.")
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = "it is empty" if not any(path.iterdir()) else f"it has no {MANIFEST}"
        raise CheckpointError(
            f"{path} is not one of ours, or was never finished: {what}."
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is damaged: {error}.") from error
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise CheckpointError(f"{path} is not one of ours: {file} was written by something else.")
    if manifest.get("format") != _FORMAT:
        raise CheckpointError(
            f"{path} has format {manifest.get('format')!r}, but this version of marlogue reads "
            f"format {_FORMAT}; use the version that wrote it."
        )
    if not _is_well_formed(manifest):
        raise CheckpointError(f"{file} is damaged: its checksum is not that of what was saved.")
    return manifest


def _is_well_formed(manifest: dict[str, Any]) -> bool:
    told = {name: manifest.get(name) for name in ("about", "files")}
    return (
        all(isinstance(part, dict) for part in told.values())
        and manifest.get("sha256") == _checksum(told)
        and all(_is_inside(name) for name in manifest["files"])
    )


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _check_size(file: Path, wanted: int) -> None:
    if not file.is_file():
        raise CheckpointError(f"{file} is missing.")
    if (size := file.stat().st_size) != wanted:
        raise CheckpointError(f"{file} is damaged: it has {size} bytes, {wanted} were saved.")


def state_of(place: Path) -> Literal["whole", "torn", "foreign"]:
    """What a folder is as far as sizes tell, which is quick; "foreign" was not made here."""
    try:
        manifest = _read_manifest(place)
    except CheckpointError:
        return "torn" if _has_our_mark(place) else "foreign"
    try:
        for name, wanted in manifest["files"].items():
            _check_size(place / name, wanted["size"])
    except CheckpointError:
        return "torn"
    return "whole"


def _has_our_mark(place: Path) -> bool:
    with suppress(OSError):
        return _KIND.encode() in (place / MANIFEST).read_bytes()
    return False
