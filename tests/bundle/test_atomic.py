"""Old or new, never a part: with errors, kills, rivals, links, and without the system's help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gptblock.bundle import atomic
from gptblock.bundle.atomic import recover_folder, replace_folder, write_file
from gptblock.errors import InputError, NotFoundError

posix = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no such locks, permissions and signals"
)


@pytest.fixture(params=["exchange", "two renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways in which a folder is replaced."""
    if request.param == "two renames":
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    return str(request.param)


def fill(folder: Path, content: str) -> None:
    (folder / "a.txt").write_text(content)
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").write_text(content)


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


def both(content: str) -> dict[str, str]:
    return {"a.txt": content, str(Path("sub", "b.txt")): content}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def replace(target: Path, content: str, error: BaseException | None = None) -> None:
    with replace_folder(target) as new:
        fill(new, content)
        if error is not None:
            raise error


@pytest.mark.parametrize("name", ["model", "dir é ☃ x", "a[b]*c", ".hidden", "trailing."])
@pytest.mark.usefixtures("way")
def test_a_folder_is_made_and_replaced(tmp_path: Path, name: str) -> None:
    target = tmp_path / "not yet" / name
    replace(target, "old")
    assert contents(target) == both("old")
    with replace_folder(target) as new:
        assert not list(new.iterdir())
        assert contents(target) == both("old")
        (new / "c.txt").write_text("new")
        assert contents(target) == both("old")
    assert contents(target) == {"c.txt": "new"}
    assert names(target.parent) == [name]


@pytest.mark.usefixtures("way")
def test_an_error_leaves_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "model"
    replace(target, "old")
    with pytest.raises(KeyboardInterrupt):
        replace(target, "new", KeyboardInterrupt())
    assert contents(target) == both("old")
    assert names(tmp_path) == ["model"]


def test_an_error_of_the_second_rename_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    replace(target, "old")
    rename = Path.rename

    def fails(self: Path, to: Path) -> Path:
        if self.name == "content":
            raise OSError("no")
        return rename(self, to)

    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="no"):
        replace(target, "new")
    assert contents(target) == both("old")
    assert names(tmp_path) == ["model"]


def test_linux_exchanges(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("renameat2 is of Linux")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert atomic._exchange(tmp_path / "one", tmp_path / "two")
    assert names(tmp_path / "one") == ["two"]
    assert names(tmp_path / "two") == ["one"]
    with pytest.raises(FileNotFoundError):
        atomic._exchange(tmp_path / "one", tmp_path / "three")


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine")
    with pytest.raises(InputError, match="must be a folder, or not exist: it is a file"):
        replace(tmp_path / "model", "new")
    assert (tmp_path / "model").read_text() == "mine"


@pytest.mark.usefixtures("way")
def test_the_folder_that_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    replace(tmp_path / "disk" / "model", "old")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk" / "model")
    replace(link, "new")
    assert link.is_symlink()
    assert contents(tmp_path / "disk" / "model") == both("new")


@posix
@pytest.mark.parametrize(("umask", "folder", "file"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600)])
def test_permissions_are_those_of_the_umask(tmp_path: Path, umask: int, folder: int, file: int) -> None:
    before = os.umask(umask)
    try:
        with replace_folder(tmp_path / "model") as new:
            write_file(new / "a.txt", "a")
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode & 0o777 == folder
    assert (tmp_path / "model" / "a.txt").stat().st_mode & 0o777 == file


@posix
def test_what_dead_writers_left_is_removed_and_what_living_ones_write_is_not(tmp_path: Path) -> None:
    target = tmp_path / "model"
    replace(target, "old")
    dead = tmp_path / ".model.new-0123abcd"
    dead.mkdir()
    fill(dead, "part")
    others = {".model.new-mine", ".models.new-0123abcd", "model.new-0123abcd"}
    for name in others:
        (tmp_path / name).mkdir()
    with replace_folder(target) as slow:
        fill(slow, "slow")
        replace(target, "quick")
        assert contents(target) == both("quick")
        assert contents(slow) == both("slow")
    assert contents(target) == both("slow")  # the last to finish wins
    assert names(tmp_path) == sorted({"model"} | others)


def set_aside(target: Path) -> None:
    """What a writer leaves that dies between its two renames."""
    work = target.with_name(f".{target.name}.new-0123abcd")
    (work / "content").mkdir(parents=True)
    fill(work / "content", "new")
    target.rename(work / "old")


@pytest.mark.parametrize("again", [False, True])
def test_a_lone_old_folder_is_put_back(tmp_path: Path, again: bool) -> None:
    target = tmp_path / "model"
    replace(target, "old")
    set_aside(target)
    for _ in range(1 + again):
        recover_folder(target)
    assert contents(target) == both("old")
    replace(target, "next")
    assert contents(target) == both("next")
    if sys.platform != "win32":
        assert names(tmp_path) == ["model"]


@pytest.mark.usefixtures("way")
def test_a_writer_that_fails_after_one_that_died_leaves_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "model"
    replace(target, "old")
    set_aside(target)
    with pytest.raises(ValueError, match="no"):
        replace(target, "new", ValueError("no"))
    assert contents(target) == both("old")


def test_nothing_is_put_back_over_a_folder_or_out_of_nothing(tmp_path: Path) -> None:
    target = tmp_path / "model"
    replace(target, "old")
    set_aside(target)
    target.mkdir()
    recover_folder(target)
    assert contents(target) == {}
    recover_folder(tmp_path / "absent" / "model")
    assert not (tmp_path / "absent").exists()


def test_a_folder_that_cannot_be_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"
    replace(target, "old")
    set_aside(target)

    def refuse(self: Path, to: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(self), None, str(to))

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(NotFoundError, match=r"cannot be put back \(Permission denied\); rename .*old to it"):
        recover_folder(target)


SAVE_FOR_EVER = """
import sys
from pathlib import Path
from gptblock.bundle import atomic
if sys.argv[2] == "two renames":
    atomic._exchange = lambda *_: False
for i in range(10**9):
    with atomic.replace_folder(Path(sys.argv[1])) as new:
        for name in "abc":
            atomic.write_file(new / name, str(i) * 1000)
    atomic.write_file(Path(sys.argv[1] + ".txt"), str(i) * 100_000)
    print(i, flush=True)
"""


@pytest.fixture
def savers(tmp_path: Path, way: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that replace the same folder and file, without end."""
    command = [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path / "mo del"), way]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline(), process.communicate()[1].decode()
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def check_whole(target: Path) -> None:
    """All files of one save, and each of them whole."""
    recover_folder(target)
    saves = {path.read_text() for path in target.iterdir()}
    assert len(saves) == 1, {save[:20] for save in saves}
    save = saves.pop()
    assert names(target) == ["a", "b", "c"]
    assert save == save[: len(save) // 1000] * 1000
    text = Path(f"{target}.txt").read_text()
    assert text == text[: len(text) // 100_000] * 100_000


@posix
@pytest.mark.parametrize("delay", [0.0, 0.0013, 0.0072, 0.031])
def test_killed_in_a_loop_of_saves(
    tmp_path: Path, savers: list[subprocess.Popen[bytes]], delay: float
) -> None:
    time.sleep(delay)
    for process in savers:
        process.send_signal(signal.SIGKILL)
        process.wait()
    check_whole(tmp_path / "mo del")
    replace(tmp_path / "mo del", "next")
    write_file(tmp_path / "mo del.txt", "next")
    assert names(tmp_path) == ["mo del", "mo del.txt"]


@posix
def test_two_savers_do_not_disturb_each_other(tmp_path: Path, savers: list[subprocess.Popen[bytes]]) -> None:
    time.sleep(0.2)
    for process in savers:
        assert process.poll() is None, process.communicate()[1].decode()
    for process in savers:
        process.kill()
        process.wait()
    check_whole(tmp_path / "mo del")


DIE_BETWEEN_THE_RENAMES = """
import os, signal, sys
from pathlib import Path
from gptblock.bundle import atomic
atomic._exchange = lambda *_: False
rename = Path.rename
def rename_or_die(self, to):
    if self.name == "content":
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, to)
Path.rename = rename_or_die
with atomic.replace_folder(Path(sys.argv[1])) as new:
    (new / "a.txt").write_text("new")
"""


@posix
def test_killed_between_two_renames(tmp_path: Path) -> None:
    target = tmp_path / "mo del"
    replace(target, "old")
    done = subprocess.run([sys.executable, "-c", DIE_BETWEEN_THE_RENAMES, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    recover_folder(target)
    assert contents(target) == both("old")
    replace(target, "next")
    assert names(tmp_path) == ["mo del"]


@pytest.mark.parametrize(
    ("data", "content"), [(b"\x00\xff", b"\x00\xff"), ("é\r\n\u2028", "é\r\n\u2028".encode()), ("", b"")]
)
def test_a_file_is_written_and_replaced(tmp_path: Path, data: bytes | str, content: bytes) -> None:
    path = tmp_path / "dir é x" / "a b.txt"
    path.parent.mkdir()
    path.write_text("old")
    write_file(path, data)
    assert path.read_bytes() == content
    assert names(path.parent) == ["a b.txt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_stays_as_it_was_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (tmp_path / "a.txt").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "a.txt", "new")
    assert contents(tmp_path) == {"a.txt": "old"}


def test_the_file_that_a_link_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "link").symlink_to("a.txt")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a.txt").read_text() == "new"


def test_everything_is_on_disk_before_it_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = atomic._sync
    monkeypatch.setattr(atomic, "_sync", lambda path: (synced.append(path.name), sync(path))[1])
    monkeypatch.setattr(atomic, "_move_in", lambda *_, **__: synced.append("moved in"))
    with replace_folder(tmp_path / "model") as new:
        fill(new, "new")
    assert synced == ["a.txt", "content", "b.txt", "sub", "moved in", tmp_path.name]
