"""An installation in one thread: processes that come and go, what they share, who feeds and who asks."""

import asyncio
import contextvars
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from tests.harness.sealing import sealed
from tests.harness.simulation.checks import Checks, ToldBroker
from tests.harness.simulation.copies import Copies
from tests.harness.simulation.drawing import FOLDER, LETTERS, NAME, OUTPUT, Scenario
from tests.harness.simulation.faults import CALM, Book, Weather
from tests.harness.simulation.ports import WatchedState
from tests.harness.simulation.process import SimProcess
from tests.harness.simulation.results import Outcome, documents, letter_of, lines, row_of
from tests.harness.simulation.tables import Folder
from tests.harness.simulation.targets import Targets
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualClock
from tidemark.shared.model.messages import Request
from tidemark.shared.ports.commits import StoreLost
from tidemark.shared.ports.log import LogError, NewRecord, TopicPartition
from tidemark.shared.runtime.client import Client, RequestRefused, RequestTimeout
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics

READY_MS = 60_000
TRANSACTION_TIMEOUT_MS = 5_000
ASK_TIMEOUT_MS = 10_000


class SimWorld:
    """See the module. Its own steps belong to no process: feeding, asking and looking go on whatever happens."""

    def __init__(self, scenario: Scenario, book: Book, targets: Targets, weather: Weather) -> None:
        self.scenario = scenario
        self.book = book
        self.targets = targets
        self.weather = weather
        self.clock = VirtualClock()
        self.watcher = Checks(self)
        self.broker = ToldBroker(self.clock, TRANSACTION_TIMEOUT_MS)
        self.broker.appended = self.watcher.appended
        self.broker.visible = self.watcher.visible
        self.store = WatchedState(self.watcher)
        self.copies = Copies(self)
        self.objects: dict[str, bytes] = {}
        self.processes: dict[str, SimProcess] = {}
        self._graveyard: list[SimProcess] = []
        self.trace: list[str] = []
        self.deaths = 0
        self.remade: dict[TopicPartition, int] = {}
        """Partitions of a source's topic that was deleted and made anew, with the records that the old one had."""
        self.feeding = asyncio.Lock()
        self.restart_ms: Callable[[], int] = lambda: 300
        self.skew_ms: Callable[[], int] = lambda: 0
        self._numbers = itertools.count(1)
        self._starts = itertools.count(1)
        self._beside: dict[asyncio.Task[None], None] = {}
        settings = RuntimeSettings(engine="local", fetch_timeout_ms=500)
        self.client = Client(sealed(MemoryLog(self.broker)), Topics(), self.clock, self.unique, settings)

    def unique(self) -> str:
        """A name that nothing else has."""
        return f"{next(self._numbers):032x}"

    def now_ms(self) -> int:
        """Virtual time from the begin."""
        return self.clock.monotonic_ms()

    def say(self, what: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{self.now_ms():>7} {what}")

    # --- processes --------------------------------------------------------------------------------------------------------

    def places(self) -> list[str]:
        """Of all processes."""
        workers = [f"{s}-{n}" for s, count in self.scenario.workers.items() for n in range(count)]
        return [*(f"coordinator-{n}" for n in range(self.scenario.coordinators)), *workers]

    def start(self, place: str) -> None:
        """A new process there."""
        process = SimProcess(self, place, next(self._starts), self.weather, self.skew_ms())
        self.processes[place] = process
        process.start(self._ended)
        self.say(f"{place} starts")

    def _ended(self, process: SimProcess, error: BaseException | None) -> None:
        """By itself: as a supervisor, begin another."""
        self.say(f"{process.place} ends by itself: {error!r}")
        for log in process.logs:
            log.perish(arrives=True)
        process.life.die()
        self._graveyard.append(process)
        if isinstance(error, StoreLost):
            self.copies.put_other_back()
        self.beside(self._restart(process.place, 300))

    def died(self, process: SimProcess, how: str) -> None:
        """It was killed; another one comes."""
        self.deaths += 1
        self._graveyard.append(process)
        self.say(f"{process.place} dies {how}")
        self.beside(self._restart(process.place, self.restart_ms()))

    async def _restart(self, place: str, wait_ms: int) -> None:
        await self.clock.sleep_ms(wait_ms)
        if self.processes[place].dead:
            self.start(place)

    def alive(self) -> list[SimProcess]:
        """Those that have not died."""
        return [process for process in self.processes.values() if not process.dead]

    def stands_still(self) -> list[str]:
        """Places whose processes are frozen."""
        return [place for place, process in self.processes.items() if process.life.frozen and not process.dead]

    def beside(self, work: Awaitable[None]) -> None:
        """Do something beside, for no process."""

        async def run() -> None:
            await work

        # The world's own, whichever process' step has asked for it.
        task = asyncio.get_running_loop().create_task(run(), context=contextvars.Context())
        self._beside[task] = None
        task.add_done_callback(self._over)

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._beside.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self.watcher.breach(f"the story broke: {task.exception()!r}")

    # --- the story's parts --------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Topics of others, the table; and every process."""
        for topic, partitions in self.scenario.topics().items():
            self.broker.create_topic(topic, partitions)
        for topic in (OUTPUT, LETTERS):
            self.broker.create_topic(topic, 2)
        for place in self.places():
            self.start(place)

    def lose_topic(self, topic: str) -> dict[int, int]:
        """A source's topic is deleted; how many records each of its partitions had."""
        had = {
            number: int(self.broker.end(TopicPartition(topic, number))) for number in range(self.broker.topics()[topic])
        }
        self.broker.delete_topic(topic)
        self.remade = {TopicPartition(topic, number): count for number, count in had.items()}
        self.say(f"{topic} is deleted")
        return had

    def make_topic_anew(self, topic: str, had: Mapping[int, int]) -> None:
        """A topic of the name, with the records that the old one had."""
        self.broker.create_topic(topic, len(had))
        for number, count in had.items():
            at = TopicPartition(topic, number)
            if count:
                self.broker.append(at, [NewRecord(sent.data) for sent in self.scenario.lanes[at][:count]])
        self.say(f"{topic} is made anew with {dict(had)} records")

    async def feed(self) -> None:
        """Write every record at its time."""
        began_ms = self.now_ms()
        writer = await MemoryLog(self.broker).writer("feeder")
        events = sorted(
            (sent.at_ms, at, number, sent)
            for at, lane in self.scenario.lanes.items()
            for number, sent in enumerate(lane)
        )
        for at_ms, at, _, sent in events:
            await self.clock.sleep_ms(began_ms + at_ms - self.now_ms())
            async with self.feeding:
                if at in self.scenario.come and self.broker.topics()[at.topic] <= at.partition:
                    self.broker.add_partitions(at.topic, at.partition + 1)
                    self.say(f"{at.topic} has {at.partition + 1} partitions")
                await (await writer.send(at, NewRecord(sent.data)))
        await writer.close()
        self.say("all is fed")

    async def ask(self, make: Callable[[str], Request]) -> str:
        """A request by a user; "" or why not."""
        try:
            await self.client.request(make(self.unique()), ASK_TIMEOUT_MS)
        except (RequestRefused, RequestTimeout, LogError) as error:
            self.say(f"refused: {error}")
            return str(error) or type(error).__name__
        return ""

    def state(self) -> str:
        """Of the processor, as the store has it; "" if there is none."""
        row = self.store.rows.get(NAME)
        return "" if row is None else row.state

    def reason(self) -> str:
        """Why the processor is as it is, as the store has it."""
        row = self.store.rows.get(NAME)
        return "" if row is None else row.reason

    def calm(self) -> None:
        """All faults end."""
        self.book.over = True
        self.weather = CALM
        self.skew_ms = lambda: 0
        self.restart_ms = lambda: 300
        for process in self.processes.values():
            process.calm()
        self.say("faults are over")

    # --- what came of it ----------------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """What readers of the targets see."""
        scenario, targets = self.scenario, self.targets
        match scenario.target:
            case "kafka":
                output = [row_of(scenario, document) for document in self._topic(OUTPUT)]
            case "table":
                table = targets.folders[FOLDER]
                assert isinstance(table, Folder)
                output = [row_of(scenario, row) for row in table.rows()]
            case "files":
                output = [row_of(scenario, document) for document in lines(targets.folders.get(FOLDER, {}))]
            case _:
                output = [(k, int(name.rpartition("-")[2]), n, s) for name, k, n, s in targets.rows()]
        letters = self._topic(LETTERS) if scenario.letters == "kafka" else lines(targets.folders.get("letters", {}))
        return Outcome(Counter(output), Counter(letter_of(letter) for letter in letters))

    def _topic(self, topic: str) -> list[dict[str, object]]:
        return [found for _, records in sorted(self.broker.dump(topic).items()) for found in documents(records)]
