"""What is shipped: a wheel that works installed, whatever else lies in the user's directory."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from kafka_eos._util.extras import MODULES

ROOT = Path(__file__).parent.parent
HOSTILE = "raise SystemExit('the file of the user was imported instead of ours')\n"

OF_PYSPARK = ("py4j",)
"""Comes with pyspark, and is its interface to Java."""

OF_THE_HOST = ("gssapi",)
"""Is built for the Kerberos of the host, by those who log in with it; it cannot be installed everywhere."""

NOT_EVERYWHERE = ("kafka_eos_native",)
"""Is built from native/, where there is a C compiler."""

pytestmark = pytest.mark.xdist_group("packaging")  # builds once


def run(directory: Path, *command: str | Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, kind: str, out: Path) -> Path:
    """Builds one distribution from ``source`` without isolation: nothing is downloaded."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(out), str(source)]
    run(source, *command)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an environment that has the wheel, and borrows the dependencies of this one."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    command = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet"]
    run(home, *command, "--no-deps", "--no-index", wheel)
    # A plain line, so that an editable install of this checkout (itself a .pth file) is not borrowed with the rest.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A user's directory with modules named like our folders."""
    for name in ("schemas.py", "connectors.py", "tests.py"):
        (tmp_path / name).write_text(HOSTILE)
    return tmp_path


def contents(path: Path) -> dict[str, bytes]:
    """Every file of a wheel, but the record of installation."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def requires(wheel: Path) -> list[str]:
    """What the wheel says it needs, with all extras for users."""
    (metadata,) = (data.decode() for name, data in contents(wheel).items() if name.endswith(".dist-info/METADATA"))
    lines = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    return [line for line in lines if "extra == 'dev'" not in line and 'extra == "dev"' not in line]


def imported(source: str) -> set[str]:
    """The first part of the name of every module that is imported, wherever that stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names


def source_files() -> set[str]:
    """Every file that the wheel must hold, by its name in it."""
    found = set()
    for folder, prefix in ((ROOT / "kafka_eos", ""), (ROOT / "connectors", "kafka_eos/")):
        for directory, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if name != "__pycache__"]
            found |= {prefix + str((Path(directory) / name).relative_to(ROOT)) for name in files}
    return found


def test_the_wheel_holds_every_file_of_the_package_and_no_other_package(wheel: Path) -> None:
    shipped = {name for name in contents(wheel) if ".dist-info/" not in name}

    assert shipped == source_files()


def test_the_wheel_holds_the_data_that_the_code_reads(wheel: Path) -> None:
    shipped = contents(wheel)

    assert {"kafka_eos/py.typed", "kafka_eos/_util/jvm/jars.sha256"} <= shipped.keys()
    assert [name for name in shipped if name.endswith(".avsc")] == []  # no code reads the published formats
    assert [name for name in shipped if name.endswith(".dist-info/licenses/LICENSE")]


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()

    assert [*(source / "schemas").glob("*.avsc")]
    assert contents(build(source, "wheel", tmp_path / "out")) == contents(wheel)


def test_what_is_imported_is_declared(wheel: Path) -> None:
    """The environment of ``installed`` borrows more than a user gets; so this is read from the source."""
    declared = {re.split(r"[ <>=!~;\\[]", line)[0].lower() for line in requires(wheel)}
    distributions = packages_distributions()
    missing = {
        f"{name} ({module})"
        for name, data in contents(wheel).items()
        if name.endswith(".py")
        for module in imported(data.decode())
        if module not in sys.stdlib_module_names | {"kafka_eos"}
        if not declared & {each.lower().replace("_", "-") for each in distributions.get(module, ())}
        and module not in OF_PYSPARK + OF_THE_HOST + NOT_EVERYWHERE
    }

    assert missing == set()


def test_the_image_builds_from_what_the_dockerfile_copies(wheel: Path, tmp_path: Path) -> None:
    """Without Docker: the same files in a directory of their own, and the same wheel from them."""
    stage, _, _ = (ROOT / "docker" / "Dockerfile").read_text().partition("-m build")
    source = tmp_path / "source"
    source.mkdir()
    for *names, to in map(str.split, re.findall(r"^COPY (.*)$", stage, re.MULTILINE)):
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / to, symlinks=True)
            else:
                (source / to).mkdir(exist_ok=True)
                shutil.copy(ROOT / name, source / to)

    assert contents(build(source, "wheel", tmp_path / "out")) == contents(wheel)


def test_the_command_works_installed_beside_hostile_modules(installed: Path, hostile: Path) -> None:
    assert "Usage" in run(hostile, installed / "kafka-eos", "--help")


@pytest.mark.parametrize("module", ["kafka_eos.connectors.kafka", "kafka_eos.codecs", "kafka_eos.devtools.broker"])
def test_our_folders_are_imported_from_the_package_whatever_the_user_has(
    installed: Path, hostile: Path, module: str
) -> None:
    code = f"import {module} as module; print(module.__file__)"
    file = run(hostile, installed / "python", "-c", code).strip()

    assert Path(file).is_relative_to(installed.parent)


def test_nothing_of_ours_is_a_top_level_package_but_kafka_eos(installed: Path, tmp_path: Path) -> None:
    code = (
        "from importlib.util import find_spec; print([n for n in ('connectors', 'schemas', 'tests') if find_spec(n)])"
    )

    assert run(tmp_path, installed / "python", "-c", code).strip() == "[]"


def pinned(name: str) -> dict[str, tuple[str, ...]]:
    """Version and hashes of each package in a file of requirements."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", " ")
    return {line.split("==")[0]: tuple(line.partition("==")[2].split()) for line in text.splitlines() if "==" in line}


def test_what_runs_is_pinned_as_it_was_tested_and_holds_no_tools_of_tests() -> None:
    run, dev = pinned("run.txt"), pinned("dev.txt")

    assert run.items() < dev.items()
    assert pinned("uv.txt").items() < dev.items()
    assert {"pyspark", "obstore", "jinja2", "confluent-kafka"} <= run.keys()
    assert {"pytest", "hypothesis", "mypy", "ruff", "uv", "build", "matplotlib"} & run.keys() == set()


@pytest.mark.parametrize(("package", "variable"), [("confluent-kafka", "CLIENTS"), ("pyspark", "SPARKS")])
def test_the_ends_of_a_range_are_what_is_tested(package: str, variable: str) -> None:
    """``make clients`` and ``make sparks`` begin with the oldest release; ``make test`` runs the pinned one."""
    tested = re.search(rf"^{variable} +\?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    declared = re.search(rf'"{package}>=([0-9.]+),<([0-9.]+)"', (ROOT / "pyproject.toml").read_text())
    pin = pinned("dev.txt")[package][0]

    assert tested is not None and declared is not None
    assert tested[1].split()[0].startswith(declared[1]) and pin in tested[1].split()
    assert all(numbers(declared[1]) <= numbers(each) < numbers(declared[2]) for each in tested[1].split())


def numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def test_the_image_holds_what_runs() -> None:
    _, _, final = (ROOT / "docker" / "Dockerfile").read_text().rpartition("\nFROM ")
    copied = re.findall(r"^COPY --from=build (\S+) ", final, re.MULTILINE)

    assert copied == ["/opt/kafka-eos"]  # the tools that build the wheel are in /opt/build
    steps = re.findall(r"/opt/kafka-eos/bin/pip install .*", (ROOT / "docker" / "Dockerfile").read_text())
    assert len(steps) == 2 and "-r requirements/run.txt" in steps[0] and "--no-deps dist/" in steps[1]


def test_the_extras_are_what_their_commands_look_for(wheel: Path) -> None:
    declared = {
        extra: {re.split(r"[ <>=!~;]", line)[0] for line in requires(wheel) if re.search(rf"extra == .{extra}.", line)}
        for extra in ("broker", "spark", "audit")
    }

    assert declared == {"broker": set(), "spark": set(MODULES["spark"]), "audit": set(MODULES["audit"])}


WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from kafka_eos.cli import main
sys.argv = ["kafka-eos", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("absent", [MODULES["audit"], ("jinja2",)], ids=["all", "one"])
def test_the_demo_says_which_extra_is_missing(tmp_path: Path, absent: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", WITHOUT.format(absent=absent), "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 2, done.stderr
    assert (
        f"a crash test, which ends with an audit, needs {', '.join(absent)}: pip install 'kafka-eos[audit]'"
        in done.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_a_broker_starts_without_what_the_audit_needs(tmp_path: Path) -> None:
    def command(*arguments: str) -> str:
        code = WITHOUT.format(absent=MODULES["audit"])
        return run(tmp_path, sys.executable, "-c", code, "broker", *arguments)

    try:
        assert " is up " in command("start", "--port", "0")
    finally:
        assert "stopped" in command("stop")


@pytest.mark.parametrize("name", ["dev.txt", "run.txt"])
def test_the_pinned_requirements_name_no_package_index(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()

    assert "://" not in text
    assert "--index-url" not in text


def test_the_bill_of_materials_lists_what_runs_with_licenses(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "requirements/sbom.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not done.returncode, done.stdout + done.stderr
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text())

    listed = {each["name"]: each for each in bill["components"]}
    assert {"confluent-kafka", "rocksdict", "starlette", "protobuf", "pyspark"} <= listed.keys()
    assert all(each["licenses"] and each["purl"] == each["bom-ref"] for each in listed.values())
    refs = {"kafka-eos", *(each["bom-ref"] for each in listed.values())}
    assert {each["ref"] for each in bill["dependencies"]} == refs
    assert {ref for each in bill["dependencies"] for ref in each["dependsOn"]} < refs
    assert len((tmp_path / "licenses.txt").read_text().splitlines()) == len(listed)


@pytest.mark.parametrize(
    ("package", "least"), [("starlette", (1, 0, 1)), ("protobuf", (6, 33, 5)), ("jinja2", (3, 1, 6))]
)
def test_releases_with_published_vulnerabilities_are_excluded(package: str, least: tuple[int, ...]) -> None:
    declared = re.findall(rf'"{package}>=([\d.]+)', (ROOT / "pyproject.toml").read_text())

    assert declared
    assert all(tuple(map(int, version.split("."))) >= least for version in declared)
