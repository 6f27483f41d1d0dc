"""Verifying a bundle on this machine: its files, and the proof on the provider that will run it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

from gptblock.bundle.manifest import Check, Precision
from gptblock.bundle.store import check_files, find_bundle, model_paths, read_manifest, read_tensors
from gptblock.runtime.decoder import Decoder
from gptblock.runtime.golden import Golden
from gptblock.runtime.proof import prove
from gptblock.runtime.session import Provider, ProviderName, open_session, require_precision

GOLDEN_NAME = "golden.safetensors"


@dataclass(frozen=True)
class Verification:
    """What held and what did not."""

    path: Path
    provider: Provider | None  # None: nothing was run, since the files are not as they were written
    problems: list[str] = field(default_factory=list)  # of the files, one line each
    proofs: dict[str, list[Check]] = field(default_factory=dict)  # by graph
    unproved: list[str] = field(default_factory=list)  # what cannot be proved here, and why
    is_demo: bool = False  # the bundle that ships with gptblock, for none was named or found

    @property
    def failed(self) -> list[str]:
        """The checks that do not hold, as `file: check`."""
        return [
            f"{name}: {check.name}"
            for name, checks in self.proofs.items()
            for check in checks
            if not check.ok
        ]


def verify(
    path: Path | None = None,
    *,
    precision: Precision | None = None,
    provider: ProviderName = "auto",
    threads: int | None = None,
    device_id: int = 0,
    use_graphs: bool = False,
) -> Verification:
    """Hashes, then golden logits, causality, cache and greedy text of every graph, without torch.

    A `precision` leaves the graphs of others out; `use_graphs` proves CUDA graphs.

    `path` as for `gptblock.load`. Files that are not as they were written are not run. Raises
    NotFoundError, CorruptError and ProviderError; a check that does not hold is in the result.
    """
    location = find_bundle(path)
    open_here = functools.partial(
        open_session, provider=provider, threads=threads, device_id=device_id, use_graphs=use_graphs
    )
    if location.kind == "file":
        decoder = Decoder(open_here(location.path))
        if precision:
            require_precision(decoder.metadata, location.path, precision)
        return Verification(
            location.path,
            decoder.session.provider,
            proofs={location.path.name: prove(decoder, golden=None)},
            unproved=[
                "the file's hash: a lone .onnx has no manifest",
                "PyTorch's logits and greedy text: a lone .onnx has no golden vectors; "
                "the chunks were held against the graph's own uncached logits",
            ],
        )
    folder = location.path
    manifest = read_manifest(folder)
    if precision:
        model_paths(location, precision)  # raises where there is none
    if problems := check_files(folder, manifest):
        return Verification(folder, None, problems, is_demo=location.is_demo)
    golden = Golden.from_tensors(read_tensors(folder / GOLDEN_NAME), manifest.model)
    proofs: dict[str, list[Check]] = {}
    unproved = []
    taken: Provider | None = None
    # Those for the CPU provider alone last: by then it is known what runs the others.
    for name, entry in sorted(manifest.files.items(), key=lambda file: file[1].weights is not None):
        if precision and name.endswith(".onnx") and entry.precision != precision:
            unproved.append(f"{name}: its hash holds; only {precision} was asked for")
        elif entry.weights and taken and taken.name != "cpu":
            unproved.append(f"{name}: its hash holds; it is for the CPU, and --provider cpu proves it")
        elif name.endswith(".onnx"):
            graphs = model_paths(location, str(entry.precision))
            is_cpu_graph = graphs.cpu == folder / name
            session = open_here(folder / name, batch_graph=graphs.batch if is_cpu_graph else None)
            taken = session.provider
            said = session.metadata
            if (said.model, said.tokenizer, said.precision) != (
                manifest.model,
                manifest.tokenizer,
                entry.precision,
            ):
                problems.append(f"{name}: its configuration, tokenizer or precision is not the manifest's")
                continue
            proofs[name] = prove(Decoder(session), golden)
        elif entry.precision:
            unproved.append(f"{name}: its hash holds; running it takes torch, and gptblock export proved it")
    return Verification(folder, taken, problems, proofs, unproved, location.is_demo)
