"""The proof that a graph is the model it was exported from, on the machine and provider that run it.

The exporter and `gptblock verify` run the same checks. The golden vectors are PyTorch's: token ids, the
logits that eager PyTorch gave for them, and a greedy text. Where they are missing (a lone .onnx) the graph
can still be held against itself: causality, and cached chunks against the uncached whole.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from gptblock.bundle.manifest import Check
from gptblock.config import ModelConfig, SamplingConfig
from gptblock.errors import CorruptError, GptblockError
from gptblock.runtime.decoder import Cache, Decoder, Ids, Logits
from gptblock.runtime.generate import Row, decode

LogitsOf = Callable[[Ids], Logits]  # (B, T) -> (B, T, vocab_size)

# Largest allowed difference of a logit, by precision and provider, as a share of the largest golden logit
# (at least 1, so that small logits are held to the number itself).
TOLERANCES: dict[tuple[str, str], float] = {
    ("fp32", "cpu"): 1e-5,
    ("fp32", "cuda"): 1e-4,  # TF32 off; other summation orders than on the CPU
}

# How far earlier logits may move when a later token changes. On the CPU not at all; on CUDA as the same
# rows of a kernel may be summed in another order from run to run.
CAUSALITY_TOLERANCES: dict[str, float] = {"cpu": 0.0, "cuda": 1e-5}


@dataclass(frozen=True)
class Golden:
    """What PyTorch said.

    input_ids: (N, block_size); logits: float32 (N, block_size, vocab_size);
    greedy_prompt: (P,); greedy_ids: (G,), the tokens that greedy generation appends to the prompt;
    unmoved: (1,), at how many positions another token moves no logit, as where a model ignores its input.
    """

    input_ids: Ids
    logits: Logits
    greedy_prompt: Ids
    greedy_ids: Ids
    unmoved: Ids

    def to_tensors(self) -> dict[str, np.ndarray]:
        return dict(vars(self))

    @classmethod
    def from_tensors(cls, tensors: dict[str, np.ndarray], model: ModelConfig) -> Golden:
        """Raises CorruptError where these are not the golden vectors of a model of that shape."""
        names = list(cls.__dataclass_fields__)
        if sorted(tensors) != sorted(names):
            raise CorruptError(f"golden vectors must be {', '.join(names)}: got {', '.join(sorted(tensors))}")
        golden = cls(**tensors)
        if not golden._fits(model):
            got = ", ".join(f"{name} {tensor.dtype} {tensor.shape}" for name, tensor in tensors.items())
            raise CorruptError(
                f"golden vectors must be of a model with block_size {model.block_size} "
                f"and vocab_size {model.vocab_size}: got {got}; export it again (gptblock export RUN)"
            )
        return golden

    def _fits(self, model: ModelConfig) -> bool:
        rows = self.input_ids.shape[:1]
        return (
            self.input_ids.shape == (*rows, model.block_size)
            and self.logits.shape == (*rows, model.block_size, model.vocab_size)
            and self.logits.dtype == np.float32
            and self.greedy_prompt.ndim == self.greedy_ids.ndim == self.unmoved.size == 1
            and self.unmoved.dtype == np.int64
            and all(
                ids.dtype == np.int64 and ids.size and 0 <= ids.min() <= ids.max() < model.vocab_size
                for ids in (self.input_ids, self.greedy_prompt, self.greedy_ids)
            )
        )

    def logits_of(self, ids: Ids) -> Logits:
        """PyTorch's logits for the first B rows and T tokens of input_ids, which `ids` (B, T) must be."""
        batch, time = ids.shape
        assert np.array_equal(ids, self.input_ids[:batch, :time])
        return self.logits[:batch, :time]


def tolerance(precision: str, provider: str, logits: Logits) -> float:
    """The largest allowed difference from `logits`; where one is infinite, no more for that.

    Raises CorruptError where the table has none for that precision.
    """
    if (precision, provider) not in TOLERANCES:
        raise CorruptError(
            f"a graph in {precision} cannot be proved on {provider}: tolerances are stated for "
            f"{', '.join(' on '.join(known) for known in TOLERANCES)}; export it again (gptblock export RUN)"
        )
    largest = float(np.abs(logits).max())
    return TOLERANCES[precision, provider] * (max(1.0, largest) if math.isfinite(largest) else 1.0)


def prove(decoder: Decoder, golden: Golden | None, expected_of: LogitsOf | None = None) -> list[Check]:
    """Every check of a graph. `expected_of` is PyTorch itself where it is there: the exporter has it."""
    provider = decoder.session.provider.name
    ids = golden.input_ids if golden else random_ids(decoder.metadata.model.vocab_size, decoder.block_size)
    expected = golden.logits if golden else decoder.logits(ids)
    allowed = tolerance(decoder.metadata.precision, provider, expected)
    checks = []
    if golden:
        checks.append(check_logits(decoder.logits, expected_of or golden.logits_of, ids, allowed))
    unmoved = golden.unmoved.item() if golden else 0
    checks += check_causality(
        decoder.logits, ids, decoder.metadata.model.vocab_size, CAUSALITY_TOLERANCES[provider], unmoved
    )
    checks.append(check_chunks(decoder, ids, expected, allowed))
    checks.append(check_ragged_rows(decoder, ids, expected, allowed))
    if golden:
        checks.append(check_greedy(decoder.logits, greedy(decoder, golden), golden, 2 * allowed))
    return checks


def check_logits(logits_of: LogitsOf, expected_of: LogitsOf, ids: Ids, allowed: float) -> Check:
    """Logits of all prefixes of `ids` (N, block_size), at every length and in several batch sizes."""
    batches = sorted({1, len(ids)})
    prefixes = [ids[:batch, :time] for time in lengths(ids.shape[1]) for batch in batches]
    differences = [_difference(logits_of(prefix), expected_of(prefix)) for prefix in prefixes]
    return Check("logits at every length", len(prefixes), _worst(differences), allowed)


def check_causality(
    logits_of: LogitsOf, ids: Ids, vocab_size: int, allowed: float, unmoved: int = 0
) -> list[Check]:
    """Change one token after the other: logits before it stay, its own and later ones move.

    `unmoved` is at how many positions PyTorch's own do not: a model may have learned to ignore its input.
    """
    base = logits_of(ids)
    time = ids.shape[1]
    moved = []
    stuck = 0
    positions = range(time) if vocab_size > 1 else range(0)
    for t in positions:
        changed = ids.copy()
        changed[:, t] = (changed[:, t] + 1) % vocab_size
        logits = logits_of(changed)
        moved.append(_difference(logits[:, :t], base[:, :t]))
        own, later = logits[:, t] != base[:, t], logits[:, t + 1 :] != base[:, t + 1 :]
        stuck += not own.any() or not (later.any() or t + 1 == time)
    return [
        Check("causality: earlier logits stay", len(positions), _worst(moved), allowed),
        Check("causality: later logits move", len(positions), float(stuck), float(unmoved)),
    ]


def check_chunks(decoder: Decoder, ids: Ids, expected: Logits, allowed: float) -> Check:
    """Cached chunks of many splits against the whole."""
    splits = list(_splits(ids.shape[1]))
    differences = []
    for split in splits:
        cache = Cache(decoder, len(ids), ids.shape[1])
        parts = []
        for chunk in np.split(ids, np.cumsum(split)[:-1], axis=1):
            everywhere = np.broadcast_to(np.arange(chunk.shape[1]), chunk.shape)
            parts.append(decoder.step(cache, chunk, everywhere))
        differences.append(_difference(np.concatenate(parts, axis=1), expected))
    return Check("cache: chunks of any split", len(splits), _worst(differences), allowed)


def check_ragged_rows(decoder: Decoder, ids: Ids, expected: Logits, allowed: float) -> Check:
    """Rows of unlike lengths in one batch, chunk after padded chunk, against the whole."""
    batch, time = ids.shape
    rng = np.random.default_rng(0)
    cache = Cache(decoder, batch, time)
    differences = []
    while (room := time - int(cache.length.max())) > 0:
        width = int(rng.integers(1, max(2, min(room, time // 3) + 1)))
        valid = np.asarray(rng.integers(1, width + 1, size=batch))
        chunk = np.zeros((batch, width), np.int64)
        for row, (past, count) in enumerate(zip(cache.length, valid, strict=True)):
            chunk[row, :count] = ids[row, past : past + count]
        before = cache.length
        logits = decoder.step(cache, chunk, np.broadcast_to(np.arange(width), chunk.shape), valid)
        for row, (past, count) in enumerate(zip(before, valid, strict=True)):
            differences.append(_difference(logits[row, :count], expected[row, past : past + count]))
    return Check("cache: rows of unlike lengths", len(differences), _worst(differences), allowed)


def check_greedy(logits_of: LogitsOf, greedy_ids: Ids, golden: Golden, allowed: float) -> Check:
    """The golden greedy text, token for token.

    `worst` is 0 where all tokens agree. At the first that does not, it is how far apart the graph's logits of
    the two tokens are: two that PyTorch holds equal within the tolerance may change places. It is NaN where
    the text ends early, as one does whose logits could not be sampled.
    """
    worst = 0.0
    if len(greedy_ids) < len(golden.greedy_ids):
        worst = math.nan
    elif len(different := np.flatnonzero(greedy_ids != golden.greedy_ids)):
        at = int(different[0])
        context = np.concatenate([golden.greedy_prompt, golden.greedy_ids[:at]])[-golden.input_ids.shape[1] :]
        last = logits_of(context[None])[0, -1]
        worst = float(abs(last[greedy_ids[at]] - last[golden.greedy_ids[at]]))
    return Check("greedy text", len(golden.greedy_ids), worst, allowed)


def greedy(decoder: Decoder, golden: Golden) -> Ids:
    """The tokens that the runtime's own loop appends to the golden prompt, as far as it comes."""
    row = Row(golden.greedy_prompt, len(golden.greedy_ids), np.random.default_rng(0))
    with contextlib.suppress(GptblockError):  # logits that cannot be sampled: the check says so
        for _ in decode(decoder, [row], SamplingConfig(temperature=0.0), "slide"):
            pass
    return row.new_ids


def random_ids(vocab_size: int, block_size: int, rows: int = 3) -> Ids:
    """The token ids that a proof is made with: (rows, block_size), the same on every machine."""
    return np.random.default_rng(1337).integers(0, vocab_size, size=(rows, block_size))


def lengths(block_size: int) -> list[int]:
    """Every length up to block_size; of more than 64, a spread of 64 that holds both ends."""
    spread = np.linspace(1, block_size, min(block_size, 64))
    return sorted({round(length) for length in spread.tolist()})


def _splits(time: int) -> Iterator[list[int]]:
    """Ways to cut `time` tokens: whole, halves, one by one, a single step in the middle, at random."""
    yield [time]
    yield [1] * time
    if time >= 2:
        yield [time // 2, time - time // 2]
        yield [1, time - 1]
        yield [time - 1, 1]
    if time >= 3:
        yield [time // 3, 1, time - time // 3 - 1]
    rng = np.random.default_rng(0)
    for _ in range(4):
        cuts = np.unique(rng.integers(1, time, size=min(4, time - 1))) if time > 1 else np.array([], int)
        yield np.diff([0, *cuts, time]).tolist()


def _worst(differences: list[float]) -> float:
    """The largest; NaN where there is one, which Python's max would pass over."""
    return float(np.max(differences, initial=0.0))


def _difference(got: Logits, expected: Logits) -> float:
    """The largest absolute difference; NaN, which no tolerance allows, where one side has a NaN."""
    if got.shape != expected.shape:
        raise CorruptError(f"logits of shape {got.shape} where {expected.shape} was expected")
    with np.errstate(invalid="ignore"):  # the difference of two infinities is NaN
        return float(np.abs(got - expected).max(initial=0.0))
