"""A call of generate or stream: completions, stop strings, seeds, samples, and what is refused."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import numpy_helper

from gptblock.errors import ConfigError, GptblockError, InputError, UnknownCharacterError
from gptblock.runtime.completion import Completion, Generation
from gptblock.runtime.model import load

OPTIONS = {"max_new_tokens": 60, "seed": 7, "temperature": 0.9}


@pytest.fixture(scope="module")
def whole(tiny) -> Completion:
    """60 tokens, ended by nothing."""
    return tiny.generate("ROMEO:", **OPTIONS)


def content(completion: Completion) -> tuple[str, list[int], str]:
    """All but the timing."""
    return completion.text, completion.ids, completion.finish_reason


def test_holds_the_continuation_alone(tiny, whole):
    assert (whole.prompt, whole.prompt_tokens) == ("ROMEO:", 6)
    assert whole.completion_tokens == len(whole.ids) == len(whole.text) == 60
    assert tiny.tokenizer.decode(whole.ids) == whole.text
    assert (whole.finish_reason, whole.provider, whole.seed) == ("length", "cpu", 7)
    assert whole.tokens_per_second > 0


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 3), (20, 23), (30, 42), (57, 60), (59, 60)])
def test_a_stop_string_ends_the_text_and_is_no_part_of_it(start, end, tiny, whole):
    stop = whole.text[start:end]
    at = whole.text.find(stop)
    stopped = tiny.generate("ROMEO:", stop=stop, **OPTIONS)
    assert content(stopped) == (whole.text[:at], whole.ids[:at], "stop")
    assert stopped.completion_tokens == at


def test_a_stop_string_that_the_last_token_completes_is_met(tiny, whole):
    assert whole.text.find(whole.text[-4:]) == 56
    stopped = tiny.generate("ROMEO:", stop=[whole.text[-4:]], **OPTIONS)
    assert content(stopped) == (whole.text[:-4], whole.ids[:-4], "stop")


def test_a_stop_string_in_the_prompt_or_across_its_end_is_none(tiny, whole):
    assert content(tiny.generate("ROMEO:", stop=["OMEO", ":" + whole.text[0]], **OPTIONS)) == content(whole)


def test_the_first_of_several_stop_strings_counts(tiny, whole):
    first, second = whole.text[10:14], whole.text[30:34]
    stopped = tiny.generate("ROMEO:", stop=[second, first], **OPTIONS)
    assert stopped.text == whole.text[: whole.text.find(first)]


def test_streamed_pieces_are_the_text(tiny, whole):
    pieces = list(tiny.stream("ROMEO:", **OPTIONS))
    assert pieces == list(whole.text)  # each character as soon as it is there


@pytest.mark.parametrize("length", [2, 5, 9])
@pytest.mark.parametrize("at", [1, 25, 50])
def test_no_part_of_a_stop_string_is_streamed(at, length, tiny, whole):
    stop = whole.text[at : at + length]
    expected = whole.text[: whole.text.find(stop)]
    stream = tiny.stream("ROMEO:", stop=stop, **OPTIONS)
    shown = ""
    for piece in stream:
        shown += piece
        assert expected.startswith(shown)
    assert shown == expected == stream.completions()[0].text


def test_what_only_begins_a_stop_string_is_shown_at_the_end(tiny, whole):
    stream = tiny.stream("ROMEO:", stop=[whole.text[-5:] + "!", whole.text[10] + "\u2603"], **OPTIONS)
    pieces = list(stream)
    assert "".join(pieces) == whole.text
    assert pieces[-1].endswith(whole.text[-5:])
    assert stream.completions()[0].finish_reason == "length"


@pytest.mark.parametrize(("new", "stop"), [(0, ()), (0, "a"), (1, ()), (2, ())])
def test_few_tokens(new, stop, tiny, whole):
    done = tiny.generate("ROMEO:", **{**OPTIONS, "max_new_tokens": new}, stop=stop)
    assert content(done) == (whole.text[:new], whole.ids[:new], "length")
    assert (done.tokens_per_second > 0) is (new > 0)


def test_an_empty_prompt_has_no_tokens_and_continues_token_0(tiny):
    done = tiny.generate("", **OPTIONS)
    assert (done.prompt, done.prompt_tokens, done.completion_tokens) == ("", 0, 60)
    assert done.text == tiny.generate("\n", **OPTIONS).text  # the vocabulary's first character


def test_overflow_is_a_finish_reason(tiny, whole):
    done = tiny.generate("ROMEO:", **OPTIONS, overflow="stop")
    assert content(done) == (whole.text[:11], whole.ids[:11], "overflow")


def test_unknown_characters_are_skipped_when_asked(tiny, whole):
    done = tiny.generate("RO\u2603ME\udce9O:", **OPTIONS, unknown="skip")
    assert (done.prompt, done.prompt_tokens) == ("RO\u2603ME\udce9O:", 6)
    assert content(done) == content(whole)


def test_an_unset_seed_is_random_and_named(tiny):
    options = {**OPTIONS, "seed": None}
    first, second = tiny.generate("ROMEO:", **options), tiny.generate("ROMEO:", **options)
    assert first.seed != second.seed
    assert first.text != second.text
    assert content(tiny.generate("ROMEO:", **{**OPTIONS, "seed": first.seed})) == content(first)


def test_a_sample_depends_on_the_seed_and_its_number_alone(tiny, whole):
    prompts = ["A", "ROMEO:", "First Citizen:\nBefore we proceed"]
    batch = tiny.generate(prompts, num_samples=3, **OPTIONS)
    assert content(batch[1][0]) == content(whole)
    assert len({done.text for done in batch[1]}) == 3
    for prompt, samples in zip(prompts, batch, strict=True):
        assert [done.prompt for done in samples] == [prompt] * 3
        alone = tiny.generate([prompt], num_samples=2, **OPTIONS)[0]
        assert list(map(content, alone)) == list(map(content, samples[:2]))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("stop", [(), "e", "\n"])
def test_drafting_changes_the_speed_alone(stop, temperature, tiny):
    options = {**OPTIONS, "temperature": temperature, "stop": stop, "overflow": "rebase"}
    streams = [tiny.stream("ROMEO:", draft=draft, **options) for draft in ("off", "auto", "on")]
    off, auto, on = [list(stream) for stream in streams]
    assert off == auto == on
    off, auto, on = [content(stream.completions()[0]) for stream in streams]
    assert off == auto == on
    assert streams[0].drafted_tokens == streams[0].accepted_tokens == 0
    assert 0 <= streams[2].accepted_tokens <= streams[2].drafted_tokens
    assert streams[2].drafted_tokens > 0 or stop or temperature


@pytest.mark.parametrize("overflow", ["slide", "rebase", "stop"])
def test_rows_of_a_batch_stop_each_for_itself(overflow, tiny):
    prompts = ["A", "ROMEO:", "First Citizen:\nBefore we proceed", "To be, or not to"]
    options = {**OPTIONS, "overflow": overflow, "stop": ["e", "q"]}
    batch = tiny.generate(prompts, num_samples=2, **options)
    alone = [tiny.generate([prompt], num_samples=2, **options)[0] for prompt in prompts]
    assert [[content(done) for done in samples] for samples in batch] == [
        [content(done) for done in samples] for samples in alone
    ]
    assert len({done.completion_tokens for samples in batch for done in samples}) >= 4  # at different times
    assert not any("e" in done.text or "q" in done.text for samples in batch for done in samples)


def test_the_pieces_of_a_batch_add_up(tiny):
    generation = Generation(tiny.decoder, tiny.tokenizer, ["A", "ROMEO:"], num_samples=2, stop="e", **OPTIONS)
    pieces = list(generation)
    texts = [done.text for done in generation.completions()]
    assert sorted("".join(pieces)) == sorted("".join(texts))


def test_interleaved_streams_do_not_disturb_each_other(tiny):
    prompts = ["A", "First Citizen:\nBefore we proceed"]
    alone = [tiny.generate(prompt, **OPTIONS).text for prompt in prompts]
    streams = [tiny.stream(prompt, **OPTIONS) for prompt in prompts]
    shown = ["", ""]
    for pieces in zip(*streams, strict=True):
        shown = [text + piece for text, piece in zip(shown, pieces, strict=True)]
    assert shown == alone


def test_threads_share_a_model(tiny):
    def text(seed: int) -> str:
        return tiny.generate("ROMEO:", max_new_tokens=100, seed=seed).text

    alone = [text(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(text, range(6))) == alone


def test_the_rate_leaves_the_takers_time_out(tiny, monkeypatch):
    now = 0.0
    step = tiny.decoder.step_best

    def slow_step(*args):
        nonlocal now
        now += 0.5
        return step(*args)

    monkeypatch.setattr(tiny.decoder, "step_best", slow_step)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    stream = tiny.stream("ROMEO:", max_new_tokens=10, seed=7, draft="off")
    for _ in stream:
        now += 100.0
    assert stream.completions()[0].tokens_per_second == 2.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_is_never_sampled(temperature, altered):
    def break_head(graph):
        bias = next(tensor for tensor in graph.graph.initializer if tensor.name.endswith("lm_head.bias"))
        values = numpy_helper.to_array(bias).copy()
        values[3] = np.nan
        bias.CopyFrom(numpy_helper.from_array(values, bias.name))

    stream = load(altered(break_head), provider="cpu", threads=1).stream("A", temperature=temperature)
    with pytest.raises(GptblockError, match=r"is nan \(1 are NaN\).*gptblock verify.*precision fp32"):
        next(stream)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_new_tokens": -1}, ConfigError, "max_new_tokens must be an integer >= 0: got -1"),
        ({"max_new_tokens": 2.5}, ConfigError, "max_new_tokens must be an integer >= 0: got 2.5"),
        ({"num_samples": 0}, ConfigError, "num_samples must be an integer >= 1: got 0"),
        ({"seed": -1}, ConfigError, "seed must be an integer >= 0: got -1"),
        ({"seed": "7"}, ConfigError, "seed must be an integer >= 0: got '7'"),
        ({"draft": True}, ConfigError, "draft must be one of auto, on, off: got True"),
        ({"overflow": "wrap"}, ConfigError, "overflow must be one of slide, rebase, stop: got 'wrap'"),
        ({"temperature": -0.5}, ConfigError, "temperature must be >= 0"),
        ({"temperature": float("nan")}, ConfigError, "temperature must be a finite number: got nan"),
        ({"temperature": float("inf")}, ConfigError, "temperature must be a finite number: got inf"),
        ({"top_k": -1}, ConfigError, "top_k must be >= 0"),
        ({"top_p": 1.1}, ConfigError, r"top_p must be in \[0, 1\]"),
        ({"min_p": -0.1}, ConfigError, r"min_p must be in \[0, 1\]"),
        ({"repetition_penalty": 0.0}, ConfigError, "repetition_penalty must be > 0"),
        ({"stop": ""}, InputError, "stop must be a list of strings, none of them empty"),
        ({"stop": ["a", ""]}, InputError, "stop must be a list of strings, none of them empty"),
        ({"unknown": "ignore"}, InputError, "unknown must be one of error, skip"),
    ],
)
def test_options_out_of_range_are_refused_at_once(options, error, message, tiny):
    with pytest.raises(error, match=message):
        Generation(tiny.decoder, tiny.tokenizer, ["A"], **options)


def test_a_character_outside_the_vocabulary_is_refused_at_once(tiny):
    with pytest.raises(UnknownCharacterError, match=r"U\+2603 SNOWMAN.*position 1"):
        tiny.stream("A\u2603")


TEXT = "h\u00e9\u2603\U0001f600!"


@pytest.fixture(params=["byte", "bpe"])
def other(request, other_bundles):
    """A model whose tokens are parts of characters, or several."""
    return load(other_bundles[request.param], provider="cpu", threads=1)


@pytest.fixture
def forced(other, monkeypatch):
    """The same, that says TEXT and then begins one more character."""
    ids = iter([*other.tokenizer.encode(TEXT), other.tokenizer.encode("\u2603")[0]])
    monkeypatch.setattr("gptblock.runtime.generate.sample", lambda *_: int(next(ids)))
    return other


def test_a_character_is_streamed_whole(forced):
    stream = forced.stream("the", max_new_tokens=12)
    pieces = list(stream)
    assert pieces == [*TEXT, "\ufffd"]
    done = stream.completions()[0]
    assert (done.text, done.completion_tokens) == (TEXT + "\ufffd", 12)
    assert forced.tokenizer.decode(done.ids) == done.text


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [("\u2603", "h\u00e9", "stop"), ("\U0001f600!", "h\u00e9\u2603", "stop"), ("!\ufffd", TEXT[:-1], "stop")],
)
def test_a_stop_string_cuts_between_characters(stop, text, reason, forced):
    stream = forced.stream("the", max_new_tokens=12, stop=stop)
    assert "".join(stream) == text
    done = stream.completions()[0]
    assert (done.text, done.finish_reason) == (text, reason)
    assert forced.tokenizer.decode(done.ids) == text
    assert done.completion_tokens == len(done.ids) == len(text.encode())


def test_streamed_or_not_the_text_is_the_ids(other):
    prompts = ["the cat", "\u2603"]
    batch = other.generate(prompts, **OPTIONS)
    for prompt, (done,) in zip(prompts, batch, strict=True):
        stream = other.stream(prompt, **OPTIONS)
        assert "".join(stream) == done.text == other.tokenizer.decode(done.ids)
        assert content(stream.completions()[0]) == content(done)
        assert len(done.ids) == 60


def test_a_stop_string_inside_a_token_leaves_the_token_out(other_bundles, monkeypatch):
    model = load(other_bundles["bpe"], provider="cpu", threads=1)
    ids = model.tokenizer.encode("on the mat").tolist()
    whole = [model.tokenizer.decode([token]) for token in ids]
    assert " the" in whole
    script = iter(ids)
    monkeypatch.setattr("gptblock.runtime.generate.sample", lambda *_: next(script))
    done = model.generate("", max_new_tokens=len(ids), stop="h")
    assert (done.text, done.finish_reason) == ("on t", "stop")
    assert model.tokenizer.decode(done.ids) == "on"


def test_an_undecodable_byte_of_a_prompt(other):
    with pytest.raises(UnknownCharacterError, match=r"the byte 0xE9, which is not UTF-8\) at position 3"):
        other.generate("caf\udce9")
    skipped = other.generate("the\udce9", unknown="skip", **OPTIONS)
    assert skipped.text == other.generate("the", **OPTIONS).text
