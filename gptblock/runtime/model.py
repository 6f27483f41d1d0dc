"""A loaded model: what `gptblock.load` returns. Text in, text out, on ONNX Runtime alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Unpack, get_args, overload

import numpy as np
from numpy.typing import ArrayLike

from gptblock.bundle.store import find_bundle, model_path, model_paths
from gptblock.config import ModelConfig
from gptblock.errors import ConfigError, InputError, NotFoundError
from gptblock.runtime.completion import Completion, GenerateOptions, Generation
from gptblock.runtime.decoder import Decoder, Logits
from gptblock.runtime.session import Provider, ProviderName, open_session, require_precision
from gptblock.text.tokenizer import Tokenizer

PrecisionChoice = Literal["auto", "fp32", "fp16", "int8", "int4"]


def load(
    path: str | Path | None = None,
    *,
    precision: PrecisionChoice = "auto",
    provider: ProviderName = "auto",
    threads: int | None = None,
    device_id: int = 0,
    use_tf32: bool = False,
    use_graphs: bool = False,
) -> Model:
    """Open a bundle folder, a run folder, or a single .onnx file.

    `path=None` takes ./artifacts/model, or the demo that ships with gptblock where that does not exist.
    `precision="auto"` is fp32, on CUDA fp16 where the bundle has it. `use_tf32` lets CUDA round the
    factors of fp32 products to 10 bits: faster, and no longer what `verify` proved. `use_graphs` has CUDA
    replay steps of one token (CUDA graphs). Raises ConfigError for a choice that there is not, NotFoundError
    and CorruptError for the files, ProviderError where `provider="cuda"`, or on CUDA `use_graphs`, cannot be
    had.
    """
    if precision not in get_args(PrecisionChoice):
        raise ConfigError(
            f"precision must be one of {', '.join(get_args(PrecisionChoice))}: got {precision!r}"
        )
    location = find_bundle(Path(path) if path is not None else None)
    named = "fp32" if precision == "auto" else precision
    open_here = functools.partial(
        open_session,
        provider=provider,
        threads=threads,
        device_id=device_id,
        use_tf32=use_tf32,
        use_graphs=use_graphs,
    )
    graphs = model_paths(location, named)
    session = open_here(graphs.standard, cpu_graph=graphs.cpu, batch_graph=graphs.batch)
    if precision != "auto":
        require_precision(session.metadata, location.path, precision)
    if precision == "auto" and session.provider.name == "cuda" and location.kind == "bundle":
        with contextlib.suppress(NotFoundError):
            session = open_here(model_path(location, "fp16"))
    return Model(Decoder(session))


class Model:
    """An open model. Threads may share it, and streams may be interleaved: each call has its own cache."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.config: ModelConfig = decoder.metadata.model
        self.tokenizer: Tokenizer = decoder.tokenizer
        self.provider: Provider = decoder.session.provider

    def __repr__(self) -> str:
        config = self.config
        shape = f"n_layer={config.n_layer}, n_head={config.n_head}, n_embd={config.n_embd}"
        return f"<gptblock model: {shape}, {self.decoder.metadata.precision} on {self.provider}>"

    def logits(self, input_ids: ArrayLike) -> Logits:
        """The logits of every position: integers (B, T) -> float32 (B, T, vocab_size), T <= block_size."""
        try:
            ids = np.asarray(input_ids)
        except ValueError:
            raise InputError("input_ids must be integers (B, T): got rows of unlike lengths") from None
        if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
            raise InputError(f"input_ids must be integers (B, T): got {ids.dtype} of shape {ids.shape}")
        return self.decoder.logits(ids.astype(np.int64))

    @overload  # a str is a Sequence[str] too, and the first of the two that fits is taken
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str = ..., **options: Unpack[GenerateOptions]
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: Sequence[str], **options: Unpack[GenerateOptions]
    ) -> list[list[Completion]]: ...

    def generate(
        self, prompt: str | Sequence[str] = "", **options: Unpack[GenerateOptions]
    ) -> Completion | list[list[Completion]]:
        """Continue a prompt, or a list of prompts of any lengths in one batch.

        A string gives a Completion; a list gives a list (prompts) of lists (samples). What a row gets
        does not depend on the others. Raises InputError and its leaves for options out of range.
        """
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
            raise InputError(f"prompt must be a str or a list of them: got {prompt!r}")
        if isinstance(prompt, str):
            if options.get("num_samples", 1) != 1:
                raise InputError(
                    f"num_samples is for a list of prompts: pass [{prompt!r}] to get a list of samples"
                )
            return self.generate([prompt], **options)[0][0]
        call = Generation(self.decoder, self.tokenizer, prompt, **options)
        done = call.completions()
        n = call.num_samples
        return [done[i : i + n] for i in range(0, len(done), n)]

    def stream(self, prompt: str = "", **options: Unpack[GenerateOptions]) -> Generation:
        """Continue one prompt piece by piece: iterate over the result for the pieces of text.

        Joined, the pieces are the text that `generate` returns: what might become a stop string is held
        back until it is none. `completions()[0]` of the result is then the Completion.
        """
        if options.get("num_samples", 1) != 1:
            raise InputError(f"a stream has one sample: got num_samples = {options.get('num_samples')}")
        return Generation(self.decoder, self.tokenizer, [prompt], **options)
