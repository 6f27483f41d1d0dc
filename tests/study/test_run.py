from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from gptblock.model import GPT, count_parameters
from gptblock.study import run as module
from gptblock.study.run import LECTURE, Arm, train_arm
from gptblock.training.batches import draw_batch

TINY = LECTURE.replace(n_layer=1, n_embd=8, n_head=2, max_iters=12, eval_interval=5, eval_iters=8)
ARM = Arm("tiny", TINY)


def test_the_settings_are_those_of_the_lectures_sixth_part() -> None:
    wanted = {"batch_size": 32, "block_size": 8, "n_embd": 32, "n_head": 4, "n_layer": 3, "dropout": 0.0}
    wanted |= {"max_iters": 5000, "learning_rate": 1e-3, "min_lr": 1e-3, "warmup_iters": 0, "eval_iters": 200}
    wanted |= {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "grad_clip": 0.0, "init": "torch"}
    assert {name: value for name, value in LECTURE.to_dict().items() if name in wanted} == wanted


def test_it_is_the_plain_loop_with_torchs_adamw(material) -> None:
    run = train_arm(ARM, 7, material)
    weights, batches, evaluation = (int(n) for n in module.np.random.SeedSequence(7).generate_state(3, "u8"))
    torch.manual_seed(weights)
    model = GPT(TINY.model(material.tokenizer.vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(batches)
    for _ in range(12):
        inputs, targets = draw_batch(material.train, 32, generator)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    generator.manual_seed(evaluation)
    for windows, got in ((material.train, run.train_loss), (material.val, run.val_loss)):
        losses = []
        for _ in range(8):
            inputs, targets = draw_batch(windows, 32, generator)
            losses.append(F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item())
        assert sum(losses) / 8 == pytest.approx(got, abs=1e-5)
    inputs, targets = draw_batch(material.train, 256, torch.Generator().manual_seed(evaluation))
    model.zero_grad()
    F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    assert model.token_embedding.weight.grad.norm().item() == pytest.approx(run.curve[-1].gradient, rel=1e-3)
    assert run.parameters == count_parameters(model)


def test_it_is_measured_at_the_start_at_each_interval_and_at_the_end(material) -> None:
    run = train_arm(ARM, 7, material)
    assert [point.step for point in run.curve] == [0, 5, 10, 12]
    assert run.curve[-1].val_loss == run.val_loss < run.curve[0].val_loss
    assert (run.arm, run.seed, run.diverged_at) == ("tiny", 7, None)


def test_a_seed_is_a_run_whatever_was_drawn_before(material) -> None:
    first = train_arm(ARM, 7, material)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    assert train_arm(ARM, 7, material) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    torch.rand(1)
    assert train_arm(ARM, 7, material) == first
    assert train_arm(ARM, 8, material).val_loss != first.val_loss


def test_warm_up_is_linear_and_then_the_rate_stays(material, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    monkeypatch.setattr(module, "set_learning_rate", lambda _, rate: rates.append(rate))
    train_arm(Arm("warmed", TINY.replace(max_iters=6, warmup_iters=3)), 7, material)
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_a_run_that_diverges_says_when_and_counts_as_a_guess(material) -> None:
    run = train_arm(Arm("fast", TINY.replace(learning_rate=1e30, min_lr=1e30)), 7, material)
    assert run.diverged_at == 5
    assert [point.step for point in run.curve] == [0]
    assert run.val_loss == run.train_loss == math.log(material.tokenizer.vocab_size)


def test_what_ends_it_may_be_asked_at_every_step(material) -> None:
    asked: list[int] = []
    train_arm(ARM, 7, material, asked.append)
    assert asked == list(range(13))
