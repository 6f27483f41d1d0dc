"""The onnxruntime module: whether one is installed that can be used, and how to get one.

The wheels onnxruntime and onnxruntime-gpu install the same module. pip lets both in; the one written
last wins, and removing either leaves a husk that imports and holds nothing.
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from types import ModuleType

from gptblock.bundle.manifest import MINIMUM_ONNXRUNTIME
from gptblock.errors import MissingExtraError, ProviderError
from gptblock.runtime.capture import captured, one_line

# pip passes over the one of the two that is not there.
REINSTALL = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'gptblock[{extra}]'"


@dataclass(frozen=True)
class Problem:
    """Something that does not work here, in one phrase, and the command or step that mends it."""

    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}"


NOT_INSTALLED = Problem(
    "ONNX Runtime is not installed", "pip install 'gptblock[cpu]', or 'gptblock[gpu]' for NVIDIA cards"
)


def load_onnxruntime() -> ModuleType:
    """The onnxruntime module, known to be usable.

    Raises MissingExtraError where there is none, and ProviderError for a husk, for one that cannot be
    imported, and for one older than 1.28.
    """
    module, problem = try_onnxruntime()
    if problem is NOT_INSTALLED:
        raise MissingExtraError(
            "running a model", "ONNX Runtime (or the extra gpu: pip install 'gptblock[gpu]')", "cpu"
        )
    if module is None or problem is not None:
        raise ProviderError(str(problem))
    return module


def try_onnxruntime() -> tuple[ModuleType | None, Problem | None]:
    """The onnxruntime module as far as it can be imported, and what keeps it from being used, if anything.

    Switches off the telemetry of onnxruntime, which keeps a device id and a log of events in the user's
    cache folder; who sets ORT_DISABLE_TELEMETRY has the last word.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        with captured():  # it looks for devices when imported, and says what it does not find
            module = importlib.import_module("onnxruntime")
    except Exception as error:  # importing it raises whatever its native library raises
        if isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime":
            return None, NOT_INSTALLED
        return None, Problem(
            f"onnxruntime is installed and cannot be imported: {one_line(error)}",
            f"install it anew: {_reinstall_either()}",
        )
    if not hasattr(module, "InferenceSession"):
        return module, Problem(
            "onnxruntime is an empty husk (it has no InferenceSession): onnxruntime and onnxruntime-gpu were "
            "both installed, and removing one took the files of the other",
            f"uninstall both, then install one: {_reinstall_either()}",
        )
    return module, version_problem(
        module.__version__,
        MINIMUM_ONNXRUNTIME,
        "1.25 to 1.27 compute wrong logits for a chunk after cached tokens, and older ones refuse the graph",
    )


def version_problem(installed: str, minimum: str, reason: str) -> Problem | None:
    """What is wrong with running onnxruntime `installed` where `minimum` is needed, if anything."""
    if _release(installed) >= _release(minimum):
        return None
    return Problem(
        f"onnxruntime {installed} is too old, {minimum} or newer is needed: {reason}",
        upgrade_command(minimum),
    )


def upgrade_command(minimum: str | None = None) -> str:
    """The pip command that upgrades the wheel that is installed, and does not bring in the other one."""
    wheel = "onnxruntime-gpu[cuda,cudnn]" if "onnxruntime-gpu" in installed_wheels() else "onnxruntime"
    return f"pip install --upgrade '{wheel}{f'>={minimum}' if minimum else ''}'"


def installed_wheels() -> dict[str, str]:
    """Every installed distribution that provides the module onnxruntime, and its version."""
    from importlib import metadata  # a tenth of what opening a model takes

    providing = (
        wheel
        for wheel in metadata.distributions()
        if "onnxruntime" in (wheel.read_text("top_level.txt") or "").split()
    )
    return dict(sorted((wheel.name, wheel.version) for wheel in providing))


def _reinstall_either() -> str:
    return f"{REINSTALL.format(extra='cpu')}, or 'gptblock[gpu]' for NVIDIA cards"


def _release(version: str) -> tuple[int, ...]:
    """(1, 28, 0) of 1.28.0.dev20260101 or 1.28.0+cu13."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else ()
