"""Random GPT-2 weights, the same for everybody, as a folder that transformers wrote."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

SEED = 1337
# GPT-2's own 0.02 makes a random model say one token for ever; with this its greedy text keeps changing.
STANDARD_DEVIATION = 0.07


@dataclass(frozen=True)
class Size:
    """The shape of a model, and how long it is timed."""

    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    vocab_size: int
    new_tokens: int  # a decode of one row
    batch_tokens: int  # a decode of several rows, each

    @property
    def products(self) -> int:
        """Weights that a token is multiplied with: the blocks' matrices and the head (tied, so once)."""
        return 12 * self.n_layer * self.n_embd**2 + self.vocab_size * self.n_embd

    def cache_bytes(self, tokens: float) -> float:
        """Keys and values of so many tokens, in fp32."""
        return 2 * self.n_layer * self.n_embd * tokens * 4


SIZES = {
    "S": Size(6, 6, 384, 256, 65, new_tokens=240, batch_tokens=64),
    "L": Size(12, 12, 768, 1024, 50257, new_tokens=64, batch_tokens=64),
}


def make_weights(size: Size, folder: Path) -> None:
    """Write config.json, model.safetensors and tokenizer.json, unless they are there."""
    if folder.is_dir():
        return
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=size.n_layer,
        n_head=size.n_head,
        n_embd=size.n_embd,
        n_positions=size.block_size,
        vocab_size=size.vocab_size,
        initializer_range=STANDARD_DEVIATION,
        bos_token_id=None,
        eos_token_id=None,  # a benchmark goes on to its last token
    )
    torch.manual_seed(SEED)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases of zeros, which no trained model has, some peers leave out
                parameter += STANDARD_DEVIATION * torch.randn_like(parameter)
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    model.save_pretrained(new)
    _write_tokenizer(size.vocab_size, new / "tokenizer.json")
    # GPT-2's own class would add a token that the model has no row for.
    (new / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n')
    new.rename(folder)


def _write_tokenizer(vocab_size: int, path: Path) -> None:
    """Byte-level BPE of as many tokens: byte symbols, then the first pairs of them. Nobody reads its text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())[:vocab_size]
    pairs = list(islice(product(symbols, repeat=2), vocab_size - len(symbols)))
    tokens = [*symbols, *map("".join, pairs)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))
