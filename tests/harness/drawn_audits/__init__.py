"""`make audits`: jobs drawn at random, in one process and on virtual time, audited as they ended and again behind each of some forgeries.

Drawn are the stages (windows of all kinds, two of them behind each other, computations, joins, unions, lookups), lateness, allowed
lateness, output times, queues of dead letters and none, idle partitions, ids, numbers of tasks, partitions that are added, failures,
restarts, targets, and the records, of which many come late. No audit may accuse a job. A forgery is what a wrong job would have left: a
result that is lost, doubled, altered, or somebody else's; a dead letter that is altered or lost; a row of a table; a source's record that
was counted as another one. An audit has to name it, or to have said that it does not check there. What is not checked is counted by cause.
"""
