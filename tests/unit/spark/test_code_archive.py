"""The archive of the user's code: another machine loads the pipeline from it, and from nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kafka_eos.spark.code_archive import unpack_archive

APP = """
from kafka_eos import Pipeline
from kafka_eos.testing import ListSource, MemorySink
{imports}
pipeline = Pipeline("p")
pipeline.source(ListSource([RATE]), name="in").sink(MemorySink(), name="out")
"""
LOAD = """
import sys
from pathlib import Path
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import CodeFingerprint, list_code_files, load_program
from kafka_eos.spark.code_archive import write_archive
app = Path(sys.argv[1])
plan = load_program(AppRef(app)).plan()
"""
PACK = """
files = list_code_files(app, CodeFingerprint.compute(app, plan))
write_archive(Path(sys.argv[2]), files)
print(next(iter(files)))
"""


def run(directory: Path, code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("app", "imports", "others", "left"),
    [
        (
            "orders.py",
            "from rates import RATE\nimport helpers",
            {"rates.py": "RATE = 3", "helpers/__init__.py": "", "helpers/rarely.py": "", "helpers/table.csv": "a,b"},
            {"unused.py": "", "notes.txt": ""},
        ),
        (
            "shop/jobs/orders.py",
            "from ..rates import RATE",
            {"shop/__init__.py": "", "shop/jobs/__init__.py": "", "shop/rates.py": "RATE = 3", "shop/table.csv": "a,b"},
            {"unused.py": "", "shop/__pycache__/old.pyc": ""},
        ),
    ],
    ids=["script", "package"],
)
def test_another_machine_loads_the_pipeline_from_its_archive(
    tmp_path: Path, app: str, imports: str, others: dict[str, str], left: dict[str, str]
) -> None:
    here, archive = tmp_path / "here", tmp_path / "there" / "job.zip"
    archive.parent.mkdir()
    for name, text in {app: APP.format(imports=imports), **others, **left}.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)

    name = run(tmp_path, LOAD + PACK, here / app, archive)
    here.rename(tmp_path / "elsewhere")

    assert name == app
    assert {*zipfile.ZipFile(archive).namelist()} == {app, *others}
    with ThreadPoolExecutor(4) as tasks:
        (directory,) = {*tasks.map(unpack_archive, [archive] * 20)}
    assert sorted(path.name for path in archive.parent.iterdir()) == ["job", "job.zip"]
    assert run(tmp_path, LOAD + "print(plan.name)", directory / name) == "p"
