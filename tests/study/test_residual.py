from __future__ import annotations

import torch

from gptblock.model import GPT
from gptblock.study.residual import unadded
from gptblock.study.run import LECTURE


def test_without_additions_the_weights_start_alike_and_each_part_replaces_the_stream() -> None:
    config = LECTURE.replace(n_layer=2).model(65)
    torch.manual_seed(1)
    whole = GPT(config)
    torch.manual_seed(1)
    model = unadded(config)
    state = whole.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    idx = torch.randint(65, (3, 8))
    x = model.token_embedding(idx) + model.position_embedding.weight  # (B, T, C)
    for block in model.blocks:
        x = block.feedforward(block.ln2(block.attention(block.ln1(x))))
    torch.testing.assert_close(model(idx), model.lm_head(model.ln_f(x)))
    assert (model(idx) - whole(idx)).abs().max() > 0.1
