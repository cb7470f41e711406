"""Clusters of three brokers, and what happens to such a cluster while a job of a real installation works on it.

Brokers are killed, stopped, paused, wiped, moved to other addresses and cut off from their clients: a partition's leader, the controller,
the coordinator of transactions, one after the other or two of three; leaders are elected anew, replicas move, a broker is taken out of use.
The user's topics lie there, and in half of the stories the installation's own.

What must hold: once the cluster can, the job goes on by itself; each record is in the output once, and the audit accuses nothing.

`python -m tests.harness.brokers [SEED] [STORIES] [ACT]`; ACT: each story begins with this one.
"""
