"""Build the documentation as a site, without a network: ``make site``.

    python docs/build_site.py [FOLDER]    write FOLDER, by default dist/site; a browser opens it from the file system

Rule: the pages are those of ``docs/``, unchanged but for their links. The README is the first page. A link to a file
that is not part of the site becomes its text, because the site is read without the repository.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_PARTS: Final = ("*.md", "decisions/*.md", "pictures/*.png")


def main() -> int:
    """Build the site; return the exit code of the builder, which refuses broken links."""
    with tempfile.TemporaryDirectory(prefix="kafka-eos-site-") as home:
        pages = Path(home) / "docs"
        copy_pages(pages)
        shutil.copyfile(ROOT / "mkdocs.yml", Path(home) / "mkdocs.yml")
        for name in ("kafka_eos", "connectors"):
            (Path(home) / name).symlink_to(ROOT / name)
        done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=home, check=False)
        if done.returncode == 0:
            target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist/site"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(Path(home) / "site", target)
            print(f"open {target / 'index.html'}")
        return done.returncode


def copy_pages(target: Path) -> None:
    """Copy all pages and pictures, with the links that lead out of the site replaced by their text."""
    sources = {path.relative_to(ROOT / "docs"): path for part in _PARTS for path in (ROOT / "docs").glob(part)}
    for name, source in sources.items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            copy.write_text(_drop_outside_links(source.read_text(encoding="utf-8"), name.parent), encoding="utf-8")
        else:
            shutil.copyfile(source, copy)
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    (target / "index.md").write_text(_drop_outside_links(readme, Path()), encoding="utf-8")


def _drop_outside_links(text: str, folder: Path) -> str:
    def keep_or_drop(link: re.Match[str]) -> str:
        path = link[2].partition("#")[0]
        if not path or "://" in path:
            return link[0]
        found = (ROOT / "docs" / folder / path).resolve()
        part_of_site = found.is_relative_to(ROOT / "docs") and found.suffix in (".md", ".png") and found.exists()
        return link[0] if part_of_site else link[1]

    return _LINK.sub(keep_or_drop, text)


if __name__ == "__main__":
    sys.exit(main())
