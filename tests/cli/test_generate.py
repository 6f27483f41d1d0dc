"""`gptblock generate`: what it prints, where from, and what it refuses; tables of (arguments, expected)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
from typer.testing import CliRunner

from gptblock.cli.app import app
from gptblock.errors import CorruptError
from gptblock.runtime.model import Model, load

SETTINGS = ["--provider", "cpu", "--threads", "1", "--seed", "7", "-n", "30"]
HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


@pytest.fixture(scope="module")
def model(tiny_bundle: Path) -> Model:
    return load(tiny_bundle, provider="cpu", threads=1)


def call(*arguments: str | Path, stdin: bytes | None = None):
    return CliRunner().invoke(app, ["generate", *map(str, arguments)], input=stdin)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], {"prompt": ""}),
        (["-p", ""], {"prompt": ""}),
        (["-p", "ROMEO:"], {"prompt": "ROMEO:"}),
        (["--prompt", "-x"], {"prompt": "-x"}),
        (["-p", "ROMEO:", "--no-stream"], {"prompt": "ROMEO:"}),
        (["-p", "ROMEO:", "-n", "0"], {"prompt": "ROMEO:", "max_new_tokens": 0}),
        (["-p", "ROMEO:", "-t", "0"], {"prompt": "ROMEO:", "temperature": 0.0}),
        (["-p", "ROMEO:", "--temperature", "1e-40"], {"prompt": "ROMEO:", "temperature": 0.0}),
        (["-p", "ROMEO:", "--temperature", "1e-400"], {"prompt": "ROMEO:", "temperature": 0.0}),
        (["-p", "ROMEO:", "-k", "1"], {"prompt": "ROMEO:", "temperature": 0.0}),
        (["-p", "ROMEO:", "-k", "5"], {"prompt": "ROMEO:", "top_k": 5}),
        (["-p", "ROMEO:", "--top-p", "0"], {"prompt": "ROMEO:", "temperature": 0.0}),
        (["-p", "ROMEO:", "--top-p", "0.5"], {"prompt": "ROMEO:", "top_p": 0.5}),
        (["-p", "ROMEO:", "--min-p", "0.5"], {"prompt": "ROMEO:", "min_p": 0.5}),
        (["-p", "ROMEO:", "--repetition-penalty", "2"], {"prompt": "ROMEO:", "repetition_penalty": 2.0}),
        (["-p", "ROMEO:", "--stop", "q", "--stop", "e"], {"prompt": "ROMEO:", "stop": ["e", "q"]}),
        (["-p", "ROMEO:", "--overflow", "rebase"], {"prompt": "ROMEO:", "overflow": "rebase"}),
        (["-p", "ROMEO:", "--overflow", "stop"], {"prompt": "ROMEO:", "overflow": "stop"}),
        (["-p", "Zoe\u0301!", "--unknown", "skip"], {"prompt": "Zoe\u0301!", "unknown": "skip"}),
        (["-p", "ROMEO:", "--draft", "on"], {"prompt": "ROMEO:", "draft": "off"}),
        (["-p", "ROMEO:", "--draft", "off"], {"prompt": "ROMEO:"}),
        (["-p", "ROMEO:", "--seed", "8"], {"prompt": "ROMEO:", "seed": 8}),
    ],
)
def test_prints_prompt_and_continuation(arguments, options, tiny_bundle, model):
    done = model.generate(**{"max_new_tokens": 30, "seed": 7, **options})
    result = call(tiny_bundle, *SETTINGS, *arguments)
    assert result.exit_code == 0
    assert result.stdout == done.prompt + done.text + "\n"
    continuation = call(tiny_bundle, *SETTINGS, *arguments, "--no-echo")
    assert continuation.stdout == done.text + "\n"


def test_the_settings_tell_texts_apart(model):
    """Else the table above could not fail."""
    settings = [
        *({"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.5}, {"repetition_penalty": 2.0}),
        *({"stop": ["e", "q"]}, {"overflow": "rebase"}, {"overflow": "stop"}, {"seed": 8}, {}),
    ]
    texts = [model.generate("ROMEO:", **{"max_new_tokens": 30, "seed": 7, **some}).text for some in settings]
    assert len(set(texts)) == len(settings)


def test_several_prompts_and_samples_have_headings(tiny_bundle, model):
    done = model.generate(["A", "ROMEO:"], num_samples=2, max_new_tokens=30, seed=7)
    result = call(tiny_bundle, *SETTINGS, "-p", "A", "-p", "ROMEO:", "--num-samples", "2")
    assert result.stdout == "".join(
        f"--- prompt {p + 1}, sample {i + 1} ---\n{sample.prompt}{sample.text}\n"
        for p, samples in enumerate(done)
        for i, sample in enumerate(samples)
    )
    assert result.stderr.count("30 tokens, ") == 4


def test_json_is_one_object_with_the_fields_of_a_completion(tiny_bundle, model):
    done = model.generate(["A", "Zoe\u0301!"], num_samples=2, max_new_tokens=30, seed=7, unknown="skip")
    prompts = ["-p", "A", "-p", "Zoe\u0301!", "--unknown", "skip", "--num-samples", "2"]
    result = call(tiny_bundle, *SETTINGS, *prompts, "--json")
    assert result.exit_code == 0
    assert result.stdout.isascii()
    printed = json.loads(result.stdout)
    assert list(printed) == ["samples"]
    for sample, expected in zip(printed["samples"], [one for both in done for one in both], strict=True):
        assert sample.pop("tokens_per_second") > 0
        assert sample == {
            "prompt": expected.prompt,
            "text": expected.text,
            "ids": expected.ids,
            "prompt_tokens": expected.prompt_tokens,
            "completion_tokens": 30,
            "finish_reason": "length",
            "provider": "cpu",
            "seed": 7,
        }


def test_news_go_to_stderr(tiny_bundle):
    result = call(tiny_bundle, *SETTINGS, "--stop", "q")
    assert re.fullmatch(
        r"provider: cpu \(asked for\)\nseed: 7\n\d+ tokens, \d+ tokens/s, finish reason: (stop|length)\n"
        r"(\d+ of \d+ drafted tokens accepted\n)?",
        result.stderr,
    )
    quiet = call(tiny_bundle, *SETTINGS, "--stop", "q", "--quiet")
    assert (quiet.stdout, quiet.stderr) == (result.stdout, "")


def test_the_drafted_tokens_are_told(tiny_bundle):
    drafted = r"^\d+ of \d+ drafted tokens accepted$"
    on, off = (call(tiny_bundle, *SETTINGS, "-t", "0", "--draft", draft) for draft in ("on", "off"))
    assert re.search(drafted, on.stderr, re.MULTILINE)
    assert not re.search(drafted, off.stderr, re.MULTILINE)
    assert on.stdout == off.stdout


def test_an_unset_seed_is_printed_and_gives_the_text_again(tiny_bundle):
    first = call(tiny_bundle, "--provider", "cpu", "-n", "30")
    second = call(tiny_bundle, "--provider", "cpu", "-n", "30")
    assert first.stdout != second.stdout
    seed = re.search(r"^seed: (\d+)$", first.stderr, re.MULTILINE)[1]
    assert call(tiny_bundle, "--provider", "cpu", "-n", "30", "--seed", seed).stdout == first.stdout


def test_a_prompt_from_a_file_or_from_stdin(tiny_bundle, model, tmp_path):
    path = tmp_path / "prompt \u00e9.txt"
    path.write_bytes(b"\xef\xbb\xbfROMEO:\r\nO")
    expected = "ROMEO:\nO" + model.generate("ROMEO:\nO", max_new_tokens=30, seed=7).text + "\n"
    assert call(tiny_bundle, *SETTINGS, "--prompt-file", path).stdout == expected
    assert call(tiny_bundle, *SETTINGS, "--prompt-file", "-", stdin=path.read_bytes()).stdout == expected
    both = call(tiny_bundle, *SETTINGS, "-p", "A", "--prompt-file", path, "--json").stdout
    assert [sample["prompt"] for sample in json.loads(both)["samples"]] == ["A", "ROMEO:\nO"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temperature", "-0.5"], "temperature must be >= 0"),
        (["--temperature", "nan"], "temperature must be a finite number: got nan"),
        (["--temperature", "inf"], "temperature must be a finite number: got inf"),
        (["--top-k", "-1"], "top_k must be >= 0"),
        (["--top-p", "1.1"], "top_p must be in [0, 1]"),
        (["--top-p", "-0.1"], "top_p must be in [0, 1]"),
        (["--min-p", "1.1"], "min_p must be in [0, 1]"),
        (["--repetition-penalty", "0"], "repetition_penalty must be > 0"),
        (["--seed", "-1"], "seed must be an integer >= 0: got -1"),
        (["-n", "-1"], "max_new_tokens must be an integer >= 0: got -1"),
        (["--num-samples", "0"], "num_samples must be an integer >= 1: got 0"),
        (["--threads", "0"], "threads must be in 1..1024: got 0"),
        (["--device-id", "-1"], "device_id must be >= 0: got -1"),
        (["--stop", ""], "none of them empty"),
        (["-p", "Zeus \u2603"], "'\\u2603' (U+2603 SNOWMAN) at position 5 "),
        (["-p", "caf\udce9"], "(U+DCE9: the byte 0xE9, which is not UTF-8) at position 3 "),
        (["--prompt-file", "no-such-file"], "prompt file no-such-file cannot be read: No such file"),
        (["--prompt-file", ""], "cannot be read: Is a directory"),
    ],
)
def test_bad_options_and_prompts_are_refused(arguments, message, tiny_bundle):
    result = call(tiny_bundle, *SETTINGS, *arguments, "--quiet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--overflow", "wrap"], ["--unknown", "x"], ["-n", "1.5"], ["--provider", "x"]]
)
def test_words_that_are_no_choice_are_refused(arguments, tiny_bundle):
    result = call(tiny_bundle, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert arguments[0] in result.stderr


@pytest.mark.parametrize(
    ("data", "offset"), [(b"caf\xe9", 3), ("\ufeffab".encode("utf-16-le"), 0), (b"ROMEO\xff:", 5)]
)
def test_prompt_bytes_that_are_not_utf_8_are_refused(data, offset, tiny_bundle, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_bytes(data)
    for result in (
        call(tiny_bundle, *SETTINGS, "--prompt-file", path),
        call(tiny_bundle, *SETTINGS, "--prompt-file", "-", stdin=data),
    ):
        assert (result.exit_code, result.stdout) == (2, "")
        assert "is not UTF-8" in result.stderr
        assert f"at offset {offset} " in result.stderr


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "gptblock train --out nowhere, then gptblock export nowhere"),
        ("empty", "neither a bundle nor a run: give a folder that"),
        ("run", "run is a run without a bundle: gptblock export run"),
        ("text.txt", "text.txt is a file, but no .onnx"),
        ("broken.onnx", "broken.onnx is no ONNX file, or is cut short or damaged"),
        (None, "artifacts/model is a run without a bundle: gptblock export artifacts/model"),
    ],
)
def test_what_is_no_bundle_is_refused(place, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "run/checkpoints", "artifacts/model/checkpoints"):
        Path(folder).mkdir(parents=True)
    for file in ("text.txt", "broken.onnx"):
        Path(file).write_text("no graph")
    result = call(*([place] if place else []), "--provider", "cpu")
    assert (result.exit_code, result.stdout) == (3, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "place",
    [
        "dir \u00e9 x/run/bundle",
        "dir \u00e9 x/run/",
        "./dir \u00e9 x/../dir \u00e9 x/run/bundle/",
        "dir \u00e9 x/run/bundle/model.onnx",
        "dir \u00e9 x/my [bold] :smile: model.onnx",
    ],
)
@pytest.mark.parametrize("absolute", [False, True])
def test_paths_of_any_kind(place, absolute, tiny_bundle, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_bundle, "dir \u00e9 x/run/bundle")
    shutil.copy(tiny_bundle / "model.onnx", "dir \u00e9 x/my [bold] :smile: model.onnx")
    result = call(os.path.join(tmp_path, place) if absolute else place, *SETTINGS)  # noqa: PTH118
    assert result.stdout == model.generate("", max_new_tokens=30, seed=7).text + "\n"


@pytest.mark.parametrize("arguments", [[], ["--no-stream"]])
def test_what_goes_wrong_in_the_middle_of_a_text_is_said_on_a_line_of_its_own(
    arguments, tiny_bundle, monkeypatch
):
    def broken(*_):
        raise CorruptError("the graph opens and does not run")

    monkeypatch.setattr("gptblock.runtime.generate.sample", broken)
    result = call(tiny_bundle, *SETTINGS, "-p", "ROMEO:", *arguments)
    assert (result.exit_code, result.stdout) == (3, "ROMEO:\n")
    assert result.stderr.endswith("error: the graph opens and does not run\n")


def test_the_default_is_artifacts_model(tiny_bundle, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_bundle, "artifacts/model/bundle")
    assert call(*SETTINGS).stdout == model.generate("", max_new_tokens=30, seed=7).text + "\n"


def test_a_precision_that_the_bundle_lacks(tiny_bundle):
    result = call(tiny_bundle, *SETTINGS, "--precision", "int8")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "has no int8 graph; it has fp32" in result.stderr


@pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime can use CUDA")
def test_cuda_is_cuda_or_an_error(tiny_bundle):
    result = call(tiny_bundle, "--provider", "cuda")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith("error: CUDA was asked for and cannot be used: ")


@pytest.mark.skipif(HAS_CUDA, reason="this onnxruntime can use CUDA")
def test_auto_says_what_it_took_and_why(tiny_bundle):
    result = call(tiny_bundle, *SETTINGS, "--provider", "auto")
    assert result.exit_code == 0
    assert result.stderr.startswith("provider: cpu (CUDA is not available: ")


@pytest.fixture
def with_snowman(tiny_bundle, tmp_path) -> Path:
    """The shared model with a snowman in place of the z."""
    import onnx

    graph = onnx.load(tiny_bundle / "model.onnx")
    tokenizer = next(entry for entry in graph.metadata_props if entry.key == "gptblock.tokenizer")
    assert tokenizer.value.endswith('xyz"}')
    tokenizer.value = tokenizer.value.replace("xyz", "xy\\u2603")
    path = tmp_path / "snowman.onnx"
    onnx.save(graph, path)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii"])
def test_a_character_that_the_console_lacks_is_escaped_and_not_lost(encoding, with_snowman):
    text = load(with_snowman, provider="cpu").generate("\u2603", max_new_tokens=200, seed=7).text
    assert "\u2603" in text
    done = subprocess.run(
        [sys.executable, "-m", "gptblock", "generate", with_snowman, "-p", "\u2603", *SETTINGS, "-n", "200"],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"},
    )
    assert done.stdout == f"\u2603{text}\n".encode(encoding, "backslashreplace")


def test_generates_and_verifies_where_torch_and_onnx_cannot_be_imported(tiny_bundle, model):
    code = f"""
import sys
sys.modules.update(dict.fromkeys(["torch", "onnx", "onnxscript", "matplotlib"]))
from gptblock.cli.app import main
for command in (["generate", *{SETTINGS}], ["verify", "--json"]):
    sys.argv[1:] = [*command, {str(tiny_bundle)!r}]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    text = model.generate("", max_new_tokens=30, seed=7).text + "\n"
    assert done.stdout.startswith(text)
    assert json.loads(done.stdout.removeprefix(text))["problems"] == []


def test_ctrl_c_ends_it_without_a_traceback(tiny_bundle):
    command = [sys.executable, "-m", "gptblock", "generate", str(tiny_bundle), "-n", "1000000", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.decode().split() == ["interrupted"]


@pytest.mark.parametrize("flag", ["--tf32", "--cuda-graphs"])
def test_what_is_cudas_is_said_to_do_nothing_on_the_cpu(flag, tiny_bundle):
    told = call(tiny_bundle, *SETTINGS, flag).stderr.splitlines()
    assert told[:2] == ["provider: cpu (asked for)", f"{flag} is CUDA's, and does nothing on the CPU"]
