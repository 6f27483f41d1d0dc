"""The model card: README.md of a bundle, with code that runs the model where not even gptblock is."""

from __future__ import annotations

from dataclasses import dataclass
from string import Template

from gptblock.bundle.manifest import FileEntry, Manifest

# Runs as it stands in the bundle's folder; the tests run it in a process without gptblock.
_SNIPPET = Template("""\
import json
import numpy as np
import onnxruntime as ort
${imports}ort.set_default_logger_severity(3)  # no cache is kept here, which it would warn of at every token
session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
metadata = session.get_modelmeta().custom_metadata_map
model, tokenizer = json.loads(metadata["gptblock.model"]), json.loads(metadata["gptblock.tokenizer"])
ids = [0]
for _ in range(100):
    window = np.array([ids[-model["block_size"]:]])  # (1, T)
    T, feeds = window.shape[1], {"input_ids": window, "past_length": np.zeros(1, np.int64)}
    caches = [i.name for i in session.get_inputs()[3:]]
    feeds |= {name: np.zeros((1, T, model["n_embd"]), np.float32) for name in caches}
    ids.append(int(session.run(["logits"], feeds | {"logits_positions": np.array([[T - 1]])})[0].argmax()))
print(${text})
""")


@dataclass(frozen=True)
class _Kind:
    """What the card says of a tokenizer: a word for the model, its extra, and how the snippet decodes."""

    level: str
    text: str
    extra: str = "cpu"
    imports: str = ""
    packages: str = "alone"


_KINDS = {
    "char": _Kind("character", '"".join(tokenizer["vocab"][i] for i in ids[1:])'),
    "byte": _Kind("byte", 'bytes(ids[1:]).decode("utf-8", "replace")'),
    "subword": _Kind(
        "subword",
        'Tokenizer.from_str(json.dumps(tokenizer["json"])).decode(ids[1:], skip_special_tokens=False)',
        extra="cpu,bpe",
        imports="from tokenizers import Tokenizer\n",
        packages="and tokenizers (`pip install tokenizers`) alone",
    ),
}


def model_card(manifest: Manifest) -> str:
    """The card as Markdown: what the model is, what it was trained on, what was proved, how to run it."""
    model, kind = manifest.model, _KINDS[str(manifest.tokenizer["type"])]
    snippet = _SNIPPET.substitute(imports=kind.imports, text=kind.text)
    parts = [
        "# A gptblock model\n",
        f"A {kind.level}-level GPT: {model.n_layer} layers, {model.n_head} heads, width {model.n_embd}, "
        f"context {model.block_size} tokens, vocabulary {model.vocab_size}.\n",
        _training(manifest),
        _source(manifest),
        "## Files\n",
        _files(manifest.files),
        "## Proof\n",
        "Each file was compared with eager PyTorch on the CPU when it was exported. `gptblock verify` "
        "repeats the proof on the machine that runs it.\n",
        *(_proof(name, entry) for name, entry in manifest.files.items() if entry.checks),
        "## Use\n",
        f"With gptblock: `pip install 'gptblock[{kind.extra}]'`, then `gptblock generate` with this folder. "
        f"With onnxruntime {manifest.minimum_onnxruntime} or newer {kind.packages}, greedily and without the "
        f"cache:\n",
        f"```python\n{snippet}```\n",
    ]
    return "\n".join(part for part in parts if part)


def _training(manifest: Manifest) -> str:
    training = manifest.training
    if training is None:
        return ""
    return (
        "## Training\n\n"
        "| | |\n| --- | --- |\n"
        f"| data | {_cell(training.data)} (SHA-256 {training.data_sha256}) |\n"
        f"| steps | {training.steps} |\n"
        f"| training loss | {training.train_loss:.4f} nats a token |\n"
        f"| validation loss | {training.val_loss:.4f} nats a token |\n"
        f"| command | `{_cell(training.command)}` |\n"
    )


def _source(manifest: Manifest) -> str:
    source = manifest.source
    if source is None:
        return ""
    loss = ""
    if source.loss is not None:
        loss = f"| loss | {source.loss:.4f} nats a token on {_cell(str(source.data))} |\n"
    return (
        "## Source\n\n"
        "| | |\n| --- | --- |\n"
        f"| converted from | {source.format}: {_cell(source.file)} (SHA-256 {source.sha256}) |\n"
        f"{loss}| command | `{_cell(source.command)}` |\n"
    )


def _cell(text: str) -> str:
    """Text that neither ends its cell nor its code."""
    return text.replace("|", "\\|").replace("`", "'").replace("\n", " ")


def _files(files: dict[str, FileEntry]) -> str:
    rows = [f"| {name} | {entry.precision or ''} | {entry.size} |" for name, entry in files.items()]
    costs = [f"\n{name}: {_cell(str(entry.cost))}." for name, entry in files.items() if entry.cost]
    return "\n".join(["| file | precision | bytes |", "| --- | --- | --- |", *rows, *costs]) + "\n"


def _proof(name: str, entry: FileEntry) -> str:
    rows = [f"| {c.name} | {c.cases} | {c.worst:.2g} | {c.allowed:.2g} |" for c in entry.checks]
    return "\n".join([f"| {name} | cases | worst | allowed |", "| --- | --- | --- | --- |", *rows]) + "\n"
