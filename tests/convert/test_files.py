"""Files of others are read, and nothing in them is run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gptblock.convert.files import read_checkpoint, state_dict
from gptblock.convert.pickles import read_plain_pickle
from gptblock.errors import CorruptError, NotFoundError


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def saved_by_torch(path: Path, value: object) -> None:
    torch.save({"model": value}, path)


def saved_as_before_torch_1_6(path: Path, value: object) -> None:
    torch.save({"model": value}, path, _use_new_zipfile_serialization=False)


def pickled(path: Path, value: object) -> None:
    path.write_bytes(pickle.dumps({"stoi": value}))


@pytest.mark.parametrize(
    ("save", "read"),
    [
        (saved_by_torch, read_checkpoint),
        (saved_as_before_torch_1_6, read_checkpoint),
        (pickled, read_checkpoint),
        (pickled, read_plain_pickle),
    ],
)
def test_a_pickle_that_would_run_something_is_refused(save, read, tmp_path):
    save(tmp_path / "file", Touch(tmp_path / "marker"))
    with pytest.raises(CorruptError, match="nothing else in it is run"):
        read(tmp_path / "file")
    assert not (tmp_path / "marker").exists()
    pickle.loads(pickle.dumps(Touch(tmp_path / "marker")))
    assert (tmp_path / "marker").exists()  # it does work


@pytest.mark.parametrize(
    ("save", "reason"),
    [
        (lambda path: saved_by_torch(path, Touch(path)), r"\(it asks for posix\.system\)"),
        (
            lambda path: torch.save(torch.nn.Linear(1, 1), path),
            r"\(it asks for torch\.nn\.modules\.linear\.Linear\)",
        ),
        (
            lambda path: path.write_bytes(b"PK\x03\x04, and no more"),
            r"\(it is damaged, or torch\.save did not",
        ),
        (lambda path: path.touch(), "is empty: copy it again"),
    ],
)
def test_why_a_file_is_refused_in_our_own_words(save, reason, tmp_path):
    """torch's would recommend to read it unsafely."""
    save(tmp_path / "model.pt")
    with pytest.raises(CorruptError, match=reason) as caught:
        read_checkpoint(tmp_path / "model.pt")
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(b"cbuiltins\neval\n(S'1'\ntR.", id="global"),
        pytest.param(b"(S'1'\nibuiltins\neval\n.", id="inst"),
        pytest.param(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.", id="stack_global"),
        pytest.param(b"\x80\x02\x82\x01.", id="extension"),
        pytest.param(b"Pname\n.", id="persistent id"),
        pytest.param(b"\x80\x04}q\x00(X", id="cut short"),
        pytest.param(b"", id="empty"),
        pytest.param(pickle.dumps([1, 2]), id="no dict"),
    ],
)
def test_only_plain_dicts_are_unpickled(code, tmp_path):
    (tmp_path / "meta.pkl").write_bytes(code)
    with pytest.raises(CorruptError, match=r"meta\.pkl"):
        read_plain_pickle(tmp_path / "meta.pkl")


def test_a_plain_pickle_is_what_it_was(tmp_path):
    values = {"vocab_size": 2, "stoi": {"a": 0, "\u2603": 1}, "itos": {0: "a", 1: "\u2603"}}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(values))
    assert read_plain_pickle(tmp_path / "meta.pkl") == values


@pytest.mark.parametrize("read", [read_checkpoint, read_plain_pickle])
def test_a_file_that_is_not_there(read, tmp_path):
    with pytest.raises(NotFoundError, match="there is no file"):
        read(tmp_path / "nothing")


def test_a_folder_is_said_to_be_one(tmp_path):
    with pytest.raises(NotFoundError, match=r"there is no file .*, but a folder$"):
        read_checkpoint(tmp_path)


def test_what_is_no_pickle_is_one_line(tmp_path):
    path = tmp_path / "meta.pkl"
    path.write_text("First Citizen:\nBefore we proceed\n")
    with pytest.raises(CorruptError, match=r"^[^\n]* is no pickle [^\n]*damaged, or another kind of file$"):
        read_plain_pickle(path)


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_a_file_cut_short_is_named(name, share, tmp_path):
    path = tmp_path / name
    save = save_file if name.endswith("safetensors") else torch.save
    save({"a": torch.ones(1000)}, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(CorruptError, match=name):
        read_checkpoint(path)


def test_a_whole_module_is_refused_with_advice(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(CorruptError, match=r"torch\.save\(model\.state_dict\(\)"):
        read_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize("values", [{"a": 1}, {"model": 3}, {"step": 1, "weights": {"a": torch.ones(1)}}])
def test_what_holds_no_state_dict_is_refused(values):
    with pytest.raises(CorruptError, match="holds no state dict"):
        state_dict(values, Path("model.pt"))


def test_a_prefix_is_one_only_where_all_have_it():
    state = {"module.a": torch.ones(1), "b": torch.ones(1)}
    assert state_dict(state, Path("model.pt")).keys() == state.keys()
