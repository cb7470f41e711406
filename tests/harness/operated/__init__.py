"""A seeded walk of an operator's acts over one installation that stays, while records flow; an oracle of its own knows the outputs.

`python -m tests.harness.operated SEED COUNT [ACTS]` walks COUNT seeds from SEED on, each on an installation of its own: `tidemark up`,
real processes, and a second control service. Acts go through the command line, REST of either service and the messages' client; a share
of them is wrong on purpose. Every answer is judged: in time, with the right status, by place and finding, without a trace; and what one
service says is done, the look behind it sees at either. At the end each processor drains, and what its topics have is what the oracle
computes from the records that were sent: each once in every life of a job. A life begins with a start without state, or from a kept
checkpoint (`backwards.py`): what had come out up to that one counts, what came out behind it may come out once more.
Between two parts of a walk the installation ends and begins again, sometimes from a backup in an empty folder. Users' rights change in a
file (`people.py`) and at a provider at which they log in; a namespace lives at the edge of its quotas (`namespaces.py`).
"""
