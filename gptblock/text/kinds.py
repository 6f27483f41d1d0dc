"""Which tokenizers there are: learned from a text by their kind, or read from what `to_dict` wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gptblock.config import TokenizerKind
from gptblock.errors import ConfigError, CorruptError
from gptblock.text.byte import ByteTokenizer
from gptblock.text.char import CharTokenizer
from gptblock.text.subword import SubwordTokenizer
from gptblock.text.tokenizer import SHOWN, Tokenizer


def train_tokenizer(kind: TokenizerKind, text: str | Iterable[str], bpe_vocab_size: int) -> Tokenizer:
    """The tokenizer of that kind for a text, or for its blocks; `bpe_vocab_size` is for "bpe" alone.

    Raises MissingExtraError where "bpe" lacks its library.
    """
    if kind == "bpe":
        return SubwordTokenizer.train(text, bpe_vocab_size)
    if kind == "byte":
        return ByteTokenizer()
    characters: set[str] = set()
    for block in [text] if isinstance(text, str) else text:
        characters.update(block)
    return CharTokenizer.train("".join(characters))


def tokenizer_from_dict(values: Mapping[str, object]) -> Tokenizer:
    """The tokenizer that `to_dict` wrote.

    Raises CorruptError where it is not understood, MissingExtraError where its library is not installed.
    """
    try:
        match dict(values):
            case {"type": "char", "vocab": str(vocab), **more} if not more:
                return CharTokenizer(vocab)
            case {"type": "byte", **more} if not more:
                return ByteTokenizer()
            case {"type": "subword", "json": dict(json), **more} if not more:
                return SubwordTokenizer(json)
    except ConfigError as error:
        raise CorruptError(f"the tokenizer is broken: {error}") from None
    raise CorruptError(
        f'this is no tokenizer that this version knows: expected {{"type": "char", "vocab": "..."}}, '
        f'{{"type": "byte"}} or {{"type": "subword", "json": {{...}}}} and got {ascii(dict(values))[:SHOWN]}'
    )


def parts_for(tokenizer: Tokenizer, blocks: Iterable[str]) -> Iterator[str]:
    """The text of the blocks in parts that `tokenizer` encodes one by one as it would the whole."""
    return tokenizer.parts(blocks) if isinstance(tokenizer, SubwordTokenizer) else iter(blocks)
