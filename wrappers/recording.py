"""The file of recorded episodes: how it is written, and how it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from gymnasium import logger

COPY = "{copy}"
"""In the path of a recording: becomes a number, another one for each copy of the environment."""

BEGINNING = b'{"episode": '


@dataclass(frozen=True)
class RecordedTurn:
    """A turn that was played. Agents' names are keys; arrays have become lists.

    Fields:
        turn: counted from 0 in its episode.
        observations: what the agents acted on.
        actions: what they did.
        rewards, terminations, truncations, infos: what the step returned.
    """

    turn: int
    observations: dict[str, Any]
    actions: dict[str, Any]
    rewards: dict[str, float]
    terminations: dict[str, bool]
    truncations: dict[str, bool]
    infos: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RecordedEpisode:
    """An episode as it was played.

    Fields:
        number: counted from 0 in its file.
        seed, options: the arguments of the reset.
        row: of the dataset, None where infos named none.
        first_infos: the infos of the reset.
        turns: from the first one on, or from where an environment was copied in mid-episode.
        last_observations: what the last step showed; None in an episode that was not finished.
    """

    number: int
    seed: int | None
    options: dict[str, Any] | None
    row: int | None
    first_infos: dict[str, dict[str, Any]]
    turns: tuple[RecordedTurn, ...]
    last_observations: dict[str, Any] | None

    @property
    def finished(self) -> bool:
        """Whether it was played to its end."""
        return self.last_observations is not None


def replay(path: str | os.PathLike[str]) -> Iterator[RecordedEpisode]:
    """Read a recording back, episode by episode.

    An episode that was not finished is there with the turns that were played. Where a crash cut
    the last line, a warning says so, and that turn is missing.

    Args:
        path: of a file that `Record` wrote.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: in between, at a line that is no turn of a recording or not the next one.
    """
    name = os.fspath(path)
    if not os.path.isfile(name):
        raise FileNotFoundError(f"path ({name!r}) must be a file that Record wrote; it is none")
    return _episodes(name)


def _episodes(path: str) -> Iterator[RecordedEpisode]:
    lines: list[dict[str, Any]] = []
    for number, line in _lines(path):
        if not lines or line["episode"] != lines[-1]["episode"]:
            if lines:
                yield _episode(lines)
            expected = "seed" in line and (not lines or line["episode"] > lines[-1]["episode"])
            lines = []
        else:
            expected = "seed" not in line and line["turn"] == lines[-1]["turn"] + 1
        if not expected:
            raise ValueError(
                f"line {number} of {path} (episode {line['episode']}, turn {line['turn']}) does "
                f"not follow the line before; a recording has one writer, so put {COPY} into the "
                "path of Record when several environments write"
            )
        lines.append(line)
    if lines:
        yield _episode(lines)


def _episode(lines: list[dict[str, Any]]) -> RecordedEpisode:
    start = lines[0]
    names = RecordedTurn.__dataclass_fields__
    return RecordedEpisode(
        number=start["episode"],
        seed=start["seed"],
        options=start["options"],
        row=start["row"],
        first_infos=start["first_infos"],
        turns=tuple(RecordedTurn(**{name: line[name] for name in names}) for line in lines),
        last_observations=lines[-1].get("last_observations"),
    )


def _lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            parsed = _parsed(line)
            if parsed is not None:
                yield number, parsed
            elif line.endswith(b"\n"):
                raise ValueError(f"line {number} of {path} is no turn of a recording")
            else:
                logger.warn(
                    f"line {number} of {path}, the last one, was cut by a crash; that turn is "
                    "missing"
                )


def _parsed(line: bytes) -> dict[str, Any] | None:
    """A line as a dict with all the fields of a turn, or None."""
    try:
        parsed = json.loads(line.decode("utf-8", "surrogatepass"))
    except ValueError:
        return None
    fields = {"episode", *RecordedTurn.__dataclass_fields__}
    return parsed if isinstance(parsed, dict) and fields <= parsed.keys() else None


def as_json(what: str, value: Any) -> str:
    """A value as JSON; arrays and tensors become lists.

    Raises:
        TypeError: names `what`, and what in it cannot be JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{what} ({str(value)[:200]}) must be JSON to be recorded: {error}. Leave out what is "
            "not (NumericState leaves numbers in infos), or put Record further inside"
        ) from error


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        return value.tolist()
    raise TypeError(f"{value!r} is a {type(value).__name__}")


class JsonLines:
    """The file of one environment; a copy of it is another file, or an error."""

    def __init__(self, path: str, append: bool, *, copied: bool = False) -> None:
        self.path, self.append = path, append
        if append and COPY in path:
            raise ValueError(f"append (True) must not go with {COPY} in path ({path!r}); drop one")
        if not copied and not append and COPY not in path and os.path.exists(path):
            raise self._exists(path)
        self._begin(copied)

    def _begin(self, copied: bool) -> None:
        self.copied = copied
        self._file: TextIO | None = None
        self._name: str | None = None
        self._process = os.getpid()
        self._episode = -1
        self._first = True

    def open(self) -> None:
        """See that the file is open, and this object's own."""
        if self._process != os.getpid():  # a fork: the file is the parent's
            self._begin(copied=True)
        if self._file is not None:
            return
        if self.copied and COPY not in self.path:
            raise RuntimeError(
                f"this is a copy of an environment that is recorded in {self.path!r}, which has "
                f"room for one; put {COPY} into path, such as 'run-{COPY}.jsonl', and each copy "
                "writes a file of its own"
            )
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        if self._name is not None:  # closed, and played again
            self._file = _opened(self._name, "a")
        elif self.append:
            self._episode = _mend(self.path)
            self._name, self._file = self.path, _opened(self.path, "a")
        else:
            self._make()

    def _make(self) -> None:
        number = 0
        while self._file is None:
            path = self.path.replace(COPY, str(number))
            try:
                self._name, self._file = path, _opened(path, "x")
            except FileExistsError:
                if COPY not in self.path:
                    raise self._exists(path) from None
                number += 1

    def _exists(self, path: str) -> FileExistsError:
        return FileExistsError(
            f"path ({path!r}) must not be there yet; choose another one, put {COPY} into it for a "
            "new number each time, or set append=True to add to it"
        )

    def begin_episode(self) -> None:
        """The next line is the first of an episode."""
        self._first = True

    def write(self, turn: int, start: Mapping[str, str], parts: Mapping[str, str]) -> None:
        """Write a line; all values are JSON already."""
        assert self._file is not None
        self._episode += self._first
        fields = {"episode": str(self._episode), "turn": str(turn)}
        fields.update(start if self._first else {}, **parts)
        self._first = False
        self._file.write("{" + ", ".join(f'"{k}": {v}' for k, v in fields.items()) + "}\n")

    def close(self) -> None:
        """Close the file; it is opened again when there is more to write."""
        if self._file is not None and self._process == os.getpid():
            self._file.close()
            self._file = None

    def __deepcopy__(self, memo: dict[int, Any]) -> JsonLines:
        return JsonLines(self.path, self.append, copied=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy, (self.path, self.append)


def _copy(path: str, append: bool) -> JsonLines:
    return JsonLines(path, append, copied=True)


def _opened(path: str, mode: str) -> TextIO:
    # Line by line, so that a crash loses nothing. Half a surrogate pair in a text is written as an
    # escape, which is one of JSON's, too.
    return open(path, mode, buffering=1, encoding="utf-8", errors="backslashreplace", newline="\n")  # type: ignore[return-value]


def _mend(path: str) -> int:
    """Remove half a line at the end of a recording; the number of its last episode, or -1."""
    if not os.path.exists(path):
        return -1
    last, whole, rest = b"", 0, b""
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                last, whole = line, whole + len(line)
            else:
                rest = line
    parsed = _parsed(last)
    if (last and parsed is None) or not (BEGINNING + rest[len(BEGINNING) :]).startswith(rest):
        raise ValueError(f"path ({path!r}) must be a recording to be added to; choose another one")
    if _parsed(rest) is not None:  # whole but for the line's end
        with open(path, "ab") as file:
            file.write(b"\n")
        parsed = _parsed(rest)
    elif rest:
        logger.warn(f"the last line of {path} was cut by a crash; it is removed")
        os.truncate(path, whole)
    return -1 if parsed is None else int(parsed["episode"])
