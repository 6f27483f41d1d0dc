"""The lecture's language model, loss and generation included."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptblock.config import ModelConfig
from gptblock.errors import InputError
from gptblock.lecture.block import Block


class GPT(nn.Module):
    """idx (B, T) int64 -> logits and, where targets (B, T) are given, the loss; T <= block_size.

    As in the lecture's file, logits come as (B, T, vocab_size) without targets and as (B * T, vocab_size)
    with them. `config.init` is followed as in `gptblock.model`; the lecture's last file is "normal", its
    earlier ones are "torch".
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding_table = nn.Embedding(config.vocab_size, config.n_embd)
        self.position_embedding_table = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.Sequential(
            *(
                Block(config.n_embd, config.n_head, config.block_size, config.dropout)
                for _ in range(config.n_layer)
            )
        )
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size)
        if config.init != "torch":
            self.apply(self._init_weights)
        if config.init == "gpt2":
            for name, parameter in self.named_parameters():
                if name.endswith(("sa.proj.weight", "ffwd.net.2.weight")):
                    nn.init.normal_(parameter, std=0.02 / (2 * config.n_layer) ** 0.5)

    @staticmethod
    def _init_weights(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits, and the mean cross-entropy in nats or None. Raises InputError for T > block_size."""
        T, block_size = idx.shape[1], self.config.block_size
        if block_size < T:
            raise InputError(
                f"the input is {T} tokens long and the model reads at most block_size = {block_size}: "
                f"pass the last {block_size} tokens, as generate does"
            )
        positions = torch.arange(T, device=idx.device)  # (T,)
        x = self.token_embedding_table(idx) + self.position_embedding_table(positions)  # (B, T, C)
        x = self.blocks(x)  # (B, T, C)
        logits = self.lm_head(self.ln_f(x))  # (B, T, vocab_size)
        if targets is None:
            return logits, None
        logits = logits.flatten(0, 1)  # (B * T, vocab_size)
        return logits, F.cross_entropy(logits, targets.flatten())

    @torch.no_grad()
    def generate(self, idx: Tensor, max_new_tokens: int, generator: torch.Generator | None = None) -> Tensor:
        """Append draws to idx (B, T) -> (B, T + max_new_tokens); the model reads the last block_size tokens.

        Like the lecture's: the mode is the caller's, and without a generator torch's global one draws.
        """
        for _ in range(max_new_tokens):
            logits, _ = self(idx[:, -self.config.block_size :])  # (B, T, vocab_size)
            probs = F.softmax(logits[:, -1, :], dim=-1)  # (B, vocab_size)
            idx_next = torch.multinomial(probs, num_samples=1, generator=generator)  # (B, 1)
            idx = torch.cat((idx, idx_next), dim=1)  # (B, T + 1)
        return idx
