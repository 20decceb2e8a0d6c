"""The outcome of an audit: it always ends with a verdict, and with the report of that verdict.

Rule: exit code 1 means that data is wrong, and nothing else. An error that keeps the audit from judging makes
the verdict INCONCLUSIVE, with the remedy and the traceback. The report is started before the first scan, so that a
killed audit leaves no older verdict behind.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kafka_eos._util.printable_text import as_message
from kafka_eos.audit.checks.verdict import Conclusion, Observations, Verdict, judge
from kafka_eos.audit.report.report_files import Context, write
from kafka_eos.core.errors import Bug, KafkaEosError

_BEGUN = judge(Observations(obstacles=["this audit was interrupted: run it again"]))
_LONGEST = 400
_RAISED = re.compile(
    r"^\s*(Caused by: )?((?:[\w$]+\.)*[A-Z]\w*(?:Error|Exception|Record|Lost|Failed|Checkpoint)): (.+)", re.M
)
"""A line of a Java or Python traceback that names what was raised."""
_ADVICE = (
    (r"ModuleNotFoundError: No module named '(pyspark|pyarrow|pandas|jinja2)",
     "install what the audit needs: pip install 'kafka-eos[audit]'"),
    (r"No space left on device|Disk quota exceeded", "free some space, or set SPARK_LOCAL_DIRS to a larger disk"),
    (r"OutOfMemoryError|Cannot allocate memory|MemoryError",
     "give it more memory (PYSPARK_SUBMIT_ARGS='--driver-memory 8g pyspark-shell')"),
    (r"OffsetOutOfRange|OFFSET_OUT_OF_RANGE|Some data may have been lost|data loss",
     "records were deleted while they were read: audit again, or lengthen the topic's retention"),
    (r"EnvironmentFailed",
     "a system that the pipeline's functions or codecs need is unavailable: audit again when it is back"),
    (r"PoisonRecord", "the pipeline's own functions failed: audit with the code that made the output"),
    (r"kafka[\w.$]*TimeoutException|Cannot fetch record|DisconnectException|Failed to create new Kafka|No resolvable",
     "the brokers stopped responding: check that they run, then audit again"),
    (r"Cannot run program",
     "set PYSPARK_PYTHON to a Python that exists on every executor, of the same version as here"),
    (r"Py4JNetworkError|Answer from Java side is empty|Connection refused|Java gateway process",
     "Spark's Java process ended: look for the cause in the system's log (out of memory?), then audit again"),
)  # fmt: skip


class ReportWriter:
    """Writes the report of an audit, even after an error.

    ``context`` has the other facts of the report, as far as they are known.
    """

    def __init__(self, directory: Path | None, context: Context) -> None:
        self._directory, self.context = directory, context

    def of(self, judged: Callable[[], Verdict]) -> Verdict:
        """Return the verdict of ``judged``, or INCONCLUSIVE if it raises, and write the report."""
        try:
            self._write(_BEGUN)
        except Exception as error:  # noqa: BLE001 - told, with its traceback
            return self._unwritten(replace(_BEGUN, reasons=()), error)
        try:
            verdict = judged()
        except Exception as error:  # noqa: BLE001 - kept in the verdict, with its traceback
            verdict = _unable(error)
        return self._kept(verdict)

    def without_verdict(self, error: BaseException) -> Verdict:
        """Report INCONCLUSIVE for an error before the audit could judge anything."""
        return self._kept(_unable(error))

    def _kept(self, verdict: Verdict) -> Verdict:
        try:
            self._write(verdict)
        except Exception as error:  # noqa: BLE001 - kept in the verdict, with its traceback
            return self._unwritten(verdict, error)
        return verdict

    def _unwritten(self, verdict: Verdict, error: Exception) -> Verdict:
        """Turn a PASS into INCONCLUSIVE because its report could not be written; findings stay. The traceback goes to
        stderr.
        """
        conclusion = Conclusion.FAIL if verdict.conclusion is Conclusion.FAIL else Conclusion.INCONCLUSIVE
        traceback_text = _format_traceback(error)
        advice = _advice(traceback_text) or "choose another --report-dir"
        reasons = (*verdict.reasons, f"the report cannot be written to {self._directory}: {_said(error)}; {advice}")
        verdict = replace(verdict, conclusion=conclusion, reasons=reasons, traceback=verdict.traceback + traceback_text)
        print(as_message(verdict.traceback), file=sys.stderr)
        return verdict

    def _write(self, verdict: Verdict) -> None:
        if self._directory is not None:
            write(self._directory, verdict, self.context)


def _unable(error: BaseException) -> Verdict:
    traceback_text = _format_traceback(error)
    return replace(judge(Observations(obstacles=[_explained(error, traceback_text)])), traceback=traceback_text)


def _format_traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _advice(traceback_text: str) -> str | None:
    return next((advice for pattern, advice in _ADVICE if re.search(pattern, traceback_text)), None)


def _explained(error: BaseException, traceback_text: str) -> str:
    """Return the cause and what to do about it, in a sentence or two."""
    if isinstance(error, KafkaEosError) and not isinstance(error, Bug):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "the audit was interrupted: run it again"
    advice = (
        _advice(traceback_text) or "the report has the traceback; if the machine is not at fault, please report this"
    )
    return f"the audit failed: {_said(error)}; {advice}"


def _said(error: BaseException) -> str:
    """Return the innermost error, on one line: a Java or Python traceback may be in the message."""
    raised = list(_RAISED.finditer(str(error)))
    causes = [found for found in raised if found[1]] or raised
    if causes:
        text = f"{causes[-1][2].rpartition('.')[2]}: {causes[-1][3]}"
    else:
        text = next(iter(f"{type(error).__name__}: {error}".splitlines()))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
