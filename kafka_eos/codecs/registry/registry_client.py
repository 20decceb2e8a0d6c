"""A schema registry with Confluent's API: which schema has which id.

Rule: the client's errors are mapped here, once. A registry that is away or in trouble (5xx) is ``RegistryAway``, and so
is an answer that only something else can have given, as a proxy: nobody blames a record for it. What a registry says
that it does not know is None; a request that it refuses is a ``ConfigError``, and so is a 404 that says nothing of a
schema: whatever answers at that address, it is no registry.

Rule: nothing is kept here. Who understands an answer keeps what it made of it, as much as it has bounded; the client
would keep every answer, for ever, also one that is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from kafka_eos._util.extras import expect_extra
from kafka_eos._util.secrets import FROM_FILE, filled, masked, without_login
from kafka_eos.core.errors import ConfigError, RegistryAway

_DEFAULTS: Final[Mapping[str, Any]] = {"timeout": 5, "max.retries": 2, "retries.wait.ms": 200}
"""Short: whoever asks waits, and the engine tries again with a backoff of its own."""
_LATER: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_NOT_ITS_OWN: Final = (None, -1, HTTPStatus.BAD_REQUEST)
"""Codes of refusals that are none of a registry, which has codes of its own."""
_NO_COMPATIBILITY: Final = 40408
_NOT_THERE: Final = (40401, 40402, 40403, 40400)
"""A registry's own codes: no such subject, version, schema; the last one is that of the client's own, ``mock://``."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Another schema that one uses, under the ``name`` that it uses for it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as a registry keeps it. ``kind`` is AVRO, PROTOBUF or JSON."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a subject."""

    number: int
    schema_id: int
    schema: RegisteredSchema


class NotTaken(ConfigError):
    """A registry does not take a schema, as not compatible with those that its ``subject`` has. ``said``: its words."""

    def __init__(self, url: str, subject: str, said: str) -> None:
        super().__init__(f"subject {subject!r} of the schema registry {url} does not take the schema: {said}")
        self.subject, self.said = subject, said


class _NoAnswer(Exception):
    """What came is no answer of a registry, though it says that all is well."""


class Registry:
    """A registry with Confluent's API, at ``url``: Confluent's own, Apicurio's, Karapace …

    ``config``  settings of confluent-kafka's ``SchemaRegistryClient``: ``basic.auth.user.info``, ``bearer.auth.…``,
                ``ssl.…``, ``timeout`` … (secrets are masked in all output). ``basic.auth.user.info.from_file`` and
                its like name a file with the value, which is read anew for each request
    """

    def __init__(self, url: str, *, config: Mapping[str, Any] | None = None) -> None:
        expect_extra("registry", "Registry")
        if "://" not in url:  # it is not shown: a login may be in it
            raise ConfigError("Registry has an address that names no registry: give one such as https://registry:8081")
        self.url = without_login(url)
        """For people: without a login."""
        self._config = {**_DEFAULTS, **(config or {}), "url": url}
        self._may_change = any(name.endswith(FROM_FILE) for name in self._config)
        try:
            self._known = filled(self._config)
            self._made = _client_of(self._known)
        except (ValueError, TypeError, OSError) as error:
            # The settings are not shown: a secret under a mistyped name would not be known for one.
            raise ConfigError(f"Registry({self.url!r}): {without_login(str(error))}") from None

    @property
    def _client(self) -> Any:
        """With the secrets that stand in their files now. RegistryAway if one cannot be read: it is being written."""
        if self._may_change:
            try:
                now = filled(self._config)
            except ValueError as error:
                raise RegistryAway(f"a secret for {self!r}: {error}") from None
            if now != self._known:
                self._known, self._made = now, _client_of(now)
        return self._made

    def __repr__(self) -> str:
        given = {name: value for name, value in self._config.items() if name != "url" and name not in _DEFAULTS}
        config = f", config={masked(given)}" if given else ""
        return f"Registry({self.url!r}{config})"

    @property
    def in_memory(self) -> bool:
        """Is it the client's own, ``mock://``, which every process has for itself?"""
        return self.url.startswith("mock://")

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """The schema of that id; None if there is none.

        ValueError if the registry has it, and cannot tell what it is.
        """
        return self._of_id(schema_id, lambda client: client.get_schema(schema_id))

    def schema_of_guid(self, guid: str) -> RegisteredSchema | None:
        """The same of a globally unique id; None, too, if the registry knows no such ids."""
        return self._of_id(guid, lambda client: client.get_schema_by_guid(guid))

    def _of_id(self, schema_id: int | str, ask: Callable[[Any], Any]) -> RegisteredSchema | None:
        with self._answering(f"schema {schema_id}") as client:
            try:
                found = _known(lambda: ask(client))
                return None if found is None else _kept(found)
            except _errors().SchemaRegistryError as error:
                # Of a schema that has come by another API of the registry.
                if error.http_status_code != HTTPStatus.BAD_REQUEST or error.error_code in _NOT_ITS_OWN:
                    raise
                wrong = error.error_message
        raise ValueError(f"the schema registry {self.url} cannot tell what schema {schema_id} is: {wrong}")

    def referenced(self, reference: Reference) -> RegisteredSchema | None:
        """Also one that was deleted since: what refers to it is still read."""
        with self._answering(f"version {reference.version} of subject {reference.subject!r}") as client:
            found = _known(lambda: client.get_version(reference.subject, reference.version, deleted=True))
            return None if found is None else _kept(found.schema)

    def subjects(self) -> list[str]:
        """All that there are."""
        with self._answering("its subjects") as client:
            found = client.get_subjects()
            if not isinstance(found, list):
                raise _NoAnswer(f"{found!r:.100} is no list of subjects")
            return [str(subject) for subject in found]

    def newest(self, subject: str) -> Version | None:
        """The newest version of the subject; None if there is no such subject."""
        with self._answering(f"the newest version of subject {subject!r}") as client:
            found = _known(lambda: client.get_latest_version(subject))
            if found is None:
                return None
            return Version(_number(found.version), _number(found.schema_id), _kept(found.schema))

    def version_of(self, subject: str, schema: RegisteredSchema) -> int | None:
        """The version of ``subject`` that is exactly this schema; None if there is none."""
        return self._looked_up(subject, schema, "version")

    def id_of(self, subject: str, schema: RegisteredSchema) -> int | None:
        """The id under which ``subject`` has exactly this schema; None if it does not."""
        return self._looked_up(subject, schema, "schema_id")

    def _looked_up(self, subject: str, schema: RegisteredSchema, number: str) -> int | None:
        with self._answering(f"subject {subject!r}") as client:
            found = _known(lambda: client.lookup_schema(subject, _sent(schema), normalize_schemas=True))
            return None if found is None else _number(getattr(found, number))

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """Register it, and return its id. NotTaken if it is not compatible with what the subject has."""
        with self._answering(f"registering under subject {subject!r}") as client:
            try:
                return _number(client.register_schema(subject, _sent(schema), normalize_schemas=True))
            except _errors().SchemaRegistryError as error:
                if error.http_status_code != HTTPStatus.CONFLICT:
                    raise
                raise NotTaken(self.url, subject, str(error.error_message)) from None

    def compatibility(self, subject: str) -> str:
        """What a new schema of the subject must be: NONE, BACKWARD, FORWARD_TRANSITIVE …"""
        if self.in_memory:
            return "NONE"  # the client's own asks nothing of anybody
        with self._answering(f"the compatibility of subject {subject!r}") as client:
            try:
                return str(client.get_compatibility(subject))
            except _errors().SchemaRegistryError as error:
                if error.error_code != _NO_COMPATIBILITY and error.error_code not in _NOT_THERE:
                    raise
            return str(client.get_compatibility())  # of all subjects that say nothing themselves

    def takes(self, subject: str, schema: RegisteredSchema) -> bool:
        """Would it register the schema, as compatible with those that the subject has?"""
        if self.in_memory:
            return True
        with self._answering(f"whether a schema is compatible with subject {subject!r}") as client:
            return bool(client.test_compatibility_all_versions(subject, _sent(schema), normalize=True))

    @property
    def _refused_for_now(self) -> tuple[int, ...]:
        """Answers after which the login is tried again: a file may get another one."""
        return (HTTPStatus.UNAUTHORIZED,) if self._may_change else ()

    @contextmanager
    def _answering(self, what: str) -> Iterator[Any]:
        """The client, which knows nothing of what it was told before, nor keeps what it is told now."""
        import httpx2

        errors, client = _errors(), self._client
        try:
            yield client
        except errors.SchemaRegistryError as error:
            said = f"the schema registry {self.url} answered to {what}: {error!s:.1000}"
            status = error.http_status_code
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in (*_LATER, *self._refused_for_now):
                raise RegistryAway(said) from None
            raise ConfigError(_advised(said, status)) from None
        except (httpx2.RequestError, OSError) as error:
            raise RegistryAway(f"the schema registry {self.url} does not answer to {what}: {error!r}") from None
        except errors.OAuthTokenError as error:
            raise RegistryAway(f"the schema registry {self.url} cannot be asked for {what} now: {error}") from None
        except _NOT_UNDERSTOOD as error:
            raise RegistryAway(
                f"what answers at {self.url} to {what} is no schema registry now, but maybe a proxy: {error!r}"
            ) from None
        except (httpx2.InvalidURL, ValueError, TypeError) as error:
            raise ConfigError(f"{self!r} cannot be asked for {what}: {error}") from None
        finally:
            client.clear_caches()


_NOT_UNDERSTOOD: Final = (
    _NoAnswer, json.JSONDecodeError, UnicodeDecodeError, RecursionError, AttributeError, LookupError
)  # fmt: skip
"""What the client raises over an answer of another form than a registry's."""


def _client_of(config: Mapping[str, Any]) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient.new_client(dict(config))


def _errors() -> Any:
    from confluent_kafka.schema_registry import error

    return error


def _known(ask: Callable[[], Any]) -> Any:
    """What it answers; None if it says that it does not know."""
    try:
        return ask()
    except _errors().SchemaRegistryError as error:
        if error.error_code in _NOT_THERE:
            return None
        raise


def _kept(schema: Any) -> RegisteredSchema:
    kind: Any = schema.schema_type or "AVRO"
    text: Any = schema.schema_str
    references: list[Any] = list(schema.references or ())
    if not isinstance(kind, str) or not isinstance(text, str):
        raise _NoAnswer("there is no schema in it")
    if not all(isinstance(each.name, str) and isinstance(each.subject, str) for each in references):
        raise _NoAnswer("there is a reference in it that names nothing")
    return RegisteredSchema(kind, text, tuple(Reference(each.name, each.subject, each.version) for each in references))


def _number(found: Any) -> int:
    if type(found) is not int:
        raise _NoAnswer(f"there is no number where {found!r:.100} is")
    return found


def _sent(schema: RegisteredSchema) -> Any:
    from confluent_kafka.schema_registry import Schema, SchemaReference

    references = [SchemaReference(each.name, each.subject, each.version) for each in schema.references]
    return Schema(schema.text, schema.kind, references)


def _advised(said: str, status: int) -> str:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return f'{said}. Check the login: Registry(url, config={{"basic.auth.user.info": "user:password"}})'
    if status == HTTPStatus.NOT_FOUND:
        return f"{said}. Check the path of the address: Apicurio's, for one, ends in /apis/ccompat/v7"
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return f"{said}. It sends whoever asks to another address, which is not followed: give that one"
    return said
