#!/usr/bin/env python3
"""A server that answers as the lists `scripted` and `workers` of cases.json say, and judges the requests it gets.

usage: scripted_server.py    prints its address, http://127.0.0.1:PORT, and ends when its standard input does

A client that is given ADDRESS/NAME as its server meets the case of that name. GET ADDRESS/_/NAME answers
{"failures": [...], "complete": bool}: what was wrong so far, and whether every expected request has come.
"""

import json
import os
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

EARLY_MS = 2  # timers of some systems round down
EMPTY_RESERVE_S = 0.2
SETTLED = {
    "ack": {"status": 200, "json": {"result": "acked", "durability": "fsync"}},
    "nack": {"status": 200, "json": {"result": "again", "due_at": "2026-01-03T00:01:00.000Z", "durability": "fsync"}},
    "extend": {"status": 200, "json": {"result": "extended", "lease_until": "2026-01-03T00:01:00.000Z"}},
}


def difference(wanted, got, names, where):
    """What distinguishes `got` from `wanted`, or None. ${any} is anything; any other ${name} is the same everywhere."""
    name = re.fullmatch(r"\$\{(\w+)\}", wanted) if isinstance(wanted, str) else None
    if name and name[1] == "any":
        return None
    if name and name[1] not in names:
        if not isinstance(got, str) or not got:
            return f"{where}: {got!r} is no text"
        if got in names.values():
            return f"{where}: {got!r} was used for something else"
        names[name[1]] = got
        return None
    if name:
        wanted = names[name[1]]
    if isinstance(wanted, dict) and isinstance(got, dict):
        for field in wanted.keys() | got.keys():
            if field not in got:
                return f"{where}.{field} is missing"
            if field not in wanted:
                return f"{where}.{field} is {got[field]!r}, and should not be there"
            found = difference(wanted[field], got[field], names, f"{where}.{field}")
            if found:
                return found
        return None
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return next(filter(None, (difference(w, g, names, f"{where}[{i}]") for i, (w, g) in enumerate(zip(wanted, got)))), None)
    return None if type(wanted) is type(got) and wanted == got else f"{where}: {got!r} instead of {wanted!r}"


class Scripted:
    """A case of `scripted`: answers and requests in order."""

    def __init__(self, case):
        self.case, self.names, self.seen, self.failures, self.answered_at = case, {}, 0, [], None

    def request(self, method, path, headers, body):
        now = time.monotonic()
        wanted = self.case["requests"]
        index, self.seen = self.seen, self.seen + 1
        if index >= len(wanted) and not wanted[-1].get("more"):
            self.failures.append(f"request {index + 1} is one too many: {method} {path}")
        else:
            self.judge(index + 1, wanted[min(index, len(wanted) - 1)], method, path, headers, body, now)
        answers = self.case["answers"]
        return answers[min(index, len(answers) - 1)]

    def judge(self, number, wanted, method, path, headers, body, now):
        segments = [unquote(segment) for segment in path.split("/")]
        if (method, segments) != (wanted["method"], wanted["path"]):
            self.failures.append(f"request {number}: {method} {path} instead of {wanted['method']} {wanted['path']}")
        for name, value in wanted.get("headers", {}).items():
            if headers.get(name) != value:
                self.failures.append(f"request {number}: {name} is {headers.get(name)!r} instead of {value!r}")
        try:
            if "lines" in wanted:
                found = difference(wanted["lines"], [json.loads(line) for line in body.splitlines()], self.names, "lines")
            else:
                found = difference(wanted.get("body", {}), json.loads(body or b"{}"), self.names, "body")
        except ValueError as error:
            found = f"no JSON: {error}"
        if found:
            self.failures.append(f"request {number}: {found}")
        waited = (now - self.answered_at) * 1000 if self.answered_at else 0
        if "after_ms" in wanted and waited < wanted["after_ms"] - EARLY_MS:
            self.failures.append(f"request {number} came after {waited:.0f} ms, not {wanted['after_ms']} ms")

    def answered(self):
        self.answered_at = time.monotonic()

    def verdict(self):
        complete = self.seen >= len(self.case["requests"])
        missing = [] if complete else [f"{self.seen} requests instead of {len(self.case['requests'])}"]
        return {"failures": self.failures + missing, "complete": complete}


class OfWorker:
    """A case of `workers`: reserves are answered by `grants`; acks, nacks and extends are expected in order."""

    def __init__(self, case):
        self.case, self.failures, self.settles, self.reserves = case, [], [], 0
        self.answers = {verb: list(answers) for verb, answers in case.get("answers", {}).items()}
        self.grants = list(case["grants"])

    def request(self, method, path, headers, body):
        segments, body = path.split("/"), json.loads(body or b"{}")
        if segments == ["v1", "reserve"]:
            return self.reserve(body)
        verb = segments[-1]
        if method != "POST" or segments[0] != "v1" or verb not in SETTLED:
            self.failures.append(f"unexpected: {method} {path}")
            return {"status": 404, "json": {"status": 404, "code": "not_found", "detail": "not in this case"}}
        if len(segments) == 4:
            return self.settle(verb, {"id": segments[2]} | body)
        answers = [(item["id"], self.settle(verb, item)) for item in body["messages"]]
        whole = next((answer for _, answer in answers if "drop" in answer or answer["status"] in (400, 413, 429, 503)), None)
        return whole or {"status": 200, "json": {"results": [{"id": id} | answer["json"] for id, answer in answers]}}

    def reserve(self, body):
        self.reserves += 1
        found = difference(self.case["reserve"], body, {}, "reserve")
        if found:
            self.failures.append(found)
        if self.answers.get("reserve"):
            return self.answers["reserve"].pop(0)
        if self.grants:
            return {"status": 200, "json": {"messages": self.grants.pop(0)}}
        return {"status": 200, "json": {"messages": []}, "wait": EMPTY_RESERVE_S}

    def settle(self, verb, event):
        self.settles.append({"verb": verb} | event)
        answers = self.answers.get(verb)
        return answers.pop(0) if answers else SETTLED[verb]

    def answered(self):
        pass

    def verdict(self):
        failures, rest = list(self.failures), list(self.settles)
        complete = True
        for wanted in self.case["settles"]:
            times, least = 0, wanted.get("at_least", 1)
            item = {field: value for field, value in wanted.items() if field != "at_least"}
            while rest and rest[0] == item and ("at_least" in wanted or times < least):
                rest.pop(0)
                times += 1
            if times < least:
                complete = False
                failures.append(f"{times} instead of {least} times: {item}; then came {rest[:1]}")
                break
        if complete and rest:
            failures.append(f"unexpected: {rest}")
        if self.reserves > self.case.get("reserves", self.reserves):
            failures.append(f"{self.reserves} reserves instead of {self.case['reserves']}")
        return {"failures": failures, "complete": complete}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_any(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            # The client has ended the connection in the middle of its request, as a worker that is stopped may do.
            self.close_connection = True
            return
        _, name, path = (self.path.split("/", 2) + [""])[:3]
        if name == "_":
            with self.server.lock:
                known = self.server.cases.get(path)
                verdict = known.verdict() if known else {"failures": [f"no case {path}"], "complete": False}
            return self.send({"status": 200, "json": verdict})
        case = self.server.cases.get(name)
        if case is None:
            return self.send({"status": 404, "json": {"status": 404, "code": "not_found", "detail": f"no case {name}"}})
        with self.server.lock:
            answer = case.request(self.command, path, {k.lower(): v for k, v in self.headers.items()}, body)
        time.sleep(answer.get("wait", 0))
        self.send(answer)
        with self.server.lock:
            case.answered()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def send(self, answer):
        self.close_connection = "drop" in answer or "cut" in answer
        if "drop" in answer:
            return
        kind = "application/json" if answer["status"] < 400 else "application/problem+json"
        if "lines" in answer:
            kind, data = "application/x-ndjson", "".join(json.dumps(line) + "\n" for line in answer["lines"]).encode()
        elif "text" in answer:
            kind, data = "text/html", answer["text"].encode()
        else:
            data = json.dumps(answer["json"]).encode()
        # A cut answer ends early: the lines of a batch are whole, any other answer is not.
        shown = data if "lines" in answer or "cut" not in answer else data[: len(data) // 2]
        try:
            self.send_response(answer["status"])
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data) + (100 if "cut" in answer else 0)))
            for header in answer.get("headers", {}).items():
                self.send_header(*header)
            self.end_headers()
            self.wfile.write(shown)
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 500  # cases may run at the same time

    def handle_error(self, request, client_address):
        """Clients may go away whenever they like."""


def main():
    cases = json.loads((Path(__file__).parent / "cases.json").read_text("utf-8"))
    server = Server(("127.0.0.1", 0), Handler)
    server.lock = threading.Lock()
    server.cases = {case["name"]: Scripted(case) for case in cases["scripted"]}
    server.cases |= {case["name"]: OfWorker(case) for case in cases["workers"]}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
