"""What a user installs is the wheel, not this checkout: it must be whole by itself."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(a) for a in argv], cwd=cwd, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built with the back end that is installed here, so without network."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel; dependencies are borrowed from this one, the editable install is not.

    A folder named in a .pth file is searched, but .pth files inside it are not read: that is how the editable install
    of this checkout stays outside.
    """
    home = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", wheel, cwd=home)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_holds_scripts_types_and_licence(wheel: Path) -> None:
    """Every Lua script, both py.typed marks and the licence are in it, and no test is."""
    names = set(zipfile.ZipFile(wheel).namelist())
    scripts = {str(p.relative_to(ROOT / "producer")) for p in (ROOT / "producer").rglob("*.lua")}
    assert scripts
    assert scripts <= names
    assert {"gristmill/py.typed", "gristmilld/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"gristmill", "gristmilld"}


@pytest.mark.parametrize("package", ["gristmill", "gristmilld"])
def test_a_package_imports_from_the_wheel(fresh: Path, package: str) -> None:
    """In a fresh environment it is the wheel's copy that is imported, without a warning."""
    where = run(fresh, "-W", "error", "-c", f"import {package}; print({package}.__file__)", cwd=fresh.parent)
    assert Path(where.strip()).is_relative_to(fresh.parents[1])


@pytest.mark.parametrize("command", ["producer", "gristmilld"])
def test_a_command_runs_from_the_wheel(fresh: Path, command: str) -> None:
    """The installed script starts and knows its version."""
    from gristmill import __version__

    assert __version__ in run(fresh.with_name(command), "--version", cwd=fresh.parent)
