"""Files of tensors as other programs write them, read without running anything that is in them."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gptblock.errors import CorruptError, NotFoundError

_WRAPPERS = ("model", "state_dict", "model_state_dict")  # where savers put a state dict among other things
_PREFIXES = ("_orig_mod.", "module.")  # what torch.compile and DistributedDataParallel put before each name


def read_checkpoint(path: Path) -> dict[str, object]:
    """What `path` holds by name, tensors on the CPU: a .safetensors file, or anything torch.save wrote.

    The latter is a pickle and read with `weights_only=True`, which builds tensors and plain values and calls
    nothing. Raises NotFoundError, or CorruptError for a file that is cut short or holds more than that.
    """
    if not path.is_file():
        folder = ", but a folder" if path.is_dir() else ""
        raise NotFoundError(f"there is no file {path}{folder}")
    if not path.stat().st_size:
        raise CorruptError(f"{path} is empty: copy it again")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        # Mapped, what is not looked at (an optimizer's moments) is never read; older files cannot be.
        with warnings.catch_warnings(action="ignore"):  # of what follows as an error
            values = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except SafetensorError as error:
        raise CorruptError(f"{path} cannot be read as safetensors: {error}") from None
    except Exception as error:  # a broken pickle may fail anywhere
        raise CorruptError(
            f"{path} cannot be read as tensors and plain values, and nothing else in it is run "
            f"({_reason(error)}). Where you trust it, load it with the program that wrote it and save the "
            f'state dict alone: torch.save(model.state_dict(), "weights.pt")'
        ) from None
    if not isinstance(values, dict):
        raise CorruptError(f"{path} must hold a state dict: got {type(values).__name__}")
    return values


def state_dict(values: Mapping[str, object], path: Path) -> dict[str, Tensor]:
    """The state dict among what a checkpoint holds, in float32, its names without what wrappers add to them.

    Raises CorruptError where there is none.
    """
    for wrapper in _WRAPPERS:
        inner = values.get(wrapper)
        if isinstance(inner, dict):
            values = inner
            break
    if others := [name for name, value in values.items() if not isinstance(value, Tensor)]:
        raise CorruptError(
            f"{path} holds no state dict: {', '.join(map(repr, others))} are no tensors, and none of "
            f"{', '.join(_WRAPPERS)} is a dict"
        )
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    while prefix := next((p for p in _PREFIXES if tensors and all(n.startswith(p) for n in tensors)), None):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }


def _reason(error: Exception) -> str:
    """What is wrong with a file; torch's own words recommend to read it unsafely."""
    wanted = re.search(r"GLOBAL (\S+)", str(error))
    return f"it asks for {wanted[1]}" if wanted else "it is damaged, or torch.save did not write it"
