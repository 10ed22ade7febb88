"""Servers and processes of the tests."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BIN = os.environ.get("DUEWHEEL_BIN", "duewheel")
PATIENCE = 60.0
#: A lease that a busy machine extends in time, and work that takes longer.
LEASE, LONGER = 6.0, 7.5


def until(condition, what="it", patience=PATIENCE):
    """Waits for a condition; its value."""
    end = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} has not come in {patience:g} s")
        time.sleep(0.02)


def certificate(folder):
    """A certificate of 127.0.0.1 for a server, as its options."""
    files = [str(folder / name) for name in ("cert.pem", "key.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                    "-subj", "/CN=duewheel", "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]],
                   check=True, capture_output=True)
    return ["--tls-cert", files[0], "--tls-key", files[1]]


class Fake:
    """Answers requests by `answer(method, path, body)`: a status and JSON, a status and bytes, or None, which ends the
    connection without an answer."""

    def __init__(self, answer):
        fake, self.requests = self, []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self):
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                if len(body) < length:  # cut in the middle by a client that was stopped
                    self.close_connection = True
                    return
                fake.requests.append((self.command, self.path, body))
                got = answer(self.command, self.path, body)
                if got is None:
                    self.close_connection = True
                    return
                data = got[1] if isinstance(got[1], bytes) else json.dumps(got[1]).encode()
                self.send_response(got[0])
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_any

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def paths(self, end):
        return [path for _, path, _ in self.requests if path.endswith(end)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


class Server:
    """A server on a folder, which can be killed and started again at the same port."""

    def __init__(self, folder: Path, *options):
        self.folder, self.options, self.port = Path(folder), options, 0
        self.scheme = "https" if "--tls-cert" in options else "http"
        self.process = None
        self.start()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self):
        command = [BIN, "serve", "--data", str(self.folder / "data"), "--http", f"127.0.0.1:{self.port}", "--beanstalk", "off", *self.options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DUEWHEEL_")}
        self.log = open(self.folder / "server.log", "a")
        self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        until(self._listens, "the server")

    def _listens(self):
        if self.process.poll() is not None:
            raise AssertionError((self.folder / "server.log").read_text()[-2000:])
        found = re.search(rf"listening on {self.scheme}://127.0.0.1:(\d+)\b", (self.folder / "server.log").read_text().rsplit("duewheel_server::store", 1)[-1])
        if found:
            self.port = int(found[1])
        return found

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()
        # The next start is seen by its own line.
        (self.folder / "server.log").write_text("")

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        self.log.close()
