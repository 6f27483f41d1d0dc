"""The model that is trained and exported: the lecture's transformer, all heads in one projection."""

from gptblock.model.attention import MultiHeadAttention
from gptblock.model.block import Block
from gptblock.model.feedforward import FeedForward
from gptblock.model.gpt import GPT, count_parameters, eval_mode, loss
from gptblock.model.norm import LayerNorm, RMSNorm

__all__ = [
    "GPT",
    "Block",
    "MultiHeadAttention",
    "FeedForward",
    "LayerNorm",
    "RMSNorm",
    "loss",
    "count_parameters",
    "eval_mode",
]
