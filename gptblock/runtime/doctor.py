"""What this machine can run, and what keeps it from the rest."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Literal

import gptblock
from gptblock.runtime import cuda
from gptblock.runtime.capture import captured, one_line
from gptblock.runtime.probe import probe
from gptblock.runtime.processor import allowed_cpus
from gptblock.runtime.wheels import REINSTALL, installed_wheels, try_onnxruntime

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was tried, and where it does not work, the command or step that mends it."""

    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """What was found. A version is None where the package is not installed."""

    gptblock: str
    python: str
    platform: str
    cpus: int  # that this process may use
    numpy: str | None
    onnxruntime: str | None
    torch: str | None
    wheels: dict[str, str]  # distributions that provide the module onnxruntime, and their versions
    compiled_in: tuple[str, ...]  # onnxruntime's providers, which may work or not
    usable: tuple[str, ...]  # "cpu", "cuda": a graph has just run there
    driver: cuda.Driver | None  # NVIDIA's
    libraries: dict[str, bool]  # of CUDA and cuDNN: whether each can be loaded
    findings: tuple[Finding, ...]

    @property
    def can_generate(self) -> bool:
        """Whether models run here, on any provider."""
        return bool(self.usable)


def diagnose() -> Report:
    """Try everything that running and training need. What is missing or broken is reported, not raised."""
    module, problem = try_onnxruntime()
    wheels = installed_wheels()
    tried: dict[str, Finding] = {}
    findings: list[Finding] = []
    compiled_in: tuple[str, ...] = ()
    libraries: dict[str, bool] = {}
    if len(wheels) > 1:
        findings.append(_too_many(wheels))
    if problem is not None:
        findings.append(Finding("problem", problem.text, problem.remedy))
    elif module is not None:
        compiled_in = tuple(module.get_available_providers())
        tried = {"cpu": _try_cpu(module), "cuda": _try_cuda(module)}
        libraries = cuda.find_libraries(module)  # after CUDA was tried, which loads those beside onnxruntime
    return Report(
        gptblock=gptblock.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cpus=allowed_cpus(),
        numpy=_version("numpy"),
        onnxruntime=getattr(module, "__version__", None),
        torch=_version("torch"),
        wheels=wheels,
        compiled_in=compiled_in,
        usable=tuple(name for name, finding in tried.items() if finding.level == "ok"),
        driver=cuda.read_driver(),
        libraries=libraries,
        findings=(*findings, *tried.values(), _try_training()),
    )


def _too_many(wheels: dict[str, str]) -> Finding:
    names = list(wheels)
    keep = "gpu" if "onnxruntime-gpu" in names else "cpu"
    return Finding(
        "problem",
        f"{' and '.join(names)} are both installed, and overwrite each other's files",
        f"uninstall all, install one: pip uninstall -y {' '.join(names)} && pip install 'gptblock[{keep}]'",
    )


def _try_cpu(module: ModuleType) -> Finding:
    try:
        with captured():
            probe(module, [cuda.CPU])
    except Exception as error:  # ONNX Runtime's exceptions have no base of their own
        return Finding(
            "problem", f"models do not run on the CPU: {one_line(error)}", REINSTALL.format(extra="cpu")
        )
    return Finding("ok", "models run on the CPU")


def _try_cuda(module: ModuleType) -> Finding:
    problem = cuda.cuda_problem(module)
    if problem is None:
        return Finding("ok", "models run on CUDA")
    wanted = cuda.CUDA in module.get_available_providers()  # somebody chose the GPU wheel
    return Finding(
        "problem" if wanted else "note", f"models do not run on CUDA: {problem.text}", problem.remedy
    )


def _try_training() -> Finding:
    missing = [name for name in _packages_of("train") if _version(name) is None]
    if missing:
        text = f"train and export are not available: {', '.join(missing)} not installed"
        return Finding("note", text, "pip install 'gptblock[train]'")
    return Finding("ok", "train and export are available")


def _packages_of(extra: str) -> list[str]:
    """The packages that an extra of gptblock asks for."""
    wanted = re.compile(rf"([\w.-]+).*;\s*extra\s*==\s*['\"]{extra}['\"]")
    return [found[1] for line in metadata.requires("gptblock") or [] if (found := wanted.match(line))]


def _version(package: str) -> str | None:
    """Read from the metadata: importing torch takes seconds."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
