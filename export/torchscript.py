"""The model as a TorchScript file, for programs that run libtorch: a C++ program can call both methods.

Upstream has deprecated torch.jit, and it warns; this is the only module that uses it.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from gptblock.model.gpt import GPT


class _Scripted(nn.Module):
    """What the file holds. Scripted, not traced: a trace would freeze the example's device and length."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        self.block_size = model.config.block_size

    def forward(self, input_ids: Tensor) -> Tensor:
        """int64 (B, T) -> float (B, T, vocab_size); T at most block_size."""
        return self.model(input_ids)  # type: ignore[no-any-return]

    @torch.jit.export
    def generate(self, input_ids: Tensor, max_new_tokens: int, temperature: float, top_k: int) -> Tensor:
        """int64 (B, T) -> int64 (B, T + max_new_tokens); temperature 0 is greedy, top_k 0 is off.

        Beyond block_size the window slides, as in the lecture. Draws from torch's global generator.
        """
        for _ in range(max_new_tokens):
            window = input_ids[:, -self.block_size :]
            logits = self.model.lm_head(self.model.features(window)[:, -1])  # (B, vocab_size)
            if temperature == 0.0:
                token = logits.argmax(dim=-1, keepdim=True)  # (B, 1)
            else:
                logits = logits / temperature
                if top_k > 0:
                    kept, ids = logits.topk(min(top_k, logits.size(-1)))  # (B, top_k), exactly so many
                    logits = torch.full_like(logits, float("-inf")).scatter(1, ids, kept)
                token = torch.multinomial(logits.softmax(dim=-1), num_samples=1)  # (B, 1)
            input_ids = torch.cat((input_ids, token), dim=1)
        return input_ids


def export_torchscript(model: GPT, path: Path) -> None:
    """Write `model` to `path`: in eval mode, without dropout, on the CPU. `model` itself is left as it is."""
    # The copy shares those weights that are on the CPU. None asks for gradients: the file is for inference.
    weights = {id(weight): nn.Parameter(weight.detach().cpu(), False) for weight in model.parameters()}
    scripted = copy.deepcopy(model, memo=weights).cpu().eval()
    _remove_dropout(scripted)
    with _deprecated_upstream():
        # Not frozen: freezing bakes the weights in, so that .to() would do nothing.
        torch.jit.script(_Scripted(scripted)).save(path)  # type: ignore[no-untyped-call]


def load_torchscript(path: Path) -> torch.jit.ScriptModule:
    """Open such a file, on the CPU."""
    with _deprecated_upstream():
        loaded: torch.jit.ScriptModule = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    return loaded


def _remove_dropout(module: nn.Module) -> None:
    """Take dropout out altogether: .train() on the loaded file must not bring it back."""
    for name, child in module.named_children():
        if isinstance(child, nn.Dropout):
            setattr(module, name, nn.Identity())
        else:
            _remove_dropout(child)
    if isinstance(getattr(module, "dropout", None), float):
        module.dropout = 0.0  # type: ignore[assignment]


@contextlib.contextmanager
def _deprecated_upstream() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*deprecated", category=DeprecationWarning)
        yield
