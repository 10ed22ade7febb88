"""Judges NDJSON answers, which schemathesis leaves out: each line of an answer against the schema that the description
gives for a line, and each line of the description's own examples: lines.py URL OPENAPI.JSON"""

import json
import pathlib
import sys
import urllib.request

import jsonschema_rs

LINES = "application/x-ndjson"
DELAYED = {"body": "a", "delay": "1h"}

# For each operation that answers in lines: a path, and requests in order, each with its lines, the status of the result
# of each line, and the status of the answer. A later line meets what an earlier one has left.
SAMPLES = {
    ("/v1/queues/{queue}/messages", "post"): (
        "/v1/queues/lines/messages",
        [
            (
                [
                    (DELAYED, 201),
                    ({**DELAYED, "key": "k"}, 201),
                    ({**DELAYED, "key": "k"}, 409),
                    ({**DELAYED, "key": "k", "if_exists": "keep"}, 200),
                    ({**DELAYED, "key": "k", "if_exists": "replace"}, 201),
                    ({**DELAYED, "dedupe_id": "d"}, 201),
                    ({**DELAYED, "dedupe_id": "d"}, 201),
                    ({**DELAYED, "body": "b", "dedupe_id": "d"}, 409),
                    ({"body_base64": "/w==", "delay_ms": 0}, 201),
                    ({"body": "a", "due_at": "1990-01-01T00:00:00Z"}, 422),
                    ({"body": "a", "due_at": "1990-01-01T00:00:00Z", "past": "fire"}, 201),
                    ({"body": "a", "delay": "soon"}, 400),
                    ({"body": "a"}, 400),
                    ({**DELAYED, "unknown": 1}, 400),
                    ({**DELAYED, "body": "a" * 300_000}, 413),
                ],
                200,
            ),
            ([({**DELAYED, "key": "k"}, 409)], 200),
            ([], 200),
        ],
    ),
}

url, description = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())


def judge(where: str, schema: dict, line: str) -> dict:
    validator = jsonschema_rs.Draft202012Validator({**schema, "components": description["components"]})
    value = json.loads(line)
    wrong = [error.message for error in validator.iter_errors(value)]
    if wrong:
        sys.exit(f"{where}: {line} is not as described: {'; '.join(wrong)}")
    return value


def call(path: str, method: str, body: str) -> tuple[int, str, str]:
    request = urllib.request.Request(url + path, body.encode(), {"content-type": LINES}, method=method.upper())
    with urllib.request.urlopen(request) as answer:
        return answer.status, answer.headers["content-type"], answer.read().decode()


judged = 0
found = set()
for path, item in description["paths"].items():
    for method, operation in item.items():
        if method == "parameters":
            continue
        for status, response in operation["responses"].items():
            content = response.get("content", {}).get(LINES)
            if content is None:
                continue
            where = f"{method.upper()} {path} {status}"
            found.add((path, method))
            for line in content["example"].splitlines():
                judge(f"{where}, example", content["schema"], line)
                judged += 1
            if (path, method) not in SAMPLES:
                sys.exit(f"{where}: no request of lines.py is answered in lines")
            real, requests = SAMPLES[path, method]
            for lines, expected in requests:
                sent = "".join(json.dumps(line) + "\n" for line, _ in lines)
                got, kind, text = call(real, method, sent)
                if (got, str(expected)) != (expected, status) or kind != LINES:
                    sys.exit(f"{where}: answered {got}, {kind}: {text}")
                results = [judge(where, content["schema"], line) for line in text.splitlines()]
                statuses = [result["status"] for result in results]
                if statuses != [wanted for _, wanted in lines]:
                    sys.exit(f"{where}: the lines have the statuses {statuses}: {text}")
                judged += len(results)
if found != set(SAMPLES):
    sys.exit(f"the description has no answer in lines for {set(SAMPLES) - found}")
print(f"ok      {judged} lines of NDJSON answers are as the description says")
