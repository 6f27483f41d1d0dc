"""What only a GPU can show. Skipped, with the reason, where CUDA does not work."""

from __future__ import annotations

from pathlib import Path

import pytest

from gptblock.runtime.cuda import cuda_problem
from gptblock.runtime.model import load
from gptblock.runtime.verify import verify
from gptblock.runtime.wheels import load_onnxruntime

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def cuda() -> None:
    problem = cuda_problem(load_onnxruntime())
    if problem:
        pytest.skip(f"CUDA does not work here: {problem.text}")


def test_the_whole_proof_holds_on_cuda(tiny_bundle: Path) -> None:
    result = verify(tiny_bundle, provider="cuda")
    assert result.provider is not None
    assert result.provider.name == "cuda"
    assert (result.problems, result.failed) == ([], [])


@pytest.mark.parametrize("overflow", ["slide", "rebase", "stop"])
def test_greedy_text_is_that_of_the_cpu(overflow: str, tiny_bundle: Path) -> None:
    prompts = ["A", "ROMEO:", "My lord, what news"]
    texts = [
        [
            completion.text
            for (completion,) in load(tiny_bundle, provider=provider).generate(
                prompts, temperature=0.0, max_new_tokens=40, overflow=overflow
            )
        ]
        for provider in ("cpu", "cuda")
    ]
    assert texts[0] == texts[1]
