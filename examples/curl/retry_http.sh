#!/usr/bin/env bash
# Makes a request to another service again and again until it succeeds, later each time, and gives up after ten attempts.
#   DUEWHEEL=http://localhost:7788 URL=http://localhost:8080/hook ./retry_http.sh
set -euo pipefail
server=${DUEWHEEL:-http://localhost:7788}
queue=$server/v1/queues/hooks
url=${URL:?the address to call}
call() { curl --silent --show-error --fail-with-body "$@"; }
member() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" <<<"$2"; }

# How often, and how long after each failure: once for the queue.
call -X PATCH "$queue/config" -d '{"max_attempts": 10, "backoff": {"min_ms": 100, "max_ms": 60000}}' >/dev/null
call "$queue/messages" -d '{"json": {"order": 42, "paid": true}, "delay": "0s"}' >/dev/null

while true; do
  granted=$(call "$queue/reserve" -d '{"wait_ms": 60000}')
  id=$(member id "$granted") token=$(member lease_token "$granted")
  [ "$id" ] || { echo "nothing came" >&2; exit 1; }
  # The body is JSON within JSON. A program reads it with its library; here its quotes alone are unescaped.
  body=$(sed -n 's/.*"body":"\(\([^"\\]\|\\.\)*\)".*/\1/p' <<<"$granted" | sed 's/\\"/"/g')
  if call -o /dev/null -H 'Content-Type: application/json' -d "$body" "$url"; then
    call "$server/v1/messages/$id/ack" -d "{\"lease_token\": \"$token\"}"
    break
  fi
  again=$(call "$server/v1/messages/$id/nack" -d "{\"lease_token\": \"$token\", \"reason\": \"the service failed\"}")
  echo "$again"
  if [ "$(member result "$again")" = dead ]; then exit 1; fi
done
