"""What a processor's state must be by the acts that were done, and which outcome of an act each state allows."""

from dataclasses import dataclass
from typing import Final, Literal

Goal = Literal["absent", "idle", "up", "stopping", "draining"]
IDLE: Final = frozenset({"CREATED", "STOPPED", "FINISHED"})
ACTIVE: Final = frozenset({"STARTING", "RUNNING", "STOPPING", "DRAINING"})
DONE: Final = frozenset({"done"})
ABSENT: Final = frozenset({"absent"})
NO: Final = frozenset({"refused", "invalid"})
EITHER: Final = DONE | NO


@dataclass(slots=True)
class Model:
    """One processor."""

    goal: Goal = "absent"
    base: str = "CREATED"
    """Its state, where it is idle."""
    settled: bool = True
    fresh: bool = False
    """The next start is one without state."""
    drains: bool = False
    """A drain was ordered, and a start takes it up again."""
    back: bool = False
    """It is to go back to a kept checkpoint, and has not been seen to run since."""
    began: bool = False
    """It has been started since it was created, or since its last life was closed."""

    def states(self) -> frozenset[str]:
        """Those that may be told now. DRAINING is told as RUNNING or STOPPING."""
        match self.goal:
            case "absent":
                return frozenset({"ABSENT"})
            case "idle":
                return frozenset({self.base})
            case "up":
                return frozenset({"STARTING", "RUNNING"})
            case "stopping":
                return frozenset({"STARTING", "RUNNING", "STOPPING", "STOPPED", *(["FINISHED"] if self.drains else [])})
            case "draining":
                return frozenset({"STARTING", "RUNNING", "STOPPING", "DRAINING", "FINISHED"})

    def allows(self, act: str) -> frozenset[str]:
        """The outcomes that an act may have now."""
        found: frozenset[str] = frozenset()
        for state in self.states():
            found |= self._of(act, state)
        return found

    def _of(self, act: str, state: str) -> frozenset[str]:
        if state == "ABSENT":
            return DONE if act == "create" else ABSENT
        active = state in ACTIVE
        draining = self.goal == "draining" and active
        ended = state == "FINISHED" and not self.fresh
        match act:
            case "create" | "skip":
                return NO
            case "start":
                return NO if draining or ended else EITHER if self.goal == "stopping" and self.drains else DONE
            case "modify" | "rescale" | "modify-anew" if self.back:
                return EITHER
            case "start-anew" | "modify-anew" | "drop":
                return NO if active else DONE
            case "stop":
                return DONE
            case "drain":
                return NO if state in ("CREATED", "STOPPED") else DONE
            case "modify" | "rescale":
                return NO if draining or ended else EITHER if self.goal == "stopping" and self.drains else DONE
            case "sample":
                return DONE if state == "RUNNING" and self.settled else EITHER if active else NO
            case _:
                return DONE

    def did(self, act: str) -> None:
        """An act was done."""
        self.back = act == "back" or (self.back and act not in ("create", "start-anew", "drop"))
        match act:
            case "create":
                self.goal, self.base, self.settled, self.fresh, self.drains, self.began = (
                    "idle",
                    "CREATED",
                    True,
                    False,
                    False,
                    False,
                )
            case "start" | "start-anew":
                if self.goal == "up":
                    return
                anew = act == "start-anew" or self.fresh
                self.drains = self.drains and not anew
                self.goal, self.settled, self.began, self.fresh = (
                    "draining" if self.drains else "up",
                    False,
                    True,
                    False,
                )
            case "back":
                self.goal, self.settled, self.fresh, self.drains = "up", False, False, False
            case "stop" if self.goal in ("up", "draining"):
                self.goal, self.settled = "stopping", False
            case "drain" if self.goal in ("up", "stopping", "draining"):
                self.goal, self.settled, self.drains = "draining", False, True
            case "modify-anew":
                self.fresh = True
            case "drop":
                self.goal, self.settled = "absent", True
            case _:
                pass

    def shown(self, state: str) -> bool:
        """Take a state that was told; whether it is the end of what goes on."""
        match self.goal, state:
            case "up", "RUNNING":
                self.settled, self.back = True, False
            case "stopping", "STOPPED" | "FINISHED":
                self.goal, self.base, self.settled = "idle", state, True
            case "draining", "FINISHED":
                self.goal, self.base, self.settled, self.drains = "idle", state, True, False
            case "absent" | "idle", _:
                return True
            case _:
                return False
        return True
