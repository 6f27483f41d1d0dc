from __future__ import annotations

import pytest

from gptblock.study.results import Spread


@pytest.mark.parametrize(
    ("values", "text", "is_clear"),
    [
        ((2.0, 2.1, 2.2), "2.100 ±.100", True),
        ((0.01, 0.02, 0.03), "0.020 ±.010", True),  # 3.5 standard errors
        ((0.01, 0.03, 0.05), "0.030 ±.020", False),  # 2.6
        ((-0.2, -0.21), "-0.205 ±.007", False),
        ((0.1,), "0.100", True),
        ((-0.1,), "-0.100", False),
        ((0.0, 0.0), "0.000 ±.000", False),
    ],
)
def test_spread(values: tuple[float, ...], text: str, is_clear: bool) -> None:
    spread = Spread(values)
    assert (str(spread), spread.is_clearly_positive) == (text, is_clear)


def test_differences_are_taken_seed_by_seed(make_up) -> None:
    results = make_up({"a": [2.0, 3.0], "b": [1.5, 2.5]}, train={"a": 1.9})
    assert results.above("a", "b") == Spread((0.5, 0.5))
    assert results.val("a").sd == pytest.approx(0.7071, abs=1e-4)
    assert results.overfit("a").mean == pytest.approx(0.6)
    assert results.seeds == 2
