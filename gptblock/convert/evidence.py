"""What a text says about a model: its loss, and which of several models it fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gptblock.errors import CorpusError
from gptblock.model import GPT, eval_mode
from gptblock.text.corpus import load_corpus, spread_windows
from gptblock.text.tokenizer import Tokenizer

Name = TypeVar("Name", bound=str)

# One model fits a text better than another if its loss is lower by both.
MINIMUM_GAIN = 0.005  # nats a token: untrained models differ by less
MINIMUM_ERRORS = 4.0  # standard errors of the mean over the windows, each compared with itself

_TOKENS = 8192  # that are looked at, spread over the whole text
_WINDOWS = 8  # at least, so that they have a spread
_LOGITS = 2**25  # in memory at once


def draw_windows(data: str, tokenizer: Tokenizer, block_size: int) -> Tensor:
    """Windows (N, T + 1) int64 of the text that `data` names, evenly spread over it; T <= block_size.

    Raises CorpusError for a text that is too short, or has characters outside the vocabulary.
    """
    text = load_corpus(data).text
    outside = [symbol for symbol in sorted(set(text)) if tokenizer.encode(symbol, unknown="skip").size == 0]
    if outside:
        shown = ", ".join(f"{symbol!a} (U+{ord(symbol):04X})" for symbol in outside[:5])
        more = f" and {len(outside) - 5} more" if len(outside) > 5 else ""
        raise CorpusError(
            f"{data} has characters that the model's vocabulary lacks: {shown}{more}; "
            f"give a text like those it was trained on"
        )
    return torch.from_numpy(spread_windows(data, tokenizer.encode(text), block_size, _TOKENS, _WINDOWS))


@torch.no_grad()
def window_losses(model: GPT, windows: Tensor) -> Tensor:
    """The mean cross-entropy in nats of each window: (N, T + 1) int64 -> (N,) float64."""
    T = windows.shape[1] - 1
    batch_size = max(1, _LOGITS // (T * model.config.vocab_size))
    losses = []
    with eval_mode(model):
        for start in range(0, len(windows), batch_size):
            batch = windows[start : start + batch_size]  # (B, T + 1)
            logits = model(batch[:, :-1])  # (B, T, vocab_size)
            each = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")  # (B * T,)
            losses.append(each.view(-1, T).double().mean(dim=1))  # (B,)
    return torch.cat(losses)


def best_fit(losses: Mapping[Name, Tensor], beyond: Iterable[Tensor]) -> Name | None:
    """Of models by name, with their (N,) `window_losses`, the best-fitting one; None if that is unclear.

    Clear is: against every other, the loss is lower by MINIMUM_GAIN and by MINIMUM_ERRORS standard errors.
    `beyond` are losses of models that go further the same way and are known to be wrong: where one of them is
    lower still, so is the reason of the best one's, as in a model that was hardly trained.
    """
    best = min(losses, key=lambda name: losses[name].mean().item())
    for name in losses.keys() - {best}:
        gains = losses[name] - losses[best]  # (N,)
        error = gains.std().item() / len(gains) ** 0.5 if len(gains) > 1 else float("inf")
        if not gains.mean().item() > max(MINIMUM_GAIN, MINIMUM_ERRORS * error):
            return None
    is_peak = all(other.mean() >= losses[best].mean() for other in beyond)
    return best if is_peak else None
