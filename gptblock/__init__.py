"""gptblock: train a small GPT, export it with proof, and run it where there is no torch.

    import gptblock
    model = gptblock.load("artifacts/model")
    print(model.generate("ROMEO:", max_new_tokens=200, temperature=0.8, seed=7).text)

Importing this package imports neither torch nor ONNX Runtime; each is imported by what needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gptblock.runtime.completion import Completion
    from gptblock.runtime.model import Model, load

__all__ = ["load", "Model", "Completion", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name in __all__:
        from gptblock.runtime import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
