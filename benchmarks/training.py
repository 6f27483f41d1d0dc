"""How soon gptblock's presets reach a loss, beside nanoGPT and the lecture's loop: see benchmarks/README.md.

python benchmarks/training.py --nanogpt FOLDER --rounds 3 --json t.json --markdown t.md
python benchmarks/training.py --nanogpt FOLDER --rounds 7 --share 0.05 --markdown p.md
python benchmarks/training.py --ablation --rounds 2 --markdown a.md
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from limits import load_of_machine
from torch import nn

import gptblock.lecture
from gptblock.config import ModelConfig, train_config
from gptblock.convert.convert import convert
from gptblock.model import eval_mode, loss
from gptblock.text.corpus import load_corpus, split
from gptblock.text.kinds import train_tokenizer
from gptblock.training import load_model, train

CORPUS = "tinyshakespeare"
SIZE = {"block_size": 64, "n_layer": 4, "n_head": 4, "n_embd": 128}  # of nanoGPT's documented CPU setting
NANOGPT = {
    "device": "cpu",
    "compile": False,
    "eval_iters": 20,
    "log_interval": 1,
    "batch_size": 12,
    "max_iters": 2000,
    "lr_decay_iters": 2000,
    "dropout": 0.0,
    "always_save_checkpoint": True,
    **SIZE,
}
LECTURE_STEPS = 1500
PRESETS: dict[str, tuple[str, dict[str, object]]] = {
    "gptblock quick": ("quick", {}),
    "gptblock fast": ("fast", {}),
    "gptblock fast, 4 layers, 1600 steps": ("fast", {"n_layer": 4, "max_iters": 1600}),
}
ABLATIONS: dict[str, dict[str, object]] = {
    "fast": {},
    "learned positions": {"positions": "learned"},
    "LayerNorm": {"norm": "layernorm"},
    "no QK-norm": {"qk_norm": False},
    "ReLU": {"feedforward": "relu"},
    "GELU": {"feedforward": "gelu"},
    "no token shift": {"token_shift": 0},
    "token shift 1": {"token_shift": 1},
    "token shift 2": {"token_shift": 2},
    "GPT-2's initialisation": {"init": "gpt2"},
    "cosine": {"lr_schedule": "cosine"},
    "learning rate 1e-3": {"learning_rate": 1e-3},
    "beta2 0.99": {"beta2": 0.99},
    "no weight decay": {"weight_decay": 0.0},
    "2 layers": {"n_layer": 2},
}


@dataclass(frozen=True)
class Outcome:
    """The loss of the whole validation split, NaN of a part of a run; the seconds that all steps take."""

    loss: float
    seconds: float


class Text:
    """The corpus as every contender has it: the lecture's characters, the lecture's split."""

    def __init__(self) -> None:
        text = load_corpus(CORPUS).text
        self.tokenizer = train_tokenizer("char", [text], 0)
        self.ids = self.tokenizer.encode(text)
        self.train, self.val = split(self.ids, SIZE["block_size"])

    def loss(self, model: Callable[[torch.Tensor], torch.Tensor], module: nn.Module) -> float:
        """Over the validation split once, in windows of 64 tokens that do not overlap."""
        T = SIZE["block_size"]
        count = (len(self.val) - 1) // T
        inputs = torch.from_numpy(self.val[: count * T].reshape(count, T).astype(np.int64))
        targets = torch.from_numpy(self.val[1 : count * T + 1].reshape(count, T).astype(np.int64))
        with eval_mode(module), torch.no_grad():
            parts = zip(inputs.split(64), targets.split(64), strict=True)
            return sum(loss(model(x), y).item() * len(x) for x, y in parts) / count


def nanogpt(text: Text, source: Path, seed: int, folder: Path, share: float) -> Outcome:
    """Its own train.py, unchanged but for the seed; the time of evaluations is left out."""
    data, out = source / "data" / "shakespeare_char", folder / "nanogpt"
    for name, ids in (("train", text.train), ("val", text.val)):
        ids.astype(np.uint16).tofile(data / f"{name}.bin")
    symbols = text.tokenizer.decode(list(range(text.tokenizer.vocab_size)))
    meta = {
        "vocab_size": len(symbols),
        "itos": dict(enumerate(symbols)),
        "stoi": {symbol: i for i, symbol in enumerate(symbols)},
    }
    script = (source / "train.py").read_text().replace("manual_seed(1337", f"manual_seed({1337 + seed}")
    (source / "train_seeded.py").write_text(script)
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))
    steps = {"max_iters": round(share * NANOGPT["max_iters"]), "out_dir": out}
    flags = [f"--{name}={value}" for name, value in {**NANOGPT, **steps}.items()]
    command = [sys.executable, "train_seeded.py", "config/train_shakespeare_char.py", *flags]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"nanoGPT ended with exit code {done.returncode}: {done.stderr[-500:]}")
    times = [float(found) / 1000 for found in re.findall(r"^iter \d+:.* time ([\d.]+)ms", done.stdout, re.M)]
    usual = median(times)  # what took ten times as long was no step but an evaluation
    seconds = sum(spent if spent < 10 * usual else usual for spent in times) / share
    if share < 1:
        return Outcome(math.nan, seconds)
    (out / "meta.pkl").write_bytes(pickle.dumps(meta))
    convert(out / "ckpt.pt", "nanogpt", folder / "converted")
    model = load_model(folder / "converted").model
    return Outcome(text.loss(model, model), seconds)


def lecture(text: Text, seed: int, share: float) -> Outcome:
    """The lecture's loop and model, one head at a time, at a constant 1e-3."""
    torch.manual_seed(seed)
    model = gptblock.lecture.GPT(ModelConfig(text.tokenizer.vocab_size, **SIZE, init="torch"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data, T, started = torch.from_numpy(text.train.astype(np.int64)), SIZE["block_size"], time.perf_counter()
    for _ in range(round(share * LECTURE_STEPS)):
        starts = torch.randint(len(data) - T, (12,))
        inputs = torch.stack([data[i : i + T] for i in starts])
        targets = torch.stack([data[i + 1 : i + T + 1] for i in starts])
        _, batch_loss = model(inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        batch_loss.backward()
        optimizer.step()
    seconds = (time.perf_counter() - started) / share
    return Outcome(text.loss(lambda x: model(x)[0], model) if share == 1 else math.nan, seconds)


def preset(
    text: Text, name: str, changes: dict[str, object], seed: int, folder: Path, share: float
) -> Outcome:
    """A run of gptblock's; its last weights."""
    config = train_config(name, overrides={"data": CORPUS, "device": "cpu", "seed": 1337 + seed, **changes})
    train(config, folder, stop_after=round(share * config.max_iters))
    loaded = load_model(folder, "last").model
    state = json.loads((folder / "checkpoints/last/state.json").read_text())
    return Outcome(text.loss(loaded, loaded) if share == 1 else math.nan, state["seconds"] / share)


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    text = Text()
    share = options.share
    runs: dict[str, Callable[[int, Path], Outcome]] = {}
    if options.ablation:
        for name, changes in ABLATIONS.items():
            runs[name] = lambda seed, folder, changes=changes: preset(
                text, "fast", changes, seed, folder, share
            )
    else:
        if options.nanogpt:
            source = options.nanogpt.resolve()
            runs["nanoGPT, its CPU setting"] = lambda seed, folder: nanogpt(text, source, seed, folder, share)
        runs[f"the lecture's loop, {LECTURE_STEPS} steps"] = lambda seed, _: lecture(text, seed, share)
        for name, (base, changes) in PRESETS.items():
            runs[name] = lambda seed, folder, base=base, changes=changes: preset(
                text, base, changes, seed, folder, share
            )
    outcomes: dict[str, list[Outcome]] = {name: [] for name in runs}
    loads = []
    for seed in range(options.rounds):
        loads.append(load_of_machine())
        for name, run in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                outcomes[name].append(run(seed, Path(folder) / "run"))
            print(f"round {seed + 1}: {name}: {outcomes[name][-1]}", file=sys.stderr, flush=True)
    table = _table(outcomes)
    if options.json:
        report: dict[str, Any] = {name: list(map(asdict, found)) for name, found in outcomes.items()}
        options.json.write_text(json.dumps({"load": loads, "runs": report}, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(table)
    print(table)


def _table(outcomes: dict[str, list[Outcome]]) -> str:
    """Medians, each with its lowest and highest; what is compared with the first row is so round by round."""
    first = next(iter(outcomes.values()))
    lines = ["| run | validation loss | above the first row | the first row's time / this |"]
    lines.append("| --- " * 4 + "|")
    for name, found in outcomes.items():
        pairs = list(zip(first, found, strict=True))
        losses = _spread([o.loss for o in found], 4)
        above = _spread([b.loss - a.loss for a, b in pairs], 4)
        lines.append(
            f"| {name} | {losses} | {above} | {_spread([a.seconds / b.seconds for a, b in pairs], 2)} |"
        )
    return "\n".join(lines) + "\n"


def _spread(values: list[float], digits: int) -> str:
    if any(map(math.isnan, values)):
        return ""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT; without it, its row is left out")
    parser.add_argument("--ablation", action="store_true", help="the preset fast without each of its parts")
    parser.add_argument("--rounds", type=int, default=3, help="a seed each")
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="of each run's steps: for its time alone, scaled up, which then lies close beside the others'",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
