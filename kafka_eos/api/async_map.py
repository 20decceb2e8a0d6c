"""What both forms of ``async_map`` add to a draft: an exchange in which rows wait, and the node that asks behind it.

Rule: what is said of the requests is checked here, before anything is added.
"""

from __future__ import annotations

from typing import Any

from kafka_eos import plan
from kafka_eos._util.call_site import quoted, user_line
from kafka_eos.api.stream_base import Upstream
from kafka_eos.core.errors import Retryable
from kafka_eos.plan.function_checks import expect_requests
from kafka_eos.plan.process_functions import OutputTag
from kafka_eos.plan.retries import request_rules

RETRIED: tuple[type[Exception], ...] = (OSError, Retryable)
"""Errors that another try may not have, unless the user says which."""


def asked(
    stream: Upstream,
    kind: type[plan.AsyncMap],
    name: str | None,
    failed: OutputTag[Any] | None,
    values: Any,
    rules: dict[str, Any],
    **parts: Any,
) -> str:
    """Add both nodes; returns the one that takes the main output. ``rules``: see ``request_rules``."""
    quoted(lambda: expect_requests("async_map", fn=parts["fn"]))
    checked = quoted(lambda: request_rules(**rules))
    stream._expect_tags(failed=failed)
    draft = stream._draft
    node, derived = draft._name(name, kind.kind)
    waiting = stream._grow(plan.Requests, f"{node}-requests", values=stream._wire(values))
    parts |= {"failed": None if failed is None else failed.name, "where": user_line(), "derived": derived}
    draft._add(kind(name=node, inputs=(waiting,), **checked, **parts))
    return draft._part(node, () if failed is None else (failed,))
