from __future__ import annotations

import pytest
import torch
from torch import nn

from gptblock.config import TrainConfig
from gptblock.model.shift import TokenShift
from gptblock.training.optimizer import (
    make_optimizer,
    optimizer_shapes,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    inputs = torch.randint(5, (6,), generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(inputs).pow(3).sum().backward()
    optimizer.step()


def test_decay_shrinks_matrices_only() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = make_optimizer(model, TrainConfig(learning_rate=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, value in model.state_dict().items():
        expected = before[name] * (1 - 0.1 * 0.5) if value.dim() == 2 else before[name]
        assert torch.allclose(value, expected, rtol=1e-6), name


def test_the_taps_of_a_token_shift_do_not_decay() -> None:
    shift = TokenShift(n_embd=4, token_shift=2)
    before = shift.weight.detach().clone()
    optimizer = make_optimizer(shift, TrainConfig(learning_rate=0.1, weight_decay=0.5))
    shift.weight.grad = torch.zeros_like(shift.weight)
    optimizer.step()
    assert torch.equal(shift.weight, before)


def test_fused_steps_are_those_of_the_plain_formula() -> None:
    fused, plain = network(), network()
    config = TrainConfig(learning_rate=0.01, weight_decay=0.1, beta1=0.8, beta2=0.95)
    ours = make_optimizer(fused, config)
    groups = [
        {"params": group["params"], "weight_decay": group["weight_decay"]} for group in ours.param_groups
    ]
    twin = dict(zip(fused.parameters(), plain.parameters(), strict=True))
    theirs = torch.optim.AdamW(
        [{**group, "params": [twin[p] for p in group["params"]]} for group in groups],
        lr=0.01,
        betas=(0.8, 0.95),
        foreach=False,
    )
    for seed in range(5):
        step(fused, ours, seed)
        step(plain, theirs, seed)
    for one, other in zip(fused.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


def test_restored_optimizer_goes_on_bit_for_bit() -> None:
    config = TrainConfig(learning_rate=0.01)
    straight = network()
    optimizer = make_optimizer(straight, config)
    assert optimizer_tensors(straight, optimizer) == {}
    for seed in range(3):
        step(straight, optimizer, seed)
    resumed = network()
    resumed.load_state_dict(straight.state_dict())
    tensors = {name: value.clone() for name, value in optimizer_tensors(straight, optimizer).items()}
    assert {name: tuple(value.shape) for name, value in tensors.items()} == optimizer_shapes(straight)
    assert tensors["1.weight.step"] == 3
    fresh = make_optimizer(resumed, config)
    restore_optimizer(resumed, fresh, tensors)
    for seed in range(3, 5):
        step(straight, optimizer, seed)
        step(resumed, fresh, seed)
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_learning_rate_is_set_for_every_parameter() -> None:
    optimizer = make_optimizer(network(), TrainConfig())
    set_learning_rate(optimizer, 0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
def test_each_moment_matters(name: str) -> None:
    """The two tests above would be blind if the moments were not read back."""
    model = network()
    optimizer = make_optimizer(model, TrainConfig(learning_rate=0.01))
    step(model, optimizer, 0)
    tensors = {key: value.clone() for key, value in optimizer_tensors(model, optimizer).items()}
    tensors[f"1.weight.{name}"] += 1
    other = network()
    other.load_state_dict(model.state_dict())
    altered = make_optimizer(other, TrainConfig(learning_rate=0.01))
    restore_optimizer(other, altered, tensors)
    step(model, optimizer, 1)
    step(other, altered, 1)
    assert not torch.equal(model.state_dict()["1.weight"], other.state_dict()["1.weight"])
