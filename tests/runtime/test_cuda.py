"""One case for each way in which CUDA can be asked for and not be had, as they were seen on real machines."""

from typing import Any

import pytest

from gptblock.runtime.cuda import CPU, CUDA, Driver, cuda_problem, cuda_providers, find_libraries, read_driver

NO_DEVICE = RuntimeError(
    "CUDA failure 100: no CUDA-capable device is detected ; GPU=-1 ; hostname=h ; file=/x.cc ; line=1"
)
FALLS_BACK = {"on_cuda": CPU}  # no exception: a CPU session, and the reason on the C-level stderr

CASES = [
    # what ONNX Runtime does, NVIDIA's side, what is said of it, what mends it
    pytest.param(
        {"available": ("AzureExecutionProvider", CPU), "cuda_version": ""},
        {},
        "the installed onnxruntime is a CPU build",
        "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'gptblock[gpu]'",
        id="CPU wheel",
    ),
    pytest.param(
        FALLS_BACK,
        {"missing": "libcuda.so"},
        "there is no NVIDIA driver (libcuda.so.1 cannot be loaded)",
        "--gpus all",
        id="no driver",
    ),
    pytest.param(
        {
            **FALLS_BACK,
            "says": b"Failed to load library libonnxruntime_providers_cuda.so\n",
            "preload_says": "Failed to load libcublas",
        },
        {"missing": "libcublas libcudnn"},
        "CUDA or cuDNN libraries cannot be loaded: libcublasLt.so.13, libcublas.so.13",
        "pip install 'gptblock[gpu]'",
        id="no CUDA libraries",
    ),
    pytest.param(
        {**FALLS_BACK, "cuda_version": "12.8"},
        {"missing": ".so.13"},
        "ONNX Runtime cannot run on CUDA device 0: it took the CPU and gave no reason",
        "gptblock doctor",
        id="another CUDA's libraries are not blamed",
    ),
    pytest.param(
        {"on_cuda": RuntimeError("cudnn not found")},
        {"missing": "libcudnn"},
        "CUDA or cuDNN libraries cannot be loaded: libcudnn.so.9",
        "pip install 'gptblock[gpu]'",
        id="cuDNN, which is loaded on demand",
    ),
    pytest.param(
        {"on_cuda": NO_DEVICE},
        {"error": 100},
        "the NVIDIA driver sees no device (CUDA error 100: no CUDA-capable device is detected)",
        "check nvidia-smi",
        id="no device",
    ),
    pytest.param(
        {"on_cuda": NO_DEVICE},
        {"devices": 0},
        "the NVIDIA driver sees no device (it counts 0)",
        "check nvidia-smi",
        id="none counted",
    ),
    pytest.param(
        {"on_cuda": RuntimeError("CUDA failure 35: driver version is insufficient")},
        {"cuda": 12040},
        "the NVIDIA driver serves CUDA up to 12.4, and this onnxruntime needs CUDA 13",
        "install a newer driver",
        id="old driver",
    ),
    pytest.param(
        {"on_cuda": RuntimeError("Unknown provider option: use_tf33")},
        {},
        "ONNX Runtime cannot run on CUDA device 0: Unknown provider option: use_tf33",
        "gptblock doctor",
        id="bad option",
    ),
    pytest.param(
        {**FALLS_BACK, "says": b"\x1b[0;93m2026-11-01 Failed to create it\x1b[m\n"},
        {},
        "ONNX Runtime cannot run on CUDA device 0: 2026-11-01 Failed to create it",
        "gptblock doctor",
        id="a reason of its own",
    ),
]


@pytest.fixture(autouse=True)
def all_devices_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(("ort", "nvidia", "text", "remedy"), CASES)
def test_the_reason_is_named_and_nothing_is_printed(
    ort: dict[str, Any],
    nvidia: dict[str, Any],
    text: str,
    remedy: str,
    fake_ort: Any,
    fake_libraries: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    fake_libraries(**nvidia)
    problem = cuda_problem(fake_ort(**ort).module())
    assert problem is not None
    assert problem.text == text
    assert remedy in problem.remedy
    assert capfd.readouterr() == ("", "")


def test_it_works_where_a_graph_runs_on_it(fake_ort: Any, fake_libraries: Any) -> None:
    fake_libraries(missing="libcufft")  # which nothing needed
    fake = fake_ort()
    assert cuda_problem(fake.module(), device_id=3, use_tf32=True) is None
    assert [call["providers"] for call in fake.opened] == [cuda_providers(3, True)]
    assert [call["enable_fallback"] for call in fake.opened] == [0]


def test_without_a_driver_the_libraries_are_not_even_loaded(fake_ort: Any, fake_libraries: Any) -> None:
    fake_libraries(missing="libcuda.so")
    fake = fake_ort()
    assert cuda_problem(fake.module()) is not None
    assert fake.opened == []


def test_a_build_that_lists_cuda_only_once_it_is_loaded_is_a_gpu_build(
    fake_ort: Any, fake_libraries: Any
) -> None:
    fake_libraries()
    assert cuda_problem(fake_ort(available=(CPU,)).module()) is None


def test_a_device_that_is_not_there(fake_ort: Any, fake_libraries: Any) -> None:
    fake_libraries(devices=2)
    problem = cuda_problem(fake_ort(on_cuda=RuntimeError("invalid device ordinal")).module(), device_id=2)
    assert problem is not None
    assert str(problem) == "there is no CUDA device 2; this machine has 2: --device-id 0 to 1"


def test_devices_hidden_by_the_environment(
    fake_ort: Any, fake_libraries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    fake_libraries(error=100)
    problem = cuda_problem(fake_ort(on_cuda=NO_DEVICE).module())
    assert problem is not None
    assert problem.remedy == "check nvidia-smi, and CUDA_VISIBLE_DEVICES, which is '-1'"


@pytest.mark.parametrize(("use_tf32", "said"), [(False, "0"), (True, "1")])
def test_tf32_is_off_unless_wanted(use_tf32: bool, said: str) -> None:
    assert cuda_providers(1, use_tf32) == [(CUDA, {"device_id": "1", "use_tf32": said}), CPU]


@pytest.mark.parametrize(
    ("nvidia", "driver"),
    [
        ({"cuda": 13010, "devices": 4}, Driver("13.1", 4)),
        ({"error": 100}, Driver("13.0", 0, "CUDA error 100: no CUDA-capable device is detected")),
        ({"error": 999}, Driver("13.0", 0, "CUDA error 999: unknown")),
        ({"missing": "libcuda.so"}, None),
    ],
)
def test_the_driver_is_asked(nvidia: dict[str, Any], driver: Driver | None, fake_libraries: Any) -> None:
    fake_libraries(**nvidia)
    assert read_driver() == driver


@pytest.mark.parametrize(
    ("cuda_version", "names"),
    [
        ("13.0", "cublasLt.so.13 cublas.so.13 cudart.so.13 curand.so.10 cudnn.so.9 cufft.so.12 nvrtc.so.13"),
        ("12.8", "cublasLt.so.12 cublas.so.12 cudart.so.12 curand.so.10 cudnn.so.9 cufft.so.11 nvrtc.so.12"),
    ],
)
def test_libraries_are_those_of_the_cuda_it_was_built_for(
    cuda_version: str, names: str, fake_ort: Any, fake_libraries: Any
) -> None:
    fake_libraries(missing="libcudnn")
    found = find_libraries(fake_ort(cuda_version=cuda_version).module())
    assert list(found) == [f"lib{name}" for name in names.split()]
    assert [name for name, loads in found.items() if not loads] == ["libcudnn.so.9"]
