"""Pipelines drawn at random, as jobs of a real installation: records of ordinary producers, real processes, drained to their end.

Records come from a topic (of JSON or, by a registry, of several forms), from files that are there or still come, from files first and
a topic then, or from a table and its changes; some come twice, with an id; some meet a second stream. What comes out, into a topic
(some by a schema registry), files, a Delta table, a table of SQL, a collection or requests, must be what the same operators give in
one process without a broker, as often, dead letters included; and the audit agrees. In the middle of their records most jobs are
stopped and started, lose a process, get other numbers of tasks, or stages more that change no row; some lose a process while they
drain.

In the rows of some the moment has a part (windows on processing time, partitions that fall silent, schedules, computations by arrival),
or records come late: `timed` draws these, and `judged` says of their rows what must hold whatever the moment was.

Servers fail, as `servers` says: the schema registry, what `$https` asks and tells, the way to MongoDB. Numbers of tasks may have
bounds, so that they follow the load.

`python -m tests.harness.drawn_jobs [SEED] [JOBS] [AT ONCE] [FOCUS]` prints each job and what differs; its status is 1 if one does.
FOCUS gives each job one thing more than chance does: see `drawing.FOCUSES`.
"""
