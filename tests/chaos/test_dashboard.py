"""The dashboard in a real browser, while the job on the page is killed."""

from __future__ import annotations

import signal
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from kafka_eos.coordination.status_file import STATUS
from kafka_eos.monitoring.dashboard.job_actions import Actions
from kafka_eos.monitoring.dashboard.routes import Pages
from kafka_eos.monitoring.dashboard.server import serve_dashboard
from kafka_eos.monitoring.dashboard.shared_polling import EventStreams
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.savepoint_files import find_damage
from tests.browser import CHROMIUM, Page, browser
from tests.chaos.harness import Job, create_topic, feed
from tests.chaos.running import running, signal_worker
from tests.producers import in_order
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
NewJob = Callable[..., Job]


@pytest.fixture
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page


def shows(page: Page, text: str) -> None:
    eventually(lambda: text in page.text, f"the page shows {text!r}")


def press(page: Page, name: str) -> None:
    page.ask(f"[...document.querySelectorAll('button')].find((each) => each.innerText === {name!r}).click()")


def fits(page: Page) -> bool:
    """Does the page scroll in one direction only?"""
    return bool(page.ask("document.documentElement.scrollWidth <= innerWidth"))


def test_the_page_tells_of_kills_as_they_come_and_the_console_of_nothing(
    new_job: NewJob, page: Page, tmp_path: Path
) -> None:
    job = new_job(1500, "straight.py", KAFKA_EOS_PARALLELISM=2, TEST_PAUSE=0.002)
    with serve_dashboard(("127.0.0.1", 0), Pages(job.checkpoints), "the dashboard") as url:
        with running(job) as run:
            run.until_committed()
            page.open(f"{url}/job/{job.name}")
            shows(page, "▶ running")
            signal_worker(run.worker, signal.SIGKILL)
            shows(page, "restarting from the last checkpoint")
            shows(page, "killed by signal 9")
            shows(page, "recovered in")
            run.send(signal.SIGKILL)
            shows(page, "✕ killed")
        with running(job) as run:
            shows(page, "the supervisor was killed")
            shows(page, "▶ running")
            run.drain()
        shows(page, "■ stopped")
        for width in (1200, 400):
            for dark in (False, True):
                page.open(f"{url}/job/{job.name}", width=width, dark=dark)
                shows(page, "■ stopped")
                assert fits(page), width
        page.open(f"{url}/")
        shows(page, job.name)

    assert page.problems() == []


def test_a_savepoint_is_made_and_saved_and_the_job_stopped_from_the_page(
    new_job: NewJob, page: Page, tmp_path: Path
) -> None:
    job = new_job(500, "straight.py")
    actions = Actions(job.checkpoints)
    with (
        serve_dashboard(("127.0.0.1", 0), Pages(job.checkpoints), "the dashboard", actions.routes()) as url,
        running(job) as run,
    ):
        run.until_committed()
        page.open(f"{url}/job/{job.name}")
        shows(page, "▶ running")
        assert "Stop the job" not in page.text, "without the token there is nothing to ask for"
        page.open(f"{url}/#token={actions.token}")
        shows(page, job.name)
        assert actions.token not in page.ask("location.href")
        page.open(f"{url}/job/{job.name}")
        shows(page, "Create a savepoint")
        press(page, "Create a savepoint")
        shows(page, "Savepoint of epoch")
        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "saved"))
        shows(page, "Download")
        press(page, "Download")
        shows(page, "Downloaded")
        archive = eventually(lambda: next((tmp_path / "saved").glob("*.tar"), None), "the file is saved")
        page.ask("confirm = () => true")
        press(page, "Stop the job")
        shows(page, "■ stopped")
        assert run.ended() == 0

    (made,) = run.events("savepoint")
    assert find_damage(Path(made["path"])) == []
    with tarfile.open(archive) as saved:
        saved.extractall(tmp_path / "unpacked", filter="data")
    assert find_damage(tmp_path / "unpacked" / Path(made["path"]).name) == []
    assert page.problems() == []


def _refuse(job: Job) -> None:
    """Three records that are no payments, by strangers who mean no good, before some payments."""
    producer = in_order(job.bootstrap)
    headers: list[tuple[str, str | bytes | None]] = [("<i>trace</i>", b"\xff\x00"), ("none", None)]
    producer.produce(job.input, SCRIPT.encode(), key=b"<b>key</b>", headers=headers, partition=0)
    producer.produce(job.input, b"\xfe" * 5000, partition=0)
    producer.produce(job.input, None, key="\u202egone".encode(), partition=0)
    assert producer.flush(PATIENCE) == 0
    feed(job.bootstrap, job.input, range(100))


SCRIPT = """<script>document.title = 'taken'</script><img src=x onerror="document.title = 'taken'">{"card": "4711"}"""


def test_what_is_in_a_dead_letter_is_shown_to_who_has_the_token_and_never_as_markup(
    new_job: NewJob, page: Page, tmp_path: Path
) -> None:
    job = new_job(0, "payments.py")
    job.environment["TEST_LETTERS"] = f"{job.name}-letters"
    create_topic(job.bootstrap, f"{job.name}-letters", 1)
    _refuse(job)
    actions = Actions(job.checkpoints)
    with (
        serve_dashboard(("127.0.0.1", 0), Pages(job.checkpoints), "the dashboard", actions.routes()) as url,
        running(job) as run,
    ):
        run.until_all_committed()
        run.drain()
        with pytest.raises(HTTPError, match="403"):
            urlopen(f"{url}/api/jobs/{job.name}/dead-letters")
        page.open(f"{url}/job/{job.name}")
        shows(page, "rejected by")
        assert "4711" not in page.text, "without the token"
        page.open(f"{url}/#token={actions.token}")
        shows(page, job.name)
        for width, dark in ((1200, False), (400, True)):
            page.open(f"{url}/job/{job.name}", width=width, dark=dark)
            shows(page, SCRIPT)
            assert fits(page), width
            shows(page, "<b>key</b>")
            shows(page, "header <i>trace</i>")
            shows(page, "ff 00")
            shows(page, "5 kB, binary: in hex, showing the first 2 kB")
            shows(page, "\\u202egone")
            shows(page, "no value (a tombstone)")
            assert page.ask("document.title") != "taken"
            assert page.ask("document.querySelectorAll('.letters :is(script, img, b, i)').length") == 0

    assert page.problems() == []
    home = job.checkpoints / job.name
    assert stat.S_IMODE((home / paths.DEAD_LETTER_SAMPLES).stat().st_mode) == 0o600
    told = [run.log, (home / STATUS).read_text(), (home / paths.HISTORY).read_text()]
    assert not any("4711" in text for text in told), "what is in a record is in no event"


def test_a_dashboard_that_is_away_is_said_and_found_again(page: Page, tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    with serve_dashboard(("127.0.0.1", 0), pages, "the dashboard") as url:
        page.open(url)
        shows(page, "No job has run")
        shows(page, "live")
    shows(page, "connection lost")
    shows(page, "Not updating: the connection is lost")
    with serve_dashboard(("127.0.0.1", int(url.rpartition(":")[2])), Pages(tmp_path), "the dashboard"):
        eventually(lambda: "connection lost" not in page.text, "the page is connected again")


def test_a_page_that_is_refused_says_why_and_is_live_when_there_is_room(page: Page, tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    pages.streams = EventStreams(pages=1)
    with serve_dashboard(("127.0.0.1", 0), pages, "the dashboard") as url:
        with urlopen(f"{url}/api/events") as other:
            assert other.readline().startswith(b"data: ")
            page.open(url, width=400, dark=True)
            shows(page, "Not updating: 1 dashboard pages are open")
            shows(page, "rejected, retrying")
        shows(page, "No job has run")
        shows(page, "live")
        assert "Not updating" not in page.text
