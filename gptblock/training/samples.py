"""samples.jsonl: what the model writes while it learns, one line each time."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from gptblock.bundle.store import write_file
from gptblock.config import SamplingConfig
from gptblock.errors import CorruptError
from gptblock.model import GPT
from gptblock.text.tokenizer import Tokenizer

_TOKENS = 200


def draw_sample(model: GPT, tokenizer: Tokenizer, seed: int) -> str:
    """200 tokens that `model` writes of itself, from token 0 as in the lecture, at temperature 1.

    The draws depend on `seed` alone: every sample of a run has the same, so that two differ by the model
    only, and nothing that training draws from is touched. Raises GptblockError for logits that are no
    numbers.
    """
    start = torch.zeros((1, 1), dtype=torch.int64, device=next(model.parameters()).device)  # (B, T)
    tokens = model.generate(start, _TOKENS, SamplingConfig(), seed)  # (B, T) -> (B, T + 200)
    return tokenizer.decode(tokens[0, 1:].cpu().numpy())


def append_sample(path: Path, step: int, text: str) -> None:
    """Add a line to samples.jsonl."""
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(_line(step, text))


def read_samples(path: Path) -> list[tuple[int, str]]:
    """Step and text of each line; of a last one that was cut off, nothing. Raises CorruptError for others."""
    samples = []
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            values = json.loads(line)
            samples.append((int(values["step"]), str(values["text"])))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(
                f"line {number} of {path} is no sample ({error!r}); remove it, or the file"
            ) from None
    return samples


def rewind_samples(path: Path, step: int) -> None:
    """Drop what was written after `step`: resuming writes it again."""
    if path.exists():
        write_file(path, "".join(_line(*sample) for sample in read_samples(path) if sample[0] <= step))


def _line(step: int, text: str) -> str:
    return json.dumps({"step": step, "text": text}) + "\n"
