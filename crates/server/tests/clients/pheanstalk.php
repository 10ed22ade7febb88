<?php
// pheanstalk 4 against a server of beanstalkd's protocol: pheanstalk.php HOST PORT scenario|before|after
require 'Pheanstalk/autoload.php';

use Pheanstalk\Exception;
use Pheanstalk\JobId;
use Pheanstalk\Pheanstalk;

[, $host, $port, $phase] = $argv;
const TUBE = 'pheanstalk$a', OTHER = 'pheanstalk$b', CRASH = 'pheanstalk$crash';

function check($what, $said = '')
{
    if (!$what) {
        throw new \Exception('not so, line ' . debug_backtrace()[0]['line'] . ': ' . json_encode($said));
    }
}

function fails(string $error, callable $call)
{
    try {
        $call();
    } catch (\Exception $e) {
        check($e instanceof $error, get_class($e) . ': ' . $e->getMessage());
        return;
    }
    throw new \Exception("did not fail with $error, line " . debug_backtrace()[0]['line']);
}

function now(): float
{
    return hrtime(true) / 1e9;
}

function ms(): int
{
    return (int) (microtime(true) * 1000);
}

function connect(string $tube): Pheanstalk
{
    global $host, $port;
    $p = Pheanstalk::create($host, (int) $port);
    $p->useTube($tube)->watchOnly($tube);
    check($p->listTubesWatched(true) == [$tube] && $p->listTubeUsed(true) == $tube);
    return $p;
}

function scenario()
{
    $p = connect(TUBE);
    foreach ([['c', 3], ['a', 1], ['b', 2]] as [$body, $priority]) {
        $p->put($body, $priority);
    }
    check($p->peekReady()->getData() === 'a');
    foreach (['a', 'b', 'c'] as $body) {
        $job = $p->reserveWithTimeout(0);
        check($job->getData() === $body, $job->getData());
        $p->delete($job);
    }

    $before = now();
    $id = $p->put('later', 10, 1)->getId();
    check($p->peekDelayed()->getId() === $id);
    check($p->reserveWithTimeout(0) === null);
    $job = $p->reserve();
    check($job->getId() === $id && now() - $before >= 1);
    $before = now();
    $p->release($job, 77, 1);
    fails(Exception\JobNotFoundException::class, function () use ($p, $job) { $p->release($job); });
    $stats = $p->statsJob($job);
    check([$stats->state, $stats->pri, $stats->delay, $stats->releases] == ['delayed', 77, 1, 1], (array) $stats);
    $job = $p->reserveWithTimeout(5);
    check($job->getId() === $id && now() - $before >= 1);

    $p->bury($job, 5);
    check($p->peekBuried()->getId() === $id);
    check($p->kick(10) === 1);
    $job = $p->reserveWithTimeout(0);
    $p->bury($job);
    $p->kickJob($job);
    fails(Exception\JobNotFoundException::class, function () use ($p, $job) { $p->kickJob($job); });
    $stats = $p->statsJob($job);
    check([$stats->buries, $stats->kicks] == [2, 2], (array) $stats);
    check($p->peek($job)->getData() === 'later');
    $p->delete($p->reserveWithTimeout(0));
    fails(Exception\JobNotFoundException::class, function () use ($p, $job) { $p->delete($job); });
    fails(Exception\JobNotFoundException::class, function () use ($p, $job) { $p->peek($job); });
    check($p->peekReady() === null && $p->peekDelayed() === null && $p->peekBuried() === null);

    $p->put('touch', 1, 0, 3);
    $job = $p->reserveWithTimeout(0);
    usleep(1100000);
    check($p->statsJob($job)->time_left <= 1);
    $p->touch($job);
    check($p->statsJob($job)->time_left >= 2);
    $p->delete($job);
    $p->put('short', 1, 0, 1);
    $job = $p->reserveWithTimeout(0);
    fails(Exception\DeadlineSoonException::class, function () use ($p) { $p->reserveWithTimeout(3); });
    // The margin lasts until its time is over: each reserve is answered at once.
    $again = null;
    for ($until = now() + 10; $again === null && now() < $until; usleep(50000)) {
        try {
            $again = $p->reserveWithTimeout(5);
        } catch (Exception\DeadlineSoonException $e) {
        }
    }
    check($again->getId() === $job->getId() && $p->statsJob($again)->timeouts == 1);
    $p->delete($again);

    $p->useTube(OTHER);
    $p->put('from the other');
    check($p->reserveWithTimeout(0) === null);
    $p->watch(OTHER);
    $p->delete($p->reserveWithTimeout(0));
    $p->ignore(OTHER);
    $p->useTube(TUBE);

    $most = (int) $p->stats()['max-job-size'];
    foreach (['', implode('', array_map('chr', range(0, 255))), "\r\n", str_repeat('x', $most)] as $body) {
        $p->put($body);
        $job = $p->reserveWithTimeout(0);
        check($job->getData() === $body);
        $p->delete($job);
    }
    fails(Exception\JobTooBigException::class, function () use ($p, $most) { $p->put(str_repeat('x', $most + 1)); });

    $p->put('paused');
    $p->pauseTube(TUBE, 1000);
    check($p->reserveWithTimeout(0) === null && $p->statsTube(TUBE)->pause == 1000);
    $p->resumeTube(TUBE);
    $p->delete($p->reserveWithTimeout(1));

    $before = now();
    check($p->reserveWithTimeout(1) === null && now() - $before >= 1);
    $stats = $p->statsTube(TUBE);
    check([$stats->name, (int) $stats->current_jobs_ready, (int) $stats->current_watching]
        == [$stats->name, 0, 1] && trim($stats->name, '"') === TUBE, (array) $stats);
    check($p->stats()->cmd_put >= 5 && is_numeric($p->stats()->uptime));
    check(in_array(TUBE, $p->listTubes()));
    fails(Exception\ServerException::class, function () use ($p) { $p->statsTube('nowhere'); });
}

function before()
{
    $p = connect(CRASH);
    $p->put('buried');
    $p->bury($p->reserveWithTimeout(0), 8);
    $p->put('held', 5);
    $p->reserveWithTimeout(0);
    $p->put('last', 9);
    $p->put('first', 1);
    foreach ([3, 2] as $delay) {
        $p->put((string) (ms() + $delay * 1000), 100, $delay);
    }
}

function after()
{
    $p = connect(CRASH);
    foreach (['first', 'held', 'last'] as $body) {
        $job = $p->reserveWithTimeout(5);
        check($job->getData() === $body, $job->getData());
        $p->delete($job);
    }
    check($p->peekBuried()->getData() === 'buried' && $p->kick(10) === 1);
    $bodies = [];
    for ($n = 0; $n < 3; $n++) {
        $job = $p->reserveWithTimeout(10);
        check(!ctype_digit($job->getData()) || ms() >= (int) $job->getData(), 'early');
        $bodies[$job->getData()] = true;
        $p->delete($job);
    }
    check(count($bodies) === 3 && isset($bodies['buried']), $bodies);
    check($p->reserveWithTimeout(0) === null);
}

['scenario' => 'scenario', 'before' => 'before', 'after' => 'after'][$phase]();
