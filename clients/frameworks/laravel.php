<?php
// Laravel's queue (illuminate/queue) with its own driver for beanstalkd: what `dispatch()->delay()` and `queue:work` do.
//
// usage: php laravel.php HOST PORT HTTP

require_once '/usr/share/php/Illuminate/Queue/autoload.php';
require_once '/usr/share/php/Illuminate/Container/autoload.php';
require_once '/usr/share/php/Pheanstalk/autoload.php';
require_once __DIR__ . '/common.php';

use Illuminate\Container\Container;
use Illuminate\Queue\Capsule\Manager;
use Illuminate\Queue\Connectors\BeanstalkdConnector;

[, $host, $port, $http] = $argv;
$queues = new Manager(new Container());
$queues->getQueueManager()->addConnector('beanstalkd', fn () => new BeanstalkdConnector());
$queues->addConnection(['driver' => 'beanstalkd', 'host' => $host, 'port' => (int) $port, 'queue' => 'laravel', 'retry_after' => 30, 'block_for' => 20]);
$queue = $queues->getConnection();

// Delays as they are meant, far beyond what other drivers keep.
foreach ([48 * 3600, 20 * 365 * 86400] as $seconds) {
    $queue->later($seconds, 'CloseReview', ['order' => 42]);
}
$due = array_column(listed($http, 'laravel'), 'due_in_ms');
check(count($due) === 2, 'two wait');
near($due[0], 48 * 3600 * 1000);
near($due[1], 20 * 365 * 86400 * 1000);

// Never early, and with the payload.
$began = microtime(true);
$queue->later(2, 'CloseReview', ['order' => 43]);
$job = $queue->pop();
check($job !== null && microtime(true) - $began >= 2, 'never early');
check($job->payload()['data'] === ['order' => 43] && $job->attempts() === 1, 'payload and attempts');

// A failed job comes again after its backoff, a deleted one never does; a buried one is dead.
$job->release(1);
$job = $queue->pop();
check($job !== null && $job->attempts() === 2, 'again');
$job->delete();
$queue->push('CloseReview', ['order' => 44]);
$job = $queue->pop();
check($job->payload()['data'] === ['order' => 44], 'push is due at once');
$job->bury();
check(array_column(listed($http, 'laravel', 'dead'), 'state') === ['dead'], 'buried');
check($queue->size() === 0, 'size counts what is ready');
echo "laravel: all held\n";
