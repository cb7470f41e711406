"""Wiring of the coordinator's process."""

import uuid
from functools import partial

import msgspec

from services.coordinator.planning import plan_for_coordinator
from shared.adapters.commit_store import SqlCommitStore
from shared.process.outside import make_outside
from shared.process.settings import ProcessSettings, ProcessSettingsError
from shared.protocol.coordinator.machine import CoordinatorMachine
from shared.protocol.coordinator.settings import CoordinatorSettings
from shared.runtime.coordinator import CoordinatorDriver


async def build(settings: ProcessSettings) -> CoordinatorDriver:
    """A coordinator on the store that the settings name."""
    if not settings.store:
        message = "TIDEMARK_STORE is not set; expected sqlite:///… or postgresql://…"
        raise ProcessSettingsError(message)
    try:
        decisions = msgspec.convert({**settings.extra, "topic_prefix": settings.prefix}, CoordinatorSettings)
    except msgspec.ValidationError as error:
        message = f"TIDEMARK_EXTRA: {error}"
        raise ProcessSettingsError(message) from error
    settings.runtime.check_alignment(decisions.checkpoint_timeout_ms)
    settings.runtime.check_commits(decisions.unreleased_max)
    settings.runtime.check_deaths(decisions.failures_max)
    machine = CoordinatorMachine(decisions, lambda: uuid.uuid4().hex)
    store = SqlCommitStore(settings.store, settings.store_config)
    return CoordinatorDriver(
        settings.place, make_outside(settings), store, partial(plan_for_coordinator, settings.runtime.engine), machine
    )
