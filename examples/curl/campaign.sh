#!/usr/bin/env bash
# Sends many messages from one instant on, spread over a while: they are handed over in one request, and each worker takes
# many at a time.
#   DUEWHEEL=http://localhost:7788 COUNT=1000 SPREAD=10m ./campaign.sh
set -euo pipefail
server=${DUEWHEEL:-http://localhost:7788}
queue=$server/v1/queues/sms
count=${COUNT:-1000} spread=${SPREAD:-10m}
call() { curl --silent --show-error --fail-with-body "$@"; }

# A message a line. The key of each makes a second run of this script a refusal for each line, not a second message.
at=$(date -u -d '+2 seconds' +%Y-%m-%dT%H:%M:%SZ)
results=$(for n in $(seq "$count"); do
  echo "{\"json\": {\"to\": \"+4930$n\"}, \"due_at\": \"$at\", \"past\": \"fire\", \"spread\": \"$spread\", \"key\": \"spring-$n\"}"
done | call "$queue/messages" -H 'Content-Type: application/x-ndjson' --data-binary @-)
echo "$(grep -c '"status":201' <<<"$results") messages are due from $at on, within $spread"

sent=0
while [ "$sent" -lt "$count" ]; do
  granted=$(call "$server/v1/reserve" -d '{"queues": [{"queue": "sms"}], "max": 500, "wait_ms": 60000}')
  # Here each would be sent. What was sent is acked together: the ids and their tokens, in pairs.
  ids=$(grep -o '"id":"[^"]*"' <<<"$granted" || true)
  tokens=$(grep -o '"lease_token":"[^"]*"' <<<"$granted" || true)
  [ "$ids" ] || { echo "nothing came" >&2; exit 1; }
  messages=$(paste -d, <(echo "$ids") <(echo "$tokens") | sed 's/.*/{&}/' | paste -sd,)
  acked=$(call "$server/v1/ack" -d @- <<<"{\"messages\": [$messages]}" | grep -o '"result":"acked"' | wc -l)
  sent=$((sent + acked))
done
echo "$sent were sent"
