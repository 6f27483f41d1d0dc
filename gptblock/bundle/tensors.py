"""Arrays by name in one file: safetensors, which holds no code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gptblock.bundle.atomic import write_file
from gptblock.errors import CorruptError, NotFoundError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def write_tensors(path: Path, tensors: Mapping[str, NDArray[np.generic]]) -> None:
    """Write arrays of any shape and memory order to `path`, atomically."""
    import numpy as np
    from safetensors.numpy import save

    # safetensors writes the memory as it lies: of a transposed view, the wrong order under the right shape.
    write_file(path, save({name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}))


def read_tensors(path: Path, framework: Literal["numpy", "pt"] = "numpy") -> dict[str, Any]:
    """The arrays of a safetensors file, with the types it holds; or, as "pt", tensors of torch.

    Arrays are copies; tensors are the file itself, mapped, of which what is touched comes into memory.

    Raises NotFoundError, or CorruptError for a file cut short or of another kind.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework=framework) as file:  # not read whole beside its arrays
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no file {path}; write it again (gptblock train, gptblock export)"
        ) from None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CorruptError(
            f"{path} cannot be read as safetensors: {error}. It was cut short or altered: "
            f"write it again (gptblock train, gptblock export)"
        ) from None
