"""How programs begin, where in them Tidemark is called, and what they have set before: the parts of `hosts.py`."""

import zipapp
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Setting:
    """What a program sets for all that runs in it."""

    text: str = ""
    """The statements."""
    flags: Sequence[str] = ()
    """Of the interpreter."""
    variables: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    """Of two settings of one kind, a draw has one."""


def _archived(folder: Path) -> list[str]:
    whole = folder / "whole"
    whole.mkdir()
    for name, source in (("__main__.py", "program.py"), ("journey.py", "journey.py")):
        (whole / name).write_bytes((folder / source).read_bytes())
    zipapp.create_archive(whole, folder / "program.pyz")
    return ["program.pyz"]


STARTS: Final[Mapping[str, Callable[[Path], list[str]]]] = {
    "a script": lambda _: ["program.py"],
    "a module": lambda _: ["-m", "program"],
    "a text of the command line": lambda folder: ["-c", (folder / "program.py").read_text(encoding="utf-8")],
    "standard input": lambda _: ["-"],
    "an archive": _archived,
}
PLACES: Final[Mapping[str, str]] = {
    "here": """import journey
journey.journey()
""",
    "a thread": """import journey
t = threading.Thread(target=journey.journey)
t.start()
t.join()
""",
    "a thread of a small stack": """import journey
threading.stack_size(256 << 10)
t = threading.Thread(target=journey.journey)
t.start()
t.join()
""",
    "a daemon thread": """import journey
t = threading.Thread(target=journey.journey, daemon=True)
t.start()
t.join()
""",
    "a running loop": """import asyncio, journey
async def main():
    journey.journey()
with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
    runner.run(main())
""",
    "a running loop in debug mode": """import asyncio, journey
async def main():
    await asyncio.to_thread(journey.journey)
with asyncio.Runner(debug=True, loop_factory=asyncio.SelectorEventLoop) as runner:
    runner.run(main())
""",
    "a thread of a loop": """import asyncio, journey
async def main():
    await asyncio.to_thread(journey.journey)
with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
    runner.run(main())
""",
    "two threads at once": """import journey
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    other = pool.submit(journey.look)
    journey.journey.__globals__['state'] = dict
    pool.submit(journey.journey).result()
    other.result()
""",
    "after a fork": """import journey
journey.look()
pid = os.fork()
if not pid:
    try:
        journey.journey()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
    "a pool of processes": """if __name__ == '__main__':
    import journey
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(1) as pool:
        pool.submit(journey.journey).result()
""",
    **{
        f"a child process ({how})": f"""if __name__ == '__main__':
    import journey, multiprocessing
    child = multiprocessing.get_context('{how}').Process(target=journey.journey)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""
        for how in ("spawn", "fork", "forkserver")
    },
}
SETTINGS: Final[Mapping[str, Setting]] = {
    "decimals of six digits": Setting(
        """import decimal
for context in (decimal.getcontext(), decimal.DefaultContext):
    context.prec = 6
""",
        kind="decimal",
    ),
    "decimals that round down": Setting(
        """import decimal
for context in (decimal.getcontext(), decimal.DefaultContext):
    context.prec, context.rounding = 9, decimal.ROUND_DOWN
""",
        kind="decimal",
    ),
    "decimals with all traps": Setting(
        """import decimal
for context in (decimal.getcontext(), decimal.DefaultContext):
    context.traps = dict.fromkeys(context.traps, True)
""",
        kind="decimal",
    ),
    "decimals without traps": Setting(
        """import decimal
for context in (decimal.getcontext(), decimal.DefaultContext):
    context.traps = dict.fromkeys(context.traps, False)
""",
        kind="decimal",
    ),
    "small exponents of decimals": Setting(
        """import decimal
for context in (decimal.getcontext(), decimal.DefaultContext):
    context.Emax, context.Emin = 2, -2
""",
        kind="decimal",
    ),
    "numpy raises": Setting(
        """import numpy
numpy.seterr(all='raise')
""",
        kind="numpy",
    ),
    "numpy is short": Setting("""import numpy
numpy.set_printoptions(precision=1, threshold=1, legacy='1.13')
"""),
    "pandas has other options": Setting("""import pandas
pandas.options.mode.copy_on_write = True
pandas.options.future.infer_string = True
pandas.options.mode.string_storage = 'python'
pandas.options.display.precision = 1
"""),
    "Arrow has other memory": Setting("""import pyarrow
pyarrow.set_memory_pool(pyarrow.system_memory_pool())
pyarrow.set_cpu_count(1)
"""),
    "a far zone": Setting(
        """import time
os.environ['TZ'] = 'Asia/Kathmandu'
time.tzset()
""",
        kind="zone",
    ),
    "the user's locale": Setting(
        """import locale
locale.setlocale(locale.LC_ALL, '')
""",
        variables={"LC_ALL": "C.UTF-8"},
    ),
    "warnings are errors": Setting(flags=("-W", "error"), kind="warnings"),
    "warnings are errors from here on": Setting(
        """import warnings
warnings.simplefilter('error')
""",
        kind="warnings",
    ),
    "developer's mode": Setting(flags=("-X", "dev"), kind="warnings"),
    "bytes are no text": Setting(flags=("-bb",)),
    "documentation dropped": Setting(flags=("-OO",)),
    "a low recursion limit": Setting("sys.setrecursionlimit(400)", kind="recursion"),
    "a high recursion limit": Setting("sys.setrecursionlimit(1_000_000)", kind="recursion"),
    "no collector": Setting(
        """import gc
gc.disable()
gc.freeze()
""",
        kind="collector",
    ),
    "a busy collector": Setting(
        """import gc
gc.set_threshold(50, 2, 2)
""",
        kind="collector",
    ),
    "no standard output": Setting("sys.stdout = sys.stderr = sys.stdin = None", kind="streams"),
    "streams of its own": Setting(
        """class Stream:
    def write(self, text):
        return len(text)
    def flush(self):  # without it Python itself ends with a status
        pass
sys.stdout = sys.stderr = Stream()
""",
        kind="streams",
    ),
    "closed streams": Setting(
        """sys.stdout.close()
sys.stderr.close()
""",
        kind="streams",
    ),
    "closed descriptors": Setting(
        """os.closerange(0, 3)
sys.stdin = sys.stdout = sys.stderr = None
""",
        kind="streams",
    ),
    "hooks that fail": Setting("""def hook(*told):
    import traceback
    with open(FOLDER + '/hooked', 'a') as said:
        said.write(repr(told) + ''.join(traceback.format_tb(told[2] if len(told) > 2 else told[0].exc_traceback)))
    os._exit(77)
sys.excepthook = threading.excepthook = sys.unraisablehook = hook
"""),
    "faults are told": Setting("""import faulthandler
faults = open(FOLDER + '/faults', 'w')
faulthandler.enable(faults)
faulthandler.dump_traceback_later(1000, file=faults)
"""),
    "handlers of signals": Setting(
        """import signal
for s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    if s < 32:
        signal.signal(s, lambda number, frame: None)
""",
        kind="signals",
    ),
    "children are not waited for": Setting(
        """import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
""",
        kind="signals",
    ),
    "an alarm that rings": Setting(
        """import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
import atexit
atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
""",
        kind="alarm",
    ),
    "logging of its own": Setting("""import logging, logging.config
class Fails(logging.Handler):
    def emit(self, record):
        with open(FOLDER + '/hooked', 'a') as said:
            said.write(record.name + record.getMessage() + logging.Formatter().format(record))
        os._exit(78)
logging.config.dictConfig({'version': 1, 'disable_existing_loggers': True, 'root': {'level': 'WARNING'}})
logging.root.addHandler(Fails())
"""),
    "logging of everything": Setting("""import logging
logging.basicConfig(level=0, filename=FOLDER + '/log')
"""),
    "all is traced": Setting("""import threading
trace = lambda *_: None
sys.settrace(trace)
threading.settrace(trace)
sys.setprofile(trace)
"""),
    "threads take turns": Setting("sys.setswitchinterval(1e-5)"),
    "sockets that hurry": Setting("""import socket
socket.setdefaulttimeout(0.01)
"""),
    "no environment": Setting(
        """asked = os.environ['HOST_ASKED']
os.environ.clear()
os.environ['HOST_ASKED'] = asked
""",
        kind="zone",
    ),
    "a folder that is gone": Setting("""gone = FOLDER + '/gone'
os.mkdir(gone)
os.chdir(gone)
os.rmdir(gone)
sys.path[0] = FOLDER
"""),
    "a policy of its own": Setting(
        """import asyncio
class Policy(asyncio.DefaultEventLoopPolicy):
    def get_event_loop(self):
        raise RuntimeError('no loop')
asyncio.set_event_loop_policy(Policy())
""",
        kind="loops",
    ),
    "a closed loop": Setting(
        """import asyncio
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
loop.close()
""",
        kind="loops",
    ),
    "loops that fail on tasks of others": Setting(
        """import asyncio
class Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        raise RuntimeError('this program makes its loops itself')
asyncio.set_event_loop_policy(Policy())
""",
        kind="loops",
    ),
    "short numbers": Setting("sys.set_int_max_str_digits(640)"),
    "other YAML": Setting("""import yaml
for loader in (yaml.SafeLoader, getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):
    yaml.add_constructor('tag:yaml.org,2002:str', lambda *_: 'mine', Loader=loader)
    yaml.add_implicit_resolver('!mine', __import__('re').compile('.*'), None, Loader=loader)
"""),
    "other JSON": Setting("""import json
json.JSONEncoder.default = lambda self, value: 'mine'
json._default_encoder = json.JSONEncoder(indent=4)
"""),
    "seeds": Setting("""import random
random.seed(1)
import numpy
numpy.random.seed(1)
"""),
    "structlog of its own": Setting("""import structlog
def fails(*_):
    raise structlog.DropEvent
structlog.configure(processors=[fails], logger_factory=structlog.ReturnLoggerFactory())
"""),
    "spawns": Setting("""import multiprocessing
multiprocessing.set_start_method('spawn', force=True)
"""),
    "files for nobody": Setting("os.umask(0o777)", kind="umask"),
    "temporary files elsewhere": Setting("""import tempfile
tempfile.tempdir = FOLDER + '/small'
os.mkdir(tempfile.tempdir)
"""),
}
