"""Pickles of plain values, read without running anything that is in them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import NoReturn

from gptblock.errors import CorruptError, NotFoundError


class _NameError(Exception):
    """A pickle that would import something; says what."""


class _PlainUnpickler(pickle.Unpickler):
    """Builds dicts, lists, strings and numbers, which need no name from any module: every name is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _NameError(f"it asks for {module}.{name}")


def read_plain_pickle(path: Path) -> dict[object, object]:
    """The dict of plain values in a pickle. Nothing in the file is imported or called.

    Raises NotFoundError, or CorruptError for a file that is broken, is no dict, or holds anything else.
    """
    try:
        with path.open("rb") as file:
            values = _PlainUnpickler(file).load()
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    except Exception as error:  # a broken pickle may fail anywhere
        raise CorruptError(
            f"{path} is no pickle of plain values (dict, str, int), and nothing else in it is run: "
            f"{error if isinstance(error, _NameError) else 'it is damaged, or another kind of file'}"
        ) from None
    if not isinstance(values, dict):
        raise CorruptError(f"{path} must hold a dict: got {type(values).__name__}")
    return values
