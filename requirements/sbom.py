"""Write the bill of materials of what runs: ``sbom.cdx.json`` (CycloneDX 1.6) and ``licenses.txt``.

Rule: the packages are those that ``requirements/run.txt`` pins, as the image has them. Their licenses and requirements
are what the installed packages state; a package that states no license is an error.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_NAME = re.compile(r"^[A-Za-z0-9._-]+")


def main(directory: Path) -> int:
    packages = dict(list_packages())
    missing = [name for name, found in packages.items() if not find_license(found)]
    if missing:
        print(f"no license is stated by {', '.join(missing)}: look it up, and say so in requirements/sbom.py")
        return 1
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sbom.cdx.json").write_text(json.dumps(make_bill(packages), indent=2) + "\n")
    lines = [f"{name} {found.version}: {find_license(found)}\n" for name, found in packages.items()]
    (directory / "licenses.txt").write_text("".join(lines))
    print(f"{len(packages)} packages in {directory / 'sbom.cdx.json'} and {directory / 'licenses.txt'}")
    return 0


def list_packages() -> Iterator[tuple[str, Distribution]]:
    """Yield the pinned packages by their normal names, as they are installed here. Raises SystemExit for another
    version.
    """
    for name, version in sorted(_PIN.findall((ROOT / "requirements/run.txt").read_text())):
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # for another version of Python, or another system
        if found.version != version:
            raise SystemExit(f"{name} {found.version} is installed, and {version} is pinned: run make env")
        yield normal(name), found


def make_bill(packages: dict[str, Distribution]) -> dict[str, Any]:
    own = (ROOT / "kafka_eos/__init__.py").read_text()
    version = re.search(r'__version__\s*=\s*"([^"]+)"', own)
    top = {"type": "application", "bom-ref": "kafka-eos", "name": "kafka-eos", "version": version[1] if version else ""}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**top, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{name}@{found.version}",
                "purl": f"pkg:pypi/{name}@{found.version}",
                "name": name,
                "version": found.version,
                "licenses": [_license(found)],
            }
            for name, found in packages.items()
        ],
        "dependencies": [
            {"ref": "kafka-eos", "dependsOn": [f"pkg:pypi/{n}@{found.version}" for n, found in packages.items()]},
            *({"ref": f"pkg:pypi/{n}@{d.version}", "dependsOn": _needs(d, packages)} for n, d in packages.items()),
        ],
    }


def _needs(found: Distribution, packages: dict[str, Distribution]) -> list[str]:
    named = (_NAME.match(each) for each in found.requires or ())
    names = sorted({normal(each[0]) for each in named if each is not None} & packages.keys())
    return [f"pkg:pypi/{name}@{packages[name].version}" for name in names]


def _license(found: Distribution) -> dict[str, Any]:
    expression = found.metadata.get("License-Expression")
    return {"expression": expression} if expression else {"license": {"name": find_license(found)}}


def find_license(found: Distribution) -> str:
    """Return the license that a package states: an SPDX expression, its classifiers, or the first line of its text."""
    if expression := found.metadata.get("License-Expression"):
        return str(expression)
    classifiers = found.metadata.get_all("Classifier") or ()
    stated = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License :: ")]
    text = (found.metadata.get("License") or "").strip().splitlines()
    return ", ".join(each for each in stated if each != "OSI Approved") or (text[0] if text else "")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
