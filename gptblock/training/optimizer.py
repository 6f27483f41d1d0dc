"""AdamW over a model's parameters, and its state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import AdamW

from gptblock.config import TrainConfig
from gptblock.model.shift import TokenShift
from gptblock.training.sharding import gathered, spread_like

_KEYS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW keeps for a parameter


def make_optimizer(model: nn.Module, config: TrainConfig) -> AdamW:
    """AdamW (Loshchilov and Hutter 2019) that decays matrices only.

    Biases, the gains of norms and the taps of a token shift are left alone: they belong where they are.
    """
    taps = {module.weight for module in model.modules() if isinstance(module, TokenShift)}
    matrices = [p for p in model.parameters() if p.dim() >= 2 and p not in taps]
    others = [p for p in model.parameters() if p.dim() < 2 or p in taps]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    # Fused: the same formula in one pass over the memory, several times faster on a CPU too.
    return AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def set_learning_rate(optimizer: AdamW, rate: float) -> None:
    """Set the learning rate of the next step, for every parameter."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    """The optimizer's state: `<parameter>.step`, `.exp_avg`, `.exp_avg_sq`. Empty before the first step."""
    return {
        f"{name}.{key}": gathered(optimizer.state[parameter][key])
        for name, parameter in model.named_parameters()
        if optimizer.state[parameter]
        for key in _KEYS
    }


def optimizer_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The names and shapes of `optimizer_tensors` after a step."""
    return {
        f"{name}.{key}": () if key == "step" else tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        for key in _KEYS
    }


def restore_optimizer(model: nn.Module, optimizer: AdamW, tensors: Mapping[str, Tensor]) -> None:
    """Give `optimizer` the state that `optimizer_tensors` took."""
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {key: spread_like(tensors[f"{name}.{key}"], parameter) for key in _KEYS}
