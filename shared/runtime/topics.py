"""Names of Tidemark's own topics, all below one prefix so that installations can share a cluster."""

from dataclasses import dataclass

from shared.model.ids import EdgeId, Incarnation, JobId


@dataclass(frozen=True, slots=True)
class Topics:
    """Names by prefix. None of these topics has time or size retention (C12)."""

    prefix: str = "tidemark"

    @property
    def commands(self) -> str:
        """Coordinator to workers; one partition."""
        return f"{self.prefix}.commands"

    @property
    def reports(self) -> str:
        """Workers and users to the coordinator; one partition."""
        return f"{self.prefix}.reports"

    @property
    def registry(self) -> str:
        """Processors and their statuses, compacted, by name."""
        return f"{self.prefix}.registry"

    @property
    def flow(self) -> str:
        """Receivers' read positions to senders (F7); one partition."""
        return f"{self.prefix}.flow"

    def commits(self, job: JobId) -> str:
        """The mirror of a job's commits (C9); one partition."""
        return f"{self.prefix}.{job}.commits"

    def edge(self, job: JobId, edge: EdgeId, incarnation: Incarnation) -> str:
        """One life of an edge; as many partitions as the receiving vertex has tasks."""
        plain = "".join(c if c.isalnum() or c in "._-" else "_" for c in edge)
        return f"{self.prefix}.{job}.{plain}.{incarnation[:8]}"
