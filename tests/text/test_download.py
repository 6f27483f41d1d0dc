"""The download against a server on this machine: whatever it sends, the sum holds or nothing is left."""

from __future__ import annotations

import hashlib
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pooch
import pytest

from gptblock.errors import CorpusError, MissingExtraError
from gptblock.text.download import Download, cache_folder, fetch

BODY = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 2000
SHA256 = hashlib.sha256(BODY).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the name asked for, and counts the questions."""

    def do_GET(self) -> None:
        self.server.questions.append(self.path)  # type: ignore[attr-defined]
        if self.path == "/missing":
            self.send_error(404)
            return
        body = {"/wrong": BODY[:-1] + b"?"}.get(self.path, BODY)
        self.send_response(200)
        if self.path == "/endless":
            self.send_header("Transfer-Encoding", "chunked")
            body = b"10\r\nFirst Citizen:\nB"  # a chunk that is shorter than it says, and no end
        else:
            self.send_header("Content-Length", str(len(body) + (1000 if self.path == "/short" else 0)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def questions(server: http.server.ThreadingHTTPServer) -> list[str]:
    server.questions = []  # type: ignore[attr-defined]
    return server.questions  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPTBLOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"


def play(server: http.server.ThreadingHTTPServer, name: str) -> Download:
    return Download("play.txt", f"http://127.0.0.1:{server.server_port}/{name}", SHA256)


def test_a_file_is_downloaded_once(
    server: http.server.ThreadingHTTPServer,
    questions: list[str],
    cache: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert fetch(play(server, "play")) == BODY
    assert fetch(play(server, "play")) == BODY
    assert questions == ["/play"]
    assert [path.name for path in cache.iterdir()] == ["play.txt"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("wrong", f"sent has another SHA-256 than {SHA256} and was deleted"),
        ("short", "could not be downloaded from"),
        ("endless", "could not be downloaded from"),
        ("missing", "404"),
    ],
)
def test_a_bad_download_leaves_nothing(
    server: http.server.ThreadingHTTPServer, questions: list[str], cache: Path, name: str, expected: str
) -> None:
    with pytest.raises(CorpusError) as caught:
        fetch(play(server, name))
    assert questions == [f"/{name}"]
    assert expected in str(caught.value)
    assert f"127.0.0.1:{server.server_port}/{name}" in str(caught.value)
    assert list(cache.iterdir()) == []


def refused() -> Download:
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as closed:
        return Download("play.txt", f"http://127.0.0.1:{closed.server_port}/play", SHA256)


def test_offline_the_alternatives_are_named(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CorpusError) as caught:
        fetch(refused())
    message = str(caught.value)
    assert "play.txt is not in the cache and could not be downloaded from http://127.0.0.1" in message
    assert "a file or a folder of text of your own" in message
    assert "pydoc" in message
    assert f"put the file at {cache / 'play.txt'}" in message
    assert list(cache.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_offline_a_cached_copy_serves_even_without_pooch(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.mkdir()
    (cache / "play.txt").write_bytes(BODY)
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert fetch(refused()) == BODY


def test_a_wrong_cached_copy_is_replaced_and_said(
    server: http.server.ThreadingHTTPServer,
    questions: list[str],
    cache: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache.mkdir()
    (cache / "play.txt").write_bytes(BODY[:100])
    assert fetch(play(server, "play")) == BODY
    assert questions == ["/play"]
    assert (cache / "play.txt").read_bytes() == BODY
    assert [record.getMessage() for record in caplog.records] == [
        f"{cache / 'play.txt'} has a wrong SHA-256 and is not used; downloading it again"
    ]


@pytest.mark.parametrize("name", ["wrong", "missing"])
def test_a_wrong_cached_copy_is_never_used(
    server: http.server.ThreadingHTTPServer, cache: Path, questions: list[str], name: str
) -> None:
    cache.mkdir()
    (cache / "play.txt").write_bytes(BODY[:100])
    with pytest.raises(CorpusError, match="has a wrong SHA-256 in the cache, where it is not used, and"):
        fetch(play(server, name))
    assert questions == [f"/{name}"]
    assert [path.name for path in cache.iterdir()] == ["play.txt"]  # the user's own, perhaps; left alone


def test_a_cache_that_cannot_be_made_is_an_error_of_ours(
    server: http.server.ThreadingHTTPServer, cache: Path, questions: list[str]
) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(CorpusError, match="GPTBLOCK_CACHE"):
        fetch(play(server, "play"))
    assert questions == []


def test_without_pooch_the_extra_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'gptblock\[train\]'"):
        fetch(refused())
    monkeypatch.delenv("GPTBLOCK_CACHE")
    with pytest.raises(MissingExtraError, match=r"pip install 'gptblock\[train\]'"):
        cache_folder()
    assert not cache.exists()


@pytest.mark.parametrize("unset", [None, ""])
def test_the_cache_is_the_users_unless_the_variable_says_otherwise(
    unset: str | None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder() == cache
    if unset is None:
        monkeypatch.delenv("GPTBLOCK_CACHE")
    else:
        monkeypatch.setenv("GPTBLOCK_CACHE", unset)
    assert cache_folder() == Path(pooch.os_cache("gptblock"))


@pytest.mark.usefixtures("cache", "questions")
def test_pooch_says_nothing_and_its_logger_is_left_as_it_was(
    server: http.server.ThreadingHTTPServer, caplog: pytest.LogCaptureFixture
) -> None:
    logger = pooch.get_logger()
    level = logger.level
    logger.addHandler(caplog.handler)
    try:
        fetch(play(server, "play"))
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records == []
    assert logger.level == level
