"""The integration tests of kombu and Celery themselves, on duewheel and on Redis. No test may fail on duewheel that passes
on Redis. Their sources come from PyPI, and nothing of them is kept here.

usage: upstream.py FOLDER [FILE...]    FOLDER has what it installs; FILE is kombu, or a file of Celery's t/integration
       with DUEWHEEL_BIN, and redis-server on the path. The counts and logs are in FOLDER/results.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from running import Server, free_port, until  # noqa: E402

SOURCE = Path(__file__).resolve().parent.parent / "src"
PACKAGES = ["celery==5.7.0", "kombu==5.7.0", "redis==8.1.0", "pytest==9.2.0", "pytest-celery==1.3.0", "pytest-timeout==2.4.0",
            "pytest-rerunfailures==16.7", "pytest-subtests==0.15.0", "pytest-order==1.5.0", "pytest-click==1.1.0",
            "freezegun==1.5.5", "msgpack==1.2.4", "pyyaml==6.0.4", "sqlalchemy==2.1.9", "tblib==3.2.2", "pydantic==2.14.4"]
CONSTRAINTS = Path(__file__).resolve().parent / "constraints.txt"
FILES = ["kombu", "test_tasks", "test_worker", "test_inspect", "test_beat", "test_canvas"]

KOMBU = '''
import os
import kombu, pytest
from t.integration import common

URL = os.environ["TEST_BROKER"]
NOBODY = URL.split("://")[0] + "://localhost:9"

@pytest.fixture
def connection():
    return kombu.Connection(URL)

@pytest.fixture
def invalid_connection():
    return kombu.Connection(NOBODY)

@pytest.fixture
def failover_connection():
    return kombu.Connection([NOBODY, URL], connect_timeout=10)

for name in [it for it in dir(common) if it.startswith("Base") or it == "BasicFunctionality"]:
    globals()["test_" + name] = type("test_" + name, (getattr(common, name),), {})
'''


def install(folder):
    python = folder / "venv/bin/python"
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "-c", CONSTRAINTS, *PACKAGES], check=True)
        sources = folder / "sources"
        shutil.rmtree(sources, ignore_errors=True)
        subprocess.run([*pip, "download", "--no-binary", ":all:", "--no-deps", "--dest", sources, *PACKAGES[:2]], check=True)
        for archive in sources.glob("*.tar.gz"):
            with tarfile.open(archive) as tar:
                # Python 3.11.2, as Debian 12 has it, knows no filters.
                tar.extractall(sources, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        for name in ("celery", "kombu"):
            # Its tests run on what is installed.
            next(sources.glob(f"{name}-*/{name}")).rename(sources / f"{name}.unused")
        site = folder / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text("import duewheel\n")
        (next(sources.glob("kombu-*/t/integration")) / "test_other.py").write_text(KOMBU)
        (folder / "done").touch()
    return python


def outcomes(log):
    """The last outcome of each test."""
    found = {}
    for line in log.read_text(errors="replace").splitlines():
        match = re.match(r"(PASSED|FAILED|ERROR|XFAIL|XPASS) (\S+::[^ ]+(?:\[[^\]]*\])?)", line)
        if match:
            found[match[2]] = match[1] if found.get(match[2]) != "FAILED" else "FAILED"
    return found


def run(python, folder, name, broker, backend, file, tests=()):
    sources = folder / "sources"
    where = next(sources.glob("kombu-*" if file == "kombu" else "celery-*/setup.py"))
    where = where if where.is_dir() else where.parent
    test = "t/integration/test_other.py" if file == "kombu" else f"t/integration/{file}.py"
    log = folder / "results" / f"{file}.{name}.log"
    environment = {**os.environ, "TEST_BROKER": broker, "TEST_BACKEND": f"redis://127.0.0.1:{backend}/0", "REDIS_PORT": str(backend),
                   "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, folder / "site", where)))}
    with open(log, "w") as out:
        # Celery's own bound is 300 s: test_disabling_flag_allow_error_cb_on_chord_header alone waits for 140 s by its plan.
        process = subprocess.Popen([python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--timeout", "300", "-rA", "--tb=short",
                                    "-o", "python_classes=test_*", *(tests or [test])],
                                   cwd=where, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            process.wait(2400)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    return outcomes(log)


def main():
    folder, files = Path(sys.argv[1]).resolve(), sys.argv[2:] or FILES
    folder.mkdir(parents=True, exist_ok=True)
    python = install(folder)
    results = folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir()
    port = free_port()
    redis = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"], stdout=subprocess.DEVNULL, cwd=results)
    server = None
    worse = []
    try:
        until(lambda: subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True).stdout == b"PONG\n", "Redis")
        server = Server(results)
        for file in files:
            ours = run(python, folder, "duewheel", f"duewheel://127.0.0.1:{server.port}/", port, file)
            theirs = run(python, folder, "redis", f"redis://127.0.0.1:{port}/1", port, file)
            line = ", ".join(f"{name} {sum(it == 'PASSED' for it in found.values())} passed {sum(it in ('FAILED', 'ERROR') for it in found.values())} failed"
                             for name, found in (("duewheel", ours), ("redis", theirs)))
            print(f"{file}: {line}", flush=True)
            with open(results / "counts", "a") as counts:
                print(f"{file}: {line}", file=counts)
            if not ours or not theirs:
                worse.append(f"{file}: no test has run")
            alone = [test for test, outcome in theirs.items() if outcome == "PASSED" and ours.get(test) != "PASSED"]
            if alone:
                # As in every real stage: what fails is run once more by itself.
                print(f"{file}: once more: {' '.join(alone)}", flush=True)
                again = run(python, folder, "again", f"duewheel://127.0.0.1:{server.port}/", port, file, alone)
                worse += [test for test in alone if again.get(test) != "PASSED"]
    finally:
        redis.terminate()
        redis.wait()
        if server is not None:
            server.stop()
    for test in worse:
        print(f"passes on redis alone: {test}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
