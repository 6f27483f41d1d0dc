"""One call of generate or stream: from prompts and options to completions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TypedDict, get_args

import numpy as np

from gptblock.config import Overflow, SamplingConfig
from gptblock.errors import ConfigError, InputError
from gptblock.runtime.decoder import Decoder
from gptblock.runtime.generate import Drafting, FinishReason, Row, decode
from gptblock.runtime.stream import TextStream
from gptblock.text.tokenizer import Tokenizer, Unknown


@dataclass(frozen=True)
class Completion:
    """A prompt's continuation. `text` and `ids` hold the continuation alone.

    Where a stop string ends the text inside a token, `ids` end before that token.
    """

    prompt: str
    text: str
    ids: list[int]
    prompt_tokens: int  # 0 for an empty prompt, which starts from token 0 as the lecture does
    completion_tokens: int
    finish_reason: FinishReason
    tokens_per_second: float  # this row's tokens by the time of the whole call, its batch mates' included
    provider: str
    seed: int


class GenerateOptions(TypedDict, total=False):
    """The keyword arguments of `Model.generate` and `Model.stream`, with their defaults."""

    max_new_tokens: int  # 500
    num_samples: int  # 1; sample i of a prompt draws from numpy.random.default_rng([seed, i])
    temperature: float  # 1.0; 0 = greedy
    top_k: int  # 0 = off
    top_p: float  # 1 = off
    min_p: float  # 0 = off
    repetition_penalty: float  # 1 = off
    seed: int | None  # None = a random one, which the Completion names
    stop: str | Sequence[str]  # () ; text that ends a continuation and is not part of it
    overflow: Overflow  # "slide"; what happens beyond block_size, see gptblock.runtime.generate
    unknown: Unknown  # "error"; characters outside the vocabulary are refused, or skipped
    draft: Drafting  # "auto"; guessing ahead changes the speed, not the text, see gptblock.runtime.generate


class Generation(Iterator[str]):
    """A call under way: iterate over it for the pieces of text that are safe to show, row after row."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        *,
        max_new_tokens: int = 500,
        num_samples: int = 1,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        overflow: Overflow = "slide",
        unknown: Unknown = "error",
        draft: Drafting = "auto",
    ) -> None:
        sampling = SamplingConfig(
            repetition_penalty=repetition_penalty,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
        )
        self.seed = int.from_bytes(os.urandom(4)) if seed is None else seed
        for name, value, least in (
            ("max_new_tokens", max_new_tokens, 0),
            ("num_samples", num_samples, 1),
            ("seed", self.seed, 0),
        ):
            if not isinstance(value, Integral) or value < least:
                raise ConfigError(f"{name} must be an integer >= {least}: got {value!r}")
        if overflow not in get_args(Overflow):
            raise ConfigError(f"overflow must be one of {', '.join(get_args(Overflow))}: got {overflow!r}")
        if draft not in get_args(Drafting):
            raise ConfigError(f"draft must be one of {', '.join(get_args(Drafting))}: got {draft!r}")
        self.num_samples = num_samples
        self._provider = decoder.session.provider
        self._prompts: dict[Row, str] = {}
        self._texts: dict[Row, TextStream] = {}
        for prompt in prompts:
            if not isinstance(prompt, str):
                raise InputError(f"a prompt must be a str: got {prompt!r}")
            ids = tokenizer.encode(prompt, unknown)
            for i in range(num_samples):
                row = Row(ids, max_new_tokens, np.random.default_rng([self.seed, i]))
                self._prompts[row] = prompt
                self._texts[row] = TextStream(tokenizer, [stop] if isinstance(stop, str) else stop)
        self._seconds = 0.0
        self._pieces = self._run(decode(decoder, list(self._texts), sampling, overflow, draft))

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def drafted_tokens(self) -> int:
        """How many tokens of all rows were guessed and read so far."""
        return sum(row.drafted_tokens for row in self._texts)

    @property
    def accepted_tokens(self) -> int:
        """How many of the drafted tokens came true."""
        return sum(row.accepted_tokens for row in self._texts)

    def completions(self) -> list[Completion]:
        """Run to the end; the completion of every row, prompt by prompt and sample by sample."""
        for _ in self:
            pass
        return [self._completion(row) for row in self._texts]

    def _run(self, steps: Iterator[Row]) -> Iterator[str]:
        while True:
            started = time.perf_counter()
            row = next(steps, None)
            self._seconds += time.perf_counter() - started  # the taker's time is not ours
            if row is None:
                break
            text = self._texts[row]
            piece = text.push(int(row.ids[-1]))
            if text.stopped:
                row.finish_reason = "stop"
            if piece:
                yield piece
        for row, text in self._texts.items():
            rest = text.finish()
            if text.stopped:
                row.finish_reason = "stop"
            if rest:
                yield rest

    def _completion(self, row: Row) -> Completion:
        text = self._texts[row]
        ids = text.ids
        assert row.finish_reason is not None
        return Completion(
            prompt=self._prompts[row],
            text=text.text,
            ids=ids,
            prompt_tokens=row.prompt_tokens,
            completion_tokens=len(ids),
            finish_reason=row.finish_reason,
            tokens_per_second=len(row.new_ids) / self._seconds if self._seconds else 0.0,
            provider=self._provider.name,
            seed=self.seed,
        )
