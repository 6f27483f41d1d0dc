"""How fast one open graph continues rows of tokens, and how far that is from reading its bytes once."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gptblock.config import SamplingConfig
from gptblock.runtime.bandwidth import read_bandwidth
from gptblock.runtime.decoder import Decoder, Ids
from gptblock.runtime.generate import Row, decode

Clock = Callable[[], float]  # seconds

_GREEDY = SamplingConfig(temperature=0.0)
_SETTLE = 0.1  # seconds; ONNX Runtime's threads spin about half as long for more work, and would disturb


@dataclass(frozen=True)
class Lengths:
    """Tokens of a row: the prompt and what is appended when decoding, and the text of a prefill."""

    prompt: int
    new: int
    prefill: int


@dataclass(frozen=True)
class Spread:
    """Durations in milliseconds: median and 95th percentile, interpolated, of `count` measured ones."""

    p50: float
    p95: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        p50, p95 = np.percentile(seconds, (50, 95)) * 1000
        return cls(float(p50), float(p95), len(seconds))


@dataclass(frozen=True)
class Speed:
    """One configuration: a precision, a number of threads, and `batch` rows at once.

    `decode` is one step, which gives a token to each row; `prefill` a call that reads `prefill_tokens` of
    each row until each has a token; `first_token` the time in which the first row of a call with
    `prompt_tokens` has one. Tokens per second are of the whole batch at the median.

    `step_bytes` is what a step reads at the least: the graph's file without its metadata, so every weight
    once, though of embeddings few rows are read; and for each row the keys and values that it holds in the
    middle of a call. `floor` is the milliseconds which that takes at `bandwidth` (bytes per second: the
    median of `gptblock.runtime.bandwidth`, measured in turn with the steps); `reached` is floor by
    decode.p50. On CUDA these three are None: the host's memory says nothing about the device's.
    """

    precision: str
    threads: int
    batch: int
    decode: Spread
    decode_tokens_per_second: float
    prefill: Spread
    prefill_tokens_per_second: float
    first_token: Spread
    step_bytes: int
    bandwidth: float | None
    floor: float | None
    reached: float | None


@dataclass
class Stopwatch:
    """One configuration under measurement: the seconds and the bytes per second seen so far."""

    decoder: Decoder
    weight_bytes: int
    threads: int
    batch: int
    lengths: Lengths
    clock: Clock = time.perf_counter
    steps: list[float] = field(default_factory=list)
    prefills: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    bandwidths: list[float] = field(default_factory=list)

    @property
    def step_bytes(self) -> int:
        """See Speed. The steps of a call read prompt + 1 to prompt + new - 1 tokens of each row."""
        model = self.decoder.metadata.model
        token = len(self.decoder.cache_names) * model.n_embd * np.dtype(self.decoder.cache_dtype).itemsize
        return self.weight_bytes + self.batch * token * (2 * self.lengths.prompt + self.lengths.new) // 2

    def measure(self, rng: np.random.Generator, ruler: NDArray[np.int32]) -> None:
        """One round. `ruler` is an array of at least `step_bytes`, to measure the bandwidth by."""
        time.sleep(_SETTLE)
        if self.decoder.session.provider.name == "cpu":
            self.bandwidths.append(read_bandwidth(ruler[: self.step_bytes // 4], self.threads))
        vocab_size, lengths = self.decoder.metadata.model.vocab_size, self.lengths
        prompts = rng.integers(0, vocab_size, (self.batch, lengths.prompt))
        texts = rng.integers(0, vocab_size, (self.batch, lengths.prefill))
        self._times(prompts, 2)  # not counted: wakes threads and caches
        if not self.prefills:
            self._times(texts, 1)  # nor what is opened for the first long step
        self.prefills.append(float(self._times(texts, 1)[-1, -1]))
        times = self._times(prompts, lengths.new)
        self.first_tokens.append(float(times[0, 0]))
        self.steps += np.diff(times[:, -1]).tolist()

    def _times(self, prompts: Ids, new: int) -> NDArray[np.float64]:
        """Continue `prompts` (batch, T) by `new` tokens; the seconds until each was there, (new, batch)."""
        started = self.clock()
        rows = [Row(prompt, new, np.random.default_rng(0)) for prompt in prompts]
        times = [self.clock() - started for _ in decode(self.decoder, rows, _GREEDY, "stop")]
        return np.reshape(times, (new, self.batch))

    def speed(self) -> Speed:
        """What the rounds so far come to."""
        decode, prefill = Spread.of(self.steps), Spread.of(self.prefills)
        bandwidth = float(np.median(self.bandwidths)) if self.bandwidths else None
        floor = 1000 * self.step_bytes / bandwidth if bandwidth else None
        return Speed(
            precision=self.decoder.metadata.precision,
            threads=self.threads,
            batch=self.batch,
            decode=decode,
            decode_tokens_per_second=1000 * self.batch / decode.p50,
            prefill=prefill,
            prefill_tokens_per_second=1000 * self.batch * self.lengths.prefill / prefill.p50,
            first_token=Spread.of(self.first_tokens),
            step_bytes=self.step_bytes,
            bandwidth=bandwidth,
            floor=floor,
            reached=floor / decode.p50 if floor else None,
        )


def weight_bytes(graph: Path, decoder: Decoder) -> int:
    """The bytes of a graph's file without its metadata, which holds configuration and vocabulary."""
    metadata = decoder.session.ort.get_modelmeta().custom_metadata_map
    return graph.stat().st_size - sum(len(text.encode()) for text in itertools.chain(*metadata.items()))
