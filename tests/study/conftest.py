"""A text so short that a run takes no time, and results that nobody measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from gptblock.study.results import Results
from gptblock.study.run import LECTURE, Point, Run
from gptblock.training.material import Material, prepare


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("to be or not to be, that is the question\n" * 40)
    return str(path)


@pytest.fixture(scope="session")
def material(text: str) -> Material:
    return prepare(LECTURE.replace(data=text))


MakeUp = Callable[..., Results]


@pytest.fixture(scope="session")
def make_up() -> MakeUp:
    """Results of which only the losses matter: validation by arm and seed; training and gradient by arm."""

    def make(
        val: Mapping[str, Sequence[float]],
        train: Mapping[str, float] | None = None,
        gradient: Mapping[str, float] | None = None,
    ) -> Results:
        runs = []
        for arm, losses in val.items():
            for seed, loss in enumerate(losses):
                first = Point(0, 4.2, 4.2, (gradient or {}).get(arm, 1.0))
                last = Point(10, (train or {}).get(arm, loss), loss, 1.0)
                runs.append(Run(arm, seed, 1000, 65, (first, last)))
        return Results(runs)

    return make
