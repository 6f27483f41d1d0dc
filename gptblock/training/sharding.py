"""A model too large for one device: its weights, gradients and moments spread over the processes (FSDP2)."""

from __future__ import annotations

import warnings

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from gptblock.model import GPT


def shard(model: GPT, device: str) -> None:
    """Keep of each weight only this process's part; a block's whole weights are there while it computes.

    (Zhao et al. 2023; torch's `fully_shard`.) Every process must call this, and whatever gathers.
    """
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for part in (*model.blocks, model):
        # After a forward pass too: what is gathered and written is then the spread parameters, at any time.
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    # Nothing here changes logits in place, which is what torch warns of at each step.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view tensor")


def gathered(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be spread; all processes must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of `tensor` on the device of `like`, and spread as it is, if it is."""
    copy = tensor.to(like.device, copy=True)
    if isinstance(like, DTensor) and tensor.dim():
        return distribute_tensor(copy, like.device_mesh, like.placements)
    return copy
