"""manifest.json and the metadata of an .onnx: exact round trips, and refusals that say what is wrong."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gptblock.bundle.manifest import Check, FileEntry, Manifest, ModelMetadata, TrainingRecord
from gptblock.config import ModelConfig
from gptblock.errors import ConfigError, CorruptError

finite = st.floats(allow_nan=False, allow_infinity=False)
sha256 = st.text("0123456789abcdef", min_size=64, max_size=64)
plain = st.text(st.characters(exclude_characters="/\\:"), min_size=1).filter(
    lambda name: name.isprintable() and name not in (".", "..", "manifest.json")
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=3)
models = st.builds(
    lambda heads, width, **rest: ModelConfig(n_head=heads, n_embd=heads * width, **rest),
    heads=st.integers(1, 8),
    width=st.integers(1, 64),
    vocab_size=st.integers(1, 10**6),
    block_size=st.integers(1, 10**6),
    n_layer=st.integers(1, 100),
    dropout=st.floats(0, 1, exclude_max=True),
    init=st.sampled_from(["gpt2", "normal", "torch"]),
)
checks = st.builds(Check, st.text(), st.integers(0), finite, finite)
entries = st.builds(
    FileEntry,
    st.integers(0),
    sha256,
    st.sampled_from([None, "fp32", "fp16", "int8", "int4"]),
    st.lists(checks, max_size=3).map(tuple),
)
records = st.builds(
    TrainingRecord, st.text(), sha256, st.integers(0), finite, finite, st.text(), config=json_objects
)
manifests = st.builds(
    Manifest,
    model=models,
    tokenizer=json_objects,
    training=st.none() | records,
    files=st.dictionaries(plain, entries, max_size=3),
    versions=st.dictionaries(st.text(), st.text(), max_size=3),
    created=st.datetimes(timezones=st.just(None)).map(lambda time: time.isoformat() + "+00:00"),
)


@given(manifests)
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    text = manifest.to_json()
    assert text.isascii()
    assert Manifest.from_json(text) == manifest


@given(st.builds(ModelMetadata, models, json_objects, st.sampled_from(["fp32", "fp16", "int8", "int4"])))
def test_metadata_comes_back_among_the_keys_of_others(metadata: ModelMetadata) -> None:
    assert ModelMetadata.from_metadata({"somebody": "else", **metadata.to_metadata()}) == metadata


def test_the_keys_inside_an_onnx() -> None:
    model = ModelConfig(vocab_size=2, block_size=4, n_layer=1, n_head=1, n_embd=2)
    assert ModelMetadata(model, {"type": "char", "vocab": "ab"}, "fp32").to_metadata() == {
        "gptblock.schema_version": "1",
        "gptblock.model": '{"vocab_size": 2, "block_size": 4, "n_layer": 1, "n_head": 1, "n_embd": 2, '
        '"dropout": 0.0, "norm": "layernorm", "norm_placement": "pre", "norm_eps": 1e-05, '
        '"feedforward": "relu", "ff_ratio": 0.0, "positions": "learned", "qk_norm": false, '
        '"token_shift": 0, "bias": "lecture", "tie_weights": false, "init": "gpt2"}',
        "gptblock.tokenizer": '{"type": "char", "vocab": "ab"}',
        "gptblock.precision": "fp32",
        "gptblock.minimum_onnxruntime": "1.28",
    }


def test_how_it_lies_in_the_file(manifest: Manifest) -> None:
    values = json.loads(manifest.to_json())
    assert next(iter(values)) == "schema_version"
    assert values["files"]["model.onnx"]["checks"][0] == {
        "name": "logits", "cases": 48, "worst": 5e-7, "allowed": 1e-5,
    }  # fmt: skip
    assert values["minimum_onnxruntime"] == "1.28"


@pytest.mark.parametrize(
    ("worst", "allowed", "ok"),
    [
        (0.0, 0.0, True),
        (1e-5, 1e-5, True),
        (1.1e-5, 1e-5, False),
        (math.nan, 1.0, False),
        (0.0, math.nan, False),
    ],
)
def test_a_check_holds_up_to_what_is_allowed(worst: float, allowed: float, ok: bool) -> None:
    assert Check("logits", 1, worst, allowed).ok is ok


def test_a_number_that_is_not_finite_is_not_written(manifest: Manifest) -> None:
    entry = FileEntry(1, "0" * 64, "fp32", (Check("logits", 1, math.nan, 1e-5),))
    broken = Manifest(**{**vars(manifest), "files": {"model.onnx": entry}})
    with pytest.raises(ValueError, match="not JSON compliant"):
        broken.to_json()


def put(*keys: str, value: object) -> Callable[[str], str]:
    """An edit of the text of a manifest: the value at `keys`."""

    def edit(text: str) -> str:
        values = json.loads(text)
        inner = values
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        return json.dumps(values)

    return edit


def becomes(content: str) -> Callable[[str], str]:
    return lambda _: content


def lose(key: str) -> Callable[[str], str]:
    return lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != key})


def named(name: str) -> Callable[[str], str]:
    """The edit by which a bundle would lead out of its folder."""
    return put("files", name, value={"size": 1, "sha256": "0" * 64, "precision": None, "checks": []})


onnx = ("files", "model.onnx")
REFUSED = [
    (lambda text: text[: len(text) // 2], "cannot be read as JSON"),
    (becomes(""), "cannot be read as JSON: Expecting value"),
    (becomes("[" * 100_000), "cannot be read as JSON"),
    (lambda text: text.replace("5e-07", "NaN"), "NaN is not a number of JSON"),
    (
        lambda text: text.replace("5e-07", "1e999"),
        "a finite number as files['model.int8.onnx'].checks[0].worst: got inf",
    ),
    (lambda text: text.replace('"size": 5', '"size": 5, "size": 6', 1), "the key 'size' is given twice"),
    (becomes("[]"), "must hold a JSON object: got []"),
    (
        becomes('{"name": "a browser extension", "manifest_version": 3}'),
        "1..1 as schema_version: got None",
    ),
    (put("schema_version", value="1"), "1..1 as schema_version: got '1'"),
    (put("schema_version", value=True), "1..1 as schema_version: got True"),
    (put("schema_version", value=0), "1..1 as schema_version: got 0"),
    (
        put("note", value=1),
        "unknown key note; allowed are model, tokenizer, training, files, versions, created",
    ),
    (
        put(*onnx, "mode", value=1),
        "unknown key files['model.onnx'].mode; allowed are size, sha256, precision, checks",
    ),
    (put("model", "n_heads", value=4), "unknown key model.n_heads; allowed are vocab_size, block_size"),
    (lose("tokenizer"), "lacks the key tokenizer"),
    (put("tokenizer", value="char"), "an object as tokenizer: got 'char'"),
    (put("versions", "torch", value=2.13), "text as versions['torch']: got 2.13"),
    (put("files", value=[]), "an object as files: got []"),
    (put(*onnx, "size", value="5"), "an integer as files['model.onnx'].size: got '5'"),
    (put(*onnx, "size", value=5.0), "an integer as files['model.onnx'].size: got 5.0"),
    (put(*onnx, "size", value=True), "an integer as files['model.onnx'].size: got True"),
    (put(*onnx, "size", value=-1), "size must be >= 0: got -1"),
    (put(*onnx, "sha256", value="A" * 64), "sha256 must be 64 lower-case hex digits: got 'AAAA"),
    (put(*onnx, "sha256", value="a" * 64 + "\n"), "sha256 must be 64 lower-case hex digits"),
    (put(*onnx, "precision", value="bf16"), "precision must be one of fp32, fp16, int8, int4: got 'bf16'"),
    (put(*onnx, "checks", value={}), "a list as files['model.onnx'].checks: got {}"),
    (put(*onnx, "checks", value=[None]), "an object as files['model.onnx'].checks[0]: got None"),
    (put("model", "n_embd", value=4.0), "an integer as model.n_embd: got 4.0"),
    (put("model", "n_head", value=3), "n_embd must be divisible by n_head"),
    (put("model", "init", value="xavier"), "one of gpt2, normal, torch as model.init: got 'xavier'"),
    (put("training", "steps", value=-1), "steps must be >= 0: got -1"),
    (put("training", "val_loss", value=10**400), "a finite number as training.val_loss: got 1000"),
    (put("created", value="yesterday"), "created must be an ISO 8601 time in UTC: got 'yesterday'"),
    (put("created", value="2026-11-30T12:00:00+01:00"), "created must be an ISO 8601 time in UTC"),
    (
        put("minimum_onnxruntime", value=">=1.28"),
        "minimum_onnxruntime must be a release such as 1.28: got '>=1.28'",
    ),
    (named("../model.onnx"), "a file's name must be a plain name in the bundle's folder"),
    (named("/etc/hostname"), "got '/etc/hostname'"),
    (named("sub/model.onnx"), "got 'sub/model.onnx'"),
    (named("..\\model.onnx"), "got '..\\\\model.onnx'"),
    (named("C:model.onnx"), "got 'C:model.onnx'"),
    (named(".."), "got '..'"),
    (named(""), "got ''"),
    (named("a\0b"), "got 'a\\x00b'"),
    (named("a\x1b[2Jb"), "got 'a\\x1b[2Jb'"),
    (named("manifest.json"), "not manifest.json: got 'manifest.json'"),
]


@pytest.mark.parametrize(("edit", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_refused(manifest: Manifest, edit: Callable[[str], str], message: str) -> None:
    with pytest.raises(CorruptError, match=f"^here/manifest.json .*{re.escape(message)}") as caught:
        Manifest.from_json(edit(manifest.to_json()), source="here/manifest.json")
    assert str(caught.value).endswith("export it again (gptblock export RUN)")


def test_a_newer_schema_is_named_before_its_keys(manifest: Manifest) -> None:
    edited = put("novelty", value=1)(put("schema_version", value=3)(manifest.to_json()))
    message = (
        "manifest.json was made by a newer gptblock (schema 3; this one reads up to 1): upgrade gptblock"
    )
    with pytest.raises(CorruptError, match=f"^{re.escape(message)}$"):
        Manifest.from_json(edited)


def test_an_integer_serves_as_a_float(manifest: Manifest) -> None:
    read = Manifest.from_json(put("training", "val_loss", value=2)(manifest.to_json()))
    assert read.training is not None
    assert type(read.training.val_loss) is float


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gptblock.schema_version": "3"}, "was made by a newer gptblock (schema 3; this one reads up to 1)"),
        ({"gptblock.schema_version": "one"}, "1..1 as schema_version: got 'one'"),
        ({"gptblock.schema_version": "²"}, "1..1 as schema_version: got '²'"),
        ({"gptblock.schema_version": None}, "1..1 as schema_version: got None"),
        ({"gptblock.model": "{"}, "a.onnx (metadata gptblock.model) cannot be read as JSON"),
        ({"gptblock.model": None}, "lacks the key model"),
        ({"gptblock.tokenizer": "[]"}, "a.onnx (metadata gptblock.tokenizer) must hold a JSON object"),
        ({"gptblock.precision": "fp64"}, "precision must be one of fp32, fp16, int8, int4: got 'fp64'"),
        ({"gptblock.novelty": "1"}, "unknown key novelty"),
    ],
)
def test_metadata_refused(changes: dict[str, str | None], message: str) -> None:
    metadata = ModelMetadata(ModelConfig(vocab_size=2), {"type": "char", "vocab": "ab"}, "fp32").to_metadata()
    changed = {key: value for key, value in {**metadata, **changes}.items() if value is not None}
    with pytest.raises(CorruptError, match=f"^a.onnx .*{re.escape(message)}|^{re.escape(message)}"):
        ModelMetadata.from_metadata(changed, source="a.onnx")


def test_an_onnx_of_somebody_else() -> None:
    with pytest.raises(CorruptError, match=r"^a\.onnx was not exported by gptblock"):
        ModelMetadata.from_metadata({"producer": "somebody"}, source="a.onnx")


def test_a_writer_is_held_to_the_same_rules() -> None:
    with pytest.raises(ConfigError, match="size must be >= 0: got -1"):
        FileEntry(-1, "0" * 64)
