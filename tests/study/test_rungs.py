from __future__ import annotations

import pytest
import torch
from torch import nn

from gptblock import lecture
from gptblock.config import ModelConfig
from gptblock.model import count_parameters
from gptblock.study import rungs
from gptblock.study.ladder import RUNGS

SHAPE = ModelConfig(vocab_size=65, block_size=8, n_layer=3, n_head=4, n_embd=32, init="torch")
ENDS = 65 * 32 + 8 * 32 + 32 * 65 + 65  # embeddings and head
HEADS = 3 * 32 * 32  # four of 8 as one of 32
NARROW = HEADS + 32 * 32 + 32
WIDE = HEADS + 32 * 32 + 32 + 32 * 128 + 128 + 128 * 32 + 32  # with projections, four times as wide inside
SIZES = {
    "bigram": 65 * 65,
    "one head": ENDS + HEADS,
    "four heads": ENDS + HEADS,
    "+ feed-forward": ENDS + NARROW,
    "three blocks, no residual": ENDS + 3 * NARROW,
    "+ residual, projections, 4x": ENDS + 3 * WIDE,
    "+ LayerNorm": ENDS + 3 * (WIDE + 2 * 64) + 64,
}

every_rung = pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(1)


def test_these_are_all_rungs() -> None:
    assert [rung.name for rung in RUNGS] == list(SIZES)


@every_rung
def test_shape_and_size(rung) -> None:
    model = rung.build(SHAPE)
    assert count_parameters(model) == SIZES[rung.name]
    assert model(torch.zeros(3, 5, dtype=torch.long)).shape == (3, 5, 65)


@every_rung
def test_a_token_changes_no_logits_before_it_and_others_no_row(rung) -> None:
    model = rung.build(SHAPE)
    idx = torch.randint(65, (3, 8))
    for t in range(8):
        changed = idx.clone()
        changed[1, t] = (idx[1, t] + 1) % 65
        moved = (model(idx) != model(changed)).any(-1)  # (B, T)
        last = t + 1 if rung.name == "bigram" else 8
        assert moved.nonzero().tolist() == [[1, later] for later in range(t, last)]


def test_the_last_rung_is_the_lectures_model() -> None:
    model, rung = lecture.GPT(SHAPE), rungs.with_norm(SHAPE)
    idx = torch.randint(65, (3, 8))
    assert not torch.equal(rung(idx), model(idx)[0])
    rung.load_state_dict(model.state_dict())
    assert torch.equal(rung(idx), model(idx)[0])


def test_without_norms_each_part_is_added_to_the_bare_stream() -> None:
    rung = rungs.with_residual(SHAPE.replace(n_layer=1))
    idx = torch.randint(65, (3, 8))
    (block,) = rung.blocks
    x = rung.token_embedding_table(idx) + rung.position_embedding_table.weight
    x = x + block.sa(x)
    x = x + block.ffwd(x)
    torch.testing.assert_close(rung(idx), rung.lm_head(x))


def test_heads_stand_side_by_side_without_a_projection() -> None:
    rung = rungs.heads(SHAPE)
    idx = torch.randint(65, (3, 8))
    x = rung.token_embedding_table(idx) + rung.position_embedding_table.weight
    side_by_side = torch.cat([head(x) for head in rung.blocks.heads], dim=-1)
    torch.testing.assert_close(rung(idx), rung.lm_head(side_by_side))


@pytest.mark.parametrize(("build", "hides"), [(rungs.without_residual, True), (rungs.with_residual, False)])
def test_what_a_part_does_not_pass_on_is_lost_only_where_nothing_is_added(build, hides: bool) -> None:
    rung = build(SHAPE)
    for parameter in rung.blocks[1].parameters():
        nn.init.zeros_(parameter)
    logits = rung(torch.randint(65, (3, 8)))
    assert torch.equal(logits, logits[:1, :1].expand_as(logits)) is hides
