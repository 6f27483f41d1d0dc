"""From a trained run to a bundle: export, prove, write; or, where a proof fails, write nothing."""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal, get_args

from gptblock.bundle.manifest import Check, FileEntry, Manifest, ModelMetadata, SourceRecord, TrainingRecord
from gptblock.bundle.store import hash_file, replace_folder, write_tensors
from gptblock.errors import ConfigError, CorruptError, ProofError
from gptblock.export.card import model_card
from gptblock.export.onnx import export_onnx
from gptblock.export.parity import make_golden, prove_onnx, prove_torchscript
from gptblock.export.torchscript import export_torchscript
from gptblock.model.gpt import GPT
from gptblock.runtime.golden import Golden
from gptblock.runtime.verify import GOLDEN_NAME
from gptblock.text.tokenizer import Tokenizer
from gptblock.training.checkpoint import load_model

Format = Literal["onnx", "torchscript"]
OnProof = Callable[[str, Sequence[Check]], None]  # file name, its checks, whether they hold or not


def export(
    run: Path,
    formats: Sequence[Format] = ("onnx", "torchscript"),
    *,
    checkpoint: Literal["best", "last"] = "best",
    on_proof: OnProof | None = None,
) -> Manifest:
    """Export a run's checkpoint into `run/bundle`, which then holds exactly this export.

    Raises NotFoundError and CorruptError for the run, ProofError (and leaves the old bundle as it was)
    where a file does not reproduce the model.
    """
    loaded = load_model(run, checkpoint)
    return export_model(
        loaded.model,
        loaded.tokenizer,
        run / "bundle",
        formats,
        record=loaded.record,
        on_proof=on_proof,
    )


def export_model(
    model: GPT,
    tokenizer: Tokenizer,
    folder: Path,
    formats: Sequence[Format] = ("onnx", "torchscript"),
    *,
    record: TrainingRecord | SourceRecord | None = None,
    on_proof: OnProof | None = None,
) -> Manifest:
    """Export any model into a bundle at `folder`; `model.onnx` in fp32 is always part of it.

    `record` says where its weights come from.

    Raises ConfigError for a format that there is not, and ProofError as `export` does.
    """
    if unknown := set(formats) - set(get_args(Format)):
        raise ConfigError(
            f"formats must be of {', '.join(get_args(Format))}: got {', '.join(sorted(unknown))}"
        )
    if model.lm_head.weight.device.type != "cpu":
        model = copy.deepcopy(model).cpu()
    golden = make_golden(model)
    checks: dict[str, Sequence[Check]] = {}

    def prove(name: str, proof: Callable[[GPT, Path, Golden], Sequence[Check]]) -> None:
        try:
            rows = checks[name] = proof(model, new / name, golden)
        except CorruptError as error:
            raise ProofError(f"{name} does not run, so no bundle was written: {error}") from None
        if on_proof:
            on_proof(name, rows)
        failed = [row.name for row in rows if not row.ok]
        if failed:
            raise ProofError(
                f"{name} does not reproduce the model ({'; '.join(failed)}), so no bundle was written. "
                f"This is a fault of the exporter or the runtime: please report it with the table above"
            )

    with replace_folder(folder) as new:
        metadata = ModelMetadata(model.config, tokenizer.to_dict(), "fp32")
        export_onnx(model, new / "model.onnx", metadata)
        prove("model.onnx", prove_onnx)
        if "torchscript" in formats:
            export_torchscript(model, new / "model.pt")
            prove("model.pt", prove_torchscript)
        write_tensors(new / GOLDEN_NAME, golden.to_tensors())
        files = {path.name: _entry(path, checks.get(path.name, ())) for path in sorted(new.iterdir())}
        manifest = Manifest(
            model=model.config,
            tokenizer=tokenizer.to_dict(),
            training=record if isinstance(record, TrainingRecord) else None,
            source=record if isinstance(record, SourceRecord) else None,
            files=files,
            versions=_versions(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        card = new / "README.md"
        card.write_text(model_card(manifest), encoding="utf-8")
        manifest.files[card.name] = _entry(card)
        (new / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def _entry(path: Path, checks: Sequence[Check] = ()) -> FileEntry:
    return FileEntry(
        size=path.stat().st_size,
        sha256=hash_file(path),
        precision="fp32" if checks else None,
        checks=tuple(checks),
    )


def _versions() -> dict[str, str]:
    """What the export was made and proved with."""
    packages = ("gptblock", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
