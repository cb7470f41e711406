"""Wiring of the coordinator's process."""

import os
import uuid
from dataclasses import replace
from functools import partial

from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.shared.adapters.commit_store import SqlCommitStore
from tidemark.shared.computation.bundle import bundle_of
from tidemark.shared.process.allowed import read_allowed
from tidemark.shared.process.outside import make_outside
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, kafka_settings, settings_of
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.coordinator import CoordinatorDriver
from tidemark.shared.runtime.settings import HEADER_BYTES_MAX


def coordinator_settings(settings: ProcessSettings) -> CoordinatorSettings:
    """From the process' settings, with their relations to those of workers and brokers. ProcessSettingsError, SettingsError."""
    read = settings_of(settings.extra, CoordinatorSettings, "TIDEMARK_EXTRA", others=True)
    found = replace(read, topic_prefix=settings.prefix)
    runtime = settings.runtime
    runtime.check_alignment(found.checkpoint_timeout_ms)
    runtime.check_commits(found.unreleased_max)
    runtime.check_deaths(found.failures_max)
    runtime.check_coordinator(found.heartbeat_timeout_ms, found.lease_ms)
    message_bytes_max = kafka_settings(settings).message_bytes_max
    assigned = found.inline_bytes_max + found.document_bytes_max + found.splits_bytes_max
    if assigned + HEADER_BYTES_MAX > message_bytes_max:
        message = (
            f"TIDEMARK_EXTRA: inline_bytes_max={found.inline_bytes_max}, document_bytes_max={found.document_bytes_max},"
            f" splits_bytes_max={found.splits_bytes_max} and a header of up to {HEADER_BYTES_MAX} bytes must together not be above"
            f" message_bytes_max={message_bytes_max} of TIDEMARK_KAFKA_CONFIG: an assignment carries them"
        )
        raise ProcessSettingsError(message)
    if found.mirror_bytes_max + HEADER_BYTES_MAX > message_bytes_max:
        message = (
            f"TIDEMARK_EXTRA.mirror_bytes_max: its {found.mirror_bytes_max} bytes and a header of up to {HEADER_BYTES_MAX} must not be"
            f" above message_bytes_max={message_bytes_max} of TIDEMARK_KAFKA_CONFIG: no broker would take such a row"
        )
        raise ProcessSettingsError(message)
    return found


async def build(settings: ProcessSettings) -> CoordinatorDriver:
    """A coordinator on the store that the settings name."""
    if not settings.store:
        message = "TIDEMARK_STORE is not set; expected sqlite:///… or postgresql://…"
        raise ProcessSettingsError(message)
    decisions = coordinator_settings(settings)
    machine = CoordinatorMachine(decisions, lambda: uuid.uuid4().hex)
    planner = partial(
        plan_for_coordinator,
        settings.runtime.engine,
        tasks_max=decisions.tasks_max,
        document_bytes_max=decisions.document_bytes_max,
        code_of=bundle_of,
        prefix=decisions.topic_prefix,
        allowed=read_allowed(os.environ),
    )
    store = SqlCommitStore(settings.store, settings.store_config)
    return CoordinatorDriver(settings.place, make_outside(settings), store, planner, machine)
