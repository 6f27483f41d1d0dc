"""The run of a conversion: what is in it, what is refused, and that nothing is lost where it fails."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from gptblock.bundle.manifest import SourceRecord
from gptblock.bundle.store import read_manifest, read_tensors
from gptblock.config import SamplingConfig
from gptblock.convert import convert
from gptblock.errors import ConfigError, CorruptError, NotFoundError, ProofError, RunExistsError
from gptblock.export.build import export
from gptblock.training import load_model
from gptblock.training.checkpoint import read_checkpoint, weights_of
from gptblock.training.folder import read_config

VOCAB = "\n !abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def checkpoint(lecture, tmp_path) -> Path:
    path = tmp_path / "from elsewhere" / "model.pt"
    path.parent.mkdir()
    torch.save(lecture(n_head=1).state_dict(), path)
    return path


@pytest.fixture
def run(checkpoint, vocab_file, tmp_path) -> Path:
    convert(checkpoint, "lecture", tmp_path / "run", vocab=vocab_file)
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_run_holds_weights_and_where_they_come_from(checkpoint, vocab_file, tmp_path):
    (tmp_path / "text.txt").write_text("what a text it is " * 20)
    run = tmp_path / "runs" / "run"
    conversion = convert(
        checkpoint, "lecture", run, vocab=vocab_file, data=str(tmp_path / "text.txt"), dropout=0.25
    )
    assert sorted(contents(run)) == [
        "checkpoints/best/model.safetensors",
        "checkpoints/best/state.json",
        "tokenizer.json",
    ]
    loaded = load_model(run)
    assert loaded.record == conversion.record
    assert loaded.record == SourceRecord(
        format="lecture",
        file="model.pt",
        sha256=hashlib.sha256(checkpoint.read_bytes()).hexdigest(),
        command="gptblock convert model.pt --from lecture --vocab chars.txt --dropout 0.25 --data text.txt",
        data="text.txt",
        loss=pytest.approx(conversion.record.loss, abs=0),
    )
    assert 2.5 < conversion.record.loss < 4.5  # log 29 = 3.37
    assert json.loads((run / "tokenizer.json").read_text()) == {"type": "char", "vocab": VOCAB}
    weights = read_tensors(run / "checkpoints/best/model.safetensors")
    assert weights.keys() == weights_of(loaded.model).keys()
    assert conversion.parameters == sum(array.size for array in weights.values())
    assert loaded.model.config == conversion.config
    assert conversion.config.dropout == 0.25
    assert not loaded.model.training


def test_the_sample_is_greedy_from_a_newline(run, checkpoint, vocab_file, tmp_path):
    conversion = convert(checkpoint, "lecture", tmp_path / "other", vocab=vocab_file)
    start = torch.tensor([[VOCAB.index("\n")]])
    ids = load_model(run).model.generate(start, 60, SamplingConfig(temperature=0.0), seed=0)[0, 1:]
    assert conversion.sample == "".join(VOCAB[i] for i in ids)


def test_export_takes_it_and_says_where_it_comes_from(checkpoint, vocab_file, tmp_path):
    run = tmp_path / "run"
    convert(checkpoint, "lecture", run, vocab=vocab_file, finish=lambda new, _: export(new, ["onnx"]))
    manifest = read_manifest(run / "bundle")
    assert manifest.training is None
    assert manifest.source == load_model(run).record
    card = (run / "bundle" / "README.md").read_text()
    assert f"| converted from | lecture: model.pt (SHA-256 {manifest.source.sha256}) |" in card
    assert "| loss |" not in card
    assert "## Training" not in card


def test_fewer_positions_are_kept(checkpoint, vocab_file, run, tmp_path):
    conversion = convert(checkpoint, "lecture", tmp_path / "short", vocab=vocab_file, block_size=8)
    assert conversion.notes == ("positions: the first 8 of 16 are kept",)
    short, whole = load_model(tmp_path / "short").model, load_model(run).model
    ids = torch.randint(len(VOCAB), (3, 8))
    assert short.config.block_size == 8
    assert torch.equal(short(ids), whole(ids))
    with pytest.raises(ConfigError, match=r"block_size must be at most 16, .* got 17"):
        convert(checkpoint, "lecture", tmp_path / "long", vocab=vocab_file, block_size=17)
    assert not (tmp_path / "long").exists()


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("gpt3", {}, "from must be one of lecture, nanogpt, gpt2: got 'gpt3'"),
        ("gpt2", {"vocab": Path("v")}, "--vocab is for --from lecture and nanogpt"),
        ("lecture", {"tokenizer": Path("t")}, "--tokenizer is for --from nanogpt and gpt2"),
        ("nanogpt", {"scale": "n_embd"}, "--scale is for --from lecture: got it with --from nanogpt"),
        ("lecture", {"scale": "head"}, "scale must be one of head_size, n_embd: got 'head'"),
        ("lecture", {"dropout": 1.0}, "dropout must be in"),
        ("lecture", {"block_size": 0}, "block_size must be >= 1"),
    ],
)
def test_options_that_are_not_allowed(source, options, message, checkpoint, vocab_file, tmp_path):
    needed = {"vocab": vocab_file} if source == "lecture" else {}
    with pytest.raises(ConfigError, match=message):
        convert(checkpoint, source, tmp_path / "run", **needed | options)
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_there_is_kept_unless_told(run, checkpoint, vocab_file):
    (run / "notes.txt").write_text("mine")
    (run / "bundle").mkdir()
    (run / "config.toml").write_text("of a training")
    before = contents(run)
    with pytest.raises(RunExistsError, match="--overwrite replaces it"):
        convert(checkpoint, "lecture", run, vocab=vocab_file)
    assert contents(run) == before
    convert(checkpoint, "lecture", run, vocab=vocab_file, overwrite=True)
    assert contents(run).keys() == before.keys() - {"config.toml"}
    assert (run / "notes.txt").read_text() == "mine"
    assert not (run / "bundle").exists()


def test_other_files_are_never_replaced(checkpoint, vocab_file):
    with pytest.raises(RunExistsError, match="holds other files and no run"):
        convert(checkpoint, "lecture", checkpoint.parent, vocab=vocab_file, overwrite=True)
    assert list(contents(checkpoint.parent)) == ["model.pt"]


@pytest.mark.parametrize("error", [ProofError("it is another model"), KeyboardInterrupt()])
def test_what_fails_late_loses_nothing_and_leaves_nothing(error, run, checkpoint, vocab_file, tmp_path):
    def finish(folder, conversion):
        assert load_model(folder).record == conversion.record
        (folder / "bundle").mkdir()
        raise error

    before, names = contents(run), sorted(tmp_path.iterdir())
    for out in (run, tmp_path / "new"):
        with pytest.raises(type(error)):
            convert(checkpoint, "lecture", out, vocab=vocab_file, overwrite=True, block_size=8, finish=finish)
    assert contents(run) == before
    assert sorted(tmp_path.iterdir()) == names


@pytest.mark.parametrize(
    "ask", [lambda run: load_model(run, "last"), lambda run: read_checkpoint(run, "last"), read_config]
)
def test_a_training_is_not_there_to_go_on_with(ask, run):
    with pytest.raises(
        NotFoundError, match=r"was converted .* no checkpoint but best, which gptblock export"
    ):
        ask(run)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("source", {"format": "lecture"}),
        ("source", None),
        ("model", {"vocab_size": 0}),
        ("model", {"vocab_size": 29, "colour": 1}),
        ("tokenizer", {"type": "word"}),
        ("step", 3),
        ("schema_version", 99),
    ],
)
def test_an_altered_state_is_refused(key, value, run):
    path = run / "checkpoints/best/state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(CorruptError, match=r"state\.json"):
        load_model(run)
