"""What ONNX Runtime says of a file it cannot load, and what that means to somebody who has the file."""

from __future__ import annotations

import re
from pathlib import Path

from gptblock.runtime.capture import one_line
from gptblock.runtime.wheels import upgrade_command

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


def translated(graph: Path, said: str, version: str) -> str:
    """One line on why a file cannot be loaded."""
    for pattern, sentence in _TRANSLATIONS:
        found = re.search(pattern, said, re.DOTALL)
        if found:
            groups = [group for group in found.groups() if group]
            return sentence.format(*groups, graph=graph, version=version, upgrade=upgrade_command())
    return f"{graph} cannot be loaded by onnxruntime {version}: {one_line(said)}"
