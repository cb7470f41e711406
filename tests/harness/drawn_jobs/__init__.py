"""Pipelines drawn at random, as jobs of a real installation: records of ordinary producers, real processes, drained to their end.

Records come from a topic, from files that are there or still come, from files first and a topic then, or from a table and its changes;
some come twice, with an id; some meet a second stream. What comes out, into a topic (some by a schema registry), files, a Delta
table, a table of SQL or a collection, must be what the same operators give in one process without a broker, as often, dead letters
included; and the audit agrees. In the middle of their records most jobs are stopped and started, lose a process, get other numbers of
tasks, or stages more that change no row; some lose a process while they drain.

`python -m tests.harness.drawn_jobs [SEED] [JOBS] [AT ONCE]` prints each job and what differs; its status is 1 if one does.
"""
