"""AdamW over a model's parameters, and its state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import AdamW

from gptblock.config import TrainConfig

_KEYS = ("step", "exp_avg", "exp_avg_sq")  # what AdamW keeps for a parameter


def make_optimizer(model: nn.Module, config: TrainConfig) -> AdamW:
    """AdamW (Loshchilov and Hutter 2019) that decays matrices only.

    Biases and the gains of LayerNorm are left alone: a gain belongs near one, not near zero.
    """
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
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
        f"{name}.{key}": optimizer.state[parameter][key]
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
        optimizer.state[parameter] = {
            key: tensors[f"{name}.{key}"].to(parameter.device, copy=True) for key in _KEYS
        }
