"""What "auto" comes to, what is refused, and what compiling and half precision change."""

from __future__ import annotations

import pytest
import torch

from gptblock.config import TrainConfig
from gptblock.errors import UnavailableError
from gptblock.training.compute import autocast, forward_of, resolve_compute


def test_auto_on_a_cpu_is_fp32_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = resolve_compute(TrainConfig())
    assert (config.device, config.dtype, config.compile) == ("cpu", "fp32", "off")
    assert config.threads == torch.get_num_threads()


@pytest.mark.parametrize(("has_bf16", "dtype"), [(True, "bf16"), (False, "fp32")])
def test_auto_with_a_gpu(has_bf16: bool, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_bf16)
    config = resolve_compute(TrainConfig())
    assert (config.device, config.dtype, config.compile) == ("cuda", dtype, "auto")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda"}, "device cuda was asked for.*finds no CUDA device.*use --device cpu"),
        ({"device": "cpu", "dtype": "bf16"}, "dtype bf16 was asked for, and this cpu has no.*use fp32"),
    ],
)
def test_what_is_not_here_is_refused(
    changes: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for probe in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, probe, lambda: False)
    with pytest.raises(UnavailableError, match=message):
        resolve_compute(TrainConfig().replace(**changes))


@pytest.mark.parametrize(("dtype", "expected"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_products_are_of_the_type_configured(dtype: str, expected: torch.dtype) -> None:
    layer = torch.nn.Linear(3, 3)
    with autocast(TrainConfig(device="cpu").replace(dtype=dtype)):
        assert layer(torch.ones(1, 3)).dtype is expected
    assert layer.weight.dtype is torch.float32


class Broken:
    """What torch.compile gives where there is no compiler: an error at the first call, and no truth value."""

    def __init__(self, _module: torch.nn.Module) -> None:
        pass

    def __len__(self) -> int:
        raise TypeError("GPT does not support len()")

    def __call__(self, _x: torch.Tensor) -> torch.Tensor:
        raise torch._inductor.exc.InductorError(RuntimeError("no compiler found\nand much more"), None)


def test_where_compiling_fails_auto_says_so_once_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", Broken)
    notes: list[str] = []
    layer, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
    forward = forward_of(layer, TrainConfig(compile="auto"), notes.append)
    assert torch.equal(forward(x), layer(x))
    assert torch.equal(forward(x), layer(x))
    assert len(notes) == 1
    assert "not compiled" in notes[0]
    assert "no compiler found" in notes[0]
    assert "\n" not in notes[0]


def test_where_compiling_fails_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", Broken)
    forward = forward_of(torch.nn.Linear(3, 2), TrainConfig(compile="on"), lambda _: None)
    with pytest.raises(UnavailableError, match=r"cannot compile here.*no compiler found.*--compile off"):
        forward(torch.ones(1, 3))


def test_off_is_the_model_itself() -> None:
    layer = torch.nn.Linear(3, 2)
    assert forward_of(layer, TrainConfig(compile="off"), lambda _: None) is layer
