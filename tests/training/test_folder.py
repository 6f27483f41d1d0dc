from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptblock.config import PRESETS, TrainConfig, train_config
from gptblock.errors import CorruptError, InputError, NotFoundError, RunExistsError
from gptblock.text.char import CharTokenizer
from gptblock.training.folder import command_of, read_config, require_free, start_run

CONFIG = TrainConfig(n_layer=2, device="cpu").resolved()
TOKENIZER = CharTokenizer("ab\u2603")


def filled(folder: Path, names: list[str]) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return folder


RUN = [
    "config.toml",
    "tokenizer.json",
    "checkpoints/last/state.json",
    "metrics.jsonl",
    "loss.svg",
    "bundle/a.onnx",
]


@pytest.mark.parametrize(
    ("names", "overwrite", "message"),
    [
        ([], False, None),
        (RUN, False, "--resume goes on with it, --overwrite replaces it"),
        (RUN, True, None),
        (["config.toml", "tokenizer.json"], False, "holds a run"),  # killed before its first checkpoint
        ([*RUN, "notes.txt"], True, None),
        (["notes.txt"], False, "holds other files and no run"),
        (["notes.txt"], True, "holds other files and no run"),
        (["config.toml"], True, "holds other files and no run"),  # somebody else's
    ],
)
def test_where_a_new_run_may_go(
    tmp_path: Path, names: list[str], overwrite: bool, message: str | None
) -> None:
    filled(tmp_path, names)
    if message is None:
        require_free(tmp_path, overwrite)
    else:
        with pytest.raises(RunExistsError, match=message):
            require_free(tmp_path, overwrite)


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    path = filled(tmp_path, ["file"]) / "file"
    with pytest.raises(RunExistsError, match="is a file"):
        require_free(path, overwrite=True)
    with pytest.raises(InputError, match="cannot be made"):
        start_run(path / "run", CONFIG, TOKENIZER)


def test_starting_replaces_a_run_and_nothing_else(tmp_path: Path) -> None:
    elsewhere = filled(tmp_path / "elsewhere", ["kept"])
    run = filled(tmp_path / "run", [*RUN, "notes.txt"])
    (run / "bundle" / "a.onnx").unlink()
    (run / "bundle").rmdir()
    (run / "bundle").symlink_to(elsewhere)
    start_run(run, CONFIG, TOKENIZER)
    assert sorted(path.name for path in run.iterdir()) == ["config.toml", "notes.txt", "tokenizer.json"]
    assert (elsewhere / "kept").exists()
    assert json.loads((run / "tokenizer.json").read_text()) == TOKENIZER.to_dict()
    assert read_config(run) == CONFIG


def test_reading_no_run(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="gptblock train --out"):
        read_config(tmp_path / "none")


@pytest.mark.parametrize("text", ["n_layer = ", "n_layers = 3\n", "n_layer = 0\n"])
def test_reading_a_broken_configuration(tmp_path: Path, text: str) -> None:
    start_run(tmp_path, CONFIG, TOKENIZER)
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(CorruptError, match=r"config\.toml"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (train_config("quick"), "gptblock train pydoc --preset quick"),
        (train_config("lecture", overrides={"seed": 7}), "gptblock train pydoc --preset lecture --seed 7"),
        (
            train_config("quick", overrides={"data": "my text.txt", "max_iters": 9, "min_lr": 0.0}),
            "gptblock train 'my text.txt' --preset quick --max-iters 9 --min-lr 0.0",
        ),
        (
            train_config("quick", overrides={"lr_decay_iters": 9}),
            "gptblock train pydoc --preset quick --lr-decay-iters 9",
        ),
        (
            train_config("quick", overrides={"qk_norm": True, "norm": "rmsnorm", "tokenizer": "byte"}),
            "gptblock train pydoc --preset quick --norm rmsnorm --qk-norm --tokenizer byte",
        ),
    ],
)
def test_the_command_of_a_configuration(config: TrainConfig, expected: str) -> None:
    assert command_of(config.resolved()) == expected


@given(
    st.sampled_from(list(PRESETS)),
    st.fixed_dictionaries(
        {},
        optional={
            "max_iters": st.integers(1, 10**6),
            "lr_decay_iters": st.integers(0, 10**6),
            "learning_rate": st.floats(1e-3, 1.0),
            "min_lr": st.floats(0.0, 1e-4),
            "device": st.sampled_from(["cpu", "cuda"]),
            "qk_norm": st.booleans(),
            "tie_weights": st.booleans(),
            "positions": st.sampled_from(["learned", "rope", "none"]),
            "bpe_vocab_size": st.integers(256, 10**5),
        },
    ),
)
def test_the_command_gives_the_configuration_back(preset: str, changes: dict[str, int | float | str]) -> None:
    config = train_config(preset, overrides=changes).resolved()
    _, _, data, _, named, *flags = shlex.split(command_of(config))
    kinds = {name: type(value) for name, value in config.to_dict().items()}
    given_back: dict[str, object] = {}
    while flags:
        name = flags.pop(0).removeprefix("--").replace("-", "_")
        if kinds.get(name) is bool or name.startswith("no_"):
            given_back[name.removeprefix("no_")] = not name.startswith("no_")
        else:
            given_back[name] = kinds[name](flags.pop(0))
    assert train_config(named, overrides={"data": data, **given_back}).resolved() == config
