"""An exported file against eager PyTorch: the golden vectors, and the proof of each format."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch

from gptblock.bundle.manifest import Check
from gptblock.config import SamplingConfig
from gptblock.export.torchscript import load_torchscript
from gptblock.model.gpt import GPT, eval_mode
from gptblock.runtime.decoder import Decoder, Ids, Logits
from gptblock.runtime.golden import Golden, proof_ids, proof_positions
from gptblock.runtime.heap import return_large_blocks
from gptblock.runtime.proof import LogitsOf, check_causality, check_greedy, check_logits, prove, tolerance
from gptblock.runtime.session import open_session

# The golden greedy text starts so far from the end of the window, and goes on beyond it by as much as the
# model is small, up to 16: so that it holds cached steps and a window that slides.
GREEDY_BEFORE, GREEDY_BEYOND = 8, 16


def make_golden(model: GPT) -> Golden:
    """What eager PyTorch says, on the CPU: logits of random tokens, and a greedy text beyond block_size."""
    config = model.config
    positions = proof_positions(config)
    ids = proof_ids(config, positions)
    prompt = ids[0, : max(1, config.block_size - GREEDY_BEFORE)]
    beyond = GREEDY_BEYOND if len(positions) == config.block_size else min(GREEDY_BEYOND, len(positions))
    text = model.generate(
        torch.from_numpy(prompt[None]), GREEDY_BEFORE + beyond, SamplingConfig(temperature=0.0), seed=0
    )
    logits_of = functools.partial(eager_logits, model)
    moving = check_causality(logits_of, ids, positions, config.vocab_size, allowed=0.0)[1]
    return Golden(
        input_ids=ids,
        positions=positions,
        logits=eager_logits(model, ids, positions),
        greedy_prompt=prompt,
        greedy_ids=text[0, len(prompt) :].numpy(),
        unmoved=np.array([moving.worst], np.int64),
    )


def eager_logits(model: GPT, ids: Ids, positions: Ids) -> Logits:
    """PyTorch's logits in eval mode: (B, T), at positions (K,) -> float32 (B, K, vocab_size)."""
    with eval_mode(model), torch.no_grad():
        features = model.features(torch.from_numpy(ids))  # (B, T, C)
        logits: Logits = model.lm_head(features[:, torch.from_numpy(positions)]).numpy()
    return logits


def eager_prefixes(model: GPT, golden: Golden) -> LogitsOf:
    """`eager_logits` of prefixes of the golden rows; each once, however many files are held against it."""

    @functools.cache
    def prefix(batch: int, time: int) -> Logits:
        positions = golden.positions[golden.positions < time]
        return eager_logits(model, golden.input_ids[:batch, :time], positions)

    def logits_of(ids: Ids, positions: Ids) -> Logits:
        batch, time = ids.shape
        assert np.array_equal(ids, golden.input_ids[:batch, :time])
        assert np.array_equal(positions, golden.positions[golden.positions < time])
        return prefix(batch, time)

    return logits_of


def prove_onnx(
    path: Path, golden: Golden, expected_of: LogitsOf | None = None, batch_graph: Path | None = None
) -> list[Check]:
    """Every check of an ONNX file on the CPU provider; without `expected_of`, by `golden` alone."""
    session = open_session(path, batch_graph=batch_graph, provider="cpu", lean=_is_large(golden))
    return prove(Decoder(session), golden, expected_of)


def prove_torchscript(path: Path, golden: Golden, expected_of: LogitsOf | None = None) -> list[Check]:
    """The same of a TorchScript file; it has no cache, so the checks of one do not apply."""
    loaded = load_torchscript(path)
    if _is_large(golden):
        return_large_blocks()

    @torch.no_grad()
    def logits_of(ids: Ids, positions: Ids) -> Logits:
        logits: Logits = loaded(torch.from_numpy(ids))[:, torch.from_numpy(positions)].numpy()
        return logits

    prompt = torch.from_numpy(golden.greedy_prompt[None])  # (1, P)
    text = loaded.generate(prompt, len(golden.greedy_ids), 0.0, 0)[0, prompt.shape[1] :].numpy()
    allowed = tolerance("fp32", "cpu", golden.logits)
    ids, positions, vocab_size = golden.input_ids, golden.positions, golden.logits.shape[-1]
    unmoved = golden.unmoved.item()
    return [
        check_logits(logits_of, expected_of or golden.logits_of, ids, positions, allowed),
        *check_causality(logits_of, ids, positions, vocab_size, allowed=0.0, unmoved=unmoved),
        check_greedy(logits_of, np.asarray(text), golden, 2 * allowed),
    ]


def _is_large(golden: Golden) -> bool:
    """Whether the model is proved at some positions only, and its proof is to mind memory."""
    block_size: int = golden.input_ids.shape[1]
    return len(golden.positions) < block_size
