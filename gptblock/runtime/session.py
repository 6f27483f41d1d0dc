"""Opening an exported graph: on CUDA where it is wanted and works, else on the CPU, never by surprise."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, get_args

from gptblock.bundle.manifest import ModelMetadata
from gptblock.config import MAX_THREADS
from gptblock.errors import ConfigError, CorruptError, NotFoundError, ProviderError
from gptblock.runtime.capture import captured, one_line
from gptblock.runtime.cuda import CPU, CUDA, cuda_problem, cuda_providers
from gptblock.runtime.pages import added, anonymous_memory
from gptblock.runtime.processor import allowed_cpus
from gptblock.runtime.wheels import Problem, load_onnxruntime, upgrade_command, version_problem

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

ProviderName = Literal["auto", "cuda", "cpu"]

_M_MMAP_THRESHOLD, _LARGE = -3, 2**20  # of glibc's malloc.h; bytes
_SILENT = 4  # only fatal errors are logged: all others are raised, and say it there


@dataclass(frozen=True)
class Provider:
    """What a session runs on, and why, in one phrase."""

    name: Literal["cuda", "cpu"]
    device_id: int
    reason: str
    use_tf32: bool = False  # CUDA rounds the factors of fp32 products to 10 bits

    def __str__(self) -> str:
        tf32 = f"; TF32 {'on' if self.use_tf32 else 'off'}" if self.name == "cuda" else ""
        return f"{self.name} ({self.reason}{tf32})"


@dataclass(frozen=True)
class Session:
    """An open graph, what it runs on, and what it says about itself.

    `unpack` opens it once more on the CPU, with the weights left as they are in the file: quantised ones are
    then turned to float32 for each product, in place of being kept in an order for products of integers.
    `memory` is about what opening it took: where its weights are, on the CPU.
    """

    ort: InferenceSession
    provider: Provider
    metadata: ModelMetadata
    unpack: Callable[[], InferenceSession] | None = None  # None: not on the CPU
    memory: tuple[range, ...] = ()  # addresses


def open_session(
    graph: Path,
    *,
    cpu_graph: Path | None = None,
    provider: ProviderName = "auto",
    threads: int | None = None,
    device_id: int = 0,
    use_tf32: bool = False,
    lean: bool = False,
) -> Session:
    """Open an .onnx of gptblock's; on the CPU `cpu_graph`, where it is given, in its place.

    `cuda` is CUDA or a ProviderError that says what is missing; `auto` is CUDA where it works, else the
    CPU with the reason in `Session.provider`. `threads` is how many CPU threads share one operator, 1 to
    1024; None: as many as this process may use CPUs. `use_tf32` lets CUDA round factors to 10 bits.
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
    options = _options(ort, threads or allowed_cpus(), lean)
    reason = "asked for"
    if provider != "cpu":
        opened = cuda_problem(ort, device_id, use_tf32) or _on_cuda(ort, graph, options, device_id, use_tf32)
        if not isinstance(opened, Problem):
            reason = "asked for" if provider == "cuda" else "CUDA works here"
            return _session(ort, graph, opened, Provider("cuda", device_id, reason, use_tf32))
        if provider == "cuda":
            raise ProviderError(f"CUDA was asked for and cannot be used: {opened}")
        reason = f"CUDA is not available: {opened.text}"
    graph = cpu_graph or graph
    before = anonymous_memory()
    session = _session(ort, graph, _on_cpu(ort, graph, options), Provider("cpu", 0, reason))
    memory = tuple(added(before, anonymous_memory()))

    def unpack() -> InferenceSession:
        options = _options(ort, threads or allowed_cpus(), lean)
        options.add_session_config_entry("session.disable_prepacking", "1")
        return _on_cpu(ort, graph, options)

    return replace(session, unpack=unpack, memory=memory)


def read_metadata(path: Path) -> ModelMetadata:
    """What an .onnx says about itself. Raises as `open_session` does, CorruptError for a file not ours."""
    _require_file(path)
    ort = load_onnxruntime()
    options = _options(ort, threads=1, lean=False)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # it is not going to run
    return _metadata(path, _on_cpu(ort, path, options))


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
    _return_memory()
    metadata = _metadata(graph, session)
    problem = version_problem(ort.__version__, metadata.minimum_onnxruntime, f"{graph} asks for it")
    if problem:
        raise ProviderError(str(problem))
    return Session(session, provider, metadata)


def _return_memory() -> None:
    """Give the system back what loading took and freed, which glibc keeps: a third of the file at 43 MB."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def return_large_blocks() -> None:
    """Have glibc map what is large, and so give it back when freed, instead of raising its idea of large."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def _metadata(graph: Path, session: InferenceSession) -> ModelMetadata:
    return ModelMetadata.from_metadata(session.get_modelmeta().custom_metadata_map, str(graph))


def _on_cuda(
    ort: ModuleType, graph: Path, options: SessionOptions, device_id: int, use_tf32: bool
) -> InferenceSession | Problem:
    """The graph on CUDA, where something small has just run; else what keeps this graph from it."""
    try:
        with captured() as noise:
            providers = cuda_providers(device_id, use_tf32)
            session = ort.InferenceSession(str(graph), options, providers=providers, enable_fallback=0)
        if session.get_providers()[0] == CUDA:
            return session
        said = one_line(noise.text)
    except Exception as error:  # ONNX Runtime's exceptions have no base of their own
        _on_cpu(ort, graph, options)  # raises CorruptError where the file is at fault and not CUDA
        said = one_line(error)
    return Problem(
        f"ONNX Runtime cannot open {graph.name} on CUDA device {device_id}: {said}",
        "free memory on the device, or run it with --provider cpu",
    )


def _on_cpu(ort: ModuleType, graph: Path, options: SessionOptions) -> InferenceSession:
    try:
        with captured():
            session = ort.InferenceSession(str(graph), options, providers=[CPU], enable_fallback=0)
    except Exception as error:  # ONNX Runtime's exceptions have no base of their own
        raise CorruptError(_translated(graph, str(error), ort.__version__)) from None
    return session


# What ONNX Runtime says of a file it cannot load, and what that means to somebody who has the file.
_TRANSLATIONS = [
    (
        r"Protobuf parsing failed|No graph was found",
        "{graph} is no ONNX file, or is cut short or damaged: copy it again, or export it again",
    ),
    (
        r"Unsupported model IR version: (\d+), max supported IR version: (\d+)",
        "{graph} has ONNX IR version {0}, and onnxruntime {version} reads up to {1}: {upgrade}",
    ),
    (
        r"Opset (\d+) is under development.*domain (\S+) is till opset (\d+)",
        "{graph} needs opset {0} of {1}, and onnxruntime {version} has up to {2}: {upgrade}",
    ),
    (
        r"No Op registered for (\S+)|(\S+?)\(-?\d+\) is not a registered function/op",
        "{graph} uses the operator {0}, which onnxruntime {version} does not have: {upgrade}",
    ),
    (
        r"External data path does not exist: \"([^\"]*)\"",
        "{graph} keeps weights in a second file, {0}, which is not there: copy both, or export it again",
    ),
    (
        r"External data path escapes model directory|Absolute path not allowed for external data",
        "{graph} keeps weights in a file outside its folder, which is refused: export it again",
    ),
    (
        r"External initializer: .* out of bounds",
        "{graph} keeps weights in a second file, which is too short: copy both, or export it again",
    ),
]


def _translated(graph: Path, said: str, version: str) -> str:
    """One line on why a file cannot be loaded."""
    for pattern, sentence in _TRANSLATIONS:
        found = re.search(pattern, said, re.DOTALL)
        if found:
            groups = [group for group in found.groups() if group]
            return sentence.format(*groups, graph=graph, version=version, upgrade=upgrade_command())
    return f"{graph} cannot be loaded by onnxruntime {version}: {one_line(said)}"
