"""torch alone: GPT-2 with a cache that is written in place; a step of one token may be a CUDA graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from protocol import Generate, Prompts, main


def convert(source: Path, model: Path, precision: str) -> None:  # noqa: ARG001
    model.symlink_to(source.resolve())


def load(model: Path, precision: str, threads: int, device: str = "cpu", steps: str = "launched") -> Generate:
    import torch
    from safetensors.torch import load_file
    from torch import Tensor
    from torch.nn.functional import embedding, gelu, layer_norm, scaled_dot_product_attention

    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    config = json.loads((model / "config.json").read_text())
    n_layer, n_head, C = config["n_layer"], config["n_head"], config["n_embd"]
    block_size, epsilon = config["n_positions"], config["layer_norm_epsilon"]
    dtype = {"fp32": torch.float32, "fp16": torch.float16}[precision]
    weights = {
        name.removeprefix("transformer."): weight.to(device, dtype)
        for name, weight in load_file(model / "model.safetensors").items()
    }

    class Rows:
        """`batch` rows of up to `capacity` tokens."""

        def __init__(self, batch: int, capacity: int) -> None:
            shape = batch, n_head, capacity, C // n_head
            self.caches = [torch.zeros(2, *shape, dtype=dtype, device=device) for _ in range(n_layer)]
            self.start = torch.zeros(1, dtype=torch.int64, device=device)  # tokens read so far
            self.places = torch.arange(capacity, device=device)
            self.ids = torch.zeros(batch, 1, dtype=torch.int64, device=device)  # the newest
            self.new = torch.zeros(batch, capacity, dtype=torch.int64, device=device)

        def read(self, ids: Tensor) -> None:
            """Read (batch, T) tokens; `ids` is then what follows them."""
            batch, time = ids.shape
            positions = self.start + self.places[:time]  # (T,)
            mask = self.places <= positions[:, None]  # (T, capacity)
            x = embedding(ids, weights["wte.weight"]) + embedding(positions, weights["wpe.weight"])
            for i, cache in enumerate(self.caches):
                q, k, v = linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(C, -1)
                q, k, v = (y.view(batch, time, n_head, C // n_head).transpose(1, 2) for y in (q, k, v))
                cache[0].index_copy_(2, positions, k)
                cache[1].index_copy_(2, positions, v)
                y = scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=mask)
                x = x + linear(y.transpose(1, 2).reshape(batch, time, C), f"h.{i}.attn.c_proj")
                y = gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
                x = x + linear(y, f"h.{i}.mlp.c_proj")
            logits = norm(x[:, -1], "ln_f") @ weights["wte.weight"].T
            self.ids.copy_(logits.argmax(-1, keepdim=True))
            self.start += time
            self.new.index_copy_(1, self.start.clamp(max=self.new.shape[1]) - 1, self.ids)

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, (C,), weights[f"{name}.weight"], weights[f"{name}.bias"], epsilon)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    captured: dict[int, tuple[Rows, Callable[[], None]]] = {}

    def capture(batch: int) -> tuple[Rows, Callable[[], None]]:
        rows = Rows(batch, block_size)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                rows.read(rows.ids)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows.read(rows.ids)
        return rows, graph.replay

    @torch.inference_mode()
    def generate(prompts: Prompts, tokens: int) -> Prompts:
        ids = torch.tensor(prompts, device=device)  # (B, T)
        batch, time = ids.shape
        if steps == "captured":
            if batch not in captured:
                captured[batch] = capture(batch)
            rows, step = captured[batch]
            rows.start.zero_()
        else:
            rows = Rows(batch, time + tokens)

            def step() -> None:
                rows.read(rows.ids)

        rows.read(ids)
        for _ in range(tokens - 1):
            step()
        new: Prompts = rows.new[:, time - 1 : time - 1 + tokens].tolist()
        return new

    return generate


if __name__ == "__main__":
    main(convert, load, ("torch",))
