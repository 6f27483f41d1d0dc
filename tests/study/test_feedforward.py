from __future__ import annotations

import pytest

from gptblock.model import GPT, count_parameters
from gptblock.study.feedforward import equal_parameters, equal_width, feedforward, matched, size
from gptblock.study.run import LECTURE


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
def test_size_is_that_of_the_model_and_its_feedforward_layers(ratio: int) -> None:
    shape = LECTURE.replace(ff_ratio=ratio).model(65)
    total, inside = size(shape)
    assert total == count_parameters(GPT(shape))
    assert inside == 3 * (32 * ratio * 32 + ratio * 32 + ratio * 32 * 32 + 32)


def test_arms_of_equal_parameters_differ_by_their_width() -> None:
    arms = {arm.name: arm.config for arm in feedforward(65).arms}
    wanted, _ = size(arms[equal_width(4)].model(65))
    assert wanted == 42369
    widths = [arms[equal_parameters(ratio)].n_embd for ratio in (1, 2, 4, 8)]
    assert widths == sorted(widths, reverse=True)
    assert widths[2] == 32
    for ratio in (1, 2, 8):
        assert arms[equal_width(ratio)].n_embd == 32
        config = arms[equal_parameters(ratio)]
        off = abs(size(config.model(65))[0] - wanted)
        assert off / wanted < 0.1
        for width in (config.n_embd - 4, config.n_embd + 4):
            assert abs(size(config.replace(n_embd=width).model(65))[0] - wanted) > off


def test_a_shape_matches_itself_best() -> None:
    config = LECTURE.replace(ff_ratio=2)
    assert matched(config, 65, size(config.model(65))[0]) == config
