"""Two versions of the installation: each service is replaced by the other version's while events flow, one after the other, there and back.

What a user does who has a checkout of each version: in that of the version that is wanted, `docker compose up --detach --no-deps SERVICE`.
"""

from pathlib import Path
from typing import Final

from tidemark.deploy.verification import story
from tidemark.deploy.verification.installation import JOB, SERVICES, STORES, ComposeProject, ensure

_AUDIT_S: Final = 1_800.0
"""How long an audit of the year may take, on a machine that does other work."""


def tell(before: ComposeProject, after: ComposeProject, result: Path) -> None:
    """All of it. Wrong, CommandFailed. Both are the same compose project, of two versions."""
    story.build(before)
    story.build(after)
    with story.taken_down(after, result):
        story.begin(before)
        change(after, "upgrade")
        change(before, "rollback")
        change(after, "upgrade again", each=False)
        story.finish(after)
        story.compare(after, result)
        audit(after)


def change(to: ComposeProject, what: str, *, each: bool = True) -> None:
    """Each service is this version's then; the job goes on after each, or after all. The versions run beside each other meanwhile."""
    for service in story.ONE_BY_ONE:
        to.ensure_fed()
        to.replace(service)
        to.until_healthy((service,))
        for container in to.containers(service):
            image = to.inspect(container)["Config"]["Image"]
            ensure(service == "postgres" or image == to.image(service), f"{service}: it is {image} still")
        if each:
            to.until_goes_on(f"{what}: the job goes on after {service} was replaced")
    to.until_healthy((*STORES, *SERVICES))
    to.until_goes_on(f"{what}: the job goes on, all services replaced")


def audit(installation: ComposeProject) -> None:
    """`tidemark audit` computes all again from the source topic, and finds the same in the outputs."""
    told = installation.cli("audit", JOB, told=True, timeout_s=_AUDIT_S)
    installation.shell.record.say(f"audit: {' '.join(told.split())}")
