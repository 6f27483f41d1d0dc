"""`gptblock generate`: text from a bundle, on ONNX Runtime alone."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from gptblock.cli.console import ignore, say, tell_provider, write, write_json
from gptblock.cli.options import (
    DEMO_TAKEN,
    BundleArgument,
    CudaGraphs,
    DeviceId,
    Json,
    Provider,
    Quiet,
    Tf32,
    Threads,
)
from gptblock.errors import GptblockError, InputError

PROMPT, SAMPLING, OUTPUT = "Prompt", "Sampling", "Output"


def generate(
    bundle: BundleArgument = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", help="Text to continue; repeat for a batch.", rich_help_panel=PROMPT),
    ] = None,
    prompt_file: Annotated[
        str | None, typer.Option(help="A UTF-8 file to continue; - is stdin.", rich_help_panel=PROMPT)
    ] = None,
    unknown: Annotated[
        Literal["error", "skip"],
        typer.Option(help="Characters of a prompt outside the vocabulary.", rich_help_panel=PROMPT),
    ] = "error",
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", "-n", help="Length of a continuation.", rich_help_panel=SAMPLING),
    ] = 500,
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", help="0 = greedy.", rich_help_panel=SAMPLING)
    ] = 1.0,
    top_k: Annotated[
        int,
        typer.Option("--top-k", "-k", help="Keep the k likeliest tokens; 0 = off.", rich_help_panel=SAMPLING),
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            help="Keep the likeliest tokens up to this probability; 1 = off.", rich_help_panel=SAMPLING
        ),
    ] = 1.0,
    min_p: Annotated[
        float,
        typer.Option(
            help="Keep tokens at least this share as likely as the likeliest.", rich_help_panel=SAMPLING
        ),
    ] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 discourages tokens seen so far.", rich_help_panel=SAMPLING)
    ] = 1.0,
    num_samples: Annotated[
        int, typer.Option(help="Continuations of each prompt.", rich_help_panel=SAMPLING)
    ] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Unset: a random one, which is printed.", rich_help_panel=SAMPLING)
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End before this text; repeat for several.", rich_help_panel=SAMPLING),
    ] = None,
    overflow: Annotated[
        Literal["slide", "rebase", "stop"],
        typer.Option(
            help="Beyond block_size: slide = exactly as the lecture crops; "
            "rebase = re-read half a window now and then, much faster; stop = end there.",
            rich_help_panel=SAMPLING,
        ),
    ] = "slide",
    draft: Annotated[
        Literal["auto", "on", "off"],
        typer.Option(
            help="Guess tokens ahead, for the model to verify several at once; auto = where faster."
        ),
    ] = "auto",
    precision: Annotated[
        Literal["auto", "fp32", "fp16", "int8", "int4"],
        typer.Option(help="Which graph of the bundle; auto = fp32, on CUDA fp16 if it is there."),
    ] = "auto",
    provider: Provider = "auto",
    device_id: DeviceId = 0,
    tf32: Tf32 = False,
    cuda_graphs: CudaGraphs = False,
    threads: Threads = None,
    echo: Annotated[
        bool, typer.Option(help="Print the prompt before its continuation.", rich_help_panel=OUTPUT)
    ] = True,
    stream: Annotated[bool, typer.Option(help="Print text as it comes.", rich_help_panel=OUTPUT)] = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate text from a bundle folder, a run folder, or a single .onnx.

    Without BUNDLE: artifacts/model, or the demo that ships with gptblock where that does not exist.
    Prints the prompt and its continuation; an empty prompt starts from token 0.
    """
    from gptblock.bundle.locate import age_of
    from gptblock.bundle.store import find_bundle
    from gptblock.runtime.completion import Generation
    from gptblock.runtime.model import load

    tell = ignore if quiet else say
    prompts = [*(prompt or []), *([] if prompt_file is None else [_read(prompt_file)])] or [""]
    location = find_bundle(bundle)
    if location.is_demo:
        tell(DEMO_TAKEN)
    if location.kind == "bundle" and (age := age_of(location.path)):
        tell(age)
    model = load(
        location.path,
        precision=precision,
        provider=provider,
        threads=threads,
        device_id=device_id,
        use_tf32=tf32,
        use_graphs=cuda_graphs,
    )
    tell_provider(tell, model.provider, device_id=device_id > 0, tf32=tf32, cuda_graphs=cuda_graphs)
    if model.provider.name == "cpu" and model.decoder.metadata.precision == "fp16":
        tell("fp16 is made for GPUs; on the CPU it is slower than --precision fp32, and less exact")
    generation = Generation(
        model.decoder,
        model.tokenizer,
        prompts,
        max_new_tokens=max_new_tokens,
        num_samples=num_samples,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop or (),
        overflow=overflow,
        unknown=unknown,
        draft=draft,
    )
    tell(f"seed: {generation.seed}")
    if json:
        write_json({"samples": [asdict(completion) for completion in generation.completions()]})
    elif len(prompts) * num_samples == 1:
        write(prompts[0] if echo else "")
        try:
            for piece in generation:
                if stream:
                    write(piece)
        except GptblockError:
            write("\n")  # what went wrong is said on a line of its own
            raise
        write("\n" if stream else generation.completions()[0].text + "\n")
    else:
        for i, completion in enumerate(generation.completions()):
            write(f"--- prompt {i // num_samples + 1}, sample {i % num_samples + 1} ---\n")
            write((completion.prompt if echo else "") + completion.text + "\n")
    for completion in generation.completions():
        tell(
            f"{completion.completion_tokens} tokens, {completion.tokens_per_second:.0f} tokens/s, "
            f"finish reason: {completion.finish_reason}"
        )
    if generation.drafted_tokens:
        tell(f"{generation.accepted_tokens} of {generation.drafted_tokens} drafted tokens accepted")


def _read(prompt_file: str) -> str:
    """The prompt in a file, or on stdin, by the corpora's rule for text."""
    from gptblock.text.decode import decode_text

    if prompt_file == "-" and sys.stdin is None:
        raise InputError("the prompt was to come from stdin, which is closed")
    if prompt_file == "-":
        return decode_text(sys.stdin.buffer.read(), "stdin")
    try:
        return decode_text(Path(prompt_file).read_bytes(), prompt_file)
    except OSError as error:
        raise InputError(f"the prompt file {prompt_file} cannot be read: {error.strerror}") from None
