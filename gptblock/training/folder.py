"""The run directory: what lies in it, when training may write there, and how its settings are recorded."""

from __future__ import annotations

import json
import shlex
import shutil
import tomllib
from pathlib import Path

import tomli_w

from gptblock.bundle.store import write_file
from gptblock.config import PRESETS, TrainConfig
from gptblock.errors import ConfigError, CorruptError, InputError, NotFoundError, RunExistsError
from gptblock.text.tokenizer import Tokenizer

CONFIG = "config.toml"
TOKENIZER = "tokenizer.json"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
PICTURE = "loss.svg"
SAMPLES = "samples.jsonl"
TENSORBOARD = "tensorboard"
# In the order of their removal: what is left half way is still a run.
CONTENTS = ("bundle", PICTURE, SAMPLES, TENSORBOARD, METRICS, TOKENIZER, CONFIG, CHECKPOINTS)


def is_run(folder: Path) -> bool:
    """Whether `folder` holds a run, be it one that was killed before its first checkpoint."""
    return (folder / CHECKPOINTS).is_dir() or ((folder / CONFIG).is_file() and (folder / TOKENIZER).is_file())


def is_converted(folder: Path) -> bool:
    """Whether the run in `folder` came from `gptblock convert`: it has weights and no training's settings."""
    checkpoints = folder / CHECKPOINTS
    is_trained = (folder / CONFIG).exists() or (checkpoints / "last").exists()
    return (checkpoints / "best").is_dir() and not is_trained


def require_free(folder: Path, overwrite: bool) -> None:
    """Raise RunExistsError where a new run must not go: over another run unasked, among other files ever."""
    if folder.exists() and not folder.is_dir():
        raise RunExistsError(f"{folder} is a file, and a run is a folder: give another --out")
    if is_run(folder) and not overwrite:
        raise RunExistsError(
            f"{folder} holds a run: --resume goes on with it, --overwrite replaces it, "
            f"and another --out leaves it alone"
        )
    if folder.exists() and not is_run(folder) and any(folder.iterdir()):
        raise RunExistsError(f"{folder} holds other files and no run: give --out a new or an empty folder")


def make_folder(folder: Path) -> None:
    """Make a run's folder, unless it is there. Raises InputError where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder {folder} cannot be made: {error.strerror}; give another --out"
        ) from None


def start_run(folder: Path, config: TrainConfig, tokenizer: Tokenizer) -> None:
    """Make `folder` a run that has not begun; of a run that was there, everything goes, other files stay."""
    make_folder(folder)
    for name in CONTENTS:
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.rmtree(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    write_file(folder / TOKENIZER, json.dumps(tokenizer.to_dict()) + "\n")
    write_config(folder, config)


def write_config(folder: Path, config: TrainConfig) -> None:
    """Record a resolved configuration in the run's folder."""
    write_file(folder / CONFIG, tomli_w.dumps(config.to_dict()))


def read_config(folder: Path) -> TrainConfig:
    """The configuration of the run in `folder`. Raises NotFoundError or CorruptError."""
    if not is_run(folder):
        raise no_run(folder)
    if is_converted(folder):
        raise no_training(folder)
    path = folder / CONFIG
    try:
        return TrainConfig.from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ConfigError) as error:
        raise CorruptError(f"{path} is not a run's configuration: {error}") from None


def no_run(folder: Path) -> NotFoundError:
    """The error for a folder without a run."""
    return NotFoundError(
        f"there is no run in {folder}: gptblock train --out {shlex.quote(str(folder))} makes one"
    )


def no_training(folder: Path) -> NotFoundError:
    """The error for a converted run where a training's is asked for."""
    return NotFoundError(
        f"the run in {folder} was converted from another program's checkpoint: it has no training to go on "
        f"with and no checkpoint but best, which gptblock export {shlex.quote(str(folder))} exports"
    )


def command_of(config: TrainConfig) -> str:
    """The shortest `gptblock train` that gives `config` on any machine: a preset, then what differs."""
    if config.device == "cpu" and (config.dtype, config.compile) == ("fp32", "off"):
        config = config.replace(dtype="auto", compile="auto")  # what they mean there
    commands: list[list[str]] = []
    for preset, values in PRESETS.items():
        base = TrainConfig(**values, data=config.data).resolved().to_dict()
        changed = [(name, value) for name, value in config.to_dict().items() if value != base[name]]
        if "max_iters" in dict(changed) and config.lr_decay_iters == config.max_iters:
            changed = [(name, value) for name, value in changed if name != "lr_decay_iters"]
        flags = [word for name, value in changed for word in _flag(name.replace("_", "-"), value)]
        commands.append(["gptblock", "train", config.data, "--preset", preset, *flags])
    shortest = min(commands, key=len)
    return shlex.join(shortest)


def _flag(name: str, value: object) -> list[str]:
    """The words that set a field on the command line."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]
