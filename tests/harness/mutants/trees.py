"""Mutants that look for what they change in the syntax tree: small slips that tests of the machines alone let pass."""

from tests.harness.mutants.tree import TreeMutant

PROCESSOR = "shared/protocol/coordinator/processor.py"
WORKER, DRIVER, MIRROR = "shared/runtime/worker.py", "shared/runtime/driver.py", "shared/runtime/mirror.py"
SINK, SOURCE, SPARK = "services/sink/body.py", "services/source/body.py", "services/spark/body.py"
KAFKA, FOLDER = "services/sink/connectors/kafka.py", "services/sink/connectors/destination.py"
ON_FILES, ON_KAFKA = (
    ("tests/contract/test_sinks_files.py", "tests/contract/test_sinks_contract.py"),
    ("tests/contract/test_sinks_kafka.py",),
)

TREES = (
    TreeMutant(
        "R2", "reports of an older generation are heeded", PROCESSOR, "ProcessorMachine.task_report",
        find="p.run is None or report.generation != p.row.generation",
        becomes="p.run is None",
        tests=("tests/unit/test_protocol_coordinator_generations.py",),
    ),
    TreeMutant(
        "C11", "a release is reported before it happens", SINK, "SinkBody._release",
        find="skipped = await any_attempt",
        becomes="self._context.released(identity.index, row.epoch)\nskipped = await any_attempt",
        tests=("tests/unit/test_sink_tasks.py",),
    ),
    TreeMutant(
        "C9", "a mirror row that is repeated during a release is queued again", "shared/protocol/release.py", "ReleaseMachine.mirrored",
        find="row.epoch <= max(self.marker, self.seen)",
        becomes="row.epoch <= self.marker",
        tests=("tests/unit/protocol_task/test_task_restore.py", "tests/unit/test_sink_tasks.py"),
    ),
    TreeMutant(
        "C8", "undecided requests are deleted", "shared/runtime/undecided.py", "Undecided.let_go",
        find="min(self._offsets.values(), default=self._read)",
        becomes="self._read",
        tests=("tests/unit/test_runtime_undecided.py",),
    ),
    TreeMutant(
        "R2", "a start that was overtaken goes on", WORKER, "Worker._start_task",
        find="if self._tasks.get(key) is not hosted:\n    ...",
        becomes="",
        tests=("tests/unit/test_runtime_worker.py",),
    ),
    TreeMutant(
        "R2", "what starts a task goes on when the task is closed", WORKER, "Worker._close_task",
        find="if hosted.starting is not None:\n    ...",
        becomes="",
        tests=("tests/unit/test_runtime_worker.py",),
    ),
    TreeMutant(
        "C4", "records fetched before a seek are kept", DRIVER, "TaskDriver._seek",
        find="self._frames = any_filtered",
        becomes="",
        tests=("tests/unit/test_runtime_driver.py",),
    ),
    TreeMutant(
        "C4", "records that a fetch brings behind a seek are kept", DRIVER, "TaskDriver._read_with",
        find="edge not in self._seeks",
        becomes="True",
        tests=("tests/unit/test_runtime_driver.py",),
    ),
    TreeMutant(
        "C9", "a broken mirror writer is kept", MIRROR, "MirrorWriter.append",
        find="await self.close()",
        becomes="pass",
        tests=("tests/unit/test_runtime_mirror.py",),
    ),
    TreeMutant(
        "E1", "a split's restored end is forgotten", SOURCE, "SourceTaskBody.open",
        find="positions = any_positions",
        becomes="positions = any_positions\nknown = {s: msgspec.structs.replace(k, end=None) for s, k in known.items()}",
        tests=("tests/contract/test_source_tasks.py",),
    ),
    TreeMutant(
        "C12", "Spark's last step is named for the first epoch", SPARK, "SparkBody.copy",
        find="self._epoch = any_next",
        becomes="",
        tests=("tests/unit/test_spark_tasks.py",),
    ),
    TreeMutant(
        "C10", "a target that is away fails the task", SINK, "SinkBody._patiently",
        find="since_ms = clock.now_ms() if any_test else since_ms",
        becomes="raise error",
        tests=("tests/unit/test_sink_tasks.py",),
    ),
    TreeMutant(
        "S3", "the producer is kept after an error", KAFKA, "KafkaSink._on_target",
        find="await self._throw_away()",
        becomes="pass",
        tests=ON_KAFKA,
    ),
    TreeMutant(
        "S4", "what exists is overwritten", FOLDER, "LocalDestination.create",
        find="link_file",
        becomes="_replace",
        tests=ON_FILES,
    ),
    TreeMutant(
        "S4", "files appear before they are whole", FOLDER, "LocalDestination._publish",
        find="temporary = any_name",
        becomes="temporary = final.parent / f'{final.name}.{next(self._temporaries)}'",
        tests=ON_FILES,
    ),
    TreeMutant(
        "S4", "a manifest of another history is accepted", "services/sink/connectors/manifests.py", "ManifestStore.publish",
        find="raise any_refusal",
        becomes="",
        tests=ON_FILES,
    ),
    TreeMutant(
        "P2", "a restore looks at no segment", SPARK, "SparkBody.open",
        find="await any_context.executor.blocking(step.check, self._state.segments)",
        becomes="pass",
        tests=("tests/unit/test_spark_tasks.py",),
    ),
)  # fmt: skip
"""Each with the tests that notice it."""
