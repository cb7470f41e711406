# ruff: noqa: N802 -- a test carries its rule's name
"""What travels in one message fits into the largest record of the brokers, whatever its size is (F6, C7, C9, I1)."""

from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.services.control.settings import ControlSettings
from tidemark.services.coordinator.service import coordinator_settings
from tidemark.services.gateway.settings import GatewaySettings
from tidemark.services.sink.settings import SinkSettings
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.message_sizes import HEADER_BYTES_MAX, MESSAGE_BYTES, MESSAGE_BYTES_MIN, fitted
from tidemark.shared.process.settings import read_settings
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.settings import RuntimeSettings

KINDS = (RuntimeSettings, CoordinatorSettings, SinkSettings, ControlSettings)
SIZES = st.integers(MESSAGE_BYTES_MIN, 64 << 20) | st.sampled_from(
    [MESSAGE_BYTES_MIN, MESSAGE_BYTES, MESSAGE_BYTES + 1]
)


def parts(settings: Any, path: str = "") -> dict[str, int]:
    """The sizes that follow from a message's, by place."""
    found: dict[str, int] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if "grows" in each.metadata:
            found[path + each.name] = value
        elif is_dataclass(value):
            found |= parts(value, f"{path}{each.name}.")
    return found


@given(SIZES)
def test_F6_C7_C9_I1_each_message_fits_into_a_record(most: int) -> None:
    """With its header; an assignment carries three parts, and the mirror the inline records of all sinks twice."""
    for kind in KINDS:
        settings = fitted(kind(), most)
        sizes = parts(settings)
        assert sizes
        whole = {name: size for name, size in sizes.items() if name != "wire.message_bytes_max"}
        assert max(whole.values()) + HEADER_BYTES_MAX <= most, whole
        assert min(whole.values()) > 0
    coordinator = fitted(CoordinatorSettings(), most)
    assigned = coordinator.inline_bytes_max + coordinator.document_bytes_max + coordinator.splits_bytes_max
    assert assigned + HEADER_BYTES_MAX <= most
    assert 2 * fitted(SinkSettings(), most).staging.mirror_inline_bytes_max + HEADER_BYTES_MAX <= most
    runtime = fitted(RuntimeSettings(), most)
    runtime.check()
    assert runtime.wire.message_bytes_max >= most, "no reader would take the largest message"


@given(st.integers(MESSAGE_BYTES_MIN, 4 << 20))
def test_a_gateway_s_record_fits_with_its_key_and_headers(most: int) -> None:
    """Up to the size that a batch may have."""
    assert fitted(GatewaySettings(), most).record_bytes_max + HEADER_BYTES_MAX <= most


@pytest.mark.parametrize("kind", [*KINDS, GatewaySettings])
def test_brokers_as_they_come_need_no_change(kind: type) -> None:
    """The sizes in the code are those for the default record."""
    assert KafkaSettings("k:1").message_bytes_max == MESSAGE_BYTES
    assert fitted(kind(), MESSAGE_BYTES) == kind()


def test_one_setting_raises_all_in_a_process() -> None:
    """From the environment to the bounds that workers and the coordinator are given; sizes of batches stay."""
    kafka = '{"message_bytes_max": 2000000}'
    settings = read_settings({"TIDEMARK_KAFKA": "k:1", "TIDEMARK_PLACE": "p-0", "TIDEMARK_KAFKA_CONFIG": kafka})
    usual = RuntimeSettings()
    assert settings.runtime.acknowledgement_bytes_max > 2 * usual.acknowledgement_bytes_max
    assert settings.runtime.inline_bytes_max == usual.inline_bytes_max
    assert coordinator_settings(settings).document_bytes_max > 2 * CoordinatorSettings().document_bytes_max
