"""The package as others get it: a wheel, in an environment and a folder away from the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
STUDY = ["--algorithms", "awac", "--datasets", "mountaincar-noisy", "--seeds", "1", "--steps", "20"]
STUDY += ["--evaluate-every", "20", "--evaluate-episodes", "1", "--workers", "1"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Runs offline-gntd, installed from a wheel; what it depends on is this environment's."""
    place = tmp_path_factory.mktemp("away")
    source = place / "source"  # building leaves things behind
    shutil.copytree(REPOSITORY / "offline_gntd", source / "offline_gntd")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", place, source], check=True)
    (wheel,) = place.glob("offline_gntd-*.whl")
    shutil.rmtree(source)
    venv.create(place / "venv")
    python = place / "venv/bin/python"
    subprocess.run([*pip, "--python", python, "install", "--quiet", "--no-deps", wheel], check=True)
    packages = next((place / "venv/lib").glob("python*/site-packages"))
    # paths in a .pth are added, but what an editable install has there is not followed
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    home = place / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "COVERAGE_RUN")}

    def run(*words, code=0):
        done = subprocess.run(
            [place / "venv/bin/offline-gntd", *words],
            capture_output=True,
            text=True,
            cwd=home,
            env=kept | {"OFFLINE_GNTD_HOME": str(home)},
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    run.home, run.python = home, python
    return run


def test_it_is_the_wheel_that_runs(command):
    code = "import offline_gntd; print(offline_gntd.__file__)"
    found = subprocess.run([command.python, "-c", code], capture_output=True, text=True, cwd=command.home)
    assert str(command.python.parents[1]) in found.stdout
    assert "--import" in command("run", "--help")
    assert "cartpole-replay" in command("datasets", "list")
    assert "hopper-medium-v2" in command("datasets", "list")  # a CSV in the package


def test_a_run_its_table_and_the_report(command):
    """They need published numbers (CSV), a style sheet and a script from the package."""
    for name in ("my_algorithm.py", "my_dataset.py"):
        shutil.copy(REPOSITORY / "examples" / name, command.home)
    command("run", "mine", "--import", "my_algorithm.py", "--import", "my_dataset.py", *STUDY)
    assert "mountaincar-noisy" in command("table", "mine")
    (command.home / "results").mkdir(exist_ok=True)
    for path in (REPOSITORY / "results").glob("table1*.csv"):
        shutil.copy(path, command.home / "results")
    published = command("table", "table1", "--kind", "published")
    assert "| acrobot-replay | GNTD |" in published
    command("report")
    page = (command.home / "analysis/report.html").read_text()
    assert "<style>" in page
    assert "<script>" in page
