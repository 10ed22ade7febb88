<?php
// What the scripts of both frameworks look at: the same queue over HTTP.

function check(bool $holds, string $what): void
{
    if (!$holds) {
        fwrite(STDERR, "does not hold: $what\n");
        exit(1);
    }
}

/** Messages of a queue, in due order. */
function listed(string $http, string $queue, string $state = 'scheduled'): array
{
    return json_decode(file_get_contents("$http/v1/queues/$queue/messages?state=$state"), true, 512, JSON_THROW_ON_ERROR)['messages'];
}

/** Whether what is left of a delay is at most that, and not a minute less. */
function near(int $left, int $wanted): void
{
    check($left <= $wanted && $left > $wanted - 60_000, "$left of $wanted ms are left");
}
