"""The stages, one module each; here are the names that others use. `table.py` has all stages by their operators."""

from typing import TypeAlias

from tidemark.shared.language.stages.add_fields import AddFields
from tidemark.shared.language.stages.base import Connection, Gathering, InnerStage, Stage, Stateless
from tidemark.shared.language.stages.compute import Compute
from tidemark.shared.language.stages.count import Count
from tidemark.shared.language.stages.group import Group, GroupField
from tidemark.shared.language.stages.https import Https, HttpsEmit, RequestStage
from tidemark.shared.language.stages.join import Join
from tidemark.shared.language.stages.limit import Limit
from tidemark.shared.language.stages.lookup import CachedLookup, InlineTable, Lookup, PluginTable, TableRef
from tidemark.shared.language.stages.match import Match
from tidemark.shared.language.stages.project import Project
from tidemark.shared.language.stages.redact import Redact
from tidemark.shared.language.stages.replace_root import ReplaceRoot
from tidemark.shared.language.stages.set_stream_meta import SetStreamMeta
from tidemark.shared.language.stages.sinks.base import DateFormat, OutputFormat
from tidemark.shared.language.stages.sinks.files import EmitFormat, FileEmit
from tidemark.shared.language.stages.sinks.kafka import Compression, KafkaEmit
from tidemark.shared.language.stages.sinks.merge import Merge, WhenMatched, WhenNotMatched
from tidemark.shared.language.stages.sinks.plugin import PluginEmit
from tidemark.shared.language.stages.sort import Sort
from tidemark.shared.language.stages.sources.base import (
    BoundedDisorder,
    MaxSeen,
    Percentile,
    Perfect,
    PositionHorizon,
    SourceBase,
    TimeHorizon,
    Watermark,
)
from tidemark.shared.language.stages.sources.changes import ChangesSource
from tidemark.shared.language.stages.sources.changestream import ChangeStreamSource
from tidemark.shared.language.stages.sources.documents import DocumentsSource
from tidemark.shared.language.stages.sources.files import FileFormat, FileSource
from tidemark.shared.language.stages.sources.kafka import KafkaSource, KeyFormat, StartAt, StartAtOffsets, StartAtTime
from tidemark.shared.language.stages.sources.plugin import PluginSource
from tidemark.shared.language.stages.sources.sample import SAMPLE_CONNECTION, SampleSource
from tidemark.shared.language.stages.sources.schedule import ScheduleSource
from tidemark.shared.language.stages.sources.script import ScriptSource
from tidemark.shared.language.stages.trees import Branch, Computed, Drop, Keep, Leaf
from tidemark.shared.language.stages.union import Union
from tidemark.shared.language.stages.unset import Unset
from tidemark.shared.language.stages.unwind import Unwind
from tidemark.shared.language.stages.validate import Validate
from tidemark.shared.language.stages.windows import (
    DEFAULT_LATENESS_MS,
    Boundary,
    HoppingWindow,
    OutputTime,
    SessionWindow,
    TumblingWindow,
    Window,
    WindowBase,
)

Source: TypeAlias = (
    KafkaSource
    | FileSource
    | ChangesSource
    | ChangeStreamSource
    | SampleSource
    | ScheduleSource
    | DocumentsSource
    | ScriptSource
    | PluginSource
)
Sink: TypeAlias = KafkaEmit | FileEmit | Merge | HttpsEmit | PluginEmit
"""`KafkaEmit`, `FileEmit` and, into a collection, `Merge` are all written `$emit`."""

__all__ = [  # noqa: RUF022 - as a text
    "AddFields", "Boundary", "BoundedDisorder", "Branch", "CachedLookup", "ChangeStreamSource", "ChangesSource", "Compression",
    "Compute", "Computed", "Connection", "Count", "DEFAULT_LATENESS_MS", "DateFormat", "DocumentsSource", "Drop", "EmitFormat",
    "FileEmit", "FileFormat", "FileSource", "Gathering", "Group", "GroupField", "HoppingWindow", "Https", "HttpsEmit", "InlineTable",
    "InnerStage", "Join", "KafkaEmit", "KafkaSource", "Keep", "KeyFormat", "Leaf", "Limit", "Lookup", "Match", "MaxSeen", "Merge",
    "OutputFormat", "OutputTime", "Percentile", "Perfect", "PluginEmit", "PluginSource", "PluginTable", "PositionHorizon", "Project",
    "Redact", "ReplaceRoot", "RequestStage", "SAMPLE_CONNECTION", "SampleSource", "ScheduleSource", "ScriptSource", "SessionWindow",
    "SetStreamMeta", "Sink", "Sort", "Source", "SourceBase", "Stage", "StartAt", "StartAtOffsets", "StartAtTime", "Stateless",
    "TableRef", "TimeHorizon", "TumblingWindow", "Union", "Unset", "Unwind", "Validate", "Watermark", "WhenMatched", "WhenNotMatched",
    "Window", "WindowBase",
]  # fmt: skip
