"""CTranslate2: its own converter, Generator.generate_batch."""

from __future__ import annotations

import json
from pathlib import Path

from protocol import Generate, Prompts, main

_COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}


def convert(source: Path, model: Path, precision: str) -> None:
    from ctranslate2.converters import TransformersConverter

    quantization = None if precision == "fp32" else _COMPUTE_TYPES[precision]
    TransformersConverter(str(source)).convert(str(model), quantization=quantization)
    settings = json.loads((model / "config.json").read_text())
    for name, value in settings.items():
        if name.endswith("_token") and value is None:
            settings[name] = "!"  # it does not open with a null
    (model / "config.json").write_text(json.dumps(settings))


def load(model: Path, precision: str, threads: int) -> Generate:
    import ctranslate2

    generator = ctranslate2.Generator(
        str(model), device="cpu", compute_type=_COMPUTE_TYPES[precision], intra_threads=threads
    )
    names = json.loads((model / "vocabulary.json").read_text(encoding="utf-8"))

    def generate(prompts: Prompts, tokens: int) -> Prompts:
        results = generator.generate_batch(
            [[names[token] for token in prompt] for prompt in prompts],
            max_length=tokens,
            beam_size=1,
            sampling_topk=1,
            end_token=[],  # none ends the text
            include_prompt_in_result=False,
        )
        return [result.sequences_ids[0] for result in results]

    return generate


if __name__ == "__main__":
    main(convert, load, ("ctranslate2",))
