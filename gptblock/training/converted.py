"""The run of a conversion: weights and where they come from, and nothing of a training.

It holds tokenizer.json and the checkpoint `best`, without an optimizer; `load_model` reads it like any other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from gptblock.bundle.store import replace_folder, write_file, write_tensors
from gptblock.errors import RunExistsError
from gptblock.training.checkpoint import MODEL, STATE, ConvertedState, checkpoint_folder
from gptblock.training.folder import CONTENTS, TOKENIZER, is_run, require_free


def refuse_run(folder: Path, overwrite: bool) -> None:
    """Raise RunExistsError where a conversion must not go: over a run unasked, among other files ever."""
    if is_run(folder) and not overwrite:
        raise RunExistsError(
            f"{folder} holds a run: --overwrite replaces it, and another --out leaves it alone"
        )
    require_free(folder, overwrite)


@contextmanager
def replace_run(folder: Path, weights: Mapping[str, Tensor], state: ConvertedState) -> Iterator[Path]:
    """Yield the new run, complete, to add to it; on leaving, it becomes `folder` at once.

    Of a run that was there everything goes, other files stay. On an exception all is as before.
    """
    with replace_folder(folder) as new:
        write_file(new / TOKENIZER, json.dumps(state["tokenizer"]) + "\n")
        checkpoint = checkpoint_folder(new, "best")
        checkpoint.mkdir(parents=True)
        write_tensors(checkpoint / MODEL, {name: tensor.numpy() for name, tensor in weights.items()})
        write_file(checkpoint / STATE, json.dumps(state, indent=2, allow_nan=False) + "\n")
        del weights  # not to be kept in memory for as long as the caller takes
        yield new
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.name in CONTENTS:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.copytree(path, new / path.name, symlinks=True)
            else:
                shutil.copy2(path, new / path.name, follow_symlinks=False)
