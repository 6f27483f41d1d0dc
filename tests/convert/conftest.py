"""Checkpoints of other programs, each with the model that computes them: the oracles."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptblock.config import ModelConfig
from gptblock.lecture import GPT, Head

VOCAB = "\n !abcdefghijklmnopqrstuvwxyz"
Logits = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1337)


@pytest.fixture
def vocab_file(tmp_path: Path) -> Path:
    path = tmp_path / "chars.txt"
    path.write_text(VOCAB[::-1] * 3, encoding="utf-8")
    return path


class EarlyHead(Head):
    """A head of an early version of the lecture's file, which scales by the width of its input."""

    def affinities(self, x: Tensor) -> Tensor:
        T, C = x.shape[1:]
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * C**-0.5  # (B, T, T)
        return F.softmax(scores.masked_fill(self.tril[:T, :T] == 0, float("-inf")), dim=-1)


def lecture_model(scale: str = "head_size", **sizes: int) -> GPT:
    sizes = {"block_size": 16, "n_layer": 2, "n_head": 4, "n_embd": 32, **sizes}
    model = GPT(ModelConfig(vocab_size=len(VOCAB), init="torch", **sizes)).eval()
    if scale == "n_embd":
        for module in model.modules():
            if isinstance(module, Head):
                module.__class__ = EarlyHead
    return model


class NanoBlock(nn.Module):
    def __init__(self, n_embd: int, n_head: int, bias: bool) -> None:
        super().__init__()
        self.n_head = n_head
        self.ln_1 = nn.LayerNorm(n_embd, bias=bias)
        self.attn = nn.ModuleDict(
            {
                "c_attn": nn.Linear(n_embd, 3 * n_embd, bias=bias),
                "c_proj": nn.Linear(n_embd, n_embd, bias=bias),
            }
        )
        self.ln_2 = nn.LayerNorm(n_embd, bias=bias)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(n_embd, 4 * n_embd, bias=bias),
                "c_proj": nn.Linear(4 * n_embd, n_embd, bias=bias),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        split = self.attn["c_attn"](self.ln_1(x)).split(C, dim=2)
        q, k, v = (part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in split)
        hidden = torch.ones(T, T).triu(1).bool()
        scores = (q @ k.mT / (C // self.n_head) ** 0.5).masked_fill(hidden, -torch.inf)
        x = x + self.attn["c_proj"]((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
        up = self.mlp["c_fc"](self.ln_2(x))
        return x + self.mlp["c_proj"](up * (1 + torch.erf(up / 2**0.5)) / 2)


class NanoGPT(nn.Module):
    """nanoGPT's model from its description: GPT-2's names, exact GELU, linear layers, a tied head."""

    def __init__(self, *, bias: bool = True, vocab_size: int = len(VOCAB), **sizes: int) -> None:
        super().__init__()
        self.args = {"block_size": 16, "n_layer": 2, "n_head": 4, "n_embd": 32, **sizes}
        self.args |= {"bias": bias, "vocab_size": vocab_size, "dropout": 0.1}
        n_embd, blocks = self.args["n_embd"], range(self.args["n_layer"])
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, n_embd),
                "wpe": nn.Embedding(self.args["block_size"], n_embd),
                "h": nn.ModuleList(NanoBlock(n_embd, self.args["n_head"], bias) for _ in blocks),
                "ln_f": nn.LayerNorm(n_embd, bias=bias),
            }
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.transformer["wte"](ids) + self.transformer["wpe"].weight[: ids.shape[1]]
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))

    def save(self, path: Path, *, prefix: str = "", **more: object) -> Path:
        state = {prefix + name: tensor for name, tensor in self.state_dict().items()}
        extras = {"optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}, "iter_num": 7, "config": {"a": 1}}
        loss = {"best_val_loss": torch.tensor(1.5)}
        torch.save({"model": state, "model_args": self.args, **extras, **loss, **more}, path)
        return path


def save_meta(path: Path, vocab: str = VOCAB) -> Path:
    """nanoGPT's meta.pkl, whose ids are in the order of `vocab`."""
    stoi = {symbol: index for index, symbol in enumerate(vocab)}
    itos = {index: symbol for symbol, index in stoi.items()}
    path.write_bytes(pickle.dumps({"vocab_size": len(vocab), "itos": itos, "stoi": stoi}))
    return path


def save_tokenizer(folder: Path, symbols: int = 60) -> Path:
    """A tokenizer.json of byte-level BPE with so many symbols, the last of them special."""
    words = {"a": 0, "\u010a": 1} | {f"w{i}": i for i in range(2, symbols - 1)}
    special = {"id": symbols - 1, "content": "<|endoftext|>", "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    values = {
        "version": "1.0",
        "added_tokens": [special | flags],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": words | {"<|endoftext|>": symbols - 1}, "merges": []},
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


@pytest.fixture
def lecture() -> Callable[..., GPT]:
    return lecture_model


@pytest.fixture
def nanogpt() -> type[NanoGPT]:
    return NanoGPT


@pytest.fixture
def meta() -> Callable[..., Path]:
    return save_meta


@pytest.fixture
def tokenizer_json() -> Callable[..., Path]:
    return save_tokenizer


@pytest.fixture
def difference() -> Callable[[nn.Module, Logits, int], float]:
    """The largest difference of logits over lengths and batches, where the greedy tokens agree as well."""

    def measure(model: nn.Module, oracle: Logits, vocab_size: int) -> float:
        worst = 0.0
        for length in range(1, model.config.block_size + 1):
            ids = torch.randint(vocab_size, (3, length))
            with torch.no_grad():
                ours, theirs = model(ids), oracle(ids)[..., :vocab_size]
            worst = max(worst, (ours - theirs).abs().max().item())
            assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
        return worst

    return measure
