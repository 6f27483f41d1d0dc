"""ONNX Runtime GenAI: its model builder, and its Generator.

The builder has no GPT-2, so the model is shown to it as decoder layers of the form that it knows, with
learned positions added to the embedding in place of rotary ones.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from protocol import Generate, Prompts, main


def convert(source: Path, model: Path, precision: str) -> None:
    import onnx_ir as ir
    import torch
    from onnxruntime_genai.models.builders.base import Model
    from transformers import GPT2Config, GPT2LMHeadModel

    class Gpt2(Model):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.layernorm_attrs["simple"] = False
            self.mlp_attrs["use_proj"], self.mlp_attrs["use_fc"] = False, True
            self.attention_attrs["use_rope_in_attn"] = False
            self.attention_attrs["rope"] = False
            self.input_names["position_ids"] = "position_ids"

        def is_fused_rope_supported(self) -> bool:
            return False  # keeps the graph's input position_ids

        def make_attention_qk_rope_and_norm(self, *_: Any, **__: Any) -> tuple[str, str]:
            return "", ""

        def load_weights(self, input_path: str) -> torch.nn.Module:  # noqa: ARG002
            gpt = GPT2LMHeadModel.from_pretrained(source).eval()
            self.positions = gpt.transformer.wpe.weight
            return _as_decoder_layers(gpt)

        def make_embedding(self, embedding: Any) -> None:
            super().make_embedding(embedding)
            self.make_initializer(self.positions, "model.positions.weight", to=self.io_dtype)
            shape = self.make_hidden_state_shape()
            gather, add = "/model/positions/Gather", "/model/positions/Add"
            self.make_gather(
                gather,
                ["model.positions.weight", self.input_names["position_ids"]],
                dtype=self.io_dtype,
                shape=shape,
                axis=0,
            )
            tokens = self.layernorm_attrs["root_input"]
            self.make_add(add, [tokens, f"{gather}/output_0"], dtype=self.io_dtype, shape=shape)
            self.layernorm_attrs["root_input"] = self.layernorm_attrs["skip_input"] = f"{add}/output_0"

    config = GPT2Config.from_pretrained(source)
    shape = copy.copy(config)
    shape.intermediate_size = 4 * config.n_embd
    shape.hidden_act = config.activation_function
    shape.rms_norm_eps = config.layer_norm_epsilon
    shape.num_key_value_heads = config.n_head
    shape.eos_token_id = shape.bos_token_id = shape.pad_token_id = 0
    shape._name_or_path = str(source)
    options: dict[str, Any] = {"hf_token": False, "hf_remote": False}
    kind = ir.DataType.FLOAT if precision == "fp32" else ir.DataType.INT8
    built = Gpt2(shape, ir.DataType.FLOAT, kind, "cpu", str(model / "cache"), options)
    built.model_type = "LlamaForCausalLM"  # what the runtime takes for a plain decoder
    built.make_model(str(source))
    model.mkdir()
    built.save_model(str(model))
    built.make_genai_config(shape, {}, str(model))


def _as_decoder_layers(gpt: Any) -> Any:
    """GPT-2's modules by the names, and in the order, that the builder looks for."""
    import torch
    from torch import nn

    def linear(weight: Any, bias: Any = None) -> nn.Linear:
        module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        module.weight.data = weight.detach().clone().contiguous()
        if bias is not None:
            module.bias.data = bias.detach().clone()
        return module

    class Gpt2DecoderLayer(nn.Module):
        def __init__(self, block: Any) -> None:
            super().__init__()
            self.input_layernorm, self.post_attention_layernorm = block.ln_1, block.ln_2
            self.self_attn, self.mlp = nn.Module(), nn.Module()
            weights = block.attn.c_attn.weight.T.chunk(3)  # each (C, C)
            biases = block.attn.c_attn.bias.chunk(3)
            for name, weight, bias in zip(("q_proj", "k_proj", "v_proj"), weights, biases, strict=True):
                self.self_attn.add_module(name, linear(weight, bias))
            self.self_attn.o_proj = linear(block.attn.c_proj.weight.T, block.attn.c_proj.bias)
            self.mlp.fc1 = linear(block.mlp.c_fc.weight.T, block.mlp.c_fc.bias)
            self.mlp.fc2 = linear(block.mlp.c_proj.weight.T, block.mlp.c_proj.bias)

    shown = nn.Module()
    shown.model = nn.Module()
    shown.model.embed_tokens = nn.Embedding.from_pretrained(gpt.transformer.wte.weight.detach())
    shown.model.layers = nn.ModuleList(map(Gpt2DecoderLayer, gpt.transformer.h))
    shown.model.norm = gpt.transformer.ln_f
    shown.lm_head = linear(gpt.transformer.wte.weight)
    return shown.to(torch.float32)


def load(model: Path, precision: str, threads: int) -> Generate:  # noqa: ARG001
    import numpy as np
    import onnxruntime_genai as genai

    options = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
    settings = genai.Config(str(model))
    settings.overlay(json.dumps(options))
    opened = genai.Model(settings)

    def generate(prompts: Prompts, tokens: int) -> Prompts:
        length = len(prompts[0])
        wanted = genai.GeneratorParams(opened)
        total = length + tokens
        wanted.set_search_options(
            max_length=total, min_length=total, batch_size=len(prompts), do_sample=False
        )
        generator = genai.Generator(opened, wanted)
        generator.append_tokens(np.array(prompts, np.int32))
        for _ in range(tokens):
            generator.generate_next_token()
        return [generator.get_sequence(row)[length:].tolist() for row in range(len(prompts))]

    return generate


if __name__ == "__main__":
    main(convert, load, ("onnxruntime-genai", "onnxruntime"))
