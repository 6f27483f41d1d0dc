"""The module that is exported: the model over chunks of tokens, with a key/value cache written in place.

Contract of the graph (B rows, T new tokens each, K positions wanted, `capacity` tokens of cache):

    input_ids                       int64 (B, T)
    past_length                     int64 (B,)              tokens of each row already in the cache
    logits_positions                int64 (B, K)            which of the T positions get logits
    past_key_values.{i}.key|value   float (B, capacity, C)  one pair a layer
    past_shift.{i}                  float (B, capacity, C)  one a layer, of models with a token shift only
    logits                          float (B, K, vocab_size)
    present.{i}.key|value           float (B, capacity, C)  the same buffers, where the caller binds them so
    present_shift.{i}               float (B, capacity, C)

Of a model in fp16 the cache is float16 too; the logits are float32 still, and so are scores, softmax and the
statistics of the norms inside.

Rows may have different lengths. A row's chunk is written at past_length .. past_length + T, padding
included, so past_length + T must not exceed the capacity; what padding wrote is overwritten by the row's
next chunk, which starts at its valid length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gptblock.model.block import Block
from gptblock.model.gpt import GPT
from gptblock.model.shift import TokenShift

# The first standard opset with TensorScatter, and with Attention over a cache of valid lengths.
OPSET = 24


class CachedGPT(nn.Module):
    """A GPT as the exporter sees it. Shares the model's weights; holds none of its own."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        self.block_size = model.config.block_size
        self.n_head = model.config.n_head
        self.scale = model.config.head_size**-0.5

    def forward(
        self,
        input_ids: Tensor,  # (B, T)
        past_length: Tensor,  # (B,)
        logits_positions: Tensor,  # (B, K)
        caches: list[Tensor],  # n_layer pairs of (B, capacity, C), then n_layer more or none, for the shift
    ) -> tuple[Tensor, ...]:
        time = input_ids.shape[1]
        positions = past_length[:, None] + torch.arange(time)  # (B, T)
        positions = positions.clamp(max=self.block_size - 1)  # padding may reach past the table
        x = self.model.token_embedding(input_ids)  # (B, T, C)
        if self.model.position_embedding is not None:
            x = x + self.model.position_embedding(positions)
        wanted = logits_positions[:, :, None].expand(-1, -1, x.shape[-1])  # (B, K, C)
        present: list[Tensor] = []
        present_shift: list[Tensor] = []
        last = len(self.model.blocks) - 1
        for i, block in enumerate(self.model.blocks):
            assert isinstance(block, Block)
            q, k, v = block.attention.project(block.before_attention(x), positions)  # 3 x (B, T, C)
            key = scatter(caches[2 * i], k, past_length)  # (B, capacity, C)
            value = scatter(caches[2 * i + 1], v, past_length)
            y = attend(q, key, value, past_length + time, self.n_head, self.scale)  # (B, T, C)
            present += [key, value]
            # Of the last block only keys and values are needed at positions that nobody reads.
            if i == last and not isinstance(block.shift, TokenShift):
                x, y = x.gather(1, wanted), y.gather(1, wanted)  # (B, T, C) -> (B, K, C)
            x = block.after_attention(x, block.attention.proj(y))
            read = block.before_feedforward(x)
            if isinstance(block.shift, TokenShift):
                cache = scatter(caches[2 * len(self.model.blocks) + i], read, past_length)
                before = tokens_before(cache, past_length, block.shift.token_shift)
                read = block.shift.mix(torch.cat((before, read), dim=1))
                present_shift.append(cache)
                if i == last:
                    x, read = x.gather(1, wanted), read.gather(1, wanted)  # (B, T, C) -> (B, K, C)
            x = block.after_feedforward(x, block.feedforward(read))
        return self.model.lm_head(self.model.ln_f(x)).float(), *present, *present_shift


def scatter(cache: Tensor, new: Tensor, past_length: Tensor) -> Tensor:
    """ONNX TensorScatter: `new` (B, T, C) written into `cache` (B, capacity, C) from past_length on."""
    return torch.onnx.ops.symbolic(
        "TensorScatter",
        (cache, new, past_length),
        {"axis": 1},
        dtype=cache.dtype,
        shape=cache.shape,
        version=OPSET,
    )


def tokens_before(cache: Tensor, past_length: Tensor, count: int) -> Tensor:
    """The last `count` tokens of `cache` before past_length, zero where there are none: (B, count, C)."""
    places = past_length[:, None] + torch.arange(-count, 0)  # (B, count)
    before = cache.gather(1, places.clamp(min=0)[:, :, None].expand(-1, -1, cache.shape[-1]))
    return before * (places >= 0)[:, :, None].to(cache.dtype)


def attend(q: Tensor, key: Tensor, value: Tensor, length: Tensor, n_head: int, scale: float) -> Tensor:
    """ONNX Attention: `q` (B, T, C) over a cache of which `length` (B,) tokens are there -> (B, T, C).

    The kernel aligns the causal mask so that the last query sees all `length` tokens; `length` counts
    the chunk's padding too, for otherwise its first queries would see too little. Scores are computed in
    float32 whatever the cache is kept in: of large queries and keys they pass what float16 can hold.
    """
    out: Tensor = torch.onnx.ops.symbolic(
        "Attention",
        (q.float(), key.float(), value.float(), None, None, None, length),
        {"is_causal": 1, "q_num_heads": n_head, "kv_num_heads": n_head, "scale": scale},
        dtype=torch.float32,
        shape=q.shape,
        version=OPSET,
    )
    return out.to(q.dtype)
