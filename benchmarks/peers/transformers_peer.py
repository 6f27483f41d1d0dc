"""transformers, with its key/value cache."""

from __future__ import annotations

from pathlib import Path

from protocol import Generate, MissingError, Prompts, main


def convert(source: Path, model: Path, precision: str) -> None:
    if precision != "fp32":
        raise MissingError(f"no {precision} for CPUs in transformers itself")
    model.symlink_to(source.resolve())


def load(model: Path, precision: str, threads: int) -> Generate:  # noqa: ARG001
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    gpt = GPT2LMHeadModel.from_pretrained(model).eval()

    def generate(prompts: Prompts, tokens: int) -> Prompts:
        ids = torch.tensor(prompts)  # (B, T)
        out = gpt.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
        return out[:, ids.shape[1] :].tolist()

    return generate


if __name__ == "__main__":
    main(convert, load, ("transformers", "torch"))
