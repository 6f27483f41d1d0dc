"""The shared bundle, opened, and altered copies of it; and a stand-in for machines with CUDA.

The stand-in behaves as onnxruntime-gpu and NVIDIA's libraries were seen to, faults included, so that a
machine without a GPU tests what a machine with a broken one does.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import numpy as np
import onnx
import pytest

from gptblock.bundle.manifest import ModelMetadata
from gptblock.config import ModelConfig
from gptblock.runtime import best, cache, session
from gptblock.runtime.decoder import Decoder
from gptblock.runtime.model import Model, load
from gptblock.runtime.session import open_session

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


@pytest.fixture(scope="session")
def tiny(tiny_bundle: Path) -> Model:
    """`tiny_model`, exported and opened on the CPU."""
    return load(tiny_bundle, provider="cpu", threads=1)


@pytest.fixture
def decoder(tiny: Model) -> Decoder:
    """The graph that the CPU runs, its attention fused."""
    return tiny.decoder


@pytest.fixture
def standard(tiny_bundle: Path) -> Decoder:
    """The graph of standard operators."""
    return Decoder(open_session(tiny_bundle / "model.onnx", provider="cpu", threads=1))


@pytest.fixture
def altered(tiny_bundle: Path, tmp_path: Path) -> Callable[[Callable[[onnx.ModelProto], None]], Path]:
    """A lone .onnx: the shared one, changed by a function."""

    def alter(change: Callable[[onnx.ModelProto], None]) -> Path:
        graph = onnx.load(tiny_bundle / "model.onnx")
        change(graph)
        path = tmp_path / "altered.onnx"
        onnx.save(graph, path)
        return path

    return alter


@dataclass
class FakeOrt:
    """What the stand-in does, and what was asked of it."""

    available: tuple[str, ...] = (CUDA, CPU)
    version: str = "1.32.0"
    cuda_version: str = "13.0"
    on_cuda: str | Exception = CUDA  # the provider that a session asked for CUDA gets, or what it raises
    graph_on_cuda: str | Exception = ""  # the same for a graph from a file, where that differs
    captured_on_cuda: str | Exception = ""  # the same for a graph whose sizes are fixed
    on_cpu: Exception | None = None
    says: bytes = b""  # on the C-level stderr, when a session is opened
    preload_says: str = ""  # on Python's stdout
    metadata: dict[str, str] = field(default_factory=dict)
    opened: list[dict[str, Any]] = field(default_factory=list)
    preloaded: bool = False  # without it, CUDA is not had

    def preload(self) -> None:
        self.preloaded = True
        print(self.preload_says, end="")

    def module(self) -> ModuleType:
        fake = self

        class SessionOptions:
            def __init__(self) -> None:
                self.sizes: dict[str, int] = {}

            def add_session_config_entry(self, key: str, value: str) -> None:
                assert key != "session.disable_cpu_ep_fallback", f"{key} = {value}: not to be relied on"

            def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
                self.sizes[name] = size

        class InferenceSession:
            def __init__(
                self,
                model: object,
                options: SessionOptions,
                *,
                providers: list[Any],
                **extra: int,
            ) -> None:
                fake.opened.append({"model": model, "providers": providers, **extra})
                if options.sizes:
                    fake.opened[-1]["sizes"] = options.sizes
                os.write(2, fake.says)
                self.taken = CPU
                if providers != [CPU]:
                    outcome = (isinstance(model, str) and fake.graph_on_cuda) or fake.on_cuda
                    outcome = (options.sizes and fake.captured_on_cuda) or outcome
                    if isinstance(outcome, str):
                        self.taken = outcome if fake.preloaded else CPU
                    elif extra.get("enable_fallback", 1):
                        print("*************** EP Error ***************")
                    else:
                        raise outcome
                elif fake.on_cpu:
                    raise fake.on_cpu

            def get_providers(self) -> list[str]:
                return [self.taken, CPU]

            def run(self, names: None, feeds: dict[str, Any]) -> list[Any]:  # noqa: ARG002
                return [feeds["x"] @ feeds["x"]]

            def get_modelmeta(self) -> SimpleNamespace:
                return SimpleNamespace(custom_metadata_map=fake.metadata)

        module = ModuleType("onnxruntime")
        module.__dict__.update(
            __version__=self.version,
            cuda_version=self.cuda_version,
            SessionOptions=SessionOptions,
            InferenceSession=InferenceSession,
            ExecutionMode=SimpleNamespace(ORT_SEQUENTIAL="sequential"),
            GraphOptimizationLevel=SimpleNamespace(ORT_DISABLE_ALL="none"),
            get_available_providers=lambda: list(self.available),
            preload_dlls=self.preload,
        )
        return module


class MakeOrt(Protocol):
    def __call__(self, **behaviour: Any) -> FakeOrt: ...


@pytest.fixture
def fake_ort(monkeypatch: pytest.MonkeyPatch, metadata: ModelMetadata) -> MakeOrt:
    """Put a stand-in where `import onnxruntime` finds it."""

    def make(**behaviour: Any) -> FakeOrt:
        fake = FakeOrt(**{"metadata": metadata.to_metadata(), **behaviour})
        monkeypatch.setitem(sys.modules, "onnxruntime", fake.module())
        return fake

    return make


class FakeDriver:
    """libcuda, as far as it is asked."""

    def __init__(self, cuda: int, devices: int, error: int) -> None:
        self.cuda, self.devices, self.error = cuda, devices, error

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self.cuda
        return 0

    def cuInit(self, flags: int) -> int:  # noqa: N802, ARG002
        return self.error

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.devices
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:  # noqa: N802
        text._obj.value = {100: b"no CUDA-capable device is detected"}.get(code)
        return 0


class MakeLibraries(Protocol):
    def __call__(self, *, missing: str = "", cuda: int = 13000, devices: int = 1, error: int = 0) -> None: ...


@pytest.fixture
def fake_libraries(monkeypatch: pytest.MonkeyPatch) -> MakeLibraries:
    """NVIDIA's driver and libraries, except those whose name contains one of the words in `missing`."""
    load = ctypes.CDLL

    def make(*, missing: str = "", cuda: int = 13000, devices: int = 1, error: int = 0) -> None:
        def fake_load(name: str | None) -> Any:
            if name is None:  # the C library
                return load(None)
            if any(word in name for word in missing.split()):
                raise OSError(f"{name}: cannot open shared object file")
            return FakeDriver(cuda, devices, error)

        monkeypatch.setattr(ctypes, "CDLL", fake_load)

    return make


@pytest.fixture
def metadata() -> ModelMetadata:
    model = ModelConfig(vocab_size=2, block_size=4, n_layer=1, n_head=1, n_embd=2)
    return ModelMetadata(model=model, tokenizer={"type": "char", "vocab": "ab"}, precision="fp32")


class MakeGraph(Protocol):
    def __call__(
        self,
        path: Path,
        *,
        metadata: dict[str, str] | None = None,
        ir: int = 10,
        opset: int = 21,
        op: str = "MatMul",
        domain: str = "",
        weights: str | None = None,
    ) -> Path: ...


@pytest.fixture
def make_graph() -> MakeGraph:
    """Write y = op(x, w) as an .onnx; w is x, or weights in the file `weights` names."""
    from onnx import helper

    def make(
        path: Path,
        *,
        metadata: dict[str, str] | None = None,
        ir: int = 10,
        opset: int = 21,
        op: str = "MatMul",
        domain: str = "",
        weights: str | None = None,
    ) -> Path:
        x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in "xy")
        stored = []
        if weights:
            tensor = helper.make_tensor("w", onnx.TensorProto.FLOAT, [2, 2], np.eye(2, dtype="f4"))
            tensor.ClearField("float_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=weights)
            stored = [tensor]
        node = helper.make_node(op, ["x", "w" if weights else "x"], ["y"], domain=domain)
        graph = helper.make_graph([node], "g", [x], [y], stored)
        opsets = [helper.make_opsetid("", opset)]
        if domain:
            opsets.append(helper.make_opsetid(domain, 1))
        model = helper.make_model(graph, opset_imports=opsets, ir_version=ir)
        helper.set_model_props(model, metadata or {})
        path.write_bytes(model.SerializeToString())
        return path

    return make


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that say they are CUDA's and run on the CPU.

    They are opened with CUDA's options, as far as these are the session's, and their arrays are copies: one
    that is not sent or fetched, or that is bound anew in place of being written to, is seen as on CUDA.
    """

    def on_the_cpu(ort: Any, graph: Path, options: Any, *_: object, **__: object) -> Any:
        return ort.InferenceSession(str(graph), options, providers=[CPU])

    def best_on_the_cpu(ort: Any, device_id: int) -> Any:  # noqa: ARG001
        return ort.InferenceSession(best.MODEL, providers=[CPU])

    monkeypatch.setattr(session, "cuda_problem", lambda *_: None)
    monkeypatch.setattr(session, "_on_cuda", on_the_cpu)
    monkeypatch.setattr(session, "_best_on_cuda", best_on_the_cpu)
    monkeypatch.setattr(cache, "device_of", lambda _: ("cpu", 0))
