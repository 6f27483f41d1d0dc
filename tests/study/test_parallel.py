from __future__ import annotations

import multiprocessing

import pytest

from gptblock.study import rungs
from gptblock.study.parallel import run_all
from gptblock.study.residual import unadded
from gptblock.study.run import LECTURE, Arm, Run


def test_runs_come_seed_by_seed_and_each_is_heard_of(text: str) -> None:
    tiny = LECTURE.replace(data=text, n_layer=1, max_iters=1, eval_iters=1)
    news: list[tuple[Run, int, int]] = []
    arms = [Arm("one", tiny, rungs.Bigram), Arm("two", tiny, rungs.one_head)]
    runs = run_all(arms, [3, 4], 1, lambda *heard: news.append(heard))
    assert [(run.arm, run.seed) for run in runs] == [("one", 3), ("two", 3), ("one", 4), ("two", 4)]
    assert news == [(run, done, 4) for done, run in enumerate(runs, start=1)]


def test_two_at_a_time_are_what_one_is_and_ctrl_c_ends_those_under_way(text: str) -> None:
    """In one, for each worker imports torch, which takes seconds."""
    tiny = LECTURE.replace(data=text, n_layer=1, max_iters=4, eval_interval=2, eval_iters=1)
    arms = [Arm("bigram", tiny, rungs.Bigram), Arm("unadded", tiny, unadded)]
    endless = Arm("endless", tiny.replace(max_iters=10**9, eval_interval=10**9), rungs.Bigram)
    heard: list[Run] = []

    def hear(run: Run, done: int, total: int) -> None:
        heard.append(run)
        assert (done, total) == (len(heard), 3)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([*arms, endless], [3], 2, hear)
    assert multiprocessing.active_children() == []
    alone = run_all(arms, [3], 1, lambda *_: None)
    assert sorted(heard, key=lambda run: run.arm) == alone
    assert alone[0].val_loss != alone[1].val_loss
