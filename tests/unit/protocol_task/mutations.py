"""Ways to take a rule out of the task machine: each must make one of its rule's tests fail."""

from tests.unit.protocol_task.mutations_checkpoints import CHECKPOINTS
from tests.unit.protocol_task.mutations_frames import FRAMES
from tests.unit.protocol_task.mutations_pace import PACE
from tests.unit.protocol_task.mutations_time import TIME

MUTATIONS = (*FRAMES, *CHECKPOINTS, *PACE, *TIME)
