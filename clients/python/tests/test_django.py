"""The backend of Django's tasks against a real server."""

import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

django = pytest.importorskip("django")
try:
    import django.tasks as tasks
except ImportError:
    tasks = pytest.importorskip("django_tasks")

from django.conf import settings  # noqa: E402

from duewheel import Client  # noqa: E402
from running import LEASE, LONGER, Server, until  # noqa: E402

HERE = Path(__file__).resolve().parent

if not settings.configured:
    settings.configure(USE_TZ=True, INSTALLED_APPS=["duewheel.django"], DATABASES={}, TASKS={})
    django.setup()

from django.utils import timezone  # noqa: E402


def options(server):
    return {"default": {"BACKEND": "duewheel.django.DuewheelBackend", "QUEUES": ["default", "mail"],
                        "OPTIONS": {"url": server.url, "prefix": "shop.", "lease": LEASE}}}


@pytest.fixture
def server(tmp_path):
    one = Server(tmp_path)
    yield one
    one.stop()


@pytest.fixture
def backend(server):
    from django.test.utils import override_settings

    with override_settings(TASKS=options(server)):
        import shop_tasks

        shop_tasks.ran.clear()
        yield tasks.task_backends["default"]


class Working:
    def __init__(self, backend):
        self.worker = backend.worker(jobs=4, name="w")
        self.thread = threading.Thread(target=self.worker.run)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.worker.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_states_and_results(backend, server):
    import shop_tasks as shop

    status = tasks.TaskResultStatus
    client = Client(server.url)
    result = shop.close.enqueue(7)
    assert result.status == status.READY and shop.close.get_result(result.id).status == status.READY
    failing = shop.broken.enqueue(order=8)
    later = shop.close.using(run_after=timezone.now() + timedelta(hours=48)).enqueue(9)
    assert client.get(later.id).state == "scheduled" and later.enqueued_at is not None
    running = shop.slow.enqueue(LONGER)
    with Working(backend):
        until(lambda: shop.slow.get_result(running.id).status == status.RUNNING)
        until(lambda: shop.close.get_result(result.id).is_finished)
        until(lambda: shop.broken.get_result(failing.id).is_finished)
        until(lambda: shop.slow.get_result(running.id).is_finished)
        client.fire(later.id)
        until(lambda: shop.close.get_result(later.id).status == status.SUCCESSFUL)
    result.refresh()
    assert result.status == status.SUCCESSFUL and result.return_value == {"closed": 7} and result.attempts == 1
    assert result.enqueued_at <= result.finished_at and result.args == [7]
    assert client.get(result.id).raw["result"] == {"closed": 7}
    failing.refresh()
    assert failing.status == status.FAILED and failing.errors[0].exception_class is LookupError
    assert failing.errors[0].traceback == "no order 8 in attempt 1" and failing.last_attempted_at <= failing.finished_at
    dead = client.get(failing.id)
    assert dead.state == "dead" and dead.raw["history"][-1]["note"] == "builtins.LookupError: no order 8 in attempt 1"
    gone = shop.close.using(run_after=timezone.now() + timedelta(hours=48)).enqueue(10)
    client.cancel(gone.id)
    with pytest.raises(Exception, match=gone.id):
        gone.refresh()
    # Longer than its lease: it ran once.
    assert shop.ran.count(("slow", True)) == 1
    for id in ("4711", "no-number"):
        with pytest.raises(Exception) as caught:
            backend.get_result(id)
        assert type(caught.value).__name__ == "TaskResultDoesNotExist"


def test_never_early_priorities_and_coroutines(backend, server):
    import shop_tasks as shop

    due = time.time() + 1
    shop.close.using(run_after=timezone.now() + timedelta(seconds=1)).enqueue("later", due)
    shop.close.using(priority=-100).enqueue("low")
    shop.close.using(priority=100, queue_name="mail").enqueue("high")
    shop.coroutine.enqueue("coroutine")
    worker = backend.worker(jobs=1, name="w")
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: len(shop.ran) == 4)
    worker.stop()
    thread.join(60)
    assert shop.ran == [("high", True), ("coroutine", True), ("low", True), ("later", True)]


def test_a_value_that_is_too_large_is_not_kept_and_the_task_does_not_run_again(backend, server):
    import shop_tasks as shop

    client = Client(server.url)
    results = [shop.large.enqueue("x", 400_000), shop.large.enqueue("x" * 150_000, 1)]
    with Working(backend):
        until(lambda: client.queue("shop.default")["totals"]["acked"] == 2)
    assert shop.ran.count(("large", True)) == 2
    for result in results:
        result.refresh()
        assert result.status == tasks.TaskResultStatus.SUCCESSFUL and result.return_value is None
    assert results[1].args == ["x" * 150_000, 1]


def test_a_value_that_is_no_json_fails_once(backend, server):
    import shop_tasks as shop

    client = Client(server.url)
    result = shop.ratio.enqueue()
    with Working(backend):
        until(lambda: client.queue("shop.default")["counts"]["dead"] == 1)
    result.refresh()
    assert result.status == tasks.TaskResultStatus.FAILED and shop.ran == [("ratio", True)]


def test_mistakes(backend, server):
    import shop_tasks as shop

    from duewheel.django import DuewheelBackend

    with pytest.raises(ValueError, match="'prefx' is no option"):
        DuewheelBackend("default", {"OPTIONS": {"prefx": "a"}})
    with pytest.raises(Exception, match="not valid for backend"):
        shop.close.using(queue_name="nowhere")
    Client(server.url).enqueue("shop.default", json={"task": "os.getcwd", "args": [], "kwargs": {}, "takes_context": False,
                                                       "enqueued_at": "2026-01-01T00:00:00+00:00"})
    with Working(backend):
        until(lambda: Client(server.url).queue("shop.default")["counts"]["dead"] == 1)


def test_results_end(duewheel_server):
    from django.test.utils import override_settings

    client = duewheel_server.client
    client.config("shop.mail", keep_done="2h")
    wanted = options(duewheel_server)
    wanted["default"]["OPTIONS"]["keep_results"] = "1h"
    with override_settings(TASKS=wanted):
        import shop_tasks as shop

        result = shop.close.enqueue(7)
        with Working(tasks.task_backends["default"]):
            until(lambda: shop.close.get_result(result.id).is_finished)
        assert shop.close.get_result(result.id).return_value == {"closed": 7}
        assert [client.config(it)["config"]["keep_done_ms"] for it in ("shop.default", "shop.mail")] == [3_600_000, 7_200_000]
        duewheel_server.advance("1h")
        with pytest.raises(Exception, match=result.id):
            result.refresh()


def test_the_command(server, tmp_path):
    (tmp_path / "manage.py").write_text(textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(HERE.parent / "src")!r}, {str(HERE)!r}]
        from django.conf import settings
        settings.configure(USE_TZ=True, INSTALLED_APPS=["duewheel.django"], DATABASES={{}}, TASKS={options(server)!r})
        from django.core.management import execute_from_command_line
        execute_from_command_line(sys.argv)
    """))
    process = subprocess.Popen([sys.executable, "manage.py", "duewheel_worker", "--jobs", "2"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "working on default, mail\n"
    content = {"task": "shop_tasks.close", "args": [1], "kwargs": {}, "takes_context": False, "enqueued_at": "2026-01-01T00:00:00+00:00"}
    client = Client(server.url)
    made = client.enqueue("shop.mail", json=content, headers={"task": "x"})
    until(lambda: client.queue("shop.mail")["totals"]["acked"] == 1)
    assert client.get(made.id).result == {"closed": 1}
    process.terminate()
    assert process.wait(60) == 0
