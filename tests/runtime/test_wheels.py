import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gptblock.errors import MissingExtraError, ProviderError
from gptblock.runtime import wheels
from gptblock.runtime.wheels import installed_wheels, load_onnxruntime, version_problem


def test_the_installed_one_is_found() -> None:
    module = load_onnxruntime()
    assert hasattr(module, "InferenceSession")
    assert module.__version__ in installed_wheels().values()


def test_none_names_both_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError) as caught:
        load_onnxruntime()
    assert str(caught.value).endswith("pip install 'gptblock[cpu]'")
    assert "pip install 'gptblock[gpu]'" in str(caught.value)
    assert caught.value.exit_code == 4


def test_a_husk_is_told_apart_and_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))
    with pytest.raises(ProviderError, match="husk") as caught:
        load_onnxruntime()
    assert "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'gptblock[cpu]'" in str(caught.value)


def test_a_husk_as_pip_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime" / "capi").mkdir(
        parents=True
    )  # folders without __init__.py import as a namespace
    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    with pytest.raises(ProviderError, match="husk"):
        load_onnxruntime()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('libstdc++.so.6: version not found')", "libstdc++.so.6"),
        ("import onnxruntime.nothing", "onnxruntime.nothing"),
        ("raise RuntimeError('two\\nlines')", "two lines"),
    ],
)
def test_one_that_cannot_be_imported_is_not_called_missing(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text(source)
    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ProviderError, match="cannot be imported") as caught:
        load_onnxruntime()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_importing_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "onnxruntime.py").write_text(
        "import os; os.write(2, b'no card0'); InferenceSession = 1; __version__ = '2.0'"
    )
    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_onnxruntime().__version__ == "2.0"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("version", ["1.27.0", "1.27.1", "1.9", "0.28"])
def test_versions_that_compute_wrong_logits_are_refused(
    version: str, fake_ort: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ort(version=version)
    monkeypatch.setattr(wheels, "installed_wheels", lambda: {"onnxruntime": version})
    with pytest.raises(ProviderError) as caught:
        load_onnxruntime()
    assert (
        f"onnxruntime {version} is too old, 1.28 or newer is needed: 1.25 to 1.27 compute wrong logits"
        in str(caught.value)
    )
    assert "pip install --upgrade 'onnxruntime>=1.28'" in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "version", ["1.28.0", "1.28", "1.100.0", "2.0", "1.32.0.dev20261101", "1.31.1+cu130"]
)
def test_later_versions_are_taken(version: str, fake_ort: Any) -> None:
    fake_ort(version=version)
    assert load_onnxruntime().__version__ == version


def test_upgrading_does_not_bring_in_the_other_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "installed_wheels", lambda: {"onnxruntime-gpu": "1.27.0"})
    problem = version_problem("1.27.0", "1.28", "why")
    assert problem is not None
    assert problem.remedy == "pip install --upgrade 'onnxruntime-gpu[cuda,cudnn]>=1.28'"


def test_both_wheels_are_seen_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime", "onnxruntime_gpu"):
        info = tmp_path / f"{name}-1.30.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.30.0\n"
        )
        (info / "top_level.txt").write_text("onnxruntime\n")
    other = tmp_path / "onnxruntime_extensions-0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-extensions\nVersion: 0.1\n")
    (other / "top_level.txt").write_text("onnxruntime_extensions\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_wheels() == {"onnxruntime": "1.30.0", "onnxruntime-gpu": "1.30.0"}


def test_onnxruntime_keeps_no_device_id_and_no_log_of_events(tmp_path: Path) -> None:
    code = "from gptblock.runtime.wheels import load_onnxruntime; load_onnxruntime()"
    home = {name: str(tmp_path) for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "LOCALAPPDATA")}
    kept = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**kept, **home})
    assert list(tmp_path.iterdir()) == []
