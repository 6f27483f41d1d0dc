from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from gptblock.text.survey import Survey, survey_text


@given(blocks=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)))
def test_a_survey_is_that_of_the_whole(blocks: list[str]) -> None:
    text = "".join(blocks)
    expected = Survey(hashlib.sha256(text.encode()).hexdigest(), "".join(sorted(set(text))), len(text))
    assert survey_text(iter(blocks)) == expected


def test_it_tells_how_many_bytes_are_read() -> None:
    told: list[int] = []
    survey_text(["abc", "\u00e9\u2603", "d"], told.append)
    assert told == [3, 8, 9]
