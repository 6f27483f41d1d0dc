"""From a trained run to a bundle: export, prove, write; or, where a proof fails, write nothing."""

from __future__ import annotations

import copy
import functools
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal, get_args

from gptblock.bundle.manifest import (
    Check,
    Cost,
    FileEntry,
    Manifest,
    ModelMetadata,
    Precision,
    SourceRecord,
    TrainingRecord,
)
from gptblock.bundle.store import beside, hash_file, replace_folder, write_tensors
from gptblock.errors import ConfigError, CorpusError, CorruptError, InputError, ProofError
from gptblock.export.card import model_card
from gptblock.export.fuse import can_fuse, fuse
from gptblock.export.onnx import export_onnx
from gptblock.export.parity import eager_prefixes, make_golden, prove_onnx, prove_torchscript
from gptblock.export.quantize import check_rounding, quantize
from gptblock.export.torchscript import export_torchscript
from gptblock.export.unpack import unpack
from gptblock.model.gpt import GPT
from gptblock.runtime.cost import Excerpt, cost_of, draw_excerpt, read
from gptblock.runtime.decoder import Decoder
from gptblock.runtime.golden import Golden
from gptblock.runtime.proof import LogitsOf
from gptblock.runtime.session import open_session
from gptblock.runtime.verify import GOLDEN_NAME
from gptblock.text.tokenizer import Tokenizer
from gptblock.training.checkpoint import load_model

Format = Literal["onnx", "torchscript"]
OnProof = Callable[[str, Sequence[Check]], None]  # file name, its checks, whether they hold or not
OnNote = Callable[[str], None]  # a sentence on what was left out


def export(
    run: Path,
    formats: Sequence[Format] = ("onnx", "torchscript"),
    precisions: Sequence[Precision] = ("fp32",),
    *,
    checkpoint: Literal["best", "last"] = "best",
    data: str | None = None,
    on_proof: OnProof | None = None,
    on_note: OnNote | None = None,
) -> Manifest:
    """Export a run's checkpoint into `run/bundle`, which then holds exactly this export.

    Raises NotFoundError and CorruptError for the run, ProofError (and leaves the old bundle as it was)
    where a file does not reproduce the model, and as `export_model` does.
    """
    loaded = load_model(run, checkpoint)
    return export_model(
        loaded.model,
        loaded.tokenizer,
        run / "bundle",
        formats,
        precisions,
        record=loaded.record,
        data=data,
        on_proof=on_proof,
        on_note=on_note,
        consume=True,
    )


def export_model(
    model: GPT,
    tokenizer: Tokenizer,
    folder: Path,
    formats: Sequence[Format] = ("onnx", "torchscript"),
    precisions: Sequence[Precision] = ("fp32",),
    *,
    record: TrainingRecord | SourceRecord | None = None,
    data: str | None = None,
    on_proof: OnProof | None = None,
    on_note: OnNote | None = None,
    consume: bool = False,
) -> Manifest:
    """Export any model into a bundle at `folder`; `model.onnx` in fp32 is always part of it.

    `record` says where its weights come from. What each lower precision costs is measured on the corpus
    `data` or, without one, on what the training in `record` validated on; where that is not to be had, it is
    left out and `on_note` hears why. `consume` lets go of a large model's weights once its files are written,
    for they need not be in memory beside those of the files; its prefixes are then held against PyTorch's
    logits of the whole.

    Raises ConfigError for a format or precision that there is not, CorpusError and InputError for `data`, and
    ProofError as `export` does.
    """
    for name, given, allowed in (("formats", formats, Format), ("precisions", precisions, Precision)):
        if unknown := set(given) - set(get_args(allowed)):
            raise ConfigError(
                f"{name} must be of {', '.join(get_args(allowed))}: got {', '.join(sorted(unknown))}"
            )
    lower = [precision for precision in get_args(Precision)[1:] if precision in precisions]
    excerpt = None
    if lower:
        excerpt = _excerpt(model, tokenizer, record, data, on_note)
    elif data is not None:
        raise ConfigError("data is to measure a precision below fp32 on, and none was asked for")
    if model.lm_head.weight.device.type != "cpu":
        model = copy.deepcopy(model).cpu()
    golden = make_golden(model)
    checks: dict[str, Sequence[Check]] = {}
    written: dict[str, Precision] = {"model.onnx": "fp32"}
    weights: dict[str, str] = {}  # the file that those of a graph without its own are in
    batch_graphs: dict[str, Path] = {}  # what a graph is run with

    def prove(name: str, proof: Callable[[Path, Golden, LogitsOf | None], Sequence[Check]]) -> None:
        try:
            rows = checks[name] = proof(new / name, golden, expected_of)
        except CorruptError as error:
            raise ProofError(f"{name} does not run, so no bundle was written: {error}") from None
        if on_proof:
            on_proof(name, rows)
        failed = [row.name for row in rows if not row.ok]
        if failed:
            raise ProofError(
                f"{name} does not reproduce the model ({'; '.join(failed)}), so no bundle was written. "
                f"{_advice(written[name])}"
            )

    with replace_folder(folder) as new:
        fp32 = new / "model.onnx"
        export_onnx(model, fp32, ModelMetadata(model.config, tokenizer.to_dict(), "fp32"))
        for precision in lower:
            path = new / f"model.{precision}.onnx"
            written[path.name] = precision
            metadata = ModelMetadata(model.config, tokenizer.to_dict(), precision)
            if precision == "fp16":
                export_onnx(model, path, metadata)
            else:
                quantize(fp32, path, metadata)
        if "torchscript" in formats:
            written["model.pt"] = "fp32"
            export_torchscript(model, new / "model.pt")
        for name, precision in [*written.items()]:
            if name.endswith(".onnx") and can_fuse(model.config, precision):
                cpu_graph = new / beside(name, "cpu")
                fuse(new / name, cpu_graph, model.config)
                written[cpu_graph.name], weights[cpu_graph.name] = precision, name
                if precision == "int8":
                    batch_graph = new / beside(name, "batch")
                    unpack(cpu_graph, batch_graph)
                    written[batch_graph.name], weights[batch_graph.name] = precision, name
                    batch_graphs[cpu_graph.name] = batch_graph
        expected_of: LogitsOf | None = eager_prefixes(model, golden)
        if consume and len(golden.positions) < model.config.block_size:
            expected_of = None
            for parameter in model.parameters():
                parameter.data = parameter.new_empty(0)  # the very tensor: torch's exporter holds it, too
        for name, precision in written.items():
            if name.endswith(".pt"):
                prove(name, prove_torchscript)
            elif precision in ("int8", "int4") and name not in weights:
                prove(name, functools.partial(_prove_quantized, fp32))
            else:
                prove(name, functools.partial(prove_onnx, batch_graph=batch_graphs.get(name)))
        write_tensors(new / GOLDEN_NAME, golden.to_tensors())
        costs = _costs(excerpt, fp32, [new / f"model.{precision}.onnx" for precision in lower])
        files = {
            path.name: FileEntry(
                size=path.stat().st_size,
                sha256=hash_file(path),
                precision=written.get(path.name),
                checks=tuple(checks.get(path.name, ())),
                cost=costs.get(path.name),
                weights=weights.get(path.name),
            )
            for path in sorted(new.iterdir())
        }
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
        manifest.files[card.name] = FileEntry(size=card.stat().st_size, sha256=hash_file(card))
        (new / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def _excerpt(
    model: GPT,
    tokenizer: Tokenizer,
    record: TrainingRecord | SourceRecord | None,
    data: str | None,
    on_note: OnNote | None,
) -> Excerpt | None:
    training = record if isinstance(record, TrainingRecord) else None
    try:
        return draw_excerpt(tokenizer, model.config.block_size, training, data)
    except (CorpusError, InputError) as error:
        if data is not None:
            raise
        if on_note:
            on_note(f"what the lower precision costs was not measured: {error}")
        return None


def _costs(excerpt: Excerpt | None, fp32: Path, graphs: Sequence[Path]) -> dict[str, Cost]:
    """What each graph costs, by the name of its file."""
    if excerpt is None:
        return {}
    whole, *others = (read(Decoder(open_session(path, provider="cpu")), excerpt) for path in (fp32, *graphs))
    return {path.name: cost_of(excerpt, whole, reading) for path, reading in zip(graphs, others, strict=True)}


def _prove_quantized(fp32: Path, path: Path, golden: Golden, expected_of: LogitsOf | None) -> list[Check]:
    return [*check_rounding(fp32, path), *prove_onnx(path, golden, expected_of)]


def _advice(precision: Precision) -> str:
    if precision == "fp32":
        return "This is a fault of the exporter or the runtime: please report it with the table above"
    return f"It does not stand {precision} within the tolerance: export it without --precision {precision}"


def _versions() -> dict[str, str]:
    """What the export was made and proved with."""
    packages = ("gptblock", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
