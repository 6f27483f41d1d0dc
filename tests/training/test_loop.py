from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gptblock.bundle.store import read_tensors
from gptblock.config import TokenizerKind, TrainConfig
from gptblock.errors import (
    ConfigError,
    CorpusError,
    DivergedError,
    InterruptedRunError,
    NotFoundError,
    RunExistsError,
    UnavailableError,
)
from gptblock.training import Evaluated, Event, Noted, Saved, Started, Stepped, Stopping, load_model, train
from gptblock.training.checkpoint import read_state

LAST = Path("checkpoints", "last")
BEST = Path("checkpoints", "best")


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than all else of these runs; test_plot.py draws one."""
    monkeypatch.setattr("gptblock.training.plot.draw_losses", lambda _measurements, title, _config: title)


def tensors_of(run: Path, which: Path = LAST) -> dict[str, bytes]:
    """Everything a checkpoint has in tensors: weights, moments, the generators of batches and dropout."""
    return {
        name: (run / which / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")
    }


def state_of(run: Path, which: Path = LAST) -> dict[str, object]:
    """state.json without what differs from day to day."""
    state: dict[str, object] = json.loads((run / which / "state.json").read_text())
    del state["seconds"]
    return state


def losses_of(run: Path) -> list[tuple[int, float, float, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["train_loss"], line["val_loss"], line["lr"]) for line in lines]


def test_a_run_leaves_what_the_design_says(config: TrainConfig, tmp_path: Path) -> None:
    run = tmp_path / "some" / "run"
    result = train(config, run)
    names = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
    assert names == [
        *(f"checkpoints/{which}/{name}" for which in ("best", "last") for name in
          ("model.safetensors", "optimizer.safetensors", "state.json")),
        "config.toml",
        "loss.svg",
        "metrics.jsonl",
        "tokenizer.json",
    ]  # fmt: skip
    losses = losses_of(run)
    assert [step for step, *_ in losses] == [0, 6, 12, 18, 20]
    assert (result.step, result.train_loss, result.val_loss) == losses[-1][:3]
    assert result.best_val_loss == min(val for _, _, val, _ in losses)
    assert json.loads((run / "tokenizer.json").read_text())["vocab"] == "\n abcdefgh"
    assert load_model(run, "last").record.config == config.resolved().to_dict()


def test_the_threads_are_those_of_the_configuration_and_the_callers_again(
    config: TrainConfig, tmp_path: Path
) -> None:
    """More threads sum in another order, so how many is part of a run that is to go on exactly."""
    before = torch.get_num_threads()
    seen: list[int] = []
    run = tmp_path / "run"
    train(config.replace(threads=3), run, on_event=lambda _: seen.append(torch.get_num_threads()))
    assert set(seen) == {3}
    assert torch.get_num_threads() == before
    train(config.replace(threads=0), tmp_path / "own")
    assert load_model(tmp_path / "own", "last").record.config["threads"] == before
    train(config.replace(threads=0, max_iters=21, lr_decay_iters=0), run, resume=True)
    assert load_model(run, "last").record.config["threads"] == 3


@pytest.mark.parametrize("at_once", [1, 3, 8, 32])  # 3: parts of unlike sizes
def test_a_batch_in_parts_has_the_gradients_of_the_whole(
    config: TrainConfig, tmp_path: Path, at_once: int
) -> None:
    """AdamW's first moment after one step is (1 - beta1) times the gradient, which is not clipped here."""
    config = config.replace(dropout=0.0, batch_size=32, grad_clip=0.0, max_iters=1, beta1=0.9)
    moments = []
    for name, micro_batch_size in (("whole", 0), ("parts", at_once)):
        result = train(config.replace(micro_batch_size=micro_batch_size), tmp_path / name)
        moments.append(
            (result.train_loss, read_tensors(tmp_path / name / LAST / "optimizer.safetensors", "pt"))
        )
    (loss_whole, whole), (loss_parts, parts) = moments
    assert loss_parts == pytest.approx(loss_whole, abs=1e-6)
    names = [name for name in whole if name.endswith(".exp_avg")]
    assert max(whole[name].abs().max() for name in names) > 1e-3
    for name in names:
        torch.testing.assert_close(parts[name], whole[name], atol=1e-6, rtol=0, msg=name)


def test_more_steps_than_the_schedule_has_are_said_to_have_its_lowest_rate(
    config: TrainConfig, tmp_path: Path
) -> None:
    train(config.replace(min_lr=1e-4), tmp_path / "run")
    notes: list[str] = []
    more = config.replace(min_lr=1e-4, max_iters=22)
    train(
        more,
        tmp_path / "run",
        resume=True,
        on_event=lambda event: notes.append(event.text) if isinstance(event, Noted) else None,
    )
    assert notes == ["from step 20 on the learning rate is 0.0001, its min_lr"]


def test_more_steps_at_no_rate_are_refused(config: TrainConfig, tmp_path: Path) -> None:
    train(config.replace(min_lr=0.0), tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"learning rate is 0 from step 20 on.*got max_iters = 22. Train anew"
    ):
        train(config.replace(min_lr=0.0, max_iters=22), tmp_path / "run", resume=True)


def test_how_many_windows_at_once_may_change_on_the_way(config: TrainConfig, tmp_path: Path) -> None:
    train(config, tmp_path / "run", stop_after=10)
    result = train(config.replace(micro_batch_size=1), tmp_path / "run", resume=True)
    assert result.step == 20
    assert load_model(tmp_path / "run", "last").record.config["micro_batch_size"] == 1


def test_the_same_seed_gives_the_same_run_and_another_another(config: TrainConfig, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 1), ("three", 2)):
        train(config.replace(seed=seed), tmp_path / name)
    assert tensors_of(tmp_path / "one") == tensors_of(tmp_path / "two")
    assert state_of(tmp_path / "one") == state_of(tmp_path / "two")
    assert tensors_of(tmp_path / "one") != tensors_of(tmp_path / "three")


@pytest.mark.parametrize("stop", [3, 10, 12])  # before there is a best, between two evaluations, at one
def test_stopped_and_resumed_is_straight_bit_for_bit(config: TrainConfig, tmp_path: Path, stop: int) -> None:
    """Weights, moments, learning rate, next batch, dropout, losses and what counts as the best."""
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    train(config, straight)
    assert train(config, stopped, stop_after=stop).step == stop
    assert tensors_of(straight) != tensors_of(stopped)
    torch.rand(7)  # the caller's own draws are no part of the run
    assert train(config, stopped, resume=True).step == 20
    assert tensors_of(straight) == tensors_of(stopped)
    assert state_of(straight) == state_of(stopped)
    assert losses_of(straight) == losses_of(stopped)
    assert tensors_of(straight, BEST) == tensors_of(stopped, BEST)


def test_a_stop_between_evaluations_is_never_the_best(config: TrainConfig, tmp_path: Path) -> None:
    """Not even where its loss is the lowest so far: a run that had not stopped would not know it."""
    train(config, tmp_path / "run", stop_after=8)
    assert load_model(tmp_path / "run", "last").record.steps == 8
    assert load_model(tmp_path / "run", "best").record.steps == 6


def test_a_stop_before_the_first_evaluation_can_be_exported(config: TrainConfig, tmp_path: Path) -> None:
    result = train(config, tmp_path / "run", stop_after=3)
    best = load_model(tmp_path / "run", "best").record
    assert (best.steps, best.val_loss) == (3, result.val_loss)
    assert [step for step, *_ in losses_of(tmp_path / "run")] == [0]


def test_how_often_one_evaluates_changes_nothing_that_is_learned(config: TrainConfig, tmp_path: Path) -> None:
    for interval, iters in ((4, 1), (7, 3), (500, 2)):
        train(config.replace(eval_interval=interval, eval_iters=iters), tmp_path / str(interval))
    assert tensors_of(tmp_path / "4") == tensors_of(tmp_path / "7") == tensors_of(tmp_path / "500")


def test_a_short_run_leaves_both_checkpoints(config: TrainConfig, tmp_path: Path) -> None:
    train(config.replace(max_iters=5, eval_interval=500), tmp_path / "run")
    assert load_model(tmp_path / "run", "last").record.steps == 5
    assert read_state(tmp_path / "run", "best")["best_step"] == 5


def test_raising_max_iters_keeps_the_schedule(config: TrainConfig, tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    train(config.replace(max_iters=10), run)
    train(config, run, resume=True)
    train(config.replace(lr_decay_iters=10), other)
    assert tensors_of(run) == tensors_of(other)
    assert state_of(run)["command"] == state_of(other)["command"]


def test_resuming_a_finished_run_changes_nothing(config: TrainConfig, tmp_path: Path) -> None:
    first = train(config, tmp_path / "run")
    before = tensors_of(tmp_path / "run"), losses_of(tmp_path / "run")
    assert train(config, tmp_path / "run", resume=True) == first
    assert (tensors_of(tmp_path / "run"), losses_of(tmp_path / "run")) == before


def test_measurements_after_the_checkpoint_are_made_again(config: TrainConfig, tmp_path: Path) -> None:
    """As after a kill between an evaluation and its checkpoint."""
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    train(config, straight)
    train(config, killed, stop_after=12)
    with (killed / "metrics.jsonl").open("a") as file:
        file.write((straight / "metrics.jsonl").read_text().splitlines()[3] + '\n{"step": 20, "tr')
    train(config, killed, resume=True)
    assert losses_of(killed) == losses_of(straight)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_layer": 3}, r"n_layer \(2 in the run, 3 given\)"),
        ({"seed": 7, "learning_rate": 0.5}, r"learning_rate \(0.002 in the run, 0.5 given\), seed \(1337"),
        ({"max_iters": 19}, "may raise max_iters and not lower it: got 19, and the run has 20"),
        ({"max_iters": 19, "seed": 7}, r"seed \(1337.*max_iters \(20 in the run, 19 given\)"),
        ({"lr_decay_iters": 30}, "lr_decay_iters"),
        ({"device": "cuda"}, "device"),
        ({"threads": 2}, r"threads \(1 in the run, 2 given\)"),
    ],
)
def test_resuming_refuses_other_changes_by_name(
    config: TrainConfig, tmp_path: Path, changes: dict[str, int | float | str], named: str
) -> None:
    train(config, tmp_path / "run", stop_after=1)
    before = (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match=named):
        train(config.replace(**changes), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "config.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "xyz" * 100,
            r"characters that the run to resume never saw: 'x' \(U\+0078\), 'y'",
        ),  # as many symbols
        ("abcab" * 100, "not the text of the run"),
        ("abc" * 101, "not the text of the run"),
    ],
)
def test_resuming_refuses_another_text(config: TrainConfig, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "abc.txt").write_text("abc" * 100)
    (tmp_path / "other.txt").write_text(text)
    config = config.replace(data=str(tmp_path / "abc.txt"), max_iters=2)
    train(config, tmp_path / "run")
    with pytest.raises(CorpusError, match=message):
        train(config.replace(data=str(tmp_path / "other.txt"), max_iters=3), tmp_path / "run", resume=True)


@pytest.mark.parametrize(("kind", "vocab_size"), [("byte", 256), ("bpe", 260)])
def test_other_tokens_than_characters(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TokenizerKind, vocab_size: int
) -> None:
    """A run that goes on has the tokens that it began with, and refuses another text."""
    config = config.replace(tokenizer=kind, bpe_vocab_size=260, max_iters=4, eval_interval=2)
    train(config, tmp_path / "straight")
    train(config, tmp_path / "run", stop_after=3)
    loaded = load_model(tmp_path / "run", "last")
    assert loaded.model.config.vocab_size == loaded.tokenizer.vocab_size == vocab_size
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("bad \u2603")) == "bad \u2603"
    with monkeypatch.context() as blocked:
        blocked.setattr("gptblock.training.material.train_tokenizer", None)
        assert train(config, tmp_path / "run", resume=True).step == 4
    assert tensors_of(tmp_path / "run") == tensors_of(tmp_path / "straight")
    assert state_of(tmp_path / "run") == state_of(tmp_path / "straight")
    (tmp_path / "other.txt").write_text("xyz" * 500)
    with pytest.raises(CorpusError, match="is not the text of the run to resume"):
        train(config.replace(data=str(tmp_path / "other.txt"), max_iters=5), tmp_path / "run", resume=True)


def test_a_text_may_move(config: TrainConfig, corpus: Path, tmp_path: Path) -> None:
    train(config.replace(max_iters=2), tmp_path / "run")
    moved = shutil.copy(corpus, tmp_path / "moved.txt")
    assert train(config.replace(data=str(moved), max_iters=3), tmp_path / "run", resume=True).step == 3


def test_newlines_and_byte_order_marks_do_not_matter(config: TrainConfig, tmp_path: Path) -> None:
    text = "abc def\nghi\n" * 40
    forms = {
        "lf": text.encode(),
        "crlf": text.replace("\n", "\r\n").encode(),
        "bom": b"\xef\xbb\xbf" + text.encode(),
    }
    for name, data in forms.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
        train(config.replace(data=str(tmp_path / f"{name}.txt"), max_iters=2), tmp_path / name)
    assert tensors_of(tmp_path / "lf") == tensors_of(tmp_path / "crlf") == tensors_of(tmp_path / "bom")
    vocabularies = {(tmp_path / name / "tokenizer.json").read_text() for name in forms}
    assert len(vocabularies) == 1


def test_a_run_in_the_way(config: TrainConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(config.replace(max_iters=2), run)
    before = tensors_of(run)
    with pytest.raises(RunExistsError, match="--resume"):
        train(config, run)
    with pytest.raises(CorpusError):  # a mistake costs no run
        train(config.replace(data="nowhere.txt"), run, overwrite=True)
    assert tensors_of(run) == before
    train(config.replace(max_iters=3), run, overwrite=True)
    assert state_of(run)["step"] == 3


def test_refusals(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        train(config, tmp_path / "run", resume=True, overwrite=True)
    with pytest.raises(ConfigError, match="stop_after must be >= 1: got 0"):
        train(config, tmp_path / "run", stop_after=0)
    with pytest.raises(NotFoundError, match="no run in"):
        train(config, tmp_path / "run", resume=True)
    with pytest.raises(CorpusError, match="too short for block_size = 500"):
        train(config.replace(block_size=500), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_is_cuda_or_an_error(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="--device cpu"):
        train(config.replace(device="cuda"), tmp_path / "run")
    train(config.replace(device="auto", max_iters=1), tmp_path / "run")
    assert load_model(tmp_path / "run").record.config["device"] == "cpu"


def test_divergence_names_the_step_and_keeps_the_checkpoint(config: TrainConfig, tmp_path: Path) -> None:
    wild = config.replace(learning_rate=1e30, warmup_iters=0, grad_clip=0.0)
    with pytest.raises(DivergedError, match=r"the loss is (nan|inf) at step \d+: .*--learning-rate"):
        train(wild, tmp_path / "run")
    assert load_model(tmp_path / "run", "last").record.steps == 0


def test_weights_broken_by_the_last_step_are_not_saved(config: TrainConfig, tmp_path: Path) -> None:
    """Its own loss was still finite: only the evaluation sees it."""
    wild = config.replace(learning_rate=1e38, warmup_iters=0, max_iters=1)
    with pytest.raises(DivergedError, match="at step 1"):
        train(wild, tmp_path / "run")
    assert load_model(tmp_path / "run", "last").record.steps == 0


def test_events_tell_the_whole_story(config: TrainConfig, tmp_path: Path) -> None:
    events: list[Event] = []
    train(config.replace(max_iters=7), tmp_path / "run", on_event=events.append)
    assert isinstance(events[0], Started)
    assert (events[0].step, events[0].stop_at, events[0].vocab_size, events[0].tokens) == (0, 7, 10, 1800)
    assert [event.step for event in events if isinstance(event, Stepped)] == [1, 2, 3, 4, 5, 6, 7]
    assert [event.measurement.step for event in events if isinstance(event, Evaluated)] == [0, 6, 7]
    rates = [event.learning_rate for event in events if isinstance(event, Stepped)]
    assert rates[:4] == [0.002 * step / 4 for step in (1, 2, 3, 4)]
    saved = [event.path.name for event in events if isinstance(event, Saved)]
    assert saved[-1] == "last"
    assert saved.count("last") == 3


def send_at(step: int, number: signal.Signals, seen: list[Event]) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        seen.append(event)
        if isinstance(event, Stepped) and event.step == step:
            signal.raise_signal(number)

    return on_event


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_resuming_loses_nothing(
    config: TrainConfig, tmp_path: Path, number: signal.Signals
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen: list[Event] = []
    with pytest.raises(InterruptedRunError, match="gptblock train --resume --out"):
        train(config, tmp_path / "run", on_event=send_at(8, number, seen))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    stop = next(event for event in seen if isinstance(event, Stopping))
    assert [type(event) for event in seen[seen.index(stop) :] if not isinstance(event, Stepped)] == [
        Stopping,
        Saved,
    ]
    assert load_model(tmp_path / "run", "last").record.steps == stop.step in (8, 9)
    train(config, tmp_path / "run", resume=True)
    train(config, tmp_path / "straight")
    assert tensors_of(tmp_path / "run") == tensors_of(tmp_path / "straight")


def test_a_second_signal_ends_it_at_once(config: TrainConfig, tmp_path: Path) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 8:
            signal.raise_signal(signal.SIGINT)
        if isinstance(event, Stopping):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(InterruptedRunError, match="stopped at step"):
        train(config, tmp_path / "run", on_event=on_event)
    assert load_model(tmp_path / "run", "last").record.steps == 6


def test_a_signal_at_the_first_evaluation_leaves_a_model(config: TrainConfig, tmp_path: Path) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, Evaluated) and event.measurement.step == 0:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(InterruptedRunError, match="step 1 of 20"):
        train(config, tmp_path / "run", on_event=on_event)
    assert load_model(tmp_path / "run", "best").record.steps == 1


def test_two_signals_before_there_is_a_best_leave_what_goes_on(config: TrainConfig, tmp_path: Path) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, Evaluated):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(InterruptedRunError, match="step 1 of 20"):
        train(config, tmp_path / "run", on_event=on_event)
    with pytest.raises(NotFoundError, match="--resume goes on"):
        load_model(tmp_path / "run", "best")
    assert train(config, tmp_path / "run", resume=True).step == 20


def test_training_works_in_a_thread(config: TrainConfig, tmp_path: Path) -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append(train(config, tmp_path / "thread")))
    thread.start()
    thread.join()
    train(config, tmp_path / "main")
    assert results[0].step == 20
    assert tensors_of(tmp_path / "thread") == tensors_of(tmp_path / "main")


def test_the_callers_generator_is_as_before(config: TrainConfig, tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(config, tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


def test_it_learns(config: TrainConfig, tmp_path: Path) -> None:
    """A text with a rule: every letter follows from the one before."""
    (tmp_path / "rule.txt").write_text("abcdefgh" * 100)
    config = config.replace(
        data=str(tmp_path / "rule.txt"), max_iters=150, learning_rate=0.02, dropout=0.0, eval_interval=150
    )
    result = train(config, tmp_path / "run")
    assert losses_of(tmp_path / "run")[0][2] > 1.9  # log 8 = 2.08: it begins with knowing nothing
    assert result.val_loss < 0.1


def test_the_weights_are_those_of_the_generators_seed(config: TrainConfig, tmp_path: Path) -> None:
    """Batches have a generator of their own: another dropout leaves the next batch as it was."""
    train(config.replace(max_iters=3), tmp_path / "one")
    train(config.replace(max_iters=3, dropout=0.0), tmp_path / "two")
    one, two = (read_tensors(tmp_path / name / LAST / "optimizer.safetensors") for name in ("one", "two"))
    assert (one["generator.batches"] == two["generator.batches"]).all()
    assert not (one["generator.dropout"] == two["generator.dropout"]).all()
