"""The language model: embeddings, blocks, a head; its loss; and the reference of how it generates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptblock.config import ModelConfig, Overflow, SamplingConfig
from gptblock.errors import InputError
from gptblock.model.block import Block
from gptblock.model.norm import make_norm
from gptblock.sampling import sample


class GPT(nn.Module):
    """input_ids (B, T) int64 -> logits (B, T, vocab_size), with 1 <= T <= block_size.

    As configured by default: learned positions, pre-norm blocks, a final norm, and a head that is not tied to
    the embedding. Post-norm blocks end in a norm and have no final one. A tied head shares the embedding's
    weights (Press and Wolf 2017).

    The weights start as `config.init` says: "gpt2" draws them with std 0.02 and those of the projections back
    into the residual stream with 0.02 / sqrt(2 * n_layer), since the stream sums 2 * n_layer of them (Radford
    et al. 2019, section 2.3); "normal" draws all with std 0.02; both set biases to 0; "torch" leaves torch's.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.block_size = config.block_size  # TorchScript reads integers in forward, not a dataclass
        self.token_embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.position_embedding = (
            nn.Embedding(config.block_size, config.n_embd) if config.positions == "learned" else None
        )
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = make_norm(config) if config.norm_placement == "pre" else nn.Identity()
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=config.bias == "lecture")
        if config.tie_weights:
            self.token_embedding.weight = self.lm_head.weight
        if config.init != "torch":
            _draw_weights(self, config)

    def forward(self, input_ids: Tensor) -> Tensor:
        """The logits of every position's next token. Raises InputError where T is above block_size."""
        logits: Tensor = self.lm_head(self.features(input_ids))  # (B, T, vocab_size)
        return logits

    def features(self, input_ids: Tensor) -> Tensor:
        """What the head reads, for whoever wants the logits of a few positions: (B, T) -> (B, T, C)."""
        T = input_ids.size(1)
        if self.block_size < T:
            raise InputError(
                f"the input is {T} tokens long and the model reads at most block_size = {self.block_size}: "
                f"pass the last {self.block_size} tokens, as generate does"
            )
        x = self.token_embedding(input_ids)  # (B, T) -> (B, T, C)
        if self.position_embedding is not None:
            x = x + self.position_embedding.weight[:T]
        for block in self.blocks:
            x = block(x)  # (B, T, C)
        features: Tensor = self.ln_f(x)
        return features

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        max_new_tokens: int,
        sampling: SamplingConfig,
        seed: int,
        overflow: Overflow = "slide",
    ) -> Tensor:
        """Continue input_ids (B, T) int64 by up to max_new_tokens each -> (B, T + new), prompt included.

        The reference that every runtime reproduces token for token. Row i draws from
        `numpy.random.default_rng([seed, i])` and from nothing else. Dropout is off meanwhile, whatever mode
        the model is in.

        The context is what the model sees. It starts as the prompt, grows by each token drawn, and a token
        may be drawn from a context of up to block_size tokens. When a token is wanted and the context has
        block_size + 1, `overflow` decides:

        * "slide": the context becomes its last block_size tokens, now and for each further token. This is the
          lecture's `idx[:, -block_size:]`; every position shifts each time, so no cache could be kept.
        * "rebase": it becomes its last max(1, block_size // 2) tokens, and grows to block_size again.
        * "stop": generation ends, so that prompt and continuation are at most block_size + 1 tokens.

        A prompt longer than block_size: "slide" and "rebase" both start from its last block_size tokens,
        "stop" ends at once. A repetition penalty looks at all tokens so far, not at the context alone.

        Raises InputError for a prompt without tokens, a negative max_new_tokens or seed, an unknown overflow.
        """
        _refuse_unusable(input_ids, max_new_tokens, seed, overflow)
        if overflow == "stop" and input_ids.size(1) > self.block_size:
            return input_ids
        tokens = input_ids  # (B, T), growing
        context = input_ids[:, -self.block_size :]
        generators = [np.random.default_rng([seed, row]) for row in range(len(input_ids))]
        with eval_mode(self):
            for _ in range(max_new_tokens):
                if context.size(1) > self.block_size:
                    if overflow == "stop":
                        break
                    kept = self.block_size if overflow == "slide" else max(1, self.block_size // 2)
                    context = context[:, -kept:]
                last = self.lm_head(self.features(context)[:, -1]).float().cpu().numpy()  # (B, vocab_size)
                rows = zip(last, tokens.cpu().numpy(), generators, strict=True)
                drawn = [sample(logits, sampling, previous, rng) for logits, previous, rng in rows]
                column = torch.tensor(drawn, dtype=tokens.dtype, device=tokens.device)[:, None]  # (B, 1)
                tokens = torch.cat((tokens, column), dim=1)
                context = torch.cat((context, column), dim=1)
        return tokens


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats: logits (B, T, vocab_size) against the next tokens, targets (B, T) int64."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def count_parameters(module: nn.Module) -> int:
    """How many numbers the module learns; a tied head's are the embedding's."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, and each submodule's own mode again afterwards, after an error too."""
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for child, training in modes:
            child.training = training


def _draw_weights(model: GPT, config: ModelConfig) -> None:
    """Start the weights from normal draws of torch's global generator, biases from 0."""
    std = 0.02
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    if config.init == "gpt2":
        for name, parameter in model.named_parameters():
            if name.endswith(("attention.proj.weight", "feedforward.down.weight")):
                nn.init.normal_(parameter, std=std / (2 * config.n_layer) ** 0.5)


def _refuse_unusable(input_ids: Tensor, max_new_tokens: int, seed: int, overflow: str) -> None:
    if input_ids.dim() != 2 or input_ids.size(1) == 0:
        raise InputError(
            f"input_ids must be (B, T) with T >= 1: got {tuple(input_ids.shape)}; "
            "where there is no prompt, start from token 0 as the lecture does"
        )
    for name, value in (("max_new_tokens", max_new_tokens), ("seed", seed)):
        if value < 0:
            raise InputError(f"{name} must be >= 0: got {value}")
    if overflow not in get_args(Overflow):
        raise InputError(f"overflow must be one of {', '.join(get_args(Overflow))}: got {overflow!r}")
