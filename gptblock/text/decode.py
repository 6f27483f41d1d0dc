"""Bytes of a file to text, in blocks or at once.

The rule: UTF-8; one byte order mark at the start is dropped; CRLF and a lone CR become LF. Everything else
is kept as it is, NUL and U+2028 among it.
"""

from __future__ import annotations

import codecs
import io
import itertools
from collections.abc import Iterable, Iterator

from gptblock.errors import CorpusError


def decode_text(data: bytes, name: str) -> str:
    """The text of a file's bytes. Raises CorpusError, with `name`, where they are not UTF-8."""
    return "".join(decode_blocks([data], name))


def decode_blocks(blocks: Iterable[bytes], name: str) -> Iterator[str]:
    """The text of a file's bytes, block by block, wherever these cut a character or a line's end in two.

    Raises CorpusError, with `name` and the offset in the file, where the bytes are not UTF-8.
    """
    utf8 = codecs.getincrementaldecoder("utf-8")()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    offset = 0  # in the file, of the block
    at_start = True
    for block in itertools.chain(blocks, [None]):
        held, _ = utf8.getstate()  # the first bytes of a character that the block before cut
        data = held + (block or b"")
        utf8.reset()
        try:
            text = utf8.decode(data, final=block is None)
        except UnicodeDecodeError as error:
            start = offset - len(held) + error.start
            raise CorpusError(
                f"{name!r} is not UTF-8: byte 0x{data[error.start]:02X} at offset {start} does not fit; "
                f"save it as UTF-8{_encoding_hint(data)}"
            ) from None
        offset += len(block or b"")
        if at_start and text:
            at_start = False
            text = text.removeprefix("\ufeff")
        text = newlines.decode(text, final=block is None)
        if text:
            yield text


def _encoding_hint(data: bytes) -> str:
    mostly_zero = data.count(0) * 4 > len(data)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or mostly_zero:
        return " (it looks like UTF-16: iconv -f UTF-16 -t UTF-8)"
    return ""
