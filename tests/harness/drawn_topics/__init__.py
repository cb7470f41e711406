"""What people and retention do to topics, drawn at random, under jobs of a real installation while records flow.

Sources' topics get partitions, lose records in front of or behind the job's position, are deleted, made anew under their name with fewer
or more partitions and records, are given other settings, and have transactions that stay open, are aborted, or are of a producer that
was fenced. Topics of outputs and of dead letters get partitions, smaller limits, other writers; they are deleted, and made anew; so are
the topics of release markers and of edges, and commits. Meanwhile processes are killed, and the job is stopped, rescaled and drained.

What must hold: of the records that lie in the topics each is in the output once, or a dead letter; or the processor is FAILED and its
reason names topic and cause, and then nothing is there twice. An audit finds no discrepancy that nobody has made, and says of what is gone
that it is gone.

`python -m tests.harness.drawn_topics [SEED] [STORIES] [AT ONCE] [ACT]`; ACT: each story has this one.
"""
