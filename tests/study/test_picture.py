from __future__ import annotations

from xml.etree import ElementTree

from gptblock.study.picture import draw_curves
from gptblock.study.run import LECTURE, Arm

ARMS = [Arm("one", LECTURE, panels=("left", "right")), Arm("two", LECTURE, panels=("right",))]


def test_it_says_what_it_shows_and_the_same_results_give_the_same_bytes(make_up) -> None:
    results = make_up({"one": [2.0, 2.2], "two": [2.5, 2.4]})
    svg = draw_curves("a study", ARMS, results)
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    for text, times in {
        "a study": 1,
        "left": 1,
        "right": 1,
        "one": 2,
        "two": 1,
        "training": 2,
        "validation": 2,
        "step": 2,
        "loss (nats per token)": 2,
    }.items():
        assert svg.count(f">{text}</text>") == times, text
    assert svg == draw_curves("a study", ARMS, results)
    assert svg != draw_curves("a study", ARMS, make_up({"one": [2.0, 2.2], "two": [2.5, 2.3]}))
