"""The report as JUnit XML, which CI systems read: one test case per check, and one for the verdict.

Rule: a case fails only for wrong data. What was not checked or not compared is skipped, and no verdict is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from xml.etree import ElementTree as ET

from kafka_eos.audit.checks.verdict import Violation

_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters of records that no XML document may contain."""
_OUTCOMES: Final = {"FAIL": "failure", "INCONCLUSIVE": "error", "PARTIAL": "skipped"}


def as_junit(content: Mapping[str, Any]) -> str:
    """Return the XML for ``content``, the result of ``as_json``."""
    name = f"kafka-eos audit {content['job']}"
    suite = ET.Element(
        "testsuite", name=_printable(name), timestamp=content["audited_at"], time=str(content["seconds"])
    )
    _add_case(suite, name, "verdict", _OUTCOMES.get(content["verdict"]), "; ".join(content["reasons"]))
    for check in content["checks"]:
        if check["status"] == "skipped":
            _add_case(suite, name, check["check"], "skipped", check["reason"])
        elif check["status"] == "found":
            examples = (str(Violation(**example)) for example in check["first"])
            _add_case(suite, name, check["check"], "failure", f"{check['count']} found", "\n".join(examples))
        else:
            _add_case(suite, name, check["check"], None, "")
    suite.set("tests", str(len(suite)))
    for total, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(total, str(len(suite.findall(f"testcase/{outcome}"))))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ET.Element, classname: str, name: str, outcome: str | None, message: str, text: str = "") -> None:
    case = ET.SubElement(suite, "testcase", classname=_printable(classname), name=name)
    if outcome is not None:
        ET.SubElement(case, outcome, message=_printable(message)).text = _printable(text)


def _printable(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
