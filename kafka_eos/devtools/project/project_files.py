"""The files of a new project: those of all templates, and those of one.

Rule: a file of a template is what the user gets, apart from the words that begin with ``PROJECT_``. ``.txt`` at the end
of its name keeps tools from taking it for a file of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import ensure_name

_HOME: Final = Path(__file__).parent / "templates"
_SUFFIX: Final = ".txt"
_NAMES: Final = {
    "gitignore": ".gitignore",
    "dockerignore": ".dockerignore",
    "github-ci.yml": ".github/workflows/test.yml",
}
"""Names that installers or tools would not leave alone in a package."""


@dataclass(frozen=True, slots=True)
class Template:
    """The facts of one template that the common files contain. ``services``: of compose.yaml."""

    summary: str
    topics: tuple[str, ...]
    record: str
    inputs: tuple[str, ...] = ("orders",)
    """The sources, each with a file of samples."""
    extras: str = "broker"
    services: str = ""
    environment: str = ""
    servers: str = ""
    """Options of ``crash-test`` for a server of the test."""

    def values(self, name: str) -> Mapping[str, str]:
        """Return what replaces each ``PROJECT_…`` word."""
        return {
            "PROJECT_NAME": name,
            "PROJECT_SUMMARY": self.summary,
            "PROJECT_TOPICS": " ".join(self.topics),
            "PROJECT_INPUT_TOPIC": self.topics[0],
            "PROJECT_SAMPLES": " ".join(f"--from {name}=samples/{name}.jsonl" for name in self.inputs),
            "PROJECT_RECORD": self.record,
            "PROJECT_EXTRAS": self.extras,
            "PROJECT_SERVICES": self.services,
            "PROJECT_SERVERS": self.servers,
            "PROJECT_ENVIRONMENT": self.environment,
        }


_POSTGRES: Final = """
  postgres:
    image: postgres:17
    environment: { POSTGRES_HOST_AUTH_METHOD: trust }
"""

TEMPLATES: Final[Mapping[str, Template]] = {
    "totals": Template(
        "The running total of each user's paid orders: topic to topic, with state.",
        ("orders", "totals", "rejected-orders"),
        '{"user": "ann", "amount": 5, "status": "paid"}',
    ),
    "join": Template(
        "Orders with their payments of the next ten minutes, and unpaid orders: two streams in event time.",
        ("orders", "payments", "paid-orders", "unpaid-orders", "rejected-orders", "rejected-payments"),
        '{"id": "a", "total": 30}',
        inputs=("orders", "payments"),
    ),
    "postgres": Template(
        "The newest total of each user in a table of PostgreSQL, and every total in a topic, in the same epoch.",
        ("orders", "totals", "rejected-orders"),
        '{"user": "ann", "amount": 5, "status": "paid"}',
        extras="postgres",
        services=_POSTGRES,
        environment="      DATABASE: host=postgres user=postgres dbname=postgres\n",
        servers=" --postgres DATABASE",
    ),
    "lake": Template(
        "Purchases as Parquet files, in a directory per day.",
        ("purchases", "rejected-purchases"),
        '{"user": "ann", "amount": 5, "at": "2026-01-01T12:00:00Z"}',
        inputs=("purchases",),
        extras="parquet",
        environment="      LAKE: /var/lib/kafka-eos/lake\n",
        servers=" --files LAKE",
    ),
}
"""Templates by name; the first one is the default."""


def create_project(directory: Path, template: str) -> list[Path]:
    """Write the files of a project into a new directory, whose name is that of the job. Return them.

    Raise ConfigError if the directory has files, its name cannot be a job's, or the template does not exist.
    """
    if template not in TEMPLATES:
        raise ConfigError(f"--template: {template!r} must be one of {', '.join(TEMPLATES)}")
    name = ensure_name(directory.resolve().name, "the name of the project, which is that of its job,")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} exists and is not empty: give another name, or move it away")
    values = TEMPLATES[template].values(name)
    for home in (_HOME / "common", _HOME / template):
        for source in home.rglob(f"*{_SUFFIX}"):
            _write(directory, source.relative_to(home), source.read_text(encoding="utf-8"), values)
    wheels = directory / "wheels"
    wheels.mkdir()
    (wheels / ".gitkeep").touch()  # git keeps no empty directory, and the Dockerfile copies this one
    return sorted(file for file in directory.rglob("*") if file.is_file())


def _write(directory: Path, name: Path, text: str, values: Mapping[str, str]) -> None:
    plain = str(name).removesuffix(_SUFFIX)
    target = directory / _NAMES.get(plain, plain)
    target.parent.mkdir(parents=True, exist_ok=True)
    for word, value in values.items():
        text = text.replace(word, value)
    target.write_text(text, encoding="utf-8")
