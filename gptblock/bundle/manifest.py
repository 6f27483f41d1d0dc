"""What a bundle says about itself: manifest.json beside the graphs, and metadata inside each .onnx."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, get_args

from gptblock.bundle.fields import corrupt, parse_object, read_fields
from gptblock.config import ModelConfig
from gptblock.errors import ConfigError, CorruptError

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"
MINIMUM_ONNXRUNTIME = "1.28"  # older ones load the cached graph and compute wrong logits, or refuse it
Precision = Literal["fp32", "fp16", "int8", "int4"]

_PREFIX = "gptblock."  # of our keys in an .onnx, where other tools may keep theirs


@dataclass(frozen=True)
class Check:
    """One row of a proof: the largest difference seen in `cases` trials, and the largest allowed."""

    name: str
    cases: int
    worst: float
    allowed: float

    def __post_init__(self) -> None:
        _require("cases", self.cases, ">= 0", self.cases >= 0)

    @property
    def ok(self) -> bool:
        """Whether it holds. NaN does not."""
        return self.worst <= self.allowed


@dataclass(frozen=True)
class Cost:
    """What a lower precision costs on a text: losses in nats a token, of the fp32 graph and of this one.

    `changed` is the share of the `tokens` predicted for which the likeliest is another.
    """

    text: str
    tokens: int
    fp32_loss: float
    loss: float
    changed: float

    def __post_init__(self) -> None:
        _require("tokens", self.tokens, ">= 1", self.tokens >= 1)
        _require("changed", self.changed, "in 0..1", 0 <= self.changed <= 1)

    def __str__(self) -> str:
        return (
            f"loss {self.loss:.4f} nats a token, {self.loss - self.fp32_loss:+z.4f} against fp32; "
            f"another token the likeliest at {self.changed:.2%} of {self.tokens} positions ({self.text})"
        )


@dataclass(frozen=True)
class FileEntry:
    """A file of the bundle: its bytes, and of a model file the precision and the parity record.

    `cost` is that of a precision below fp32, None where no text was at hand to measure it on. A graph for
    ONNX Runtime's CPU provider alone has no weights of its own: `weights` is the file that they are in.
    """

    size: int  # bytes
    sha256: str
    precision: str | None = None  # None: not a model
    checks: tuple[Check, ...] = ()
    cost: Cost | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        _require("size", self.size, ">= 0", self.size >= 0)
        _require_sha256("sha256", self.sha256)
        if self.precision is not None:
            _require_precision(self.precision)


@dataclass(frozen=True)
class TrainingRecord:
    """Where the weights come from: text, steps, losses (nats per token), and the command that made them."""

    data: str
    data_sha256: str
    steps: int
    train_loss: float
    val_loss: float
    command: str
    config: dict[str, object]  # TrainConfig.to_dict()

    def __post_init__(self) -> None:
        _require_sha256("data_sha256", self.data_sha256)
        _require("steps", self.steps, ">= 0", self.steps >= 0)


@dataclass(frozen=True)
class SourceRecord:
    """Where converted weights come from, and the command that made a run of them, files without folders.

    `sha256` is the file's; of weights in several files, that of their SHA-256s in order. `loss` is on
    `data`, in nats per token.
    """

    format: str  # "lecture", "nanogpt" or "gpt2"
    file: str
    sha256: str
    command: str
    data: str | None
    loss: float | None

    def __post_init__(self) -> None:
        _require_sha256("sha256", self.sha256)


@dataclass(frozen=True)
class Manifest:
    """manifest.json: everything in the bundle, by name. It lists every file but itself.

    `training` or `source` says where the weights come from. `tokenizer` is Tokenizer.to_dict(); `versions`
    are those of the export, by package; `created` is an ISO 8601 time in UTC. Raises ConfigError where a
    value is not allowed.
    """

    model: ModelConfig
    tokenizer: dict[str, object]
    training: TrainingRecord | None
    files: dict[str, FileEntry]
    versions: dict[str, str]
    created: str
    source: SourceRecord | None = None
    minimum_onnxruntime: str = MINIMUM_ONNXRUNTIME
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        for name, entry in self.files.items():
            _require_plain(name)
            there = ", ".join(self.files)
            _require(f"weights of {name}", entry.weights, f"of {there}", entry.weights in (None, *self.files))
        _require("created", repr(self.created), "an ISO 8601 time in UTC", _is_utc(self.created))
        _require_release(self.minimum_onnxruntime)

    def to_json(self) -> str:
        """The text of manifest.json: ASCII, indented. Raises ValueError for a number that is not finite."""
        values = {"schema_version": self.schema_version} | dataclasses.asdict(self)
        return json.dumps(values, indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = MANIFEST_NAME) -> Manifest:
        """The manifest that `to_json` wrote.

        Raises CorruptError, which names `source`: not JSON, a key unknown, missing or of the wrong type,
        a value that is not allowed, or a schema newer than this gptblock reads.
        """
        values = parse_object(text, source)
        _check_schema(values.get("schema_version"), source)
        return read_fields(cls, values, source)


@dataclass(frozen=True)
class ModelMetadata:
    """What each .onnx carries itself, so that it generates without its bundle."""

    model: ModelConfig
    tokenizer: dict[str, object]
    precision: str
    minimum_onnxruntime: str = MINIMUM_ONNXRUNTIME

    def __post_init__(self) -> None:
        _require_precision(self.precision)
        _require_release(self.minimum_onnxruntime)

    def to_metadata(self) -> dict[str, str]:
        """As the key-value pairs of ONNX's metadata_props."""
        return {
            "gptblock.schema_version": str(SCHEMA_VERSION),
            "gptblock.model": json.dumps(self.model.to_dict()),
            "gptblock.tokenizer": json.dumps(self.tokenizer),
            "gptblock.precision": self.precision,
            "gptblock.minimum_onnxruntime": self.minimum_onnxruntime,
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], source: str = "this .onnx") -> ModelMetadata:
        """What `to_metadata` wrote; keys of others are passed over.

        Raises CorruptError, which names `source`: a file that is not gptblock's, or as for a manifest.
        """
        values: dict[str, object] = {
            key.removeprefix(_PREFIX): value for key, value in metadata.items() if key.startswith(_PREFIX)
        }
        if not values:
            raise CorruptError(
                f"{source} was not exported by gptblock: it has no gptblock metadata; "
                f"export one with gptblock export RUN"
            )
        version = values.pop("schema_version", None)
        is_number = isinstance(version, str) and re.fullmatch("[0-9]{1,9}", version)
        _check_schema(int(str(version)) if is_number else version, source)
        for key in ("model", "tokenizer"):
            if key in values:
                values[key] = parse_object(str(values[key]), f"{source} (metadata {_PREFIX}{key})")
        return read_fields(cls, values, source)


def _check_schema(version: object, source: str) -> None:
    """First of all checks, since a newer schema may have any keys."""
    if type(version) is not int or version < 1:
        raise corrupt(source, f"must have 1..{SCHEMA_VERSION} as schema_version: got {version!r}")
    if version > SCHEMA_VERSION:
        raise CorruptError(
            f"{source} was made by a newer gptblock "
            f"(schema {version}; this one reads up to {SCHEMA_VERSION}): upgrade gptblock"
        )


def _require(name: str, value: object, allowed: str, holds: bool) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {allowed}: got {value}")


def _require_sha256(name: str, value: str) -> None:
    _require(name, repr(value), "64 lower-case hex digits", re.fullmatch("[0-9a-f]{64}", value) is not None)


def _require_precision(value: str) -> None:
    allowed = get_args(Precision)
    _require("precision", repr(value), f"one of {', '.join(allowed)}", value in allowed)


def _require_release(value: str) -> None:
    holds = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})*", value) is not None
    _require("minimum_onnxruntime", repr(value), "a release such as 1.28", holds)


def _require_plain(name: str) -> None:
    """A name that leads nowhere but into the folder, on any system (`:` names drives and streams on some)."""
    holds = name.isprintable() and name not in ("", ".", "..", MANIFEST_NAME) and not set(name) & set("/\\:")
    _require("a file's name", repr(name), f"a plain name in the bundle's folder, not {MANIFEST_NAME}", holds)


def _is_utc(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).utcoffset() == timedelta(0)
    except ValueError:
        return False
