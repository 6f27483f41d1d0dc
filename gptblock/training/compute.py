"""What a run is computed with: the device, the type of its products, and torch's compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from gptblock.config import TrainConfig
from gptblock.errors import UnavailableError


def resolve_compute(config: TrainConfig) -> TrainConfig:
    """`config` with what "auto" means here, for device, dtype, compile and threads.

    auto takes a GPU where there is one, and there bf16, if it has that, and the compiler, if that works. On a
    CPU it takes fp32 and no compiler: compiling takes longer than a small model trains. Raises
    UnavailableError where something else is asked for by name and is not here.
    """
    device = _device(config.device)
    return config.replace(
        device=device,
        dtype=_dtype(config.dtype, device),
        compile="off" if config.compile == "auto" and device == "cpu" else config.compile,
        threads=config.threads or torch.get_num_threads(),
    )


def autocast(config: TrainConfig) -> AbstractContextManager[object]:
    """Where a forward pass belongs, so that its products are of the configuration's type."""
    if config.dtype == "bf16":
        return torch.autocast(config.device, torch.bfloat16)
    return nullcontext()


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """torch with `count` threads an operator, and as it was afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def forward_of(
    model: nn.Module, config: TrainConfig, note: Callable[[str], None]
) -> Callable[[Tensor], Tensor]:
    """What training calls in place of `model`, which keeps the weights: compiled, if so configured.

    Where compiling fails, "auto" says so in one line and goes on without; "on" raises UnavailableError.
    """
    if config.compile == "off":
        return model
    compiled: Callable[[Tensor], Tensor] | None = torch.compile(model)

    def forward(x: Tensor) -> Tensor:
        nonlocal compiled
        if compiled is not None:
            try:
                return compiled(x)
            except (TorchDynamoException, InductorError, RuntimeError) as error:
                problem = _first_line(error)
                if config.compile == "on":
                    raise UnavailableError(
                        f"--compile on was asked for, and torch cannot compile here: {problem}; "
                        f"use --compile off"
                    ) from None
                note(f"not compiled: {problem}")
                compiled = None
        logits: Tensor = model(x)
        return logits

    return forward


def _device(wanted: str) -> str:
    has_cuda = torch.cuda.is_available()
    if wanted == "auto":
        return "cuda" if has_cuda else "cpu"
    if wanted == "cuda" and not has_cuda:
        raise UnavailableError(
            f"device cuda was asked for, and torch {torch.__version__} finds no CUDA device here: "
            f"use --device cpu, or a torch built for CUDA and its driver"
        )
    return wanted


def _dtype(wanted: str, device: str) -> str:
    if wanted == "auto":
        return "bf16" if device == "cuda" and _has_bf16(device) else "fp32"
    if wanted == "bf16" and not _has_bf16(device):
        raise UnavailableError(f"dtype bf16 was asked for, and this {device} has no such products: use fp32")
    return wanted


def _has_bf16(device: str) -> bool:
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported()) or bool(torch.cpu._is_amx_tile_supported())


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
