"""`gptblock verify`: the exporter's proof, repeated on this machine."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from gptblock.cli.console import say, tell_provider, write, write_json
from gptblock.cli.options import DEMO_TAKEN, BundleArgument, CudaGraphs, DeviceId, Json, Provider, Threads
from gptblock.cli.table import print_proof
from gptblock.errors import CorruptError, ProofError


def verify(
    bundle: BundleArgument = None,
    precision: Annotated[
        Literal["fp32", "fp16", "int8", "int4"] | None,
        typer.Option(help="Prove this graph of the bundle.", show_default="all that are there"),
    ] = None,
    provider: Provider = "auto",
    device_id: DeviceId = 0,
    cuda_graphs: CudaGraphs = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Prove a bundle on this machine and provider, without torch.

    File hashes, PyTorch's golden logits, causality, cache and greedy text. Exit 3 where the files are not
    as they were written, 5 where a proof fails. Of a lone .onnx, what cannot be proved is named.
    """
    from gptblock.runtime.verify import verify as run

    result = run(
        bundle,
        precision=precision,
        provider=provider,
        threads=threads,
        device_id=device_id,
        use_graphs=cuda_graphs,
    )
    if result.is_demo:
        say(DEMO_TAKEN)
    if json:
        write_json(
            {
                "path": str(result.path),
                "provider": asdict(result.provider) if result.provider else None,
                "problems": result.problems,
                "proofs": {
                    name: [
                        {**asdict(check), "worst": _number(check.worst), "ok": check.ok} for check in checks
                    ]
                    for name, checks in result.proofs.items()
                },
                "unproved": result.unproved,
            }
        )
    else:
        if result.provider:
            tell_provider(say, result.provider, device_id=device_id > 0, cuda_graphs=cuda_graphs)
        for name, checks in result.proofs.items():
            print_proof(name, checks)
        for line in result.unproved:
            write(f"not proved here: {line}\n")
    if result.problems:
        raise CorruptError(f"{result.path} is not as it was written: {'; '.join(result.problems)}")
    if result.failed:
        raise ProofError(f"{result.path} is not the model it was exported from: {'; '.join(result.failed)}")
    if not json:
        write(f"{result.path}: everything that can be proved here holds\n")


def _number(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None
