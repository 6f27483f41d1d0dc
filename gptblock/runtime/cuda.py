"""Whether CUDA really works here, and if not, what is missing.

ONNX Runtime's own answers do not serve: get_available_providers() lists what was compiled in, and a
session that cannot have CUDA is given the CPU without an exception. So a small graph is run, and where
that fails the parts are tried one by one.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from types import ModuleType

from gptblock.runtime.capture import captured, one_line
from gptblock.runtime.probe import ProviderList, probe
from gptblock.runtime.wheels import REINSTALL, Problem

CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
DRIVER_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

_GPU_WHEEL_CUDA = 13  # the CUDA release that onnxruntime-gpu is built for from 1.28 on


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: the newest CUDA it serves, how many devices it sees, and its error if it sees none."""

    cuda: str
    devices: int
    fault: str = ""


def cuda_providers(device_id: int, use_tf32: bool, use_graphs: bool = False) -> ProviderList:
    """The provider list of a CUDA session. TF32 is off unless wanted: it rounds factors to 10 bits."""
    options = {"device_id": str(device_id), "use_tf32": str(int(use_tf32))}
    return [(CUDA, options | ({"enable_cuda_graph": "1"} if use_graphs else {})), CPU]


def cuda_problem(ort: ModuleType, device_id: int = 0, use_tf32: bool = False) -> Problem | None:
    """Why CUDA cannot be used here, or None where a graph has just run on it."""
    if not _is_gpu_build(ort):
        return Problem(
            "the installed onnxruntime is a CPU build",
            f"for NVIDIA cards: {REINSTALL.format(extra='gpu')}",
        )
    if not _loads(DRIVER_LIBRARY):  # first, for the CUDA libraries take seconds to load
        return Problem(
            f"there is no NVIDIA driver ({DRIVER_LIBRARY} cannot be loaded)",
            "install the driver, or start the container with its GPUs (docker run --gpus all)",
        )
    preload(ort)
    said = ""
    try:
        with captured() as noise:
            taken = probe(ort, cuda_providers(device_id, use_tf32))
        if taken == CUDA:
            return None
        said = one_line(noise.text)
    except Exception as error:  # ONNX Runtime's exceptions have no base of their own
        said = one_line(error)
    return _explain(ort, device_id, said)


def preload(ort: ModuleType) -> str:
    """Load the CUDA libraries that NVIDIA's wheels put beside onnxruntime; returns what it said."""
    with captured() as noise:
        if hasattr(ort, "preload_dlls"):
            ort.preload_dlls()
    return noise.text


def read_driver() -> Driver | None:
    """What NVIDIA's driver says of itself, or None where there is no driver library."""
    try:
        library = ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return None
    version, devices = ctypes.c_int(0), ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(version))
    code = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(devices))
    text = ctypes.c_char_p()
    if code:
        library.cuGetErrorString(code, ctypes.byref(text))
    fault = f"CUDA error {code}: {(text.value or b'unknown').decode()}" if code else ""
    return Driver(f"{version.value // 1000}.{version.value % 1000 // 10}", devices.value, fault)


def find_libraries(ort: ModuleType) -> dict[str, bool]:
    """Each CUDA and cuDNN library that onnxruntime-gpu uses, and whether it loads (call `preload` first)."""
    return {name: _loads(name) for name in (*_needed(_cuda_major(ort)), *_on_demand(_cuda_major(ort)))}


def _explain(ort: ModuleType, device_id: int, said: str) -> Problem:
    """What keeps CUDA from working, the surest causes first; `said` is ONNX Runtime's own account."""
    major = _cuda_major(ort)
    missing = [name for name in _needed(major) if not _loads(name)]
    if missing:
        return _missing(missing)
    driver = read_driver()
    if driver is not None:
        if driver.fault or driver.devices == 0:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            return Problem(
                f"the NVIDIA driver sees no device ({driver.fault or 'it counts 0'})",
                "check nvidia-smi, and that the container has its GPUs (docker run --gpus all)"
                if visible is None
                else f"check nvidia-smi, and CUDA_VISIBLE_DEVICES, which is {visible!r}",
            )
        if int(driver.cuda.partition(".")[0]) < major:
            return Problem(
                f"the NVIDIA driver serves CUDA up to {driver.cuda}, and this onnxruntime needs CUDA {major}",
                "install a newer driver",
            )
        if device_id >= driver.devices:
            return Problem(
                f"there is no CUDA device {device_id}",
                f"this machine has {driver.devices}: --device-id 0 to {driver.devices - 1}",
            )
    missing = [name for name in _on_demand(major) if not _loads(name)]
    if missing:
        return _missing(missing)
    return Problem(
        f"ONNX Runtime cannot run on CUDA device {device_id}: {said or 'it took the CPU and gave no reason'}",
        "see gptblock doctor",
    )


def _missing(libraries: list[str]) -> Problem:
    return Problem(
        f"CUDA or cuDNN libraries cannot be loaded: {', '.join(libraries)}",
        "pip install 'gptblock[gpu]' installs them, or add the folder that has them to the library path",
    )


def _is_gpu_build(ort: ModuleType) -> bool:
    """Compiled in, or built for CUDA: some builds list the provider only once its libraries are loaded."""
    return CUDA in ort.get_available_providers() or bool(getattr(ort, "cuda_version", ""))


def _cuda_major(ort: ModuleType) -> int:
    """The CUDA release that this onnxruntime is built for, or would be if it were the GPU wheel."""
    major = str(getattr(ort, "cuda_version", "")).partition(".")[0]
    return int(major) if major.isdigit() else _GPU_WHEEL_CUDA


def _needed(major: int) -> tuple[str, ...]:
    """The libraries without which the provider does not load."""
    if sys.platform == "win32":
        return (f"cublasLt64_{major}.dll", f"cublas64_{major}.dll", f"cudart64_{major}.dll")
    return (f"libcublasLt.so.{major}", f"libcublas.so.{major}", f"libcudart.so.{major}", "libcurand.so.10")


def _on_demand(major: int) -> tuple[str, ...]:
    """The libraries that are loaded when first used: a session opens without them, and fails later."""
    cufft = major - 1  # cuFFT counts one behind: 11 in CUDA 12, 12 in CUDA 13
    if sys.platform == "win32":
        return ("cudnn64_9.dll", f"cufft64_{cufft}.dll")
    return ("libcudnn.so.9", f"libcufft.so.{cufft}", f"libnvrtc.so.{major}")


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
