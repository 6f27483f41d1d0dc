"""The proof that a graph is the model it was exported from, on the machine and provider that run it.

The exporter and `gptblock verify` run the same checks. Where there are no golden vectors (a lone .onnx) the
graph can still be held against itself: causality, and cached chunks against the uncached whole.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gptblock.bundle.manifest import Check
from gptblock.config import SamplingConfig
from gptblock.errors import CorruptError, GptblockError
from gptblock.runtime.cache import Cache
from gptblock.runtime.decoder import Decoder, Ids, Logits
from gptblock.runtime.generate import Row, decode
from gptblock.runtime.golden import Golden, proof_ids, proof_positions

LogitsOf = Callable[[Ids, Ids], Logits]  # ids (B, T), positions (K,) -> (B, K, vocab_size)

# Largest allowed difference of a logit, by precision and provider, as a share of the largest golden logit
# (at least 1, so that small logits are held to the number itself).
TOLERANCES: dict[tuple[str, str], float] = {
    ("fp32", "cpu"): 1e-5,
    # About twice the worst that was seen in two dozen models, small and trained and fresh.
    ("fp16", "cpu"): 4e-3,
    ("int8", "cpu"): 0.06,
    ("int4", "cpu"): 0.4,
    # Estimates: no GPU has been measured.
    ("fp32", "cuda"): 1e-4,  # TF32 off; other summation orders than on the CPU
    ("fp16", "cuda"): 8e-3,
    ("int8", "cuda"): 0.06,
    ("int4", "cuda"): 0.4,
}

# In these a graph is held against its own uncached logits where its cache is proved. What may differ there is
# what a token's features were rounded to, 8 bits whatever the weights have: a last bit can tip a rounding.
_ROUNDED = ("int8", "int4")

# How far earlier logits may move when a later token changes. On the CPU not at all; on CUDA as the same
# rows of a kernel may be summed in another order from run to run.
CAUSALITY_TOLERANCES: dict[str, float] = {"cpu": 0.0, "cuda": 1e-5}


def tolerance(precision: str, provider: str, logits: Logits) -> float:
    """The largest allowed difference from `logits`; where one is infinite, no more for that."""
    largest = float(np.abs(logits).max())
    return TOLERANCES[precision, provider] * (max(1.0, largest) if math.isfinite(largest) else 1.0)


def prove(decoder: Decoder, golden: Golden | None, expected_of: LogitsOf | None = None) -> list[Check]:
    """Every check of a graph. `expected_of` is PyTorch itself where it is there: the exporter has it."""
    provider, model = decoder.session.provider.name, decoder.metadata.model
    positions = golden.positions if golden else proof_positions(model)
    ids = golden.input_ids if golden else proof_ids(model, positions)
    expected = golden.logits if golden else decoder.logits(ids, positions)
    precision = decoder.metadata.precision
    allowed = tolerance(precision, provider, expected)
    cached, cache_allowed = expected, allowed
    if precision in _ROUNDED:
        cached, cache_allowed = decoder.logits(ids, positions), tolerance("int8", provider, expected)
    checks = []
    if golden:
        checks.append(check_logits(decoder.logits, expected_of or golden.logits_of, ids, positions, allowed))
    unmoved = golden.unmoved.item() if golden else 0
    checks += check_causality(
        decoder.logits, ids, positions, model.vocab_size, CAUSALITY_TOLERANCES[provider], unmoved
    )
    checks.append(check_chunks(decoder, ids, positions, cached, cache_allowed))
    checks.append(check_ragged_rows(decoder, ids, positions, cached, cache_allowed))
    if golden:
        checks.append(check_greedy(decoder.logits, greedy(decoder, golden), golden, 2 * allowed))
    return checks


def check_logits(
    logits_of: LogitsOf, expected_of: LogitsOf, ids: Ids, positions: Ids, allowed: float
) -> Check:
    """Logits of prefixes of `ids` (N, block_size) that end at `positions`, in several batch sizes."""
    prefixes = [(ids[:batch, : end + 1], end) for end in lasts(positions) for batch in sorted({1, len(ids)})]
    differences = []
    for prefix, end in prefixes:
        inside = positions[positions <= end]
        differences.append(_difference(logits_of(prefix, inside), expected_of(prefix, inside)))
    return Check("logits at every length", len(prefixes), _worst(differences), allowed)


def check_causality(
    logits_of: LogitsOf, ids: Ids, positions: Ids, vocab_size: int, allowed: float, unmoved: int = 0
) -> list[Check]:
    """Change the token at each of `positions`: logits before stay, those of its own and later ones move.

    As many are changed at a time as `ids` (N, T) has rows, each in a row of its own: nor may one row move
    another. `unmoved` is at how many positions PyTorch's own do not: a model may have learned to ignore its
    input.
    """
    seen = np.union1d(positions, positions[positions > 0] - 1)  # what a mask too near would let through, too
    base = logits_of(ids, seen)
    moved = []
    stuck = 0
    changing = positions if vocab_size > 1 else positions[:0]
    for group in np.split(changing, range(len(ids), len(changing), len(ids))):
        rows = np.arange(len(group))
        changed = ids.copy()
        changed[rows, group] = (changed[rows, group] + 1) % vocab_size
        logits = logits_of(changed, seen)
        for row, t in zip(rows, group, strict=True):
            moved.append(_difference(logits[row, seen < t], base[row, seen < t]))
            own, later = ((logits[row, at] != base[row, at]).any() for at in (seen == t, seen > t))
            stuck += not own or not (later or t == seen[-1])
    return [
        Check("causality: earlier logits stay", len(changing), _worst(moved), allowed),
        Check("causality: later logits move", len(changing), float(stuck), float(unmoved)),
    ]


def check_chunks(decoder: Decoder, ids: Ids, positions: Ids, expected: Logits, allowed: float) -> Check:
    """Cached chunks of many splits against the whole, `expected` (N, K, vocab_size) at `positions`."""
    splits = list(_splits(ids.shape[1]))
    differences = []
    for split in splits:
        cache = Cache(decoder, len(ids), ids.shape[1])
        for chunk in np.split(ids, np.cumsum(split)[:-1], axis=1):
            whole = np.ones(len(ids), np.int64) * chunk.shape[1]
            differences += _step(decoder, cache, chunk, whole, positions, expected)
    return Check("cache: chunks of any split", len(splits), _worst(differences), allowed)


def check_ragged_rows(decoder: Decoder, ids: Ids, positions: Ids, expected: Logits, allowed: float) -> Check:
    """Rows of unlike lengths in one batch, chunk after padded chunk, against the whole."""
    if len(ids) == 1:  # of a large model; its row once more, cut elsewhere
        ids, expected = ids.repeat(2, axis=0), expected.repeat(2, axis=0)
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
        differences += _step(decoder, cache, chunk, valid, positions, expected)
    return Check("cache: rows of unlike lengths", len(differences), _worst(differences), allowed)


def _step(
    decoder: Decoder, cache: Cache, chunk: Ids, valid: Ids, positions: Ids, expected: Logits
) -> list[float]:
    """Read a chunk, of which `valid` (B,) tokens a row count, and compare each row that holds a position."""
    ends = cache.length + valid
    found = [
        np.flatnonzero((past <= positions) & (positions < end))
        for past, end in zip(cache.length, ends, strict=True)
    ]  # a row's indices into positions
    wanted = np.zeros((len(chunk), max(1, *map(len, found))), np.int64)  # (B, most), padded with 0
    for row, indices in enumerate(found):
        wanted[row, : len(indices)] = positions[indices] - cache.length[row]
    logits = decoder.step(cache, chunk, wanted, valid)  # (B, most, vocab_size)
    return [
        _difference(logits[row, : len(indices)], expected[row, indices])
        for row, indices in enumerate(found)
        if len(indices)
    ]


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
        last = logits_of(context[None], np.array([len(context) - 1]))[0, -1]
        worst = float(abs(last[greedy_ids[at]] - last[golden.greedy_ids[at]]))
    return Check("greedy text", len(golden.greedy_ids), worst, allowed)


def greedy(decoder: Decoder, golden: Golden) -> Ids:
    """The tokens that the runtime's own loop appends to the golden prompt, as far as it comes."""
    row = Row(golden.greedy_prompt, len(golden.greedy_ids), np.random.default_rng(0))
    with contextlib.suppress(GptblockError):  # logits that cannot be sampled: the check says so
        for _ in decode(decoder, [row], SamplingConfig(temperature=0.0), "slide"):
            pass
    return row.new_ids


def lasts(positions: Ids) -> list[int]:
    """The last positions of the prefixes that are tried: `positions`, of more than 64 a spread of 64."""
    spread = np.linspace(0, len(positions) - 1, min(len(positions), 64))
    ends: list[int] = positions[np.unique(spread.round().astype(int))].tolist()
    return ends


def _splits(time: int) -> Iterator[list[int]]:
    """Ways to cut `time` tokens: whole, halves, the last 256 one by one, a single step, at random."""
    yield [time]
    yield [*([time - 256] if time > 256 else []), *[1] * min(time, 256)]
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


def _worst(differences: Sequence[float]) -> float:
    """The largest; NaN where there is one, which Python's max would pass over."""
    return float(np.max(differences, initial=0.0))


def _difference(got: Logits, expected: Logits) -> float:
    """The largest absolute difference; NaN, which no tolerance allows, where one side has a NaN."""
    if got.shape != expected.shape:
        raise CorruptError(f"logits of shape {got.shape} where {expected.shape} was expected")
    with np.errstate(invalid="ignore"):  # the difference of two infinities is NaN
        return float(np.abs(got - expected).max(initial=0.0))
