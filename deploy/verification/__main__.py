"""`python -m tidemark.deploy.verification`: does the compose installation keep its promises? Everything is really run; 0 if all of it held.

1. build every image from the commit's files; print their digests;
2. up: the job runs; containers are confined as the file says; each service tells liveness, readiness and metrics;
3. scale: source 2, operator 3, sink 2, each with tasks of the job; Prometheus of the profile `monitoring` reads them all;
4. kill while events flow: each service, Kafka and PostgreSQL by `docker kill`, and a process from outside, which the engine starts again;
5. stop: SIGTERM to each service; it ends with status 0 within its grace period;
6. down and up: the job goes on from where it was;
7. drain, collect: counts, late flights and alerts are the oracle's.

With --upgrade-from COMMIT it tells the other story (`upgrade.py`): that version runs the job, each service is replaced by HEAD's, one
after the other, then by the older one's again, and by HEAD's; the result is compared with the oracle and by `tidemark audit`.

With --cluster KUBECONFIG it tells a third one (`cluster.py`), of the chart on a cluster that exists: installed with --values, scaled, its
pods deleted and evicted, upgraded from the first of --tags to the second and rolled back. No engine is needed, but helm and kubectl.

The year is fed all the while. Root, Debian's docker.io, docker-compose and debootstrap are needed where no engine runs; a network only to
fetch packages.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Final

from tidemark.deploy.verification import cluster, story, upgrade
from tidemark.deploy.verification.context import ROOT, make_context
from tidemark.deploy.verification.engine import own_engine
from tidemark.deploy.verification.installation import ComposeProject, Wrong
from tidemark.deploy.verification.shell import CommandFailed, RunLog, Shell
from tidemark.deploy.verification.standins import make_standins

_PROJECT: Final = "tidemark-verification"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tidemark.deploy.verification", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--work", type=Path, default=ROOT / "out" / "verification", help="what is fetched and found")
    parser.add_argument("--compose", default="docker-compose", help="the command: 'docker-compose' or 'docker compose'")
    parser.add_argument(
        "--seconds",
        type=int,
        default=3600,
        help="how long the year may be fed: longer than the steps take; its rest is fed faster",
    )
    parser.add_argument(
        "--upgrade-from", metavar="COMMIT", help="the other story: from this version to HEAD's, and back"
    )
    parser.add_argument("--cluster", metavar="KUBECONFIG", type=Path, help="another story: the chart on this cluster")
    parser.add_argument("--values", type=Path, help="of the chart: where this cluster has Kafka, the store, volumes")
    parser.add_argument("--tags", nargs=2, default=("before", "local"), help="of the images that this cluster has")
    parser.add_argument("--broker", default="", metavar="NAMESPACE/STATEFULSET", help="its Kafka, to be taken away")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    record = RunLog(work / f"log-{time.strftime('%Y%m%d-%H%M%S')}.txt")
    try:
        if options.cluster:
            shell = Shell(record, work, {"KUBECONFIG": str(options.cluster.resolve())})
            release = cluster.Release(shell, options.values.resolve(), work)
            cluster.tell(release, (options.tags[0], options.tags[1]), work / "result", options.seconds, options.broker)
        else:
            _by_compose(options, record, work)
    except (Wrong, CommandFailed) as error:
        record.say(f"WRONG: {error}")
        return 1
    record.say("all of it held")
    return 0


def _by_compose(options: argparse.Namespace, record: RunLog, work: Path) -> None:
    """The stories of the compose installation, in an engine of their own. Wrong, CommandFailed."""
    with own_engine(record, work / "engine") as address:
        shell = Shell(record, work, {"DOCKER_HOST": address})
        images = make_standins(shell, work / "roots")
        settings = {
            "DOCKER_HOST": address,
            "COMPOSE_PROJECT_NAME": _PROJECT,
            "PIP_NO_INDEX": "1",
            "TIDEMARK_FEED_SECONDS": str(options.seconds),
            **images,
        }

        def installation(version: str, commit: str) -> ComposeProject:
            context = make_context(shell, work / f"context-{version}", work / "cache", commit)
            environment = {**settings, "TIDEMARK_VERSION": version}
            return ComposeProject(Shell(record, context, environment), options.compose.split())

        after = installation("local", "HEAD")
        if options.upgrade_from:
            upgrade.tell(installation("before", options.upgrade_from), after, work / "result")
        else:
            story.tell(after, work / "result")


if __name__ == "__main__":
    sys.exit(main())
