"""Find secrets in the files of this repository: keys, tokens and passwords that open something. Part of ``make lint``.

A secret has a form that its issuer gives it, or is a long random text in quotes behind a name such as ``password``. A
line with the words "no secret: REASON" is excepted.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXCEPTED = "no secret: "
FORMS = {
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "an access key of AWS": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a token of GitHub": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{50,})\b",
    "a token of GitLab": r"\bglpat-[A-Za-z0-9_-]{20,}\b",
    "a token of Slack": r"\bxox[abprs]-[A-Za-z0-9-]{10,}|hooks\.slack\.com/services/\w+/\w+/[A-Za-z0-9]{20,}",
    "a key of Google": r"\bAIza[A-Za-z0-9_-]{35}\b",
    "a token of PyPI": r"\bpypi-[A-Za-z0-9_-]{50,}",
    "a key of Azure": r"AccountKey=[A-Za-z0-9+/]{60,}={0,2}|\bsig=[A-Za-z0-9%]{40,}",
    "a JSON Web Token": r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
}
_FORMS = {what: re.compile(form) for what, form in FORMS.items()}
_ASSIGNED = re.compile(
    r"(?:password|passwd|secret|token|api_?key)[\w.'\"-]*\s*[:=]\s*[\"']([A-Za-z0-9+=_-][A-Za-z0-9+/=_-]{19,})[\"']",
    re.I,
)
"""A text in quotes behind a name. What begins with a slash is a path."""
_RANDOM_BITS = 3.7
"""Bits a character above which a text counts as random; words have about 3."""


def find_secrets(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of each line with a secret, and what it is."""
    for number, line in enumerate(text.splitlines(), 1):
        if EXCEPTED in line:
            continue
        yield from ((number, what) for what, form in _FORMS.items() if form.search(line))
        yield from ((number, "a random text") for found in _ASSIGNED.findall(line) if _bits(found) > _RANDOM_BITS)


def _bits(text: str) -> float:
    """Return the entropy of a text, in bits a character."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S607 - the git of this machine
    found = 0
    for name in filter(None, listed.decode().split("\0")):
        path = ROOT / name
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if b"\0" in data:
            continue
        for number, what in find_secrets(data.decode("utf-8", "replace")):
            found += 1
            print(f"{name}:{number}: {what}. Revoke it; or write on its line: {EXCEPTED}REASON")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
