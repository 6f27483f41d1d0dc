"""Arrays come back as they were, and a broken file is refused with its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gptblock.bundle.tensors import read_tensors, write_tensors
from gptblock.errors import CorruptError, NotFoundError

TENSORS = {
    "logits": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "turned": np.arange(6, dtype=np.int64).reshape(2, 3).T,
    "every other": np.arange(8, dtype=np.float64)[::2],
    "scalar": np.array(3, dtype=np.uint8),
    "empty": np.zeros((0, 5), dtype=np.float16),
    "nan": np.array([np.nan, -np.inf], dtype=np.float32),
}


def test_arrays_come_back(tmp_path: Path) -> None:
    path = tmp_path / "é x.safetensors"
    write_tensors(path, TENSORS)
    read = read_tensors(path)
    assert set(read) == set(TENSORS)
    for name, expected in TENSORS.items():
        assert read[name].dtype == expected.dtype
        np.testing.assert_array_equal(read[name], expected, strict=True)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_file_cut_short(tmp_path: Path, share: float) -> None:
    path = tmp_path / "golden.safetensors"
    write_tensors(path, TENSORS)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(
        CorruptError, match=r"golden\.safetensors cannot be read as safetensors: .*cut short or altered"
    ):
        read_tensors(path)


@pytest.mark.parametrize("content", [b"\x80\x04K\x01.", b"PK\x03\x04" + bytes(100), b"\xff" * 100])
def test_a_file_of_another_kind(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CorruptError, match="cannot be read as safetensors"):
        read_tensors(tmp_path / "a")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no file .*absent"):
        read_tensors(tmp_path / "absent")
