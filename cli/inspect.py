"""`gptblock inspect`: what a bundle is, without running it; or how two runs differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gptblock.cli.compare import compare
from gptblock.cli.console import printable, say, show, write, write_json
from gptblock.cli.options import BundleArgument, Json
from gptblock.cli.table import print_proof
from gptblock.errors import CorruptError, InputError, NotFoundError

if TYPE_CHECKING:
    from gptblock.bundle.manifest import Manifest, ModelMetadata

CARD_NAME = "README.md"


def inspect(
    bundle: BundleArgument = None,
    other: Annotated[
        Path | None,
        typer.Argument(
            metavar="run", help="A second run's folder, to compare with the first's.", show_default=False
        ),
    ] = None,
    card: Annotated[bool, typer.Option("--card", help="Show the model card too.")] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Draw two runs' losses into this file.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Show what a bundle is: configuration, files and their hashes, parity record, model card.

    Nothing is run. Exit 3, after showing it, where the files are not as they were written. Of a lone
    .onnx: what it says about itself. Of two runs: how their configurations differ, and their losses.
    """
    if bundle and other:
        if card:
            raise InputError("--card shows the card of one bundle, and two runs were given: leave one out")
        compare(bundle, other, svg, json)
        return
    if svg:
        raise InputError("--svg draws the losses of two runs: give both, gptblock inspect RUN_A RUN_B")
    from gptblock.bundle.store import find_bundle

    location = find_bundle(bundle)
    if location.is_demo:
        say("model: the demo that ships with gptblock, for there is no artifacts/model here")
    if location.kind == "file":
        _inspect_file(location.path, card=card, json=json)
    else:
        _inspect_folder(location.path, card=card, json=json)


def _inspect_folder(folder: Path, *, card: bool, json: bool) -> None:
    from gptblock.bundle.store import find_problems, read_manifest

    manifest = read_manifest(folder)
    problems = find_problems(folder, manifest)
    text = _read_card(folder) if card else None
    if json:
        write_json(_as_json(folder, manifest, problems) | ({"card": text} if card else {}))
    else:
        _print_facts(_facts(folder, manifest))
        _print_files(manifest, problems)
        _print_parity_record(manifest)
        if text is not None:
            write(printable(text, keep="\n"))
    if problems:
        listed = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise CorruptError(
            f"{folder} is not as it was written: {listed}. Copy it again, or gptblock export RUN again"
        )


def _inspect_file(path: Path, *, card: bool, json: bool) -> None:
    from gptblock.bundle.store import hash_file
    from gptblock.runtime.session import read_metadata

    if card:
        raise NotFoundError(f"{path} has no model card: a bundle's folder has one; leave out --card")
    metadata = read_metadata(path)
    size, sha256 = path.stat().st_size, hash_file(path)
    if json:
        facts = {"path": str(path), "kind": "file", "size": size, "sha256": sha256}
        write_json(facts | dataclasses.asdict(metadata))
    else:
        _print_facts(
            {"file": str(path), "size": _bytes(size), "sha256": sha256, "precision": metadata.precision}
            | _model_facts(metadata)
            | {"not in it": "parity record, training record, model card: those are in a bundle's folder"}
        )


def _as_json(folder: Path, manifest: Manifest, problems: Mapping[str, str]) -> dict[str, object]:
    """The manifest, and what was found: `ok` of each check, `problem` of each file, all `problems`."""
    files = {
        name: dataclasses.asdict(entry)
        | {"checks": [dataclasses.asdict(check) | {"ok": check.ok} for check in entry.checks]}
        | {"problem": problems.get(name)}
        for name, entry in manifest.files.items()
    }
    found = {"path": str(folder), "kind": "bundle", "problems": dict(problems)}
    return found | dataclasses.asdict(manifest) | {"files": files}


def _facts(folder: Path, manifest: Manifest) -> dict[str, str]:
    facts = {"bundle": str(folder), "created": manifest.created} | _model_facts(manifest)
    if training := manifest.training:
        losses = f"loss {training.train_loss:.4f}, validation loss {training.val_loss:.4f}"
        facts["training"] = f"{training.data}, {training.steps} steps, {losses}"
        facts["command"] = training.command
    if source := manifest.source:
        loss = f", loss {source.loss:.4f} on {source.data}" if source.loss is not None else ""
        facts["source"] = f"{source.format}, {source.file}, sha256 {source.sha256}{loss}"
        facts["command"] = source.command
    facts["made with"] = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    has_card = (folder / CARD_NAME).is_file()
    facts["model card"] = f"{folder / CARD_NAME} (--card shows it)" if has_card else "none"
    return facts


def _model_facts(source: Manifest | ModelMetadata) -> dict[str, str]:
    return {
        "model": ", ".join(f"{name} {value}" for name, value in source.model.to_dict().items()),
        "tokenizer": _tokenizer(source.tokenizer, source.model.vocab_size),
        "needs": f"onnxruntime {source.minimum_onnxruntime} or newer"
        + (", tokenizers (pip install 'gptblock[bpe]')" if source.tokenizer.get("type") == "subword" else ""),
    }


def _tokenizer(values: Mapping[str, object], vocab_size: int) -> str:
    match values:
        case {"type": "subword", "json": {"model": {"type": str(algorithm)}}}:
            return f"subword ({algorithm}), {vocab_size} tokens"
    return f"{values.get('type')}, {vocab_size} symbols"


def _print_facts(facts: Mapping[str, str]) -> None:
    width = max(map(len, facts))
    for name, value in facts.items():
        write(f"{name:{width}}  {printable(value)}\n")


def _print_files(manifest: Manifest, problems: Mapping[str, str]) -> None:
    """One row a file, those that the manifest does not list last."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE)
    for column in ("file", "size", "sha256", "hash", "precision", "checks"):
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for name, entry in manifest.files.items():
        verdict = Text("BROKEN", "bold red") if name in problems else Text("holds", "green")
        checks = f"{sum(check.ok for check in entry.checks)} of {len(entry.checks)}" if entry.checks else ""
        cells = (_bytes(entry.size), entry.sha256[:8], verdict, entry.precision or "", checks)
        table.add_row(Text(printable(name)), *cells)
    for name in problems:
        if name not in manifest.files:
            table.add_row(Text(printable(name)), "", "", Text("not listed", "bold red"))
    show(table)


def _print_parity_record(manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        if entry.checks:
            print_proof(printable(name), entry.checks)
    for name, entry in manifest.files.items():
        if entry.cost:
            write(f"{printable(name)}: {printable(str(entry.cost))}\n")


def _read_card(folder: Path) -> str:
    try:
        return (folder / CARD_NAME).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFoundError(f"{folder} has no readable model card ({error}); leave out --card") from None


def _bytes(size: int) -> str:
    from rich.filesize import decimal

    return decimal(size)
