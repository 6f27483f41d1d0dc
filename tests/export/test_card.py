"""The model card's snippet runs as it stands, in a process without gptblock, whatever the tokens are."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gptblock.runtime.model import load

BLOCKED = "import sys\nsys.modules['gptblock'] = None\n"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("byte", ["A byte-level GPT:", "'gptblock[cpu]'", "or newer alone,"]),
        ("bpe", ["A subword-level GPT:", "'gptblock[cpu,bpe]'", "and tokenizers (`pip install tokenizers`)"]),
    ],
)
def test_the_snippet_writes_what_the_runtime_writes(kind, says, other_bundles):
    card = (other_bundles[kind] / "README.md").read_text(encoding="utf-8")
    assert [line for line in says if line not in card] == []
    snippet = card.split("```python\n")[1].split("```")[0]
    assert ("tokenizers" in snippet) is (kind == "bpe")
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-X", "utf8", "-c", BLOCKED + snippet],
        cwd=other_bundles[kind],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert result.returncode == 0, result.stderr
    model = load(other_bundles[kind], provider="cpu", threads=1)
    expected = model.generate("", max_new_tokens=100, temperature=0.0)
    assert result.stdout == expected.text + "\n"
