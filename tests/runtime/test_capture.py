import os
import subprocess
import sys
import threading
import warnings

import pytest

from gptblock.runtime.capture import captured, one_line


def test_everything_is_caught_in_order_and_nothing_reaches_the_streams(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with captured() as noise:
        print("python out")
        print("python err", file=sys.stderr)
        os.write(1, b"raw out\n")
        os.write(2, b"raw err\n")
        warnings.warn("a warning", stacklevel=1)
    assert noise.text.splitlines() == ["python out", "python err", "raw out", "raw err", "a warning"]
    assert capfd.readouterr() == ("", "")


def test_what_is_said_before_and_after_goes_where_it_should(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    with captured() as noise:
        os.write(1, b"during\n")
    os.write(1, b"after\n")
    assert noise.text == "during\n"
    assert capfd.readouterr().out == "before\nafter\n"


def test_an_exception_restores_the_streams_and_leaves_the_text(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        os.write(2, b"why\n")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), captured() as noise:
        fail()
    os.write(2, b"seen\n")
    assert noise.text == "why\n"
    assert capfd.readouterr().err == "seen\n"


def test_captures_of_two_threads_do_not_lose_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    first_in, first_out, second_in = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with captured():
            first_in.set()
            second_in.wait(0.3)  # in vain: it has to wait
        first_out.set()

    def second() -> None:
        first_in.wait(5)
        with captured():
            second_in.set()
            first_out.wait(5)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(1, b"still here\n")
    assert capfd.readouterr().out == "still here\n"


def run(program: str, redirection: str = "") -> str:
    """What a program says that the C library buffers, as it does outside of tests."""
    command = f'"{sys.executable}" -c "{program}" {redirection}'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, shell=True, check=True, stdout=subprocess.PIPE, text=True, timeout=60, env=environment
    )
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="calls printf of the C library by name")
def test_the_c_librarys_buffer_does_not_spill_out_later() -> None:
    program = (
        "import ctypes\n"
        "from gptblock.runtime.capture import captured\n"
        "printf = ctypes.CDLL(None).printf\n"
        "printf(b'before ')\n"
        "with captured() as noise: printf(b'during')\n"
        "printf(b'after ')\n"
        "ctypes.CDLL(None).fflush(None)\n"
        "print('caught', noise.text)\n"
    )
    assert run(program) == "before after caught during\n"


@pytest.mark.skipif(sys.platform == "win32", reason="closes descriptors by shell syntax")
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_stay_closed(closed: str) -> None:
    program = (
        "import os\n"
        "from gptblock.runtime.capture import captured\n"
        "with captured() as noise: os.write(1, b'said')\n"
        "assert noise.text == 'said'\n"
    )
    run(program, closed)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("\x1b[33mWARNING: a\x1b[0m\n b\n", "WARNING: a b"),
        ("[ONNXRuntimeError] : 1 : FAIL : No such thing", "No such thing"),
        (
            "/onnxruntime_src/onnxruntime/core/a.cc:256 x::F(const m::P&, int) Unsupported it\n",
            "Unsupported it",
        ),
        ("tensorprotoutils.cc:592 Validate Absolute path", "Absolute path"),
        ("CUDA failure 2: out of memory ; GPU=0 ; hostname=h ; file=/x.cc", "CUDA failure 2: out of memory"),
    ],
)
def test_one_line_keeps_the_sentence_and_drops_the_clutter(said: str, line: str) -> None:
    assert one_line(said) == line


def test_one_line_is_short() -> None:
    assert one_line("x" * 5000) == "x" * 400 + "..."
