"""The common part of both forms of ``async_map``: an exchange that queues rows, and the node that sends requests.

Rule: the request options are checked here, before a node is added.
"""

from __future__ import annotations

from typing import Any

from kafka_eos import plan
from kafka_eos._util.call_site import call_quoting_user, user_line
from kafka_eos.api.stream_base import BaseStream
from kafka_eos.core.errors import Retryable
from kafka_eos.plan.function_checks import expect_requests
from kafka_eos.plan.process_functions import OutputTag
from kafka_eos.plan.retries import check_request_options

RETRIED: tuple[type[Exception], ...] = (OSError, Retryable)
"""Errors that are retried by default: another attempt may succeed."""


def add_async_map(
    stream: BaseStream,
    kind: type[plan.AsyncMapNode],
    name: str | None,
    failed: OutputTag[Any] | None,
    values: Any,
    rules: dict[str, Any],
    **parts: Any,
) -> str:
    """Add the nodes of an async_map; return the node of its main output. ``rules``: see ``check_request_options``."""
    call_quoting_user(lambda: expect_requests("async_map", fn=parts["fn"]))
    checked = call_quoting_user(lambda: check_request_options(**rules))
    stream._expect_tags(failed=failed)
    draft = stream._draft
    node, derived = draft._name(name, kind.kind)
    waiting = stream._append_node(
        plan.RequestExchangeNode, f"{node}-requests", value_codec=stream._exchange_codec(values)
    )
    parts |= {
        "failed": None if failed is None else failed.name,
        "code_line": user_line(),
        "has_generated_name": derived,
    }
    draft._add_node(kind(name=node, inputs=(waiting,), **checked, **parts))
    return draft._add_side_outputs(node, () if failed is None else (failed,))
