"""Every part that a block can be made of, with every other: built, trained, exported and proved.

The tests take combinations in which each choice meets each choice of every other part at least once;
`make variants` takes all that are valid.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import get_args

import pytest
import torch

from gptblock.config import Bias, FeedForwardKind, ModelConfig, Norm, NormPlacement, Positions, TrainConfig
from gptblock.errors import ConfigError
from gptblock.export.build import export_model
from gptblock.model import GPT, loss
from gptblock.text.kinds import tokenizer_from_dict
from gptblock.training.optimizer import make_optimizer

PARTS: dict[str, tuple[object, ...]] = {
    "norm": get_args(Norm),
    "norm_placement": get_args(NormPlacement),
    "feedforward": get_args(FeedForwardKind),
    "positions": get_args(Positions),
    "qk_norm": (False, True),
    "bias": get_args(Bias),
    "tie_weights": (False, True),
    "token_shift": (0, 2),
}
Variant = dict[str, object]


def variants() -> list[Variant]:
    """Every combination of parts."""
    return [dict(zip(PARTS, values, strict=True)) for values in itertools.product(*PARTS.values())]


def is_valid(variant: Variant) -> bool:
    return (variant["norm"], variant["norm_placement"]) != ("none", "post")


def pairs(variant: Variant) -> set[tuple[object, ...]]:
    return set(itertools.combinations(variant.items(), 2))


def pairwise(candidates: list[Variant]) -> Iterator[Variant]:
    """Few of the candidates, in which every pair of choices occurs that occurs in any."""
    missing = set().union(*map(pairs, candidates))
    while missing:
        best = max(candidates, key=lambda variant: len(pairs(variant) & missing))
        missing -= pairs(best)
        yield best


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        valid = [variant for variant in variants() if is_valid(variant)]
        chosen = valid if metafunc.config.getoption("--all-variants") else list(pairwise(valid))
        ids = ["-".join(str(value) for value in variant.values()) for variant in chosen]
        metafunc.parametrize("variant", chosen, ids=ids)


def test_a_variant_is_trained_exported_and_proved(variant, tmp_path):
    config = ModelConfig(
        vocab_size=7, block_size=6, n_layer=1, n_head=2, n_embd=8, dropout=0.1, init="torch", **variant
    )
    torch.manual_seed(0)
    model = GPT(config)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(model, TrainConfig(learning_rate=1e-2))
    ids = torch.randint(7, (4, 7))
    for _ in range(3):
        optimizer.zero_grad()
        loss(model(ids[:, :-1]), ids[:, 1:]).backward()
        optimizer.step()
    stuck = [name for name, value in model.named_parameters() if torch.equal(value, before[name])]
    assert stuck == []
    tokenizer = tokenizer_from_dict({"type": "char", "vocab": "abcdefg"})
    manifest = export_model(model, tokenizer, tmp_path / "b", precisions=["int8"])
    assert manifest.model == config
    for name in ("model.onnx", "model.pt"):
        assert max(check.worst for check in manifest.files[name].checks) <= 1e-5
    assert all(check.ok for check in manifest.files["model.int8.onnx"].checks)


def test_the_pairwise_cover_is_one():
    valid = [variant for variant in variants() if is_valid(variant)]
    few = list(pairwise(valid))
    assert len(valid) == 1800
    assert set().union(*map(pairs, few)) == set().union(*map(pairs, valid))
    assert len(few) < 25


def test_what_cannot_be_is_refused_with_the_reason():
    invalid = [variant for variant in variants() if not is_valid(variant)]
    assert len(invalid) == 360
    for variant in invalid:
        with pytest.raises(ConfigError, match=r'places the norm, and norm = "none" has none'):
            ModelConfig(vocab_size=7, **variant)
