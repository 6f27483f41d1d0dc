"""The oracle: with the same weights, the lecture's model and the fused one are one function."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gptblock import lecture, model
from gptblock.config import ModelConfig, SamplingConfig
from gptblock.errors import CorruptError


def pair(config: ModelConfig, dtype: torch.dtype = torch.float32) -> tuple[lecture.GPT, model.GPT]:
    """Two models of the same weights, biases and norms drawn too, so that each of them counts."""
    theirs, ours = lecture.GPT(config).to(dtype), model.GPT(config).to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    ours.load_state_dict(lecture.to_model(theirs.state_dict()))
    return theirs, ours


def batch(B: int, T: int) -> tuple[Tensor, Tensor]:
    return torch.randint(65, (B, T)), torch.randint(65, (B, T))


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 5e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("n_head", [1, 2, 4, 32])
@pytest.mark.parametrize(("B", "T"), [(1, 1), (3, 2), (2, 15), (4, 16)])
def test_logits_loss_and_gradients_agree(
    tiny: ModelConfig, n_head: int, B: int, T: int, dtype: torch.dtype, allowed: float
) -> None:
    theirs, ours = pair(tiny.replace(n_head=n_head), dtype)
    idx, targets = batch(B, T)
    their_logits, their_loss = theirs(idx, targets)
    our_logits = ours(idx)
    our_loss = model.loss(our_logits, targets)
    assert (our_logits.flatten(0, 1) - their_logits).abs().max() <= allowed
    assert abs(our_loss - their_loss) <= allowed

    their_loss.backward()
    our_loss.backward()
    expected = lecture.to_model({name: parameter.grad for name, parameter in theirs.named_parameters()})
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert (gradient - expected[name]).abs().max() <= allowed, name


NAMES = list(model.GPT(ModelConfig(vocab_size=65, block_size=16, n_layer=2, n_embd=32)).state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_one_changed_weight_is_seen(tiny: ModelConfig, name: str) -> None:
    theirs, ours = pair(tiny, torch.float64)
    with torch.no_grad():
        ours.state_dict()[name].view(-1)[-1] += 0.1
    idx = torch.cat([torch.full((1, 16), 64), torch.randint(65, (1, 16))])  # the last token is among them
    assert (ours(idx) - theirs(idx)[0]).abs().max() > 1e-6  # a million times what agreeing models differ by


def test_a_model_scaled_by_n_embd_is_seen(tiny: ModelConfig) -> None:
    theirs, ours = pair(tiny)
    idx, _ = batch(2, 16)
    for block in ours.blocks:
        block.attention.scale = tiny.n_embd**-0.5
    assert (ours(idx) - theirs(idx)[0]).abs().max() > 1e-3


def test_the_lectures_text_is_the_references_past_block_size_too(tiny: ModelConfig) -> None:
    """With a head so steep that every draw is certain, multinomial sampling takes what greedy takes."""
    theirs, ours = pair(tiny, torch.float64)
    with torch.no_grad():
        for head in (theirs.lm_head, ours.lm_head):
            head.weight *= 1e6
            head.bias *= 1e6
    prompt = torch.randint(65, (3, 5))
    tokens = ours.generate(prompt, 60, SamplingConfig(temperature=0), seed=0)
    assert torch.equal(tokens, theirs.generate(prompt, 60))
    assert len(set(tokens[0, 5:].tolist())) > 5  # not one token over and over


def test_the_mask_is_dropped_there_or_not(tiny: ModelConfig) -> None:
    with_masks = lecture.GPT(tiny).state_dict()
    without = {name: tensor for name, tensor in with_masks.items() if not name.endswith("tril")}
    assert len(with_masks) - len(without) == tiny.n_layer * tiny.n_head
    a, b = lecture.to_model(with_masks), lecture.to_model(without)
    assert a.keys() == b.keys() == model.GPT(tiny).state_dict().keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_heads_are_joined_by_number_whatever_the_order_of_the_file(tiny: ModelConfig) -> None:
    """Of 32 heads, the eleventh must not come after the first."""
    state = lecture.GPT(tiny.replace(n_head=32)).state_dict()
    shuffled = {name: state[name] for name in sorted(state, reverse=True)}
    a, b = lecture.to_model(state), lecture.to_model(shuffled)
    assert all(torch.equal(a[name], b[name]) for name in a)
    qkv = a["blocks.1.attention.qkv.weight"]
    for third, kind in enumerate(("query", "key", "value")):
        assert torch.equal(qkv[32 * third + 10], state[f"blocks.1.sa.heads.10.{kind}.weight"][0])


@pytest.mark.parametrize(
    ("without", "extra", "message"),
    [
        ((), "transformer.wte.weight", "no tensor 'transformer.wte.weight'"),
        ((), "blocks.0.sa.heads.0.key.bias", "no tensor 'blocks.0.sa.heads.0.key.bias'"),
        (("blocks.0.sa.heads.1.key.weight",), None, r"blocks\.0\.sa\.heads\.1\.key\.weight is missing"),
        (("blocks.1.sa.heads.3.query.weight",), None, r"blocks\.1\.sa\.heads\.3\.query\.weight is missing"),
    ],
)
def test_what_is_not_the_lectures_is_refused_by_name(
    tiny: ModelConfig, without: tuple[str, ...], extra: str | None, message: str
) -> None:
    state = {name: tensor for name, tensor in lecture.GPT(tiny).state_dict().items() if name not in without}
    if extra:
        state[extra] = torch.zeros(1)
    with pytest.raises(CorruptError, match=message):
        lecture.to_model(state)
