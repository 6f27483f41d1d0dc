import sys
from importlib import metadata
from types import ModuleType
from typing import Any

import pytest

from gptblock.runtime import doctor
from gptblock.runtime.cuda import CPU, CUDA, Driver
from gptblock.runtime.doctor import Finding, diagnose


@pytest.fixture(autouse=True)
def no_nvidia(fake_libraries: Any) -> None:
    """Whatever this machine has; a test that wants a GPU says so."""
    fake_libraries(missing="libcuda libcudart libcublas libcudnn libcufft libcurand libnvrtc")


def problems(report: doctor.Report) -> list[str]:
    return [finding.text for finding in report.findings if finding.level == "problem"]


def test_this_machine_can_generate() -> None:
    report = diagnose()
    assert report.can_generate
    assert "cpu" in report.usable
    assert Finding("ok", "models run on the CPU") in report.findings
    assert CPU in report.compiled_in
    assert report.onnxruntime in report.wheels.values()
    assert report.numpy == metadata.version("numpy")
    assert report.python == ".".join(map(str, sys.version_info[:3]))
    assert report.cpus >= 1


def test_a_machine_with_cuda(fake_ort: Any, fake_libraries: Any) -> None:
    fake_libraries(devices=2, cuda=13010)
    fake_ort()
    report = diagnose()
    assert report.usable == ("cpu", "cuda")
    assert report.driver == Driver("13.1", 2)
    assert all(report.libraries.values())
    assert problems(report) == []


@pytest.mark.parametrize(
    ("ort", "level"),
    [
        ({"available": (CPU,), "cuda_version": ""}, "note"),  # the CPU wheel was chosen
        (
            {"available": (CUDA, CPU)},
            "problem",
        ),  # the GPU wheel was chosen, and does not do what it was chosen for
    ],
)
def test_no_cuda_is_a_problem_where_it_was_wanted(ort: dict[str, Any], level: str, fake_ort: Any) -> None:
    fake_ort(**ort)
    report = diagnose()
    (cuda,) = [finding for finding in report.findings if "CUDA" in finding.text]
    assert cuda.level == level
    assert cuda.remedy
    assert report.usable == ("cpu",)
    assert report.can_generate


def test_both_wheels(fake_ort: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ort()
    both = {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1"}
    monkeypatch.setattr(doctor, "installed_wheels", lambda: both)
    report = diagnose()
    finding = report.findings[0]
    assert finding.level == "problem"
    assert (
        finding.text == "onnxruntime and onnxruntime-gpu are both installed, and overwrite each other's files"
    )
    assert finding.remedy.endswith(
        "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'gptblock[gpu]'"
    )
    assert report.wheels == both


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (None, "ONNX Runtime is not installed"),
        (ModuleType("onnxruntime"), "onnxruntime is an empty husk"),
    ],
)
def test_no_usable_onnxruntime(module: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    report = diagnose()
    (problem,) = problems(report)
    assert problem.startswith(text)
    assert not report.can_generate
    assert report.onnxruntime is None


def test_an_old_onnxruntime_generates_nothing(fake_ort: Any) -> None:
    fake_ort(version="1.27.0")
    report = diagnose()
    assert report.onnxruntime == "1.27.0"
    assert not report.can_generate
    assert "too old" in problems(report)[0]


def test_an_onnxruntime_that_does_not_run(fake_ort: Any) -> None:
    fake_ort(on_cpu=RuntimeError("illegal\ninstruction"), cuda_version="", available=(CPU,))
    report = diagnose()
    assert problems(report) == ["models do not run on the CPU: illegal instruction"]
    assert not report.can_generate


def test_the_training_extra_is_looked_for_package_by_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("torch", "onnxscript"):
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor.metadata, "version", version)
    report = diagnose()
    assert report.torch is None
    assert report.findings[-1] == Finding(
        "note",
        "train and export are not available: onnxscript, torch not installed",
        "pip install 'gptblock[train]'",
    )


def test_torch_is_not_imported_to_learn_its_version() -> None:
    import subprocess

    program = (
        "from gptblock.runtime.doctor import diagnose; import sys; diagnose(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
