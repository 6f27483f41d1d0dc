"""Other people's checkpoints become a run: the lecture's gpt.py, nanoGPT, GPT-2 of transformers."""

from gptblock.convert.convert import Conversion, Source, convert
from gptblock.convert.lecture import Scale

__all__ = ["convert", "Conversion", "Source", "Scale"]
