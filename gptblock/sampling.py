"""Logits to token, in numpy: the one sampler, of the torch reference and of the runtime.

Applied in this order: repetition penalty, temperature, top-k, top-p, min-p. Each works on what the
ones before it left; ties are won by the lowest ids.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gptblock.config import SamplingConfig
from gptblock.errors import GptblockError

# Logits come in float32. Sums of probabilities that differ by less than its rounding are one: with
# probabilities .5, .3, .2, a top_p of 0.8 keeps two tokens on every machine.
ROUNDING = 1e-6


def probabilities(
    logits: NDArray[np.floating], config: SamplingConfig, previous: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The (V,) probabilities that `sample` draws from, of (V,) logits after the (N,) ids `previous`.

    With temperature 0, all of it is on the token that greedy decoding takes. Raises GptblockError
    where the logits hold a NaN, or nothing finite at the top.
    """
    scores = _penalised(logits, config.repetition_penalty, previous)
    if config.temperature == 0:
        weights = np.zeros(len(scores))
        weights[_likeliest(scores)] = 1.0
        return weights
    weights = _weights(scores, config)
    weights /= weights.sum()
    return weights


def sample(
    logits: NDArray[np.floating],
    config: SamplingConfig,
    previous: NDArray[np.int64],
    rng: np.random.Generator,
    ids: NDArray[np.int64] | None = None,
) -> int:
    """The next token, of (V,) logits after the (N,) ids `previous`.

    Or of the `largest` logits alone: then `ids` are the tokens they are of, ascending. One `rng.random()` is
    spent, through the inverse of the cumulative distribution; none with temperature 0, which takes the
    largest logit. Raises GptblockError as `probabilities` does.
    """
    scores = _penalised(logits, config.repetition_penalty, previous)
    if config.temperature == 0:
        place = _likeliest(scores)
    else:
        cumulative = _weights(scores, config).cumsum()
        # To the right of equal sums, so that a token of probability 0 is never met.
        place = int(cumulative.searchsorted(rng.random() * cumulative[-1], side="right"))
    return place if ids is None else int(ids[place])


def largest(config: SamplingConfig, vocab_size: int) -> int:
    """How many of the largest logits decide the next token, whatever the others are."""
    if config.repetition_penalty != 1.0:
        return vocab_size
    return 1 if config.temperature == 0 else min(config.top_k or vocab_size, vocab_size)


def _penalised(
    logits: NDArray[np.floating], penalty: float, previous: NDArray[np.int64]
) -> NDArray[np.floating]:
    """Logits of tokens already there, made less likely: divided where positive, else multiplied.

    Keskar et al. 2019, 4.1, whose formula divides only, which favours tokens of negative logit.
    """
    if penalty == 1.0:
        return logits
    scores = np.array(logits, dtype=np.float64)
    seen = scores[previous]
    with np.errstate(over="ignore"):  # an absurd penalty ends in infinite logits, which are refused
        scores[previous] = np.where(seen > 0, seen / penalty, seen * penalty)
    return scores


def _likeliest(scores: NDArray[np.floating]) -> int:
    token = int(scores.argmax())  # the first NaN, if there is one
    if not math.isfinite(scores.item(token)):
        raise GptblockError(
            f"the logits cannot be sampled: the largest of {len(scores)} must be a finite number and is "
            f"{scores[token]} ({np.isnan(scores).sum()} are NaN). Either the file is damaged, which gptblock "
            f"verify tells, or the model's numbers overflowed: use precision fp32 if it was another, else a "
            f"checkpoint from before the training diverged"
        )
    return token


def _weights(scores: NDArray[np.floating], config: SamplingConfig) -> NDArray[np.float64]:
    """(V,) probabilities up to a factor, the largest 1, of scores and a temperature above 0."""
    top = float(scores[_likeliest(scores)])
    # The largest is 0 before it is divided, so however low the temperature, only the others overflow.
    with np.errstate(over="ignore"):
        scores = (scores.astype(np.float64) - top) / config.temperature
    if 0 < config.top_k < len(scores):
        scores = _top_k(scores, config.top_k)
    weights = np.exp(scores)
    if config.top_p < 1.0:
        weights = _top_p(weights, config.top_p)
    if config.min_p > 0.0:
        weights[weights < config.min_p] = 0.0
    return weights


def _top_k(scores: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """The scores of exactly the k best, -inf elsewhere."""
    worst_kept = np.partition(scores, -k)[-k]
    kept = scores > worst_kept
    ties = np.flatnonzero(scores == worst_kept)
    kept[ties[: k - np.count_nonzero(kept)]] = True
    return np.where(kept, scores, -np.inf)


def _top_p(weights: NDArray[np.float64], p: float) -> NDArray[np.float64]:
    """The weights of the fewest tokens that together have a share of p, at least one; 0 elsewhere."""
    order = (-weights).argsort(kind="stable")
    cumulative = weights[order].cumsum()
    kept = 1 + int(cumulative.searchsorted((p - ROUNDING) * cumulative[-1]))
    weights[order[kept:]] = 0.0
    return weights
