"""The model as the lecture writes it, one head at a time: what `gptblock.model` is tested against."""

from gptblock.lecture.attention import Head, MultiHeadAttention
from gptblock.lecture.block import Block, FeedForward, FeedFoward
from gptblock.lecture.gpt import GPT
from gptblock.lecture.weights import to_model

__all__ = ["GPT", "Block", "MultiHeadAttention", "Head", "FeedForward", "FeedFoward", "to_model"]
