"""The parts that a block can be made of, held against independent implementations with the same weights."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.llama import modeling_llama as llama
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.qwen3 import modeling_qwen3 as qwen3
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from gptblock.config import ModelConfig
from gptblock.errors import ConfigError
from gptblock.model import GPT, Block, FeedForward, MultiHeadAttention, RMSNorm, count_parameters
from gptblock.model.rotary import THETA, Rotary

B, T = 2, 12
LLAMA = {"norm": "rmsnorm", "feedforward": "swiglu", "positions": "rope", "bias": "none", "norm_eps": 1e-6}


@pytest.fixture
def x(tiny: ModelConfig) -> Tensor:
    return torch.randn(B, T, tiny.n_embd)


def llama_config(config: ModelConfig) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.n_embd,
        intermediate_size=config.ff_size,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        max_position_embeddings=config.block_size,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=False,
        attn_implementation="eager",
    )


def to_llama(model: GPT) -> dict[str, Tensor]:
    """The same weights under Llama's names."""
    state = {
        "model.embed_tokens.weight": model.token_embedding.weight,
        "model.norm.weight": model.ln_f.weight,
        "lm_head.weight": model.lm_head.weight,
    }
    for i, block in enumerate(model.blocks):
        parts = {
            "input_layernorm": block.ln1.weight,
            "post_attention_layernorm": block.ln2.weight,
            "self_attn.o_proj": block.attention.proj.weight,
            "mlp.down_proj": block.feedforward.down.weight,
        }
        parts |= zip(
            [f"self_attn.{name}_proj" for name in "qkv"], block.attention.qkv.weight.chunk(3), strict=True
        )
        parts |= zip(["mlp.gate_proj", "mlp.up_proj"], block.feedforward.up.weight.chunk(2), strict=True)
        state |= {f"model.layers.{i}.{name}.weight": value for name, value in parts.items()}
    return state


@pytest.mark.parametrize("n_head", [1, 4])
def test_rmsnorm_rope_and_swiglu_together_are_llama(tiny: ModelConfig, n_head: int) -> None:
    model = GPT(tiny.replace(n_head=n_head, **LLAMA)).eval()
    for parameter in model.parameters():  # ones and zeros would hide what they multiply
        torch.nn.init.normal_(parameter, std=0.3)
    reference = llama.LlamaForCausalLM(llama_config(model.config)).eval()
    reference.load_state_dict(to_llama(model))
    ids = torch.randint(tiny.vocab_size, (B, T))
    torch.testing.assert_close(model(ids), reference(ids).logits, rtol=1e-5, atol=1e-5)


def test_rmsnorm_is_llamas(x: Tensor) -> None:
    norm, theirs = RMSNorm(32, eps=1e-3), llama.LlamaRMSNorm(32, eps=1e-3)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(32))
        theirs.weight.copy_(norm.weight)
    torch.testing.assert_close(norm(x), theirs(x))


def test_qk_norm_before_the_rotation_is_qwen3s(tiny: ModelConfig, x: Tensor) -> None:
    attention = MultiHeadAttention(tiny.replace(qk_norm=True, **LLAMA)).eval()
    config = Qwen3Config(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, head_dim=8, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": THETA}, attn_implementation="eager",
    )  # fmt: skip
    theirs = qwen3.Qwen3Attention(config, layer_idx=0).eval()
    with torch.no_grad():
        for norm in (attention.q_norm, attention.k_norm):
            norm.weight.copy_(torch.randn(8))
    q, k, v = attention.qkv.weight.chunk(3)
    theirs.load_state_dict(
        {
            "q_proj.weight": q,
            "k_proj.weight": k,
            "v_proj.weight": v,
            "o_proj.weight": attention.proj.weight,
            "q_norm.weight": attention.q_norm.weight,
            "k_norm.weight": attention.k_norm.weight,
        }
    )
    rotation = qwen3.Qwen3RotaryEmbedding(config)(x, torch.arange(T)[None])
    mask = torch.full((T, T), float("-inf")).triu(1)[None, None]
    expected, _ = theirs(x, position_embeddings=rotation, attention_mask=mask)
    torch.testing.assert_close(attention(x), expected, rtol=1e-5, atol=1e-5)


def test_rotated_scores_depend_on_the_distance_alone() -> None:
    """Su et al. 2021, equation 16."""
    rotary = Rotary(head_size=8, block_size=32)
    q, k = torch.randn(2, 1, 1, 1, 8)

    def score(at: int, other: int) -> Tensor:
        return (rotary(q, torch.tensor([[at]])) * rotary(k, torch.tensor([[other]]))).sum()

    torch.testing.assert_close(score(5, 3), score(25, 23))
    assert not torch.allclose(score(5, 3), score(5, 2))
    torch.testing.assert_close(rotary(q, torch.tensor([[0]])), q)


def test_without_positions_the_order_of_the_past_does_not_matter(tiny: ModelConfig) -> None:
    model = GPT(tiny.replace(positions="none", n_layer=1)).eval()
    ids = torch.randint(tiny.vocab_size, (1, 8))
    shuffled = torch.cat((ids[:, [3, 0, 6, 1, 5, 2, 4]], ids[:, 7:]), dim=1)
    torch.testing.assert_close(model(ids)[:, -1], model(shuffled)[:, -1], rtol=1e-5, atol=1e-5)
    learned = GPT(tiny.replace(n_layer=1)).eval()
    assert not torch.allclose(learned(ids)[:, -1], learned(shuffled)[:, -1], atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        ("relu", lambda up: up.clamp(min=0)),
        ("relu_squared", lambda up: up.clamp(min=0) ** 2),
        ("gelu", lambda up: up * (1 + torch.erf(up / 2**0.5)) / 2),
        ("gelu_tanh", lambda up: up / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (up + 0.044715 * up**3)))),
        ("swiglu", lambda up: up[..., :88] * torch.sigmoid(up[..., :88]) * up[..., 88:]),
    ],
)
def test_the_activations_by_their_formulas(tiny: ModelConfig, x: Tensor, kind: str, activation) -> None:
    layer = FeedForward(tiny.replace(feedforward=kind))
    torch.testing.assert_close(layer(x), layer.down(activation(layer.up(x))))


@pytest.mark.parametrize(
    ("kind", "ratio", "n_embd", "size"),
    [
        ("relu", 0, 32, 128),
        ("swiglu", 0, 32, 88),  # 85.3 rounded up to a multiple of 8
        ("swiglu", 0, 96, 256),
        ("swiglu", 4, 32, 128),
        ("gelu", 1.5, 32, 48),
        ("gelu", 0.001, 32, 1),
    ],
)
def test_the_width_inside(kind: str, ratio: float, n_embd: int, size: int) -> None:
    config = ModelConfig(vocab_size=5, n_embd=n_embd, feedforward=kind, ff_ratio=ratio)
    assert config.ff_size == size
    assert FeedForward(config).down.weight.shape == (n_embd, size)


def test_post_norm_is_as_vaswani_has_it(tiny: ModelConfig, x: Tensor) -> None:
    """Section 3.1: LayerNorm(x + Sublayer(x)), and no norm after the last block."""
    block = Block(tiny.replace(norm_placement="post")).eval()
    for norm in (block.ln1, block.ln2):
        torch.nn.init.normal_(norm.weight)
    middle = block.ln1(x + block.attention(x))
    torch.testing.assert_close(block(x), block.ln2(middle + block.feedforward(middle)))
    names = [name for name, _ in GPT(tiny.replace(norm_placement="post")).named_parameters()]
    assert not [name for name in names if name.startswith("ln_f")]


NORMS = {"ln1", "ln2", "ln_f"}
LINEARS = {"attention.qkv", "attention.proj", "feedforward.up", "feedforward.down", "lm_head"}


@pytest.mark.parametrize(
    ("bias", "with_bias"),
    [
        ("none", set()),
        ("lecture", NORMS | LINEARS - {"attention.qkv"}),
        ("gpt2", NORMS | LINEARS - {"lm_head"}),
    ],
)
def test_which_layers_have_a_bias(tiny: ModelConfig, bias: str, with_bias: set[str]) -> None:
    names = [name for name, _ in GPT(tiny.replace(bias=bias)).named_parameters()]
    found = {re.sub(r"^blocks\.\d\.|\.bias$", "", name) for name in names if name.endswith(".bias")}
    assert found == with_bias


@pytest.mark.parametrize("init", ["gpt2", "normal", "torch"])
def test_a_tied_head_is_the_embedding(tiny: ModelConfig, init: str) -> None:
    tied, untied = GPT(tiny.replace(tie_weights=True, init=init)), GPT(tiny.replace(init=init))
    assert tied.lm_head.weight is tied.token_embedding.weight
    assert count_parameters(untied) - count_parameters(tied) == 65 * 32
    assert tied.lm_head.weight.std() < 0.2  # an embedding's usual variance of 1 would make wild logits
    ids = torch.randint(65, (B, T))
    F.cross_entropy(tied(ids).flatten(0, 1), ids.flatten()).backward()
    assert tied.token_embedding.weight.grad is tied.lm_head.weight.grad


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"norm": "none", "norm_placement": "post"}, "places the norm"),
        ({"positions": "rope", "n_embd": 12, "n_head": 4}, "head_size .* must be even: got 3"),
        ({"ff_ratio": -1}, "ff_ratio must be >= 0"),
        ({"norm_eps": 0}, "norm_eps must be > 0: got 0.0"),
        ({"norm": "batchnorm"}, "norm must be one of layernorm, rmsnorm, none: got 'batchnorm'"),
        ({"tie_weights": 1}, "tie_weights must be bool: got 1"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ModelConfig(**{"vocab_size": 65, **changes})
