#!/usr/bin/env bash
# Closes an order that nobody pays in time; a payment cancels that.
#   DUEWHEEL=http://localhost:7788 TIMEOUT=30m ./order_timeout.sh
set -euo pipefail
server=${DUEWHEEL:-http://localhost:7788}
queue=$server/v1/queues/close-order
call() { curl --silent --show-error --fail-with-body "$@"; }
member() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" <<<"$2"; }

# Each order is to be closed after a while, under a key of its own. A request that is repeated, because its answer was
# lost, changes nothing.
for order in 42 43; do
  call "$queue/messages" -H "Idempotency-Key: order-$order-created" \
    -d "{\"json\": {\"order\": $order}, \"delay\": \"${TIMEOUT:-2s}\", \"key\": \"order-$order\"}"
done

# Order 42 is paid: it will not be closed.
call -X DELETE "$queue/keys/order-42"

# The worker waits for the next order that is to be closed, closes it, and says so.
granted=$(call "$queue/reserve" -d '{"wait_ms": 60000}')
[ "$(member id "$granted")" ] || { echo "nothing is due yet" >&2; exit 1; }
echo "closing $(member key "$granted")"
call "$server/v1/messages/$(member id "$granted")/ack" -d "{\"lease_token\": \"$(member lease_token "$granted")\"}"
