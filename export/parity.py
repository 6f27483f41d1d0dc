"""An exported file against eager PyTorch: the golden vectors, and the proof of each format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from gptblock.bundle.manifest import Check
from gptblock.config import SamplingConfig
from gptblock.export.torchscript import load_torchscript
from gptblock.model.gpt import GPT, eval_mode
from gptblock.runtime.decoder import Decoder, Ids, Logits
from gptblock.runtime.proof import (
    Golden,
    check_causality,
    check_greedy,
    check_logits,
    prove,
    random_ids,
    tolerance,
)
from gptblock.runtime.session import open_session

# The golden greedy text starts this far from the end of the window, and goes on beyond it, so that it
# holds cached steps and a window that slides.
GREEDY_BEFORE, GREEDY_BEYOND = 8, 16


def make_golden(model: GPT) -> Golden:
    """What eager PyTorch says, on the CPU: logits of random tokens, and a greedy text beyond block_size."""
    block_size = model.config.block_size
    ids = random_ids(model.config.vocab_size, block_size)
    prompt = ids[0, : max(1, block_size - GREEDY_BEFORE)]
    text = model.generate(
        torch.from_numpy(prompt[None]), GREEDY_BEFORE + GREEDY_BEYOND, SamplingConfig(temperature=0.0), seed=0
    )
    move = check_causality(lambda ids: eager_logits(model, ids), ids, model.config.vocab_size, allowed=0.0)[1]
    return Golden(
        input_ids=ids,
        logits=eager_logits(model, ids),
        greedy_prompt=prompt,
        greedy_ids=text[0, len(prompt) :].numpy(),
        unmoved=np.array([move.worst], np.int64),
    )


def eager_logits(model: GPT, ids: Ids) -> Logits:
    """PyTorch's logits in eval mode: (B, T) -> float32 (B, T, vocab_size)."""
    with eval_mode(model), torch.no_grad():
        logits: Logits = model(torch.from_numpy(ids)).numpy()
    return logits


def prove_onnx(model: GPT, path: Path, golden: Golden) -> list[Check]:
    """Every check of an ONNX file on the CPU provider, with `model` (on the CPU) at hand."""
    return prove(Decoder(open_session(path, provider="cpu")), golden, lambda ids: eager_logits(model, ids))


def prove_torchscript(model: GPT, path: Path, golden: Golden) -> list[Check]:
    """Every check of a TorchScript file; it has no cache, so the checks of one do not apply."""
    loaded = load_torchscript(path)

    @torch.no_grad()
    def logits_of(ids: Ids) -> Logits:
        logits: Logits = loaded(torch.from_numpy(ids)).numpy()
        return logits

    prompt = torch.from_numpy(golden.greedy_prompt[None])  # (1, P)
    text = loaded.generate(prompt, len(golden.greedy_ids), 0.0, 0)[0, prompt.shape[1] :].numpy()
    allowed = tolerance("fp32", "cpu", golden.logits)
    return [
        check_logits(logits_of, lambda ids: eager_logits(model, ids), golden.input_ids, allowed),
        *check_causality(
            logits_of, golden.input_ids, model.config.vocab_size, allowed=0.0, unmoved=golden.unmoved.item()
        ),
        check_greedy(logits_of, np.asarray(text), golden, 2 * allowed),
    ]
