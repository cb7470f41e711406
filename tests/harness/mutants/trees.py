"""Mutants that look for what they change in the syntax tree: small slips that tests of the machines alone let pass."""

from tests.harness.mutants.model import Mutant

PROCESSOR = "shared/protocol/coordinator/processor.py"
WORKER, FRAMES_IN, MIRROR = "shared/runtime/worker.py", "shared/runtime/intake.py", "shared/runtime/mirror.py"
SINK, SOURCE, SPARK = "services/sink/body.py", "services/source/body.py", "services/spark/body.py"
KAFKA, FOLDER = "services/sink/connectors/kafka.py", "services/sink/connectors/destination.py"
ON_FILES, ON_KAFKA = (
    ("tests/contract/test_sinks_files.py", "tests/contract/test_sinks_contract.py"),
    ("tests/contract/test_sinks_kafka.py",),
)

TREES = (
    Mutant(
        "R2", "reports of an older generation are heeded", PROCESSOR,
        where="ProcessorMachine.task_report",
        old="p.run is None or report.generation != p.row.generation",
        new="p.run is None",
        tests=("tests/unit/test_protocol_coordinator_generations.py",),
    ),
    Mutant(
        "C11", "a release is reported before it happens", SINK,
        where="SinkBody._release",
        old="skipped = await any_attempt",
        new="self._context.released(identity.index, row.epoch)\nskipped = await any_attempt",
        tests=("tests/unit/test_sink_tasks.py",),
    ),
    Mutant(
        "C9", "a mirror row that is repeated during a release is queued again", "shared/protocol/release.py",
        where="ReleaseMachine.mirrored",
        old="row.epoch <= max(self.marker, self.seen)",
        new="row.epoch <= self.marker",
        tests=("tests/unit/protocol_task/test_task_restore.py", "tests/unit/test_sink_tasks.py"),
    ),
    Mutant(
        "C8", "undecided requests are deleted", "shared/runtime/upkeep.py",
        where="Undecided.let_go",
        old="min(self._offsets.values(), default=self._read)",
        new="self._read",
        tests=("tests/unit/test_runtime_undecided.py",),
    ),
    Mutant(
        "R2", "a start that was overtaken goes on", WORKER,
        where="Worker._start_task",
        old="if self._tasks.get(key) is not hosted:\n    ...",
        new="",
        tests=("tests/unit/test_runtime_worker.py",),
    ),
    Mutant(
        "R2", "what starts a task goes on when the task is closed", WORKER,
        where="Worker._close_task",
        old="if hosted.starting is not None:\n    ...",
        new="",
        tests=("tests/unit/test_runtime_worker.py",),
    ),
    Mutant(
        "C4", "records fetched before a seek are kept", FRAMES_IN,
        where="FrameIntake.seek",
        old="self._frames = any_filtered",
        new="",
        tests=("tests/unit/test_runtime_driver.py",),
    ),
    Mutant(
        "C4", "records that a fetch brings behind a seek are kept", FRAMES_IN,
        where="FrameIntake._read",
        old="edge not in self._seeks",
        new="True",
        tests=("tests/unit/test_runtime_driver.py",),
    ),
    Mutant(
        "C9", "a broken mirror writer is kept", MIRROR,
        where="MirrorWriter.append",
        old="await self.close()",
        new="pass",
        tests=("tests/unit/test_runtime_mirror.py",),
    ),
    Mutant(
        "E1", "a split's restored end is forgotten", SOURCE,
        where="SourceTaskBody._restore",
        old="await self._source.check(known)",
        new="await self._source.check(known)\nknown = {s: msgspec.structs.replace(k, end=None) for s, k in known.items()}",
        tests=("tests/contract/test_source_tasks.py",),
    ),
    Mutant(
        "C12", "Spark's last step is named for the first epoch", SPARK,
        where="SparkBody.copy",
        old="self._epoch = any_next",
        new="",
        tests=("tests/unit/test_spark_tasks.py",),
    ),
    Mutant(
        "C10", "a target that is away fails the task", SINK,
        where="SinkBody._patiently",
        old="away(error, error.kind)",
        new="raise error",
        tests=("tests/unit/test_sink_tasks.py",),
    ),
    Mutant(
        "S3", "the producer is kept after an error", KAFKA,
        where="MarkedParts._on_target",
        old="await self._throw_away()",
        new="pass",
        tests=ON_KAFKA,
    ),
    Mutant(
        "S4", "what exists is overwritten", FOLDER,
        where="LocalDestination.create",
        old="link_file",
        new="_replace",
        tests=ON_FILES,
    ),
    Mutant(
        "S4", "files appear before they are whole", FOLDER,
        where="LocalDestination._publish",
        old="temporary = any_name",
        new="temporary = final.parent / f'{final.name}.{next(self._temporaries)}'",
        tests=ON_FILES,
    ),
    Mutant(
        "S4", "a manifest of another history is accepted", "services/sink/connectors/manifests.py",
        where="ManifestStore.publish",
        old="raise any_refusal",
        new="",
        tests=ON_FILES,
    ),
    Mutant(
        "P2", "a restore looks at no segment", SPARK,
        where="SparkBody.open",
        old="await self._on_spark(lambda: step.check(self._state.segments))",
        new="pass",
        tests=("tests/unit/test_spark_tasks.py",),
    ),
)  # fmt: skip
"""Each with the tests that notice it."""
