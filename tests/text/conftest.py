"""Tokenizers of every kind that the `tokenizers` library trains, in a moment each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SENTENCES = [
    "the cat sat on the mat, and the dog sat on the log",
    "to be or not to be: that is the question",
    "caf\u00e9 \u2603 don't  stop  there\nnow",
]
SPECIAL = ["<unk>", "<s>", "</s>"]
QUIET: dict[str, Any] = {"show_progress": False}


def unigram() -> Tokenizer:
    """As T5's."""
    library = Tokenizer(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=SPECIAL, unk_token="<unk>", **QUIET)
    library.train_from_iterator(SENTENCES * 5, trainer)
    return library


def wordpiece() -> Tokenizer:
    """As BERT's."""
    library = Tokenizer(models.WordPiece(unk_token="<unk>"))
    library.normalizer = normalizers.Lowercase()
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.decoder = decoders.WordPiece()
    library.train_from_iterator(
        SENTENCES * 5, trainers.WordPieceTrainer(vocab_size=80, special_tokens=SPECIAL, **QUIET)
    )
    return library


def word_ends() -> Tokenizer:
    """As the first GPT's."""
    library = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=SPECIAL, end_of_word_suffix="</w>", **QUIET)
    library.train_from_iterator(SENTENCES * 5, trainer)
    return library


def byte_fallback() -> Tokenizer:
    """As Llama's."""
    library = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    library.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=[*SPECIAL, *byte_tokens], **QUIET)
    library.train_from_iterator(SENTENCES * 5, trainer)
    values = json.loads(library.to_str())
    values["added_tokens"] = values["added_tokens"][: len(SPECIAL)]
    return Tokenizer.from_str(json.dumps(values))


def words() -> Tokenizer:
    """Whole words, and no decoder: joined by spaces."""
    library = Tokenizer(models.WordLevel(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.train_from_iterator(SENTENCES, trainers.WordLevelTrainer(special_tokens=SPECIAL, **QUIET))
    return library


def byte_level() -> Tokenizer:
    """As GPT-2's."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        **QUIET,
    )
    library.train_from_iterator(SENTENCES * 5, trainer)
    return library


def duplicates_dropped() -> Tokenizer:
    """As speech models': a token that repeats the one before is dropped."""
    library = byte_level()
    library.decoder = decoders.CTC(pad_token="\u0120")
    return library


KINDS: dict[str, Callable[[], Tokenizer]] = {
    kind.__name__: kind
    for kind in (unigram, wordpiece, word_ends, byte_fallback, words, byte_level, duplicates_dropped)
}


@pytest.fixture(scope="session")
def libraries() -> dict[str, Tokenizer]:
    """One of each kind."""
    return {name: make() for name, make in KINDS.items()}
