"""A run's text: large or small, the run is the same, bit for bit, as with int64 ids in memory."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gptblock.config import TokenizerKind, TrainConfig
from gptblock.errors import CorpusError
from gptblock.text import corpus as corpora
from gptblock.text import ids, subword
from gptblock.text.kinds import train_tokenizer
from gptblock.training import Event, Reading, train
from gptblock.training.material import Material, prepare

FILES = ("model.safetensors", "optimizer.safetensors")


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gptblock.training.plot.draw_losses", lambda _measurements, title, _config: title)


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every text is large, and read in small blocks; the cache's folder."""
    monkeypatch.setattr(ids, "MAPPED_FROM", 1)
    monkeypatch.setattr(corpora, "BLOCK", 100)
    monkeypatch.setattr(subword, "_PART", 150)
    monkeypatch.setenv("GPTBLOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def result_of(run: Path) -> tuple[list[bytes], list[str]]:
    """Tensors of the last checkpoint, and the losses of every evaluation."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    tensors = [(run / "checkpoints" / "last" / name).read_bytes() for name in FILES]
    return tensors, [line.split(', "tokens_per_second"')[0] for line in lines]


class Reference:
    """All windows of int64 ids in one tensor, as simply as can be."""

    device = torch.device("cpu")

    def __init__(self, ids: np.ndarray, block_size: int) -> None:
        self._rows = torch.from_numpy(np.asarray(ids, np.int64)).unfold(0, block_size + 1, 1)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, starts: Tensor) -> Tensor:
        return self._rows[starts]


def reference(config: TrainConfig, *_: object) -> Material:
    """The text read, encoded and cut at once."""
    text = Path(config.data).read_text(encoding="utf-8")
    tokenizer = train_tokenizer(config.tokenizer, text, config.bpe_vocab_size)
    encoded = tokenizer.encode(text)
    boundary = int(0.9 * len(encoded))
    windows = [Reference(part, config.block_size) for part in (encoded[:boundary], encoded[boundary:])]
    return Material(tokenizer, *windows, hashlib.sha256(text.encode()).hexdigest())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_large_and_small_are_the_run_of_int64_ids(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TokenizerKind
) -> None:
    config = config.replace(tokenizer=kind, bpe_vocab_size=300)
    with monkeypatch.context() as replaced:
        replaced.setattr("gptblock.training.loop.prepare", reference)
        train(config, tmp_path / "reference")
    train(config, tmp_path / "small")
    monkeypatch.setattr(ids, "MAPPED_FROM", 1)
    monkeypatch.setattr(corpora, "BLOCK", 100)
    monkeypatch.setattr(subword, "_PART", 150)
    monkeypatch.setenv("GPTBLOCK_CACHE", str(tmp_path / "cache"))
    train(config, tmp_path / "large", stop_after=7)
    train(config, tmp_path / "large", resume=True)
    assert list((tmp_path / "cache").rglob("*.ids"))
    expected = result_of(tmp_path / "reference")
    assert result_of(tmp_path / "small") == expected
    assert result_of(tmp_path / "large") == expected
    assert len(expected[1]) == 5


def test_a_large_text_is_mapped_and_encoded_once(
    config: TrainConfig, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Event] = []
    first = prepare(config, None, told.append)
    (path,) = large.rglob("*.ids")
    assert path.stat().st_size == 4096 + 2000  # a byte a token
    shares = {
        stage: [event.share for event in told if isinstance(event, Reading) and event.stage == stage]
        for stage in ("reading", "learning", "encoding")
    }
    assert shares["learning"] == []
    for stage in ("reading", "encoding"):
        assert shares[stage] == sorted(shares[stage])
        assert shares[stage][-1] == 1.0
        assert len(shares[stage]) == 20
    assert {(event.data, event.size) for event in told if isinstance(event, Reading)} == {(config.data, 2000)}
    told.clear()
    monkeypatch.setattr("gptblock.text.char.CharTokenizer.encode", None)
    second = prepare(config, None, told.append)
    assert {event.stage for event in told if isinstance(event, Reading)} == {"reading"}
    every = torch.arange(len(first.train))
    assert torch.equal(second.train[every], first.train[every])


def test_of_a_small_text_nothing_is_told_and_nothing_kept(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPTBLOCK_CACHE", str(tmp_path / "cache"))
    told: list[Event] = []
    prepare(config, None, told.append)
    assert told == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("learned", [10**6, 550])
def test_byte_pairs_are_learned_from_the_beginning_and_told_of(
    config: TrainConfig, large: Path, monkeypatch: pytest.MonkeyPatch, learned: int
) -> None:
    monkeypatch.setattr("gptblock.training.material.LEARNED", learned)
    told: list[Event] = []
    prepared = prepare(config.replace(tokenizer="bpe", bpe_vocab_size=260), None, told.append)
    text = Path(config.data).read_text()
    assert prepared.tokenizer.to_dict() == train_tokenizer("bpe", text[:learned], 260).to_dict()
    assert prepared.tokenizer.to_dict() != train_tokenizer("bpe", text[:300], 260).to_dict()
    shares = [event.share for event in told if isinstance(event, Reading) and event.stage == "learning"]
    assert len(shares) == min(len(text), 600 if learned == 550 else 2000) // 100
    assert shares[-1] == 1.0
    stages = [event.stage for event in told if isinstance(event, Reading)]
    assert sorted(set(stages), key=stages.index) == ["reading", "learning", "encoding"]
    assert list(large.rglob("*.ids"))


@pytest.mark.parametrize("kind", ["char", "byte"])
def test_a_large_text_is_never_held(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TokenizerKind
) -> None:
    """Neither as text nor as ids: what Python and numpy allocate stays far below its 8 MB."""
    monkeypatch.setattr(ids, "MAPPED_FROM", 1)
    monkeypatch.setattr(corpora, "BLOCK", 2**16)
    monkeypatch.setenv("GPTBLOCK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("to be or not to be\r\n" * 400_000)
    config = config.replace(data=str(tmp_path / "text.txt"), tokenizer=kind)
    prepare(config.replace(data="pydoc"), None, lambda _: None)  # what is imported on the way
    tracemalloc.start()
    try:
        prepared = prepare(config, None, lambda _: None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(prepared.train) > 6_000_000
    assert peak < 4_000_000


@pytest.mark.usefixtures("large")
def test_a_large_text_that_changed_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abc " * 200)
    config = config.replace(data=str(text), max_iters=2)
    train(config, tmp_path / "run")
    text.write_text("abc " * 199 + "cba ")
    with pytest.raises(CorpusError, match="is not the text of the run to resume"):
        train(config.replace(max_iters=3), tmp_path / "run", resume=True)
    text.write_text("abc " * 199 + "xyz ")
    with pytest.raises(CorpusError, match=r"never saw: 'x' \(U\+0078\), 'y' \(U\+0079\), 'z'"):
        train(config.replace(max_iters=3), tmp_path / "run", resume=True)
