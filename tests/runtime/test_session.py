import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gptblock.bundle.manifest import ModelMetadata
from gptblock.errors import ConfigError, CorruptError, MissingExtraError, NotFoundError, ProviderError
from gptblock.runtime import session as session_module
from gptblock.runtime.cuda import CPU, CUDA
from gptblock.runtime.processor import allowed_cpus
from gptblock.runtime.session import Provider, open_session, read_metadata
from gptblock.runtime.wheels import Problem

# --- On the CPU, with the installed onnxruntime --------------------------------------------------------


@pytest.fixture
def graph(tmp_path: Path, make_graph: Any, metadata: ModelMetadata) -> Path:
    path: Path = make_graph(tmp_path / "model.onnx", metadata=metadata.to_metadata())
    return path


def test_the_cpu_asked_for_is_the_cpu(graph: Path, metadata: ModelMetadata) -> None:
    session = open_session(graph, provider="cpu")
    assert session.provider == Provider("cpu", 0, "asked for")
    assert session.metadata == metadata
    assert session.ort.get_providers() == [CPU]


def test_auto_says_why_it_is_not_cuda(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "cuda_problem", lambda *_: Problem("it is Monday", "wait"))
    assert open_session(graph).provider == Provider("cpu", 0, "CUDA is not available: it is Monday")


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_threads_and_silence_reach_onnxruntime(graph: Path, threads: int | None) -> None:
    options = open_session(graph, provider="cpu", threads=threads).ort.get_session_options()
    assert options.intra_op_num_threads == (threads or allowed_cpus())
    assert options.inter_op_num_threads == 1
    assert options.log_severity_level == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, r"threads must be in 1\.\.1024: got 0"),
        ({"threads": -2}, r"threads must be in 1\.\.1024: got -2"),
        ({"threads": 40_000}, r"threads must be in 1\.\.1024: got 40000"),
        ({"device_id": -1}, "device_id must be >= 0: got -1"),
        ({"provider": "CUDA"}, "provider must be one of auto, cuda, cpu: got 'CUDA'"),
    ],
)
def test_options_out_of_range_are_refused(graph: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_session(graph, **options)


def test_paths_with_spaces_and_accents(tmp_path: Path, graph: Path, metadata: ModelMetadata) -> None:
    folder = tmp_path / "dir é x"
    folder.mkdir()
    moved = graph.rename(folder / "ein modèle.onnx")
    assert open_session(moved, provider="cpu").metadata == metadata


@pytest.mark.parametrize("opens", [lambda path: open_session(path, provider="cpu"), read_metadata])
class TestRefusals:
    """What both ways of opening a file refuse, in one line, and without a sound."""

    @pytest.fixture(autouse=True)
    def silent(self, capfd: pytest.CaptureFixture[str]) -> Any:
        yield
        assert capfd.readouterr() == ("", "")

    def test_no_file(self, opens: Any, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match=r"none.onnx does not exist: expected an .onnx file"):
            opens(tmp_path / "none.onnx")

    def test_a_folder(self, opens: Any, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match="is a folder"):
            opens(tmp_path)

    @pytest.mark.parametrize(
        ("cut", "message"),
        [
            (lambda whole: whole[:-20], "is no ONNX file, or is cut short or damaged"),
            (lambda whole: b"", "is no ONNX file, or is cut short or damaged"),  # noqa: ARG005
            (lambda whole: b"hello, I am text", "is no ONNX file, or is cut short or damaged"),  # noqa: ARG005
        ],
        ids=["cut", "empty", "text"],
    )
    def test_no_onnx(self, opens: Any, graph: Path, cut: Any, message: str) -> None:
        graph.write_bytes(cut(graph.read_bytes()))
        with pytest.raises(CorruptError) as caught:
            opens(graph)
        assert str(caught.value).startswith(f"{graph} {message}")

    @pytest.mark.parametrize(
        ("made", "message"),
        [
            (
                {"ir": 99},
                r"has ONNX IR version 99, and onnxruntime \S+ reads up to \d+: pip install --upgrade",
            ),
            ({"opset": 99}, r"needs opset 99 of ai\.onnx, and onnxruntime \S+ has up to \d+: pip install"),
            ({"op": "Foo"}, r"uses the operator Foo, which onnxruntime \S+ does not have"),
            ({"op": "Foo", "domain": "my.own"}, r"uses the operator my\.own:Foo, which onnxruntime"),
            ({"weights": "gone.data"}, r"in a second file, \S*gone\.data, which is not there"),
            ({"weights": "../x.bin"}, "in a file outside its folder, which is refused"),
            ({"weights": "/etc/hostname"}, "in a file outside its folder, which is refused"),
            ({"weights": "link.bin"}, "in a file outside its folder, which is refused"),
            ({"weights": "short.bin"}, "in a second file, which is too short"),
        ],
    )
    def test_what_cannot_be_loaded(
        self, opens: Any, tmp_path: Path, make_graph: Any, made: dict[str, Any], message: str
    ) -> None:
        (tmp_path / "short.bin").write_bytes(b"1234")
        outside = tmp_path.with_name(f"{tmp_path.name}.bin")
        outside.write_bytes(bytes(16))
        (tmp_path / "link.bin").symlink_to(outside)
        with pytest.raises(CorruptError, match=message) as caught:
            opens(make_graph(tmp_path / "model.onnx", **made))
        assert str(caught.value).startswith(f"{tmp_path / 'model.onnx'} ")
        assert "\n" not in str(caught.value)
        assert "onnxruntime_src" not in str(caught.value)

    def test_not_ours(self, opens: Any, tmp_path: Path, make_graph: Any) -> None:
        with pytest.raises(CorruptError, match="no gptblock metadata"):
            opens(make_graph(tmp_path / "other.onnx", metadata={"author": "somebody"}))


def test_what_is_translated_by_nobody_is_still_one_line(graph: Path, fake_ort: Any) -> None:
    fake_ort(on_cpu=RuntimeError("[ONNXRuntimeError] : 1 : FAIL : some\nnew thing"))
    with pytest.raises(CorruptError) as caught:
        open_session(graph, provider="cpu")
    assert str(caught.value) == f"{graph} cannot be loaded by onnxruntime 1.32.0: some new thing"


def test_a_model_may_ask_for_a_newer_onnxruntime(
    tmp_path: Path, make_graph: Any, metadata: ModelMetadata
) -> None:
    newer = dataclasses.replace(metadata, minimum_onnxruntime="99.1").to_metadata()
    path = make_graph(tmp_path / "model.onnx", metadata=newer)
    with pytest.raises(
        ProviderError, match=r"is too old, 99\.1 or newer is needed: \S+ asks for it"
    ) as caught:
        open_session(path, provider="cpu")
    assert ">=99.1'" in str(caught.value)


def test_metadata_is_read_without_running_anything(graph: Path, metadata: ModelMetadata) -> None:
    assert read_metadata(graph) == metadata


def test_no_onnxruntime_is_a_missing_extra(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError):
        open_session(graph)


# --- On CUDA, with the stand-in of conftest.py ---------------------------------------------------------


def test_cuda_asked_for_and_got(graph: Path, fake_ort: Any, fake_libraries: Any) -> None:
    fake_libraries(devices=2)
    fake = fake_ort()
    session = open_session(graph, provider="cuda", device_id=1, use_tf32=True)
    assert session.provider == Provider("cuda", 1, "asked for", use_tf32=True)
    assert str(session.provider) == "cuda (asked for; TF32 on; CUDA graphs off)"
    assert fake.opened[-1] == {
        "model": str(graph),
        "providers": [(CUDA, {"device_id": "1", "use_tf32": "1"}), CPU],
        "enable_fallback": 0,
    }


def test_a_step_for_a_cuda_graph_has_every_size_fixed(
    graph: Path, fake_ort: Any, fake_libraries: Any
) -> None:
    fake_libraries()
    fake = fake_ort()
    session = open_session(graph, provider="cuda", use_graphs=True)
    assert str(session.provider) == "cuda (asked for; TF32 off; CUDA graphs on)"
    assert session.for_steps is not None
    of_one = fake.opened[-1]  # opened at once, so that what stands against it is said at once
    steps = session.for_steps(5)
    assert (steps.is_captured, session.is_captured) == (True, False)
    assert steps is session.for_steps(5)
    assert [of_one["sizes"], fake.opened[-1]["sizes"]] == [
        {"batch": 1, "time": 1, "kept": 1},
        {"batch": 5, "time": 1, "kept": 1},
    ]
    assert fake.opened[-1]["providers"] == [
        (CUDA, {"device_id": "0", "use_tf32": "0", "enable_cuda_graph": "1"}),
        CPU,
    ]


def test_cuda_graphs_asked_for_are_had_or_an_error(graph: Path, fake_ort: Any, fake_libraries: Any) -> None:
    fake_libraries()
    fake_ort(captured_on_cuda=RuntimeError("no graph capture: a node is on the CPU"))
    assert open_session(graph, provider="cuda").provider.use_graphs is False
    for provider in ("cuda", "auto"):
        with pytest.raises(
            ProviderError,
            match=r"^CUDA graphs were asked for and cannot be had: ONNX Runtime cannot open model.onnx "
            r"on CUDA device 0: no graph capture: a node is on the CPU; leave out --cuda-graphs$",
        ):
            open_session(graph, provider=provider, use_graphs=True)


def test_auto_takes_cuda_where_it_works(graph: Path, fake_ort: Any, fake_libraries: Any) -> None:
    fake_libraries()
    fake_ort()
    assert open_session(graph).provider == Provider("cuda", 0, "CUDA works here")
    assert str(open_session(graph).provider) == "cuda (CUDA works here; TF32 off; CUDA graphs off)"


def test_the_cpu_asked_for_does_not_touch_cuda(graph: Path, fake_ort: Any, fake_libraries: Any) -> None:
    fake_libraries()
    fake = fake_ort()
    assert open_session(graph, provider="cpu", device_id=3).provider == Provider("cpu", 0, "asked for")
    assert [call["providers"] for call in fake.opened] == [[CPU]]


FAULTS = [
    ({"available": (CPU,), "cuda_version": ""}, {}, "the installed onnxruntime is a CPU build"),
    (
        {"on_cuda": CPU},
        {"missing": "libcuda.so"},
        "there is no NVIDIA driver (libcuda.so.1 cannot be loaded)",
    ),
    ({"on_cuda": CPU}, {"missing": "libcudart"}, "CUDA or cuDNN libraries cannot be loaded: libcudart.so.13"),
    ({"on_cuda": RuntimeError("100")}, {"devices": 0}, "the NVIDIA driver sees no device (it counts 0)"),
    (
        {"graph_on_cuda": RuntimeError("CUDA failure 2: out of memory ; GPU=0 ; hostname=h")},
        {},
        "ONNX Runtime cannot open model.onnx on CUDA device 0: CUDA failure 2: out of memory",
    ),
    (
        {"graph_on_cuda": CPU, "says": b"changed its mind\n"},
        {},
        "ONNX Runtime cannot open model.onnx on CUDA device 0: changed its mind",
    ),
]


@pytest.mark.parametrize(("ort", "nvidia", "text"), FAULTS)
def test_cuda_is_cuda_or_an_error_and_auto_says_why_not(
    ort: dict[str, Any],
    nvidia: dict[str, Any],
    text: str,
    graph: Path,
    fake_ort: Any,
    fake_libraries: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fake_libraries(**nvidia)
    fake_ort(**ort)
    with pytest.raises(ProviderError) as caught:
        open_session(graph, provider="cuda")
    assert str(caught.value).startswith(f"CUDA was asked for and cannot be used: {text}; ")
    assert caught.value.exit_code == 4
    assert open_session(graph).provider == Provider("cpu", 0, f"CUDA is not available: {text}")
    assert capfd.readouterr() == ("", "")


def test_a_broken_file_is_not_blamed_on_cuda(graph: Path, fake_ort: Any, fake_libraries: Any) -> None:
    fake_libraries()
    broken = RuntimeError("Protobuf parsing failed.")
    fake_ort(graph_on_cuda=broken, on_cpu=broken)
    with pytest.raises(CorruptError, match="cut short or damaged"):
        open_session(graph, provider="cuda")


@pytest.mark.parametrize("lean", [False, True])
def test_a_lean_session_keeps_no_arena(lean, tiny_bundle):
    session = open_session(tiny_bundle / "model.onnx", provider="cpu", lean=lean)
    assert session.ort.get_session_options().enable_cpu_mem_arena is not lean
