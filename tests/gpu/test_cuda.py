"""What only a GPU can show. Skipped, with the reason, where CUDA does not work."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from gptblock.bundle.manifest import Precision
from gptblock.config import Overflow
from gptblock.export.build import export_model
from gptblock.model import GPT
from gptblock.runtime.completion import GenerateOptions
from gptblock.runtime.cuda import cuda_problem
from gptblock.runtime.model import Model, load
from gptblock.runtime.verify import verify
from gptblock.runtime.wheels import load_onnxruntime
from gptblock.text.char import CharTokenizer

pytestmark = pytest.mark.gpu

PROMPTS = ["A", "ROMEO:", "My lord, what news"]


@pytest.fixture(scope="module", autouse=True)
def cuda() -> None:
    problem = cuda_problem(load_onnxruntime())
    if problem:
        pytest.skip(f"CUDA does not work here: {problem.text}")


@pytest.fixture(scope="module")
def bundle(tiny_model: GPT, tiny_tokenizer: CharTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in every precision."""
    folder = tmp_path_factory.mktemp("gpu") / "bundle"
    export_model(tiny_model, tiny_tokenizer, folder, ("onnx",), get_args(Precision))
    return folder


@pytest.mark.parametrize("use_graphs", [False, True])
@pytest.mark.parametrize("precision", get_args(Precision))
def test_the_whole_proof_holds_on_cuda(precision: Precision, use_graphs: bool, bundle: Path) -> None:
    result = verify(bundle, precision=precision, provider="cuda", use_graphs=use_graphs)
    assert result.provider is not None
    assert (result.provider.name, result.provider.use_graphs) == ("cuda", use_graphs)
    assert (result.problems, result.failed) == ([], [])
    assert len(result.proofs) == 1


def test_tf32_is_stated_and_rounds_factors_to_ten_bits(bundle: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 65, size=(2, 16))
    exact, rounded = (load(bundle, precision="fp32", provider="cuda", use_tf32=on) for on in (False, True))
    assert (exact.provider.use_tf32, rounded.provider.use_tf32) == (False, True)
    expected = exact.logits(ids).copy()
    np.testing.assert_allclose(rounded.logits(ids), expected, rtol=0, atol=0.01 * np.abs(expected).max())


def test_auto_takes_fp16_on_cuda_where_the_bundle_has_it(bundle: Path) -> None:
    assert load(bundle, provider="cuda").decoder.metadata.precision == "fp16"


@pytest.mark.parametrize("use_graphs", [False, True])
@pytest.mark.parametrize("overflow", ["slide", "rebase", "stop"])
def test_greedy_text_is_that_of_the_cpu(overflow: Overflow, use_graphs: bool, tiny_bundle: Path) -> None:
    options = GenerateOptions(temperature=0.0, max_new_tokens=40, overflow=overflow)
    cpu, cuda = (load(tiny_bundle, provider=each, use_graphs=use_graphs) for each in ("cpu", "cuda"))
    for prompts in (PROMPTS, PROMPTS[:1], PROMPTS):  # graphs are recorded, then replayed
        assert texts(cuda, prompts, options) == texts(cpu, prompts, options)


@pytest.mark.parametrize("options", [GenerateOptions(temperature=0.0), GenerateOptions(top_k=5, seed=3)])
def test_the_largest_logits_give_the_tokens_that_all_give(
    options: GenerateOptions, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(tiny_bundle, provider="cuda")
    expected = texts(whole, PROMPTS, options)
    monkeypatch.setattr("gptblock.runtime.decoder._LARGE_VOCABULARY", 1)
    few = load(tiny_bundle, provider="cuda")
    assert texts(few, PROMPTS, options) == expected
    assert (whole.decoder._best is None, few.decoder._best is None) == (True, False)


def texts(model: Model, prompts: list[str], options: GenerateOptions) -> list[str]:
    return [completion.text for (completion,) in model.generate(prompts, **options)]
