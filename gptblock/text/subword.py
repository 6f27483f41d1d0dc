"""Subwords: byte-pair encodings and what else the `tokenizers` library reads, GPT-2's among them.

The library, and its JSON, come with the extra `bpe`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gptblock.errors import (
    ConfigError,
    CorruptError,
    MissingExtraError,
    NotFoundError,
    UnknownCharacterError,
)
from gptblock.text.byte import BytesDecoder
from gptblock.text.pieces import PiecesDecoder, chain_of
from gptblock.text.tokenizer import Ids, TextDecoder, Unknown, as_ids, named, without_surrogates

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_REPLACEMENT = "\ufffd"  # what an id that no token has is shown as
_PART = 2**20  # characters that the library is given at once: it needs some hundred bytes for each
_CUT = re.compile(r"\S(?=[ \n])")  # after which byte-level BPE begins a new word
_PIECE = 2**16  # characters of a part that the library has for one thread; to learn, it holds 256 of them


class SubwordTokenizer:
    """A tokenizer of the `tokenizers` library, by its own JSON (tokenizer.json).

    Text is text: no special token is added, and none is recognised in what somebody typed. An id that
    no token has is U+FFFD. Raises ConfigError for a JSON that the library does not read, and
    MissingExtraError where there is no library.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        _require_library()
        from tokenizers import Tokenizer as Library

        self._values = dict(values)
        try:
            hidden = _hidden(values)
            self._library = Library.from_str(json.dumps(_for_text(values, hidden)))
            self._library.encode_special_tokens = True  # as the text that they are
            self._chain = chain_of(values.get("decoder"))
        except Exception as error:  # the library's have no base of their own
            raise ConfigError(f"this is no tokenizer.json that tokenizers reads: {error}") from None
        texts = {name: text for text, name in hidden.items()}
        vocab = self._library.get_vocab(with_added_tokens=True)
        if not vocab:
            raise ConfigError("a tokenizer must have one token at least: got a tokenizer.json with none")
        self._names = {token_id: texts.get(name, name) for name, token_id in vocab.items()}
        self._vocab_size = max(self._names) + 1
        self._added = {token["content"] for token in values.get("added_tokens") or ()}
        self._unknown = _unknown_id(self._library, values["model"], hidden)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def train(cls, text: str | Iterable[str], vocab_size: int) -> SubwordTokenizer:
        """Byte-level BPE learned from a text, or its blocks: the 256 bytes, then the pairs most often met.

        There are fewer than `vocab_size` tokens where the text has no more pairs that occur twice. The
        same text gives the same tokenizer (Sennrich et al. 2016, 3.2; Radford et al. 2019, 2.2).
        """
        _require_library()
        from tokenizers import models, pre_tokenizers, trainers

        library = _byte_level(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        library.train_from_iterator(_parts([text] if isinstance(text, str) else text, _PIECE), trainer)
        return cls(json.loads(library.to_str()))

    @classmethod
    def from_file(cls, path: Path) -> SubwordTokenizer:
        """The tokenizer in a tokenizer.json. Raises NotFoundError and CorruptError."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise NotFoundError(f"there is no file {path}") from None
        except (OSError, ValueError) as error:
            raise CorruptError(f"the tokenizer {path} cannot be read: {error}") from None
        if not isinstance(values, dict):
            raise CorruptError(f"the tokenizer {path} cannot be read: it holds no JSON object")
        try:
            return cls(values)
        except ConfigError as error:
            raise CorruptError(f"the tokenizer {path} cannot be read: {error}") from None

    @classmethod
    def from_vocab(cls, vocab: Path, merges: Path) -> SubwordTokenizer:
        """GPT-2's byte-level BPE from its two files. Raises CorruptError where they cannot be read."""
        _require_library()
        from tokenizers import models

        try:
            model = models.BPE.from_file(str(vocab), str(merges))
        except Exception as error:  # the library's have no base of their own
            raise CorruptError(f"the tokenizer in {vocab} and {merges} cannot be read: {error}") from None
        return cls(json.loads(_byte_level(model).to_str()))

    @property
    def vocab_size(self) -> int:
        """The largest id and one more, special tokens and holes included."""
        return self._vocab_size

    def encode(self, text: str, unknown: Unknown = "error") -> NDArray[np.int64]:
        """The (N,) ids of the text.

        Where the vocabulary has a token for what it does not know, that is an UnknownCharacterError, or
        left out with `unknown="skip"`; so are lone surrogates.
        """
        text = without_surrogates(text, unknown)
        parts, start = [], 0
        for part in self.parts([text]):
            ids = self._ids_of(part)
            outside = ids == self._unknown
            if unknown == "error" and outside.any():
                offsets = self._library.encode(part, add_special_tokens=False).offsets
                at = start + offsets[int(outside.argmax())][0]
                raise UnknownCharacterError(
                    f"the vocabulary has no token for {named(text[at])} at position {at} (the first is 0); "
                    f"--unknown skip leaves it out"
                )
            parts.append(ids[~outside])
            start += len(part)
        return np.concatenate(parts)

    def parts(self, blocks: Iterable[str]) -> Iterator[str]:
        """The text of the blocks, cut where each part may be encoded by itself.

        A text without a space or a newline, and any text for a tokenizer that learned elsewhere to cut
        words in another way, is one part.
        """
        return _parts(blocks, _PART) if self._is_cuttable() else iter(["".join(blocks)])

    def decode(self, ids: Ids) -> str:
        """The text of (N,) ids, special tokens as they are written. Raises InputError for what is no id."""
        token_ids: list[int] = as_ids(ids).tolist()
        if self._is_byte_level():
            return b"".join(map(self._bytes_of, token_ids)).decode("utf-8", "replace")
        return self._text(list(map(self._name_of, token_ids)))

    def decoder(self) -> TextDecoder:
        """A fresh decoder for one text."""
        if self._is_byte_level():
            return BytesDecoder(self._bytes_of)
        return PiecesDecoder(self._name_of, self._text, self._chain)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; `gptblock.text.kinds` reads them."""
        return {"type": "subword", "json": self._values}

    def _ids_of(self, part: str) -> NDArray[np.int64]:
        """The (N,) ids of a part; of a large one pieces are encoded at once, without their places in it."""
        if len(part) <= _PIECE or not self._is_cuttable():
            return np.array(self._library.encode(part, add_special_tokens=False).ids, np.int64)
        pieces = list(_parts([part], _PIECE))
        encodings = self._library.encode_batch_fast(pieces, add_special_tokens=False)
        return np.concatenate([np.array(encoding.ids, np.int64) for encoding in encodings])

    def _is_byte_level(self) -> bool:
        return [link["type"] for link in self._chain] == ["ByteLevel"]

    def _is_cuttable(self) -> bool:
        """Whether a text may be encoded in parts: words as `train` makes them, and nothing else."""
        match self._values.get("pre_tokenizer"):
            case {"type": "ByteLevel", "add_prefix_space": False, **more} if more.get("use_regex", True):
                added = self._values.get("added_tokens") or ()
                return all(token["special"] for token in added) and not self._values.get("normalizer")
        return False

    def _name_of(self, token_id: int) -> str:
        return self._names.get(token_id, _REPLACEMENT)

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id not in self._bytes:
            name = self._name_of(token_id)
            is_spelt = name not in self._added and set(name) <= _BYTE_OF.keys()
            self._bytes[token_id] = bytes(_BYTE_OF[c] for c in name) if is_spelt else name.encode("utf-8")
        return self._bytes[token_id]

    def _text(self, names: list[str]) -> str:
        if self._library.decoder is None:
            return " ".join(names)
        text: str = self._library.decoder.decode(names)
        return text


def _require_library() -> None:
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        raise MissingExtraError("a subword tokenizer", "tokenizers", "bpe") from None


def _byte_level(model: Any) -> Library:
    """The library's tokenizer as GPT-2 has it: words with their leading space, spelt in bytes."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, pre_tokenizers

    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    return library


def _for_text(values: Mapping[str, Any], hidden: Mapping[str, str]) -> dict[str, Any]:
    """The JSON without what does more to a text than cut it into tokens; `hidden` tokens get their names."""
    model = {**values["model"]}
    if "dropout" in model:
        model["dropout"] = None
    if hidden and isinstance(model["vocab"], dict):
        model["vocab"] = {hidden.get(name, name): token_id for name, token_id in model["vocab"].items()}
    elif hidden:
        model["vocab"] = [[hidden.get(name, name), score] for name, score in model["vocab"]]
    if "unk_token" in model:
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    added = [
        {**token, "content": hidden.get(token["content"], token["content"])}
        for token in values.get("added_tokens") or ()
    ]
    nothing = {"truncation": None, "padding": None, "post_processor": None}
    return {**values, **nothing, "model": model, "added_tokens": added}


def _hidden(values: Mapping[str, Any]) -> dict[str, str]:
    """Names that no text spells, for the special tokens that a model would find in one by itself.

    BPE only finds what its merges make, unless told to look up whole words first; the other models find
    whatever is in their vocabulary.
    """
    model = values["model"]
    if "merges" in model and not model.get("ignore_merges"):
        return {}
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", ())]
    made = {name for left, right in pairs for name in (left, right, left + right)}
    special = {token["content"] for token in values.get("added_tokens") or () if token["special"]}
    return {text: f"\ufdd0{text}\ufdd0" for text in special - made}  # U+FDD0 is kept out of all text


def _unknown_id(library: Library, model: Mapping[str, Any], hidden: Mapping[str, str]) -> int:
    """The id that stands for what the vocabulary cannot spell; -1 where nothing does."""
    if isinstance(model.get("unk_id"), int):  # of Unigram
        return int(model["unk_id"])
    name = model.get("unk_token")
    found = library.token_to_id(hidden.get(name, name)) if name else None
    return -1 if found is None else found


def _parts(blocks: Iterable[str], size: int) -> Iterator[str]:
    """The blocks' text in parts of about `size` characters, cut where byte-level BPE ends a word anyway."""
    rest = ""
    for block in blocks:
        searched, rest = len(rest), rest + block
        start = 0
        while len(rest) - start > size and (cut := _CUT.search(rest, max(start + size, searched - 1))):
            yield rest[start : cut.end()]
            start = cut.end()
        rest = rest[start:]
    yield rest


def _bytes_of_characters() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _bytes_of_characters()
