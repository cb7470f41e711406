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
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, fitting, settings_of
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.coordinator import CoordinatorDriver


def coordinator_settings(settings: ProcessSettings) -> CoordinatorSettings:
    """From the process' settings, with their relations to those of workers and brokers. ProcessSettingsError, SettingsError."""
    read = fitting(settings_of(settings.extra, CoordinatorSettings, "TIDEMARK_EXTRA", others=True), settings)
    found = replace(read, topic_prefix=settings.prefix)
    runtime = settings.runtime
    runtime.check_alignment(found.checkpoint_timeout_ms)
    runtime.check_commits(found.unreleased_max)
    runtime.check_deaths(found.failures_max)
    runtime.check_coordinator(found.heartbeat_timeout_ms, found.lease_ms)
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
