"""Fixtures that several rooms share. An export takes seconds, so one serves the whole session."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

# Before torch is imported anywhere: its threads wait for each other, and tests that share cores would crawl.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest

from gptblock.config import ModelConfig, TokenizerKind
from gptblock.text.char import CharTokenizer

if TYPE_CHECKING:
    from gptblock.model.gpt import GPT

# A loaded machine is slow, which is no fault of what is tested.
hypothesis.settings.register_profile("gptblock", deadline=None)
hypothesis.settings.load_profile("gptblock")

# A shell starts what runs in its background with Ctrl-C ignored; what is tested of it here must not be.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-variants", action="store_true", help="every valid combination of a block's parts")


# The vocabulary of tiny Shakespeare: 65 characters.
SHAKESPEARE = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="session")
def tiny_tokenizer() -> CharTokenizer:
    return CharTokenizer(SHAKESPEARE)


class MakeModel(Protocol):
    def __call__(self, seed: int = 0, **changes: object) -> GPT: ...


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """Small GPTs with torch's own initialisation, whose logits differ more than those of a fresh GPT-2."""

    import torch

    from gptblock.model.gpt import GPT

    def make(seed: int = 0, **changes: object) -> GPT:
        config = ModelConfig(
            vocab_size=65, block_size=16, n_layer=2, n_head=4, n_embd=32, dropout=0.2, init="torch"
        )
        torch.manual_seed(seed)
        return GPT(config.replace(**changes)).eval()

    return make


@pytest.fixture(scope="session")
def tiny_model(make_model: MakeModel) -> GPT:
    return make_model()


@pytest.fixture(scope="session")
def tiny_bundle(
    tiny_model: GPT, tiny_tokenizer: CharTokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A bundle of `tiny_model` in both formats. Copy it before altering it."""
    from gptblock.export.build import export_model

    folder = tmp_path_factory.mktemp("tiny") / "bundle"
    export_model(tiny_model, tiny_tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def other_bundles(make_model: MakeModel, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles of models that do not write characters, by the kind of their tokens: ONNX alone."""
    from gptblock.export.build import export_model
    from gptblock.text.kinds import train_tokenizer

    folders = {}
    kinds: tuple[TokenizerKind, ...] = ("byte", "bpe")
    for kind in kinds:
        tokenizer = train_tokenizer(kind, "the cat sat on the mat, and the dog on the log\n" * 9, 280)
        folders[kind] = tmp_path_factory.mktemp(kind) / "bundle"
        export_model(make_model(vocab_size=tokenizer.vocab_size), tokenizer, folders[kind], ["onnx"])
    return folders
