"""Configuration: what a model is, how it is trained, how it is sampled.

Frozen, validated at construction, plain Python: reading a configuration imports nothing else, so
`gptblock --help` does not either.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from gptblock.errors import ConfigError

Init = Literal["gpt2", "normal", "torch"]
Norm = Literal["layernorm", "rmsnorm", "none"]
NormPlacement = Literal["pre", "post"]
FeedForwardKind = Literal["relu", "relu_squared", "gelu", "gelu_tanh", "swiglu"]
Positions = Literal["learned", "rope", "none"]
Bias = Literal["lecture", "gpt2", "none"]
TokenizerKind = Literal["char", "byte", "bpe"]
LrSchedule = Literal["cosine", "wsd"]
Compile = Literal["auto", "on", "off"]
Dtype = Literal["auto", "fp32", "bf16"]
Device = Literal["auto", "cpu", "cuda"]
Overflow = Literal["slide", "rebase", "stop"]

MAX_THREADS = 1024  # no machine gains from more, and some tens of thousands take its memory


class _Config:
    """What the configurations share: typed fields, and mappings whose unknown keys are refused."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = _coerced(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)
        self._validate()

    def _validate(self) -> None:
        raise NotImplementedError

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from a mapping. Raises ConfigError for a key that is no field."""
        known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        unknown = [key for key in values if key not in known]
        if unknown:
            names = ", ".join(map(repr, unknown))
            raise ConfigError(f"{cls.__name__} has no field {names}; its fields are {', '.join(known)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain Python values, in their order."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again."""
        return self.from_dict({**self.to_dict(), **changes})


@dataclass(frozen=True)
class ModelConfig(_Config):
    """The shape of a GPT, in the words of the lecture; the defaults of its parts are the lecture's block.

    `head_size` is n_embd // n_head: several narrow heads cost what one wide one does. `bias` says which
    layers have one: with "lecture" every Linear but query, key and value; with "gpt2" every Linear but the
    head; with "none" neither a Linear nor a LayerNorm. `qk_norm` normalises each head's queries and keys.
    `token_shift` is how many tokens before its own the feed-forward reads a little of, by a weight a feature.
    `ff_ratio` is the feed-forward's width inside by n_embd; 0 means 4, or for "swiglu", which has a third
    matrix, 8/3 rounded up to a multiple of 8.
    """

    vocab_size: int
    block_size: int = 64  # the longest context, in tokens
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128  # width of the residual stream
    dropout: float = 0.0
    norm: Norm = "layernorm"
    norm_placement: NormPlacement = "pre"
    norm_eps: float = 1e-5
    feedforward: FeedForwardKind = "relu"
    ff_ratio: float = 0.0
    positions: Positions = "learned"
    qk_norm: bool = False
    token_shift: int = 0
    bias: Bias = "lecture"
    tie_weights: bool = False  # the head shares the token embedding's weights
    init: Init = "gpt2"

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

    @property
    def ff_size(self) -> int:
        """The feed-forward's width inside."""
        if self.ff_ratio:
            return max(1, round(self.ff_ratio * self.n_embd))
        return -(-self.n_embd // 3) * 8 if self.feedforward == "swiglu" else 4 * self.n_embd

    def _validate(self) -> None:
        for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"):
            _require(name, getattr(self, name), ">= 1", getattr(self, name) >= 1)
        _require("dropout", self.dropout, "in [0, 1)", 0.0 <= self.dropout < 1.0)
        if self.n_embd % self.n_head:
            raise ConfigError(
                f"n_embd must be divisible by n_head, so that all heads are of one size: "
                f"got n_embd = {self.n_embd} and n_head = {self.n_head}"
            )
        _require("norm_eps", self.norm_eps, "> 0", self.norm_eps > 0)
        _require("ff_ratio", self.ff_ratio, ">= 0 (0 = the usual)", self.ff_ratio >= 0)
        _require(
            "token_shift",
            self.token_shift,
            f"in 0..{self.block_size - 1} (0 = off; below block_size, which is {self.block_size})",
            0 <= self.token_shift < self.block_size,
        )
        if self.norm == "none" and self.norm_placement == "post":
            raise ConfigError(
                'norm_placement = "post" places the norm, and norm = "none" has none: '
                'give another norm, or "pre"'
            )
        if self.positions == "rope" and self.head_size % 2:
            raise ConfigError(
                f'positions = "rope" turns pairs of features, so head_size (n_embd // n_head) must be even: '
                f"got {self.head_size}"
            )


@dataclass(frozen=True)
class TrainConfig(_Config):
    """Everything a training run is determined by, apart from the text itself.

    The defaults are near the preset `quick`. `lr_decay_iters = 0` means: as long
    as max_iters; a run's configuration is resolved before it is saved, and then holds the number.
    """

    data: str = "pydoc"  # a text file, a folder of text files, or a named corpus
    block_size: int = 64
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 96
    dropout: float = 0.0
    norm: Norm = "layernorm"
    norm_placement: NormPlacement = "pre"
    norm_eps: float = 1e-5
    feedforward: FeedForwardKind = "relu"
    ff_ratio: float = 0.0
    positions: Positions = "learned"
    qk_norm: bool = False
    token_shift: int = 0
    bias: Bias = "lecture"
    tie_weights: bool = False
    init: Init = "gpt2"
    tokenizer: TokenizerKind = "char"
    bpe_vocab_size: int = 1024  # for tokenizer "bpe": tokens, its 256 bytes among them
    batch_size: int = 8  # windows of block_size tokens that a step learns from
    micro_batch_size: int = 0  # of these, how many are computed at once, to save memory; 0 = all
    max_iters: int = 2200
    lr_schedule: LrSchedule = "cosine"
    lr_decay_iters: int = 0
    warmup_iters: int = 100
    cooldown: float = 0.5  # for lr_schedule "wsd": the share of lr_decay_iters in which the rate falls
    learning_rate: float = 5e-3
    min_lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.97
    weight_decay: float = 0.1
    grad_clip: float = 1.0  # largest gradient norm; 0 = off
    eval_interval: int = 500
    eval_iters: int = 40  # batches per split for one estimate
    sample_interval: int = 0  # steps from one sample of text to the next; 0 = none. Changes nothing learned.
    device: Device = "auto"
    dtype: Dtype = "auto"  # of the products in training; weights, moments and files are fp32 always
    compile: Compile = "auto"
    threads: int = 0  # CPU threads of one operator; 0 = torch's choice. Another number rounds differently.
    seed: int = 1337

    def model(self, vocab_size: int) -> ModelConfig:
        """The shape of the model that this run trains, for a vocabulary of `vocab_size` symbols."""
        names = [field.name for field in dataclasses.fields(ModelConfig) if field.name != "vocab_size"]
        return ModelConfig(vocab_size=vocab_size, **{name: getattr(self, name) for name in names})

    def resolved(self) -> TrainConfig:
        """The same run with every default that depends on another field filled in."""
        return self.replace(lr_decay_iters=self.lr_decay_iters or self.max_iters)

    def _validate(self) -> None:
        self.model(vocab_size=1)
        _require("bpe_vocab_size", self.bpe_vocab_size, ">= 256", self.bpe_vocab_size >= 256)
        for name in ("batch_size", "max_iters", "eval_interval", "eval_iters"):
            _require(name, getattr(self, name), ">= 1", getattr(self, name) >= 1)
        for name in (
            "lr_decay_iters",
            "warmup_iters",
            "seed",
            "min_lr",
            "weight_decay",
            "grad_clip",
            "sample_interval",
            "micro_batch_size",
        ):
            _require(name, getattr(self, name), ">= 0", getattr(self, name) >= 0)
        _require("learning_rate", self.learning_rate, "> 0", self.learning_rate > 0)
        if self.min_lr > self.learning_rate:
            raise ConfigError(
                f"min_lr must not be above learning_rate: got min_lr = {self.min_lr} "
                f"and learning_rate = {self.learning_rate}"
            )
        is_known = 0 <= self.threads <= MAX_THREADS
        _require("threads", self.threads, f"in 0..{MAX_THREADS} (0 = torch's choice)", is_known)
        _require("cooldown", self.cooldown, "in [0, 1]", 0.0 <= self.cooldown <= 1.0)
        for name in ("beta1", "beta2"):
            _require(name, getattr(self, name), "in [0, 1)", 0.0 <= getattr(self, name) < 1.0)


@dataclass(frozen=True)
class SamplingConfig(_Config):
    """How logits become a token. Applied in the order of the fields, penalty first."""

    repetition_penalty: float = 1.0  # 1 = off; over all tokens so far (Keskar et al. 2019, 4.1)
    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off; 0 keeps one (Holtzman et al. 2020)
    min_p: float = 0.0  # 0 = off; share of the likeliest token's probability (Nguyen et al. 2024)

    def _validate(self) -> None:
        _require("temperature", self.temperature, ">= 0 (0 = greedy)", self.temperature >= 0)
        _require("top_k", self.top_k, ">= 0 (0 = off)", self.top_k >= 0)
        _require("top_p", self.top_p, "in [0, 1] (1 = off)", 0 <= self.top_p <= 1)
        _require("min_p", self.min_p, "in [0, 1] (0 = off)", 0 <= self.min_p <= 1)
        _require("repetition_penalty", self.repetition_penalty, "> 0 (1 = off)", self.repetition_penalty > 0)


PRESETS: dict[str, dict[str, Any]] = {
    # The lecture's architecture, in about a minute on two cores. In so few steps torch's own, wider weights
    # learn much faster than GPT-2's, and a rate that stays high and then falls in a line than a cosine does.
    # Two threads would gain half again where nothing else runs, and wait for each other where something does.
    "quick": {
        "init": "torch",
        "max_iters": 1800,
        "lr_schedule": "wsd",
        "cooldown": 0.6,
        "warmup_iters": 50,
        "eval_interval": 600,
        "eval_iters": 30,
        "threads": 1,
    },
    # The same loss several times sooner, by parts that the lecture lacks: docs/training.md measures each.
    # With --n-layer 4 --max-iters 1600, a far lower one.
    "fast": {
        "n_layer": 1,
        "n_embd": 128,
        "norm": "rmsnorm",
        "feedforward": "relu_squared",
        "positions": "rope",
        "qk_norm": True,
        "token_shift": 3,
        "init": "torch",
        "batch_size": 12,
        "max_iters": 350,
        "lr_schedule": "wsd",
        "warmup_iters": 20,
        "learning_rate": 4e-3,
        "min_lr": 0.0,
        "beta2": 0.95,
        "eval_interval": 175,
        "eval_iters": 8,
        "threads": 1,
    },
    # the lecture's last model, for a GPU
    "lecture": {
        "block_size": 256,
        "n_layer": 6,
        "n_head": 6,
        "n_embd": 384,
        "dropout": 0.2,
        "batch_size": 64,
        "max_iters": 5000,
        "warmup_iters": 100,
        "learning_rate": 3e-4,
        "min_lr": 3e-5,
        "beta2": 0.99,
        "eval_interval": 500,
        "eval_iters": 30,  # of 64 windows; the lecture has 200, which takes a quarter of the time
    },
    # the lecture's sixth part: small enough to try things on
    "part6": {
        "block_size": 8,
        "n_layer": 3,
        "n_head": 4,
        "n_embd": 32,
        "dropout": 0.0,
        "batch_size": 32,
        "max_iters": 5000,
        "warmup_iters": 0,
        "learning_rate": 1e-3,
        "min_lr": 1e-3,
        "beta2": 0.99,
        "eval_interval": 500,
        "eval_iters": 60,  # 200 in the lecture, which take an eighth of the time
    },
}


def read_toml(path: Path) -> dict[str, Any]:
    """The keys and values of a TOML file. Raises ConfigError where it cannot be read."""
    import tomllib  # some milliseconds that only training needs

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None


def train_config(
    preset: str = "quick", file: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> TrainConfig:
    """A configuration from a preset, then a TOML file, then single fields; the later wins."""
    if preset not in PRESETS:
        raise ConfigError(f"there is no preset {preset!r}; the presets are {', '.join(PRESETS)}")
    from_file = read_toml(file) if file else {}
    return TrainConfig.from_dict({**PRESETS[preset], **from_file, **(overrides or {})})


def _require(name: str, value: object, allowed: str, holds: bool) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {allowed}: got {value}")


def _coerced(name: str, value: Any, hint: Any) -> Any:
    """`value` as the field's type; any whole number serves as an int, any real one as a float."""
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ConfigError(f"{name} must be one of {', '.join(get_args(hint))}: got {value!r}")
        return value
    for kind, numbers_of_it in ((float, Real), (int, Integral)):  # numpy's scalars are such, too
        if hint is kind and isinstance(value, numbers_of_it) and not isinstance(value, bool):
            value = kind(value)
    if not isinstance(value, hint) or isinstance(value, bool) is not (hint is bool):
        raise ConfigError(f"{name} must be {hint.__name__}: got {value!r}")
    if hint is float and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number: got {value}")
    return value
