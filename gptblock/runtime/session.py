"""Opening an exported graph: on CUDA where it is wanted and works, else on the CPU, never by surprise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, get_args

from gptblock.bundle.manifest import ModelMetadata
from gptblock.config import MAX_THREADS
from gptblock.errors import ConfigError, CorruptError, NotFoundError, ProviderError
from gptblock.runtime.best import MODEL
from gptblock.runtime.capture import captured, one_line
from gptblock.runtime.cuda import CPU, CUDA, cuda_problem, cuda_providers
from gptblock.runtime.heap import heap_on_huge_pages, return_large_blocks, return_memory
from gptblock.runtime.processor import allowed_cpus
from gptblock.runtime.translate import translated
from gptblock.runtime.wheels import Problem, load_onnxruntime, version_problem

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

ProviderName = Literal["auto", "cuda", "cpu"]

_SILENT = 4  # only fatal errors are logged: all others are raised, and say it there

# How ONNX Runtime makes float32 of weights in 8 bits (see gptblock.export.unpack): of all when it opens the
# graph; or of each before its product, where it is not to make one product of 8 bits of the two again.
_UNPACKED_ONCE = {"session.disable_quant_qdq": "1"}
_UNPACKED_EACH = {
    "session.disable_prepacking": "1",  # for a graph whose products are of 8 bits, and unpack their own
    "optimization.disable_specified_optimizers": "QDQSelectorActionTransformer",
}


@dataclass(frozen=True)
class Provider:
    """What a session runs on, and why, in one phrase."""

    name: Literal["cuda", "cpu"]
    device_id: int
    reason: str
    use_tf32: bool = False  # CUDA rounds the factors of fp32 products to 10 bits
    use_graphs: bool = False  # CUDA replays a step of one token, in place of starting its kernels one by one

    def __str__(self) -> str:
        if self.name == "cpu":
            return f"cpu ({self.reason})"
        tf32, graphs = ("on" if on else "off" for on in (self.use_tf32, self.use_graphs))
        return f"cuda ({self.reason}; TF32 {tf32}; CUDA graphs {graphs})"


@dataclass(frozen=True)
class Session:
    """An open graph, what it runs on, and what it says about itself.

    On the CPU it can be opened once more, for weights in 8 bits to be multiplied as float32. `for_prompts`
    unpacks each before its product: a byte of memory for each, and time that pays with many tokens at once.
    `for_batches` unpacks all now: the memory of fp32, and its speed.

    On CUDA with graphs, `for_steps` opens it for one token of so many rows. Such a session `is_captured`:
    CUDA records what it does at its first run and then replays that, so what is bound to it must stay.
    `for_best` opens `gptblock.runtime.best` on the same device.
    """

    ort: InferenceSession
    provider: Provider
    metadata: ModelMetadata
    for_prompts: Callable[[], Session] | None = None  # None: not on the CPU
    for_batches: Callable[[], Session] | None = None  # None: not on the CPU, or no graph for it
    for_steps: Callable[[int], Session] | None = None  # None: without CUDA graphs
    for_best: Callable[[], InferenceSession | None] | None = None  # None: on the CPU
    is_captured: bool = False


def open_session(
    graph: Path,
    *,
    cpu_graph: Path | None = None,
    batch_graph: Path | None = None,
    provider: ProviderName = "auto",
    threads: int | None = None,
    device_id: int = 0,
    use_tf32: bool = False,
    use_graphs: bool = False,
    lean: bool = False,
) -> Session:
    """Open an .onnx of gptblock's; on the CPU `cpu_graph`, where it is given, in its place.

    `batch_graph` is what `Session.for_batches` and `Session.for_prompts` open.

    `cuda` is CUDA or a ProviderError that says what is missing; `auto` is CUDA where it works, else the
    CPU with the reason in `Session.provider`. `threads` is how many CPU threads share one operator, 1 to
    1024; None: as many as this process may use CPUs. `use_tf32` lets CUDA round factors to 10 bits;
    `use_graphs` has CUDA replay steps of one token, with a copy of the weights for each number of rows.
    `lean` gives memory back after each step in place of keeping it for the next: for a few long steps.

    Raises ConfigError for options out of range, NotFoundError and CorruptError for the file,
    ProviderError for a CUDA or an onnxruntime that cannot be used, MissingExtraError where there is none.
    """
    if provider not in get_args(ProviderName):
        raise ConfigError(f"provider must be one of {', '.join(get_args(ProviderName))}: got {provider!r}")
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise ConfigError(f"threads must be in 1..{MAX_THREADS}: got {threads}")
    if device_id < 0:
        raise ConfigError(f"device_id must be >= 0: got {device_id}")
    _require_file(graph)
    ort = load_onnxruntime()
    threads = threads or allowed_cpus()
    reason = "asked for"
    if provider != "cpu":
        taken = Provider(
            "cuda", device_id, reason if provider == "cuda" else "CUDA works here", use_tf32, use_graphs
        )
        opened = cuda_problem(ort, device_id, use_tf32) or _cuda_session(ort, graph, threads, taken)
        if isinstance(opened, Session):
            return opened
        if provider == "cuda":
            raise ProviderError(f"CUDA was asked for and cannot be used: {opened}")
        reason = f"CUDA is not available: {opened.text}"
    size = 0 if lean else graph.stat().st_size
    return _cpu_session(ort, cpu_graph or graph, batch_graph, size, threads, lean, Provider("cpu", 0, reason))


def read_metadata(path: Path) -> ModelMetadata:
    """What an .onnx says about itself. Raises as `open_session` does, CorruptError for a file not ours."""
    _require_file(path)
    ort = load_onnxruntime()
    options = _options(ort, threads=1, lean=False)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # it is not going to run
    return _metadata(path, _on_cpu(ort, path, options))


def require_precision(metadata: ModelMetadata, path: Path, wanted: str) -> None:
    """Raises NotFoundError where the graph of a file is in another precision than the one asked for."""
    if metadata.precision != wanted:
        raise NotFoundError(
            f"{path} has no {wanted} graph; it has {metadata.precision}: "
            f"give --precision {metadata.precision}, or none"
        )


def _require_file(path: Path) -> None:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise NotFoundError(f"{path} {what}: expected an .onnx file, which gptblock export RUN makes")


def _options(ort: ModuleType, threads: int, lean: bool) -> SessionOptions:
    options = ort.SessionOptions()
    if lean:
        options.enable_cpu_mem_arena = False
        return_large_blocks()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _SILENT
    return options


def _session(ort: ModuleType, graph: Path, session: InferenceSession, provider: Provider) -> Session:
    return_memory()
    metadata = _metadata(graph, session)
    problem = version_problem(ort.__version__, metadata.minimum_onnxruntime, f"{graph} asks for it")
    if problem:
        raise ProviderError(str(problem))
    return Session(session, provider, metadata)


def _metadata(graph: Path, session: InferenceSession) -> ModelMetadata:
    return ModelMetadata.from_metadata(session.get_modelmeta().custom_metadata_map, str(graph))


def _on_cuda(
    ort: ModuleType, graph: Path, options: SessionOptions, provider: Provider, is_captured: bool = False
) -> InferenceSession | Problem:
    """The graph on CUDA, where something small has just run; else what keeps this graph from it."""
    try:
        with captured() as noise:
            providers = cuda_providers(provider.device_id, provider.use_tf32, is_captured)
            session = ort.InferenceSession(str(graph), options, providers=providers, enable_fallback=0)
        if session.get_providers()[0] == CUDA:
            return session
        said = one_line(noise.text)
    except Exception as error:  # ONNX Runtime's exceptions have no base of their own
        _on_cpu(ort, graph, options)  # raises CorruptError where the file is at fault and not CUDA
        said = one_line(error)
    return Problem(
        f"ONNX Runtime cannot open {graph.name} on CUDA device {provider.device_id}: {said}",
        "free memory on the device, or run it with --provider cpu",
    )


def _cpu_session(
    ort: ModuleType,
    graph: Path,
    batch_graph: Path | None,
    size: int,
    threads: int,
    lean: bool,
    provider: Provider,
) -> Session:
    """A graph of weights of `size` bytes, and what it can be opened as once more; 0: for a few steps only."""

    def opened(graph: Path, entries: dict[str, str], size: int) -> Session:
        options = _options(ort, threads, lean)
        for name, value in entries.items():
            options.add_session_config_entry(name, value)
        with heap_on_huge_pages(size):
            session = _on_cpu(ort, graph, options)
        return _session(ort, graph, session, provider)

    return replace(
        opened(graph, _UNPACKED_ONCE, size),
        for_prompts=lambda: opened(batch_graph or graph, _UNPACKED_EACH, size),
        for_batches=(lambda: opened(batch_graph, _UNPACKED_ONCE, 4 * size)) if batch_graph else None,
    )


def _cuda_session(ort: ModuleType, graph: Path, threads: int, provider: Provider) -> Session | Problem:
    opened = _on_cuda(ort, graph, _options(ort, threads, lean=False), provider)
    if isinstance(opened, Problem):
        return opened
    session = _session(ort, graph, opened, provider)
    session = replace(session, for_best=lambda: _best_on_cuda(ort, provider.device_id))
    if not provider.use_graphs:
        return session
    for_steps = functools.cache(functools.partial(_for_steps, ort, session, graph, threads))
    for_steps(1)  # raises now and not in the middle of a text
    return replace(session, for_steps=for_steps)


def _for_steps(ort: ModuleType, session: Session, graph: Path, threads: int, batch: int) -> Session:
    """A CUDA session once more, for one token of `batch` rows. Raises ProviderError."""
    options = _options(ort, threads, lean=False)
    # All sizes are fixed, for what computes with sizes runs on the CPU, and nothing may.
    for name, size in (("batch", batch), ("time", 1), ("kept", 1)):
        options.add_free_dimension_override_by_name(name, size)
    opened = _on_cuda(ort, graph, options, session.provider, is_captured=True)
    if isinstance(opened, Problem):
        raise ProviderError(
            f"CUDA graphs were asked for and cannot be had: {opened.text}; leave out --cuda-graphs"
        )
    return replace(session, ort=opened, is_captured=True)


def _best_on_cuda(ort: ModuleType, device_id: int) -> InferenceSession | None:
    """A session of `gptblock.runtime.best` on the device; None where there is none: then all logits cross."""
    try:
        with captured():
            session = ort.InferenceSession(
                MODEL,
                _options(ort, threads=1, lean=False),
                providers=cuda_providers(device_id, use_tf32=False),
                enable_fallback=0,
            )
    except Exception:  # ONNX Runtime's exceptions have no base of their own
        return None
    return session if session.get_providers()[0] == CUDA else None


def _on_cpu(ort: ModuleType, graph: Path, options: SessionOptions) -> InferenceSession:
    try:
        with captured():
            session = ort.InferenceSession(str(graph), options, providers=[CPU], enable_fallback=0)
    except Exception as error:  # ONNX Runtime's exceptions have no base of their own
        raise CorruptError(translated(graph, str(error), ort.__version__)) from None
    return session
