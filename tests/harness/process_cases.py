"""Cases for `tidemark process --cases`, and how a result is compared with what its case expects.

`tests/golden/process/README.md` has the form. Run as a program it judges a file of results:
`python -m tests.harness.process_cases CASES.jsonl RESULTS.jsonl`.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from tidemark.shared.language.values import from_json, is_number
from tidemark.shared.model.values import Date

CASES: Final = Path(__file__).resolve().parents[1] / "golden" / "process" / "cases.jsonl"
_METADATA: Final = ("_stream_meta", "_ts")
"""Fields that an output may carry and a case need not speak of."""
_SETS: Final = "missedWindowStartTimes"


def read_lines(path: Path = CASES) -> list[dict[str, Any]]:
    """Cases or results, one a line."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]


def has_window(case: dict[str, Any]) -> bool:
    """Whether a window of the case is to be merged and finished by the engine."""
    return "error" not in case and any(key.endswith("Window") for stage in case["pipeline"] for key in stage)


def difference(case: dict[str, Any], result: dict[str, Any]) -> str | None:
    """What is not as the case expects, in words; None if nothing is."""
    error = result["error"]
    if "error" in case:
        lacking = [word for word in case["error"]["contains"] if word.lower() not in (error or "").lower()]
        return f"expected an error with {lacking}, found {error!r}" if lacking or error is None else None
    if error is not None:
        return f"failed: {error}"
    if result["engine"] == "spark" and has_window(case) and result["output"] and not result["spark_jobs"]:
        return "the window never ran on Spark"
    named = {key for document in case["expected"] for key in document}
    output = [{k: v for k, v in d.items() if k not in _METADATA or k in named} for d in result["output"]]
    unordered = frozenset(case.get("unordered", ()))
    wanted, got = _values(case["expected"]), _values(output)
    if case["order"] == "exact":
        fits = len(wanted) == len(got) and all(same(w, g, unordered) for w, g in zip(wanted, got, strict=True))
        return None if fits else f"expected in this order {case['expected']}, found {output}"
    left = unpaired(wanted, got, lambda w, g: same(w, g, unordered))
    if left is not None:
        return f"missing {[case['expected'][i] for i in left[0]]}, not expected {[output[i] for i in left[1]]}"
    letters = unpaired(_values(case["dlq"]), _values(result["dlq"]), includes) if "dlq" in case else None
    if letters is not None:
        return f"dead letters: missing {letters[0]} of {case['dlq']}, not expected {letters[1]} of {result['dlq']}"
    return None


def _values(documents: Sequence[Any]) -> list[Any]:
    return [from_json(document) for document in documents]


def same(wanted: Any, got: Any, unordered: frozenset[str] = frozenset(), path: str = "") -> bool:
    """Equal: numbers as numbers, a double within 1e-9; arrays in order, but as multisets at the paths `unordered`."""
    if is_number(wanted) and is_number(got):
        return _same_number(wanted, got)
    if isinstance(wanted, Date) != isinstance(got, Date):
        return False
    if isinstance(wanted, dict) and isinstance(got, dict):
        inside = f"{path}." if path else ""
        return wanted.keys() == got.keys() and all(same(wanted[k], got[k], unordered, inside + k) for k in wanted)
    if isinstance(wanted, list) and isinstance(got, list):
        if path in unordered:
            return unpaired(wanted, got, lambda w, g: same(w, g, unordered, f"{path}[]")) is None
        return len(wanted) == len(got) and all(same(w, g, unordered, path) for w, g in zip(wanted, got, strict=True))
    return type(wanted) is type(got) and bool(wanted == got)


def _same_number(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, float) or isinstance(got, float):
        a, b = float(wanted), float(got)
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    a_nan, b_nan = (isinstance(v, Decimal) and v.is_nan() for v in (wanted, got))
    return a_nan == b_nan and (a_nan or Decimal(wanted) == Decimal(got))


def includes(wanted: Any, got: Any, key: str = "") -> bool:
    """Every field that is wanted is there and fits; others may be, too."""
    if isinstance(wanted, dict):
        return isinstance(got, dict) and all(k in got and includes(wanted[k], got[k], k) for k in wanted)
    if isinstance(wanted, list) and isinstance(got, list):
        if key == _SETS:
            return unpaired(wanted, got, same) is None
        return len(wanted) == len(got) and all(includes(w, g) for w, g in zip(wanted, got, strict=True))
    return same(wanted, got)


def unpaired(
    wanted: Sequence[Any], got: Sequence[Any], fits: Callable[[Any, Any], bool]
) -> tuple[list[int], list[int]] | None:
    """None if both fit one to one; else the places on either side that are left over. Finds a pairing if there is one."""
    owner: dict[int, int] = {}

    def place(i: int, tried: set[int]) -> bool:
        for j, other in enumerate(got):
            if j not in tried and fits(wanted[i], other):
                tried.add(j)
                if j not in owner or place(owner[j], tried):
                    owner[j] = i
                    return True
        return False

    missing = [i for i in range(len(wanted)) if not place(i, set())]
    extra = [j for j in range(len(got)) if j not in owner]
    return (missing, extra) if missing or extra else None


def main(cases: Path, results: Path) -> int:
    """Print what differs; 1 if anything does."""
    found = {result["id"]: result for result in read_lines(results)}
    wrong = 0
    for case in read_lines(cases):
        result = found.get(case["id"])
        what = "no result" if result is None else difference(case, result)
        if what is not None:
            wrong += 1
            sys.stdout.write(f"{case['id']}: {what}\n")
    sys.stdout.write(f"{len(found) - wrong} of {len(found)} cases as expected\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
