"""How commands end: exit codes, errors in one message, closed pipes, a full disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gptblock import errors
from gptblock.cli.app import app

GPTBLOCK = [sys.executable, "-m", "gptblock"]
# Buffered as usual: what a closed pipe leaves in the buffer must not surface at exit.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def call(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def verify_raises(monkeypatch):
    """Let the command `verify` end in an error."""

    def let(error: BaseException) -> None:
        def verify(*_, **__):
            raise error

        monkeypatch.setattr("gptblock.runtime.verify.verify", verify)

    return let


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.GptblockError, 1),
        (errors.DivergedError, 1),
        (errors.ConfigError, 2),
        (errors.CorpusError, 2),
        (errors.UnknownCharacterError, 2),
        (errors.RunExistsError, 2),
        (errors.NotFoundError, 3),
        (errors.CorruptError, 3),
        (errors.ProviderError, 4),
        (errors.ProofError, 5),
    ],
)
def test_an_error_is_one_message_on_stderr_and_an_exit_code(error, code, verify_raises):
    verify_raises(error("no good: [bold]/a/:smile:/[/b] \u2603"))
    result = call("verify")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == "error: no good: [bold]/a/:smile:/[/b] \u2603\n"


def test_a_stop_that_was_asked_for_is_no_error(verify_raises):
    verify_raises(errors.InterruptedRunError("stopped at step 3"))
    assert (result := call("verify")).exit_code == 130
    assert result.stderr == "stopped at step 3\n"


def test_an_interrupt_says_so(verify_raises):
    verify_raises(KeyboardInterrupt())
    assert (result := call("verify")).exit_code == 130
    assert result.stderr == "interrupted\n"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (MemoryError(), "out of memory: less would do"),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 240000000000 bytes."
            ),
            "out of memory (240.0 GB more were wanted): less would do",
        ),
    ],
)
def test_running_out_of_memory_is_one_message(error, wanted, verify_raises):
    verify_raises(error)
    assert (result := call("verify")).exit_code == 1
    assert result.stderr.startswith(f"error: {wanted}")
    assert result.stderr.count("\n") == 1


def test_a_long_message_is_one_line(verify_raises):
    verify_raises(errors.CorruptError("word " * 100 + "end"))
    assert call("verify").stderr == "error: " + "word " * 100 + "end\n"


def test_a_missing_extra_names_the_command_that_mends_it(verify_raises):
    verify_raises(errors.MissingExtraError("gptblock generate", "onnxruntime", "cpu"))
    result = call("verify")
    assert result.exit_code == 4
    assert "pip install 'gptblock[cpu]'" in result.stderr


def test_what_the_system_refuses_is_no_traceback(verify_raises):
    verify_raises(PermissionError(13, "Permission denied", "/some/place"))
    result = call("verify")
    assert result.exit_code == 1
    assert result.stderr == "error: the system refuses: [Errno 13] Permission denied: '/some/place'\n"


def test_what_nobody_foresaw_keeps_its_traceback(verify_raises):
    verify_raises(ZeroDivisionError("a fault of ours"))
    assert isinstance(call("verify").exception, ZeroDivisionError)


@pytest.mark.parametrize("arguments", [["shout"], ["generate", "--loud"], ["verify", "a", "b"]])
def test_usage_that_is_wrong(arguments):
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "merged", "code"),
    [
        (["generate", "BUNDLE", "-n", "100000"], False, 0),
        (["generate", "BUNDLE", "-n", "100000"], True, 0),
        (["generate", "BUNDLE", "-n", "10", "--json"], False, 0),
        (["verify", "BUNDLE"], True, 0),
        (["generate", "nowhere"], True, 3),
    ],
)
def test_a_closed_pipe_ends_quietly(arguments, merged, code, tiny_bundle):
    """As in `gptblock ... | true`, with stderr in the pipe too (`2>&1`) if merged."""
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [str(tiny_bundle) if argument == "BUNDLE" else argument for argument in arguments]
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            [*GPTBLOCK, *arguments],
            stdout=pipe,
            stderr=pipe if merged else subprocess.PIPE,
            env=BUFFERED,
            check=False,
            timeout=60,
        )
    assert done.returncode == code
    if not merged:
        news = done.stderr.decode().splitlines()
        assert [line.split(":")[0] for line in news] == ["provider", "seed"]


def test_a_reader_that_has_had_enough_ends_the_text(tiny_bundle):
    command = [*GPTBLOCK, "generate", str(tiny_bundle), "-n", "1000000", "--quiet"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=BUFFERED) as process:
        assert len(process.stdout.read(10)) == 10  # like `| head -c 10`
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


def test_news_that_nobody_reads_do_not_end_the_text(tiny_bundle):
    reader, writer = os.pipe()
    os.close(reader)
    command = [*GPTBLOCK, "generate", str(tiny_bundle), "-n", "20", "-p", "ROMEO:"]
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=pipe, env=BUFFERED, check=False, timeout=60
        )
    assert done.returncode == 0
    assert len(done.stdout.decode()) == len("ROMEO:") + 20 + 1


def test_news_do_not_move_to_stdout_where_stderr_is_closed(tiny_bundle):
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *GPTBLOCK, "generate", str(tiny_bundle), "-n", "20"]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=BUFFERED, check=False, timeout=60)
    assert (done.returncode, len(done.stdout.decode())) == (0, 20 + 1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")  # noqa: PTH110
def test_a_full_disk_is_one_message(tiny_bundle):
    command = [*GPTBLOCK, "generate", str(tiny_bundle), "-n", "20", "--quiet"]
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=BUFFERED, check=False, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr.decode() == "error: the system refuses: [Errno 28] No space left on device\n"
