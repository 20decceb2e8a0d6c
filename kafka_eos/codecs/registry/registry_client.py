"""Client of a schema registry with Confluent's API: ids of schemas.

Rule: the client library's errors are mapped here, once. An unavailable or failing registry (5xx) is
``RegistryUnavailable``, and so is a response that no registry would give, for example of a proxy: no record is blamed
for it. None means that the registry does not know something. A rejected request is a ``ConfigError``, and so is a 404
that does not concern a schema: the server at that address is not a registry.

Rule: nothing is cached here. Callers cache what they derive from a response, within bounds; the client library would
keep every response forever, also an invalid one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final

from msgspec import Struct

from kafka_eos._util.extras import ensure_extra
from kafka_eos._util.secrets import FROM_FILE, mask_config, read_secret_files, strip_credentials
from kafka_eos.core.error_messages import UnfitValue
from kafka_eos.core.errors import ConfigError, RegistryUnavailable

_DEFAULTS: Final[Mapping[str, Any]] = {"timeout": 5, "max.retries": 2, "retries.wait.ms": 200}
"""Short, because callers wait, and the engine retries with its own backoff."""
_IN_MEMORY: Final = "mock://"
"""The beginning of the address of a registry in memory, of the client library."""
_LATER: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_NOT_ITS_OWN: Final = (None, -1, HTTPStatus.BAD_REQUEST)
"""Codes of rejections that do not come from a registry, which has its own codes."""
_NO_COMPATIBILITY: Final = 40408
MAX_SCHEMA_ID: Final = (1 << 31) - 1
"""The largest id of a schema. Confluent's registry has no page for a larger one, as for any wrong address."""
_NOT_THERE: Final = (40401, 40402, 40403, 40400)
"""A registry's own codes: no such subject, version, schema; the last one is that of ``mock://``."""


class Reference(Struct, frozen=True):
    """A schema that another one refers to, and the ``name`` used for it there."""

    name: str
    subject: str
    version: int


class RegisteredSchema(Struct, frozen=True):
    """A schema as a registry stores it. ``kind`` is AVRO, PROTOBUF or JSON."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


class SubjectVersion(Struct, frozen=True):
    """One version of a subject."""

    number: int
    schema_id: int
    schema: RegisteredSchema


class IncompatibleSchema(ConfigError):
    """The registry rejects a schema as incompatible with its subject. ``reason``: the registry's message."""

    def __init__(self, url: str, subject: str, reason: str) -> None:
        super().__init__(f"subject {subject!r} of the schema registry {url} rejects the schema: {reason}")
        self.subject, self.reason = subject, reason


class _NoSuchPage(ConfigError):
    """The server does not have the requested path, or is not a registry."""


class _InvalidResponse(Exception):
    """A successful response that no registry would give."""


class Registry:
    """A registry with Confluent's API, at ``url``: Confluent's own, Apicurio's, Karapace …

    ``config``  settings of confluent-kafka's ``SchemaRegistryClient``: ``basic.auth.user.info``, ``bearer.auth.…``,
                ``ssl.…``, ``timeout`` … (secrets are masked in all output). ``basic.auth.user.info.from_file`` and
                its like name a file with the value, which is read again for each request
    """

    def __init__(self, url: str, *, config: Mapping[str, Any] | None = None) -> None:
        ensure_extra("registry", "Registry")
        if "://" not in url:  # it is not shown: it may contain a login
            raise ConfigError("Registry: the address does not name a registry: use one such as https://registry:8081")
        self.url = strip_credentials(url)
        """The address for messages, without a login."""
        self._config = {**_DEFAULTS, **(config or {}), "url": url}
        self._may_change = any(name.endswith(FROM_FILE) for name in self._config)
        try:
            self._known = read_secret_files(self._config)
            self._made = _client_of(self._known)
        except (ValueError, TypeError, OSError) as error:
            # The settings are not shown: a secret under a mistyped name would not be masked.
            raise ConfigError(f"Registry({self.url!r}): {strip_credentials(str(error))}") from None

    @property
    def _client(self) -> Any:
        """Return a client with the current secrets of their files.

        Raises RegistryUnavailable if one cannot be read while it is written.
        """
        if self._may_change:
            try:
                now = read_secret_files(self._config)
            except ValueError as error:
                raise RegistryUnavailable(f"a secret for {self!r}: {error}") from None
            if now != self._known:
                self._known, self._made = now, _client_of(now)
        return self._made

    def __repr__(self) -> str:
        given = {name: value for name, value in self._config.items() if name != "url" and name not in _DEFAULTS}
        config = f", config={mask_config(given)}" if given else ""
        return f"Registry({self.url!r}{config})"

    @property
    def in_memory(self) -> bool:
        """Return whether it is the client library's ``mock://``, which is private to each process."""
        return self.url.startswith(_IN_MEMORY)

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of that id; None if there is none.

        Raises ValueError if the registry has it, but cannot name its kind.
        """
        return self._of_id(schema_id, lambda client: client.get_schema(schema_id))

    def schema_of_guid(self, guid: str) -> RegisteredSchema | None:
        """Return the schema of a globally unique id; None if there is none, or if the registry has no such ids."""
        try:
            return self._of_id(guid, lambda client: client.get_schema_by_guid(guid))
        except _NoSuchPage:
            # Only Confluent's newer registries have such ids.
            if self.answers_for_ids():
                return None
            raise

    def answers_for_ids(self) -> bool:
        """Return whether the server has an answer about a number, as any registry has."""
        try:
            self.schema(MAX_SCHEMA_ID)
        except ConfigError:
            return False
        return True

    def _of_id(self, schema_id: int | str, ask: Callable[[Any], Any]) -> RegisteredSchema | None:
        with self._answering(f"schema {schema_id}") as client:
            try:
                found = _known(lambda: ask(client))
                return None if found is None else _kept(found)
            except _errors().SchemaRegistryError as error:
                # For a schema that was registered by another API of the registry.
                if error.http_status_code != HTTPStatus.BAD_REQUEST or error.error_code in _NOT_ITS_OWN:
                    raise
                wrong = error.error_message
        raise UnfitValue(f"the schema registry {self.url} cannot return schema {schema_id}: {wrong}")

    def referenced(self, reference: Reference) -> RegisteredSchema | None:
        """Return a referenced schema, even one that was deleted since: schemas that refer to it are still read."""
        with self._answering(f"version {reference.version} of subject {reference.subject!r}") as client:
            found = _known(lambda: client.get_version(reference.subject, reference.version, deleted=True))
            return None if found is None else _kept(found.schema)

    def subjects(self) -> list[str]:
        """Return all subjects."""
        with self._answering("its subjects") as client:
            found = client.get_subjects()
            if not isinstance(found, list):
                raise _InvalidResponse(f"{found!r:.100} is not a list of subjects")
            return [str(subject) for subject in found]

    def get_latest_version(self, subject: str) -> SubjectVersion | None:
        """Return the latest version of a subject; None if there is none."""
        with self._answering(f"the newest version of subject {subject!r}") as client:
            found = _known(lambda: client.get_latest_version(subject))
            if found is None:
                return None
            return SubjectVersion(_number(found.version), _number(found.schema_id), _kept(found.schema))

    def version_of(self, subject: str, schema: RegisteredSchema) -> int | None:
        """Return the version of ``subject`` with exactly this schema; None if there is none."""
        return self._looked_up(subject, schema, "version")

    def id_of(self, subject: str, schema: RegisteredSchema) -> int | None:
        """Return the id under which ``subject`` has exactly this schema; None if there is none."""
        return self._looked_up(subject, schema, "schema_id")

    def _looked_up(self, subject: str, schema: RegisteredSchema, number: str) -> int | None:
        with self._answering(f"subject {subject!r}") as client:
            found = _known(lambda: client.lookup_schema(subject, _sent(schema), normalize_schemas=True))
            return None if found is None else _number(getattr(found, number))

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """Register a schema and return its id. Raises IncompatibleSchema if it is not compatible with the subject."""
        with self._answering(f"registering under subject {subject!r}") as client:
            try:
                return _number(client.register_schema(subject, _sent(schema), normalize_schemas=True))
            except _errors().SchemaRegistryError as error:
                if error.http_status_code != HTTPStatus.CONFLICT:
                    raise
                raise IncompatibleSchema(self.url, subject, str(error.error_message)) from None

    def compatibility(self, subject: str) -> str:
        """Return the compatibility level of a subject: NONE, BACKWARD, FORWARD_TRANSITIVE …"""
        if self.in_memory:
            return "NONE"  # mock:// checks nothing
        with self._answering(f"the compatibility of subject {subject!r}") as client:
            try:
                return str(client.get_compatibility(subject))
            except _errors().SchemaRegistryError as error:
                if error.error_code != _NO_COMPATIBILITY and error.error_code not in _NOT_THERE:
                    raise
            return str(client.get_compatibility())  # the global level, for subjects without their own

    def is_compatible(self, subject: str, schema: RegisteredSchema) -> bool:
        """Return whether the registry accepts a schema for a subject."""
        if self.in_memory:
            return True
        with self._answering(f"whether a schema is compatible with subject {subject!r}") as client:
            return bool(client.test_compatibility_all_versions(subject, _sent(schema), normalize=True))

    @property
    def _refused_for_now(self) -> tuple[int, ...]:
        """Return the status codes after which the login is retried: its file may be replaced."""
        return (HTTPStatus.UNAUTHORIZED,) if self._may_change else ()

    @contextmanager
    def _answering(self, what: str) -> Iterator[Any]:
        """Yield a client without cached responses; it is not reused afterwards."""
        import httpx2

        from kafka_eos.codecs.registry.response_bounds import ResponseTooLarge

        errors, client = _errors(), self._client
        try:
            yield client
        except errors.SchemaRegistryError as error:
            message = f"the schema registry {self.url} responded to {what}: {error!s:.1000}"
            status = error.http_status_code
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in (*_LATER, *self._refused_for_now):
                raise RegistryUnavailable(message) from None
            kind = _NoSuchPage if status == HTTPStatus.NOT_FOUND else ConfigError
            raise kind(_advised(message, status)) from None
        except (httpx2.RequestError, OSError) as error:
            raise RegistryUnavailable(f"the schema registry {self.url} does not respond to {what}: {error!r}") from None
        except ResponseTooLarge as error:
            raise ConfigError(f"the schema registry {self.url} responded to {what} with too much: {error}") from None
        except errors.OAuthTokenError as error:
            raise RegistryUnavailable(f"the schema registry {self.url} cannot serve {what} now: {error}") from None
        except _NOT_UNDERSTOOD as error:
            raise RegistryUnavailable(
                f"the server at {self.url} that responds to {what} is not a schema registry, perhaps a proxy: {error!r}"
            ) from None
        except (httpx2.InvalidURL, ValueError, TypeError) as error:
            raise ConfigError(f"{self!r} cannot serve {what}: {error}") from None
        finally:
            client.clear_caches()


_NOT_UNDERSTOOD: Final = (
    _InvalidResponse, json.JSONDecodeError, UnicodeDecodeError, RecursionError, AttributeError, LookupError
)  # fmt: skip
"""Errors of the client library for a response that is not in a registry's format."""


def _client_of(config: Mapping[str, Any]) -> Any:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    from kafka_eos.codecs.registry.response_bounds import bound_responses

    client = SchemaRegistryClient.new_client(dict(config))
    if not str(config["url"]).startswith(_IN_MEMORY):
        bound_responses(client._rest_client.session)
    return client


def _errors() -> Any:
    from confluent_kafka.schema_registry import error

    return error


def _known(ask: Callable[[], Any]) -> Any:
    """Return the response of ``ask``; None if the registry does not know the requested object."""
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
        raise _InvalidResponse("it contains no schema")
    if not all(isinstance(each.name, str) and isinstance(each.subject, str) for each in references):
        raise _InvalidResponse("it contains a reference without a name")
    return RegisteredSchema(kind, text, tuple(Reference(each.name, each.subject, each.version) for each in references))


def _number(found: Any) -> int:
    if type(found) is not int:
        raise _InvalidResponse(f"{found!r:.100} should be a number")
    return found


def _sent(schema: RegisteredSchema) -> Any:
    from confluent_kafka.schema_registry import Schema, SchemaReference

    references = [SchemaReference(each.name, each.subject, each.version) for each in schema.references]
    return Schema(schema.text, schema.kind, references)


def _advised(message: str, status: int) -> str:
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return f'{message}. Check the login: Registry(url, config={{"basic.auth.user.info": "user:password"}})'
    if status == HTTPStatus.NOT_FOUND:
        return f"{message}. Check the path of the address: Apicurio's, for one, ends in /apis/ccompat/v7"
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return f"{message}. It redirects to another address, which is not followed: use that address"
    return message
