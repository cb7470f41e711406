"""What users meet: loading by name, configuration, state types, and what the errors say."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from tidemark.shared.computation import (
    Computation,
    ComputationError,
    ConfigError,
    NoConfig,
    Record,
    StateError,
    TimerError,
    Timers,
    load_computation,
    make_computation,
)
from tidemark.shared.computation.problems import ClassError
from tidemark.shared.computation.state import StateCodec
from tidemark.shared.model.values import Date, Document

HERE = "tidemark.shared.computation.base"


@dataclass(frozen=True)
class Limits:
    least: int
    factor: float = 1.5


@dataclass
class Rich:
    at: Date = Date(0)  # noqa: RUF009 - an int
    names: set[str] = field(default_factory=set)
    by_slot: dict[int, list[float]] = field(default_factory=dict)


class Configured(Computation[Rich, Limits]):
    State = Rich
    Config = Limits

    def process(self, record: Record, state: Rich, timers: Timers) -> Iterator[Document]:
        yield {"least": self.config.least}


class Idle(Computation[Rich, Limits]):
    State = Rich


class Columns(Idle):
    batch_schema = pa.schema([("v", pa.int64())])

    def process(self, record: Record, state: Rich, timers: Timers) -> Iterator[Document]:
        raise AssertionError("batches come")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere", "no package that is installed here has it"),
        ("no.such.module:X", "cannot be imported"),
        (f"{HERE}:Missing", "nothing of that name"),
        (f"{HERE}:NoState", "no Computation"),
    ],
)
def test_a_class_that_cannot_be_loaded_is_named(path: str, says: str) -> None:
    """The error quotes the path of the document, what was expected and what was found."""
    with pytest.raises(ComputationError, match=says):
        load_computation(path)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Idle, "Idle: expected a class with the method process, found none"),
        (Columns, "Columns: expected a class with the method process_batch, for it has a batch_schema, found none"),
    ],
)
def test_a_class_without_its_method_is_refused_before_it_runs(kind: type[Computation[Any, Any]], says: str) -> None:
    """Each record would become a dead letter."""
    with pytest.raises(ClassError, match=says):
        make_computation(kind)


def test_config_is_checked_against_its_type() -> None:
    """A missing, unknown or mistyped field is an error that names it; defaults fill in."""
    assert make_computation(Configured, {"least": 3}).config == Limits(3, 1.5)
    for config, says in (
        ({}, "least"),
        ({"least": "x"}, r"\$\.least"),
        ({"least": 1, "most": 2}, "config.most is not known"),
    ):
        with pytest.raises(ConfigError, match=says):
            make_computation(Configured, config)


def test_state_comes_back_as_it_was_with_the_same_bytes() -> None:
    """Dates, sets and maps come back equal and typed, and the order of insertion does not show in the bytes."""
    codec = StateCodec(make_computation(Configured, {"least": 1}))
    one = Rich(Date(7), {"b", "a"}, {2: [1.0], 1: [2.5]})
    two = Rich(Date(7), {"a", "b"}, {1: [2.5], 2: [1.0]})
    assert codec.encode(one) == codec.encode(two)
    back = codec.decode(codec.encode(one))
    assert back == one
    assert type(back.at) is Date


def test_state_that_does_not_fit_is_refused() -> None:
    """State that needs arguments, or holds what has no encoding, is refused when it is made or met, not in a snapshot."""

    @dataclass
    class Needs:
        x: int

    class Bad(Computation[Needs, NoConfig]):
        State = Needs

        def process(self, record: Record, state: Needs, timers: Timers) -> None:
            """Nothing comes this far."""

    with pytest.raises(StateError, match="does not serve as state"):
        make_computation(Bad)
    with pytest.raises(StateError, match="has no encoding"):
        StateCodec(make_computation(Configured, {"least": 1})).encode(Rich(by_slot={1: [object()]}))  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("", 1), "name"),
        (("t", 1.5), "integer"),
        (("t", True), "integer"),
        (("t", 2**70), "integer"),
        (("t", 1, "wall"), "domain"),
    ],
)
def test_a_timer_that_makes_no_sense_is_refused(arguments: tuple[Any, ...], says: str) -> None:
    """Name, time and domain are checked when a timer is set."""
    with pytest.raises(TimerError, match=says):
        Timers().set(*arguments)


def test_pending_timers_are_bounded() -> None:
    """A key cannot have more than so many timers; replacing one is still possible."""
    timers = Timers()
    for i in range(10_000):
        timers.set(f"t{i}", i)
    timers.set("t5", 7)
    assert timers.time_of("t5") == 7
    with pytest.raises(TimerError, match="10000 timers already"):
        timers.set("more", 1)
