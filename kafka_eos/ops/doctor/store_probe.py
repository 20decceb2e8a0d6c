"""Checks that a checkpoint store keeps the guarantees that recovery needs. It creates and deletes one small object.

Rule: the probe changes nothing of the job, so the job may run meanwhile.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress

from kafka_eos.ops.doctor.findings import StoreGuarantees
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage


def try_store(storage: JobStorage, where: str) -> StoreGuarantees:
    """Write, read, list and delete one small object, and report what the store guarantees."""
    name, content = paths.trial_name(secrets.token_hex(8)), secrets.token_bytes(64)
    try:
        began = time.monotonic()
        storage.publish(name, content)
        seconds = time.monotonic() - began
        listed, same = name in storage.list(paths.TRIALS), storage.read(name) == content
        exclusive = _refused(storage, name) and storage.read(name) == content
    finally:
        storage.delete(name)
    return StoreGuarantees(where, exclusive, listed, same, _gone(storage, name), seconds)


def _refused(storage: JobStorage, name: str) -> bool:
    try:
        storage.publish(name, b"another")
    except FileExistsError:
        return True
    return False


def _gone(storage: JobStorage, name: str) -> bool:
    if name in storage.list(paths.TRIALS):
        return False
    with suppress(FileNotFoundError):
        storage.read(name)
        return False
    return True
