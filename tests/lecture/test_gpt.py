from __future__ import annotations

import math

import pytest
import torch

from gptblock.config import ModelConfig
from gptblock.errors import InputError
from gptblock.lecture import GPT


@pytest.mark.parametrize("T", [1, 2, 16])
def test_logits_and_loss_come_as_in_the_lecture(tiny: ModelConfig, T: int) -> None:
    model = GPT(tiny)
    idx, targets = torch.randint(65, (3, T)), torch.randint(65, (3, T))
    logits, loss = model(idx)
    assert logits.shape == (3, T, 65)
    assert loss is None
    flat, loss = model(idx, targets)
    assert torch.equal(flat, logits.flatten(0, 1))
    likelihoods = logits.softmax(-1).gather(2, targets[..., None])  # (B, T, 1)
    torch.testing.assert_close(loss, -likelihoods.log().mean())


def test_state_dict_has_the_lectures_names(tiny: ModelConfig) -> None:
    state = GPT(tiny.replace(n_layer=1, n_head=2)).state_dict()
    heads = {
        f"blocks.0.sa.heads.{head}.{name}": shape
        for head in range(2)
        for name, shape in {
            "key.weight": (16, 32),
            "query.weight": (16, 32),
            "value.weight": (16, 32),
            "tril": (16, 16),
        }.items()
    }
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == heads | {
        "token_embedding_table.weight": (65, 32),
        "position_embedding_table.weight": (16, 32),
        "blocks.0.sa.proj.weight": (32, 32),
        "blocks.0.sa.proj.bias": (32,),
        "blocks.0.ffwd.net.0.weight": (128, 32),
        "blocks.0.ffwd.net.0.bias": (128,),
        "blocks.0.ffwd.net.2.weight": (32, 128),
        "blocks.0.ffwd.net.2.bias": (32,),
        "blocks.0.ln1.weight": (32,),
        "blocks.0.ln1.bias": (32,),
        "blocks.0.ln2.weight": (32,),
        "blocks.0.ln2.bias": (32,),
        "ln_f.weight": (32,),
        "ln_f.bias": (32,),
        "lm_head.weight": (65, 32),
        "lm_head.bias": (65,),
    }


def test_longer_than_block_size_is_one_clear_error(tiny: ModelConfig) -> None:
    with pytest.raises(InputError, match=r"^the input is 17 tokens long .* block_size = 16"):
        GPT(tiny)(torch.zeros(1, 17, dtype=torch.long))


@pytest.mark.parametrize(("init", "residual"), [("gpt2", 0.02 / math.sqrt(2 * 8)), ("normal", 0.02)])
def test_init(init: str, residual: float) -> None:
    config = ModelConfig(vocab_size=400, block_size=200, n_layer=8, n_head=2, n_embd=64, init=init)
    for name, parameter in GPT(config).named_parameters():
        if parameter.dim() == 2:
            expected = residual if name.endswith(("sa.proj.weight", "ffwd.net.2.weight")) else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.1), name
        else:
            assert (parameter == (0 if name.endswith("bias") else 1)).all(), name


def test_generate_crops_to_block_size_and_keeps_the_whole_text(tiny: ModelConfig) -> None:
    model = GPT(tiny)
    seen: list[torch.Tensor] = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    prompt = torch.randint(65, (2, 14))
    idx = model.generate(prompt, 6, torch.Generator().manual_seed(1))
    assert idx.shape == (2, 20)
    assert torch.equal(idx[:, :14], prompt)
    assert [context.tolist() for context in seen] == [
        idx[:, max(0, end - 16) : end].tolist() for end in range(14, 20)
    ]


def test_generate_draws_with_the_models_probabilities(tiny: ModelConfig) -> None:
    model = GPT(tiny.replace(vocab_size=3))
    prompt = torch.tensor([[2, 0, 1]])
    probabilities = model(prompt)[0][0, -1].softmax(-1)
    draws = model.generate(prompt.expand(20_000, 3), 1, torch.Generator().manual_seed(1))[:, 3]
    shares = draws.bincount(minlength=3) / 20_000
    torch.testing.assert_close(shares, probabilities.detach(), atol=0.015, rtol=0)
    assert probabilities.max() - probabilities.min() > 0.1


def test_generate_is_repeated_by_its_generator_or_by_torchs_seed(tiny: ModelConfig) -> None:
    model, prompt = GPT(tiny), torch.zeros(1, 1, dtype=torch.long)

    def seeded(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model.generate(prompt, 30)

    assert torch.equal(seeded(1), seeded(1))
    assert not torch.equal(seeded(1), seeded(2))
    own = [model.generate(prompt, 30, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(own[0], own[1])
    assert not torch.equal(own[0], own[2])
