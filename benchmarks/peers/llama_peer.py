"""llama.cpp by llama-cpp-python: GGUF in f32 or q8_0, its C functions called directly.

Its class Llama copies every token's logits into numpy; a program in C would not, so this does not.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

from protocol import Generate, Prompts, main

_NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def convert(source: Path, model: Path, precision: str) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter, quantize
    from safetensors.numpy import load_file

    config = json.loads((source / "config.json").read_text())
    writer = GGUFWriter(str(model), "gpt2")
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    _add_vocabulary(writer, json.loads((source / "tokenizer.json").read_text(encoding="utf-8")))
    for name, tensor in load_file(source / "model.safetensors").items():
        renamed, is_matrix = _renamed(name)
        array = tensor.T if is_matrix and "wte" not in name else tensor  # Conv1D is (in, out)
        if is_matrix and precision == "int8":
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(renamed, quantize(array.copy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(renamed, array.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _renamed(name: str) -> tuple[str, bool]:
    """llama.cpp's name of a tensor of transformers', and whether vectors are multiplied with it."""
    parts = name.removeprefix("transformer.").split(".")
    block = f"blk.{parts[1]}." if parts[0] == "h" else ""
    module, kind = ".".join(parts[2:-1] if block else parts[:-1]), parts[-1]
    return f"{block}{_NAMES[module]}.{kind}", kind == "weight" and not module.startswith(("ln", "wpe"))


def _add_vocabulary(writer: Any, tokenizer: Any) -> None:
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocab, key=vocab.__getitem__))
    writer.add_token_types([1] * len(vocab))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]] or ["! !"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id):
        add(0)


def load(model: Path, precision: str, threads: int) -> Generate:  # noqa: ARG001
    import llama_cpp as llama

    llama.llama_backend_init()
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    gguf = llama.llama_model_load_from_file(str(model).encode(), llama.llama_model_default_params())
    if not gguf:
        raise ValueError(f"llama.cpp does not open {model.name}")
    sampler = llama.llama_sampler_init_greedy()
    contexts: dict[tuple[int, int], Any] = {}

    def context_of(rows: int, capacity: int) -> Any:
        """One at a time, no larger than its calls need."""
        if (rows, capacity) not in contexts:
            for context in contexts.values():
                llama.llama_free(context)
            contexts.clear()
            options = llama.llama_context_default_params()
            options.n_ctx = rows * capacity
            options.n_batch = options.n_ubatch = max(512, rows * 16)
            options.n_seq_max = rows
            options.n_threads = options.n_threads_batch = threads
            options.type_k = options.type_v = llama.GGML_TYPE_F32
            options.kv_unified = False
            contexts[rows, capacity] = llama.llama_init_from_model(gguf, options)
            if not contexts[rows, capacity]:
                raise ValueError(f"llama.cpp makes no context for {rows} rows of {capacity}")
        return contexts[rows, capacity]

    def generate(prompts: Prompts, tokens: int) -> Prompts:
        rows, length = len(prompts), len(prompts[0])
        context = context_of(rows, -(-(length + tokens) // 256) * 256)  # of 256s, as it rounds itself
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        batch = llama.llama_batch_init(rows * length, 0, 1)
        new: Prompts = [[] for _ in prompts]
        try:
            chunk = [(token, at, row) for row, ids in enumerate(prompts) for at, token in enumerate(ids)]
            for step in range(tokens):
                last = length + step - 1
                batch.n_tokens = len(chunk)
                for i, (token, position, row) in enumerate(chunk):
                    batch.token[i] = token
                    batch.pos[i] = position
                    batch.n_seq_id[i] = 1
                    batch.seq_id[i][0] = row
                    batch.logits[i] = position == last
                if llama.llama_decode(context, batch):
                    raise ValueError("llama_decode failed")
                heads = [i for i, (_, position, _) in enumerate(chunk) if position == last]
                for row, i in enumerate(heads):
                    new[row].append(llama.llama_sampler_sample(sampler, context, i))
                chunk = [(ids[-1], last + 1, row) for row, ids in enumerate(new)]
        finally:
            llama.llama_batch_free(batch)
        return new

    generate.keep = silent  # type: ignore[attr-defined]  # the library holds no reference to it
    return generate


if __name__ == "__main__":
    main(convert, load, ("llama-cpp-python", "gguf"))
