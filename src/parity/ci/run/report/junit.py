"""JUnit XML of a shard: one suite, one case per test file, as CI services read it.

An assertion that failed is a `failure`; what the machine did is an `error`; what wasn't meant to
run is `skipped` with its reason. A pass after a retry carries the first result as `flakyError`.
"""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from parity.ci.run.result import Attempt, FileResult, Outcome, ShardResult

_FAILURES = (Outcome.FAIL, Outcome.GATE)
_SHOWN_CHARACTERS = 16_000
_ILLEGAL = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def write(shard: ShardResult, path: Path) -> None:
    """Write the file."""
    cases = [_case(file) for file in shard.files]
    cases += [_skipped(s.registration.path, s.reason.text) for s in shard.skipped]
    if (why := shard.trouble or shard.empty_problem) is not None:
        case = ET.Element("testcase", classname="parity.ci", name="the shard itself", time="0")
        ET.SubElement(case, "error", message=_legal(why), type="shard")
        cases.append(case)
    counts = {
        "tests": len(cases),
        "failures": sum(case.find("failure") is not None for case in cases),
        "errors": sum(case.find("error") is not None for case in cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
    }
    time_s = sum(file.time_s for file in shard.files)
    attributes = {**{key: str(value) for key, value in counts.items()}, "time": f"{time_s:.3f}"}
    name = f"{shard.suite} {shard.shard + 1}/{shard.num_shards}"
    root = ET.Element("testsuites", attributes)
    suite = ET.SubElement(root, "testsuite", {"name": name, **attributes})
    suite.extend(cases)
    ET.indent(root)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _case(file: FileResult) -> ET.Element:
    case = ET.Element(
        "testcase", classname=_classname(file.path), name=file.path, time=f"{file.time_s:.3f}"
    )
    last = file.attempts[-1] if file.attempts else None
    if file.outcome is Outcome.SKIPPED:
        ET.SubElement(case, "skipped", message=_legal(file.reason))
    elif file.outcome is not Outcome.PASS:
        kind = "failure" if file.outcome in _FAILURES else "error"
        node = ET.SubElement(case, kind, message=_legal(file.reason), type=file.outcome.value)
        node.text = _end(last)
    for attempt in file.attempts[:-1]:
        name = "flakyError" if file.is_flaky else "rerunError"
        node = ET.SubElement(case, name, message=_legal(attempt.reason), type=attempt.outcome.value)
        node.text = _end(attempt)
    if last is not None:
        ET.SubElement(case, "system-out").text = _end(last)
    return case


def _skipped(path: str, reason: str) -> ET.Element:
    case = ET.Element("testcase", classname=_classname(path), name=path, time="0")
    ET.SubElement(case, "skipped", message=_legal(reason))
    return case


def _classname(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _end(attempt: Attempt | None) -> str:
    return _legal(attempt.tail[-_SHOWN_CHARACTERS:]) if attempt else ""


def _legal(text: str) -> str:
    """Without what XML can't hold, such as the escape of terminal colors."""
    return _ILLEGAL.sub("", text)
