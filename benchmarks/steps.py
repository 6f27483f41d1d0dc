"""How long a training step takes, gptblock's beside one of the lecture's code: see benchmarks/README.md.

python benchmarks/steps.py --threads 2 --rounds 5 --markdown steps.md
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from limits import measure

import gptblock.lecture
from gptblock.config import TrainConfig, train_config
from gptblock.text.corpus import load_corpus
from gptblock.text.kinds import train_tokenizer
from gptblock.training.compute import resolve_compute
from gptblock.training.material import prepare
from gptblock.training.trainer import Trainer

CORPUS = "tinyshakespeare"
CONFIGS = {
    "quick": train_config("quick"),
    "nanoGPT's CPU size": train_config(
        "quick", overrides={"n_layer": 4, "n_embd": 128, "batch_size": 12, "block_size": 64}
    ),
    "lecture": train_config("lecture"),
}


def products(config: TrainConfig, vocab_size: int) -> int:
    """Operations of a step: six for each weight and token, and attention's, as if nothing were masked."""
    C, T, tokens = config.n_embd, config.block_size, config.batch_size * config.block_size
    weights = 12 * config.n_layer * C**2 + vocab_size * C
    return 6 * tokens * (weights + 2 * config.n_layer * T * C)


def lectures_step(config: TrainConfig, data: torch.Tensor, vocab_size: int) -> Callable[[], None]:
    """A step as the lecture's script makes it."""
    model = gptblock.lecture.GPT(config.model(vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    T = config.block_size

    def step() -> None:
        starts = torch.randint(len(data) - T, (config.batch_size,))
        inputs = torch.stack([data[i : i + T] for i in starts])
        targets = torch.stack([data[i + 1 : i + T + 1] for i in starts])
        _, batch_loss = model(inputs, targets)
        assert batch_loss is not None
        optimizer.zero_grad(set_to_none=True)
        batch_loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    text = load_corpus(CORPUS).text
    data = torch.from_numpy(train_tokenizer("char", text, 0).encode(text))
    lines = [
        "| size | tokens a second | of the peak | the lecture's step / this |",
        "| --- | --- | --- | --- |",
    ]
    for name in options.sizes:
        config = resolve_compute(CONFIGS[name].replace(data=CORPUS, device="cpu", threads=options.threads))
        config = config.resolved()
        material = prepare(config)
        trainer = Trainer(config, material, Path("unused"), lambda _: None)
        theirs = lectures_step(config, data, material.tokenizer.vocab_size)
        ours_spent, ratios, shares = [], [], []
        for number in range(options.rounds + 1):
            peak = measure(2**20, options.threads)["flops"]
            ours = min(_timed(trainer.advance) for _ in range(options.repeats))
            ratio = min(_timed(theirs) for _ in range(options.repeats)) / ours
            if number:  # the first is not counted
                ours_spent.append(ours)
                ratios.append(ratio)
                shares.append(products(config, material.tokenizer.vocab_size) / ours / peak)
        tokens = config.batch_size * config.block_size / median(ours_spent)
        lines.append(
            f"| {name} | {tokens:,.0f} | {median(shares):.0%} ({min(shares):.0%} to {max(shares):.0%}) | "
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
        print(lines[-1], flush=True)
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")


def _timed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3, help="steps a round, of which the fastest counts")
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
