<?php
// Symfony Messenger with its own transport for beanstalkd, through a bus and a worker.
//
// usage: php symfony.php HOST PORT HTTP

require_once '/usr/share/php/Symfony/Component/Messenger/autoload.php';
require_once '/usr/share/php/Symfony/Component/Messenger/Bridge/Beanstalkd/autoload.php';
require_once '/usr/share/php/Symfony/Component/EventDispatcher/autoload.php';
require_once '/usr/share/php/Pheanstalk/autoload.php';
require_once __DIR__ . '/common.php';

use Symfony\Component\EventDispatcher\EventDispatcher;
use Symfony\Component\Messenger\Bridge\Beanstalkd\Transport\BeanstalkdTransportFactory;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\EventListener\StopWorkerOnMessageLimitListener;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Stamp\DelayStamp;
use Symfony\Component\Messenger\Transport\Serialization\PhpSerializer;
use Symfony\Component\Messenger\Worker;

final class CloseReview
{
    public function __construct(public int $order)
    {
    }
}

[, $host, $port, $http] = $argv;
$transport = (new BeanstalkdTransportFactory())->createTransport("beanstalkd://$host:$port?tube_name=symfony&timeout=5&ttr=30", [], new PhpSerializer());

$transport->send(new Envelope(new CloseReview(42), [new DelayStamp(48 * 3600 * 1000)]));
$due = array_column(listed($http, 'symfony'), 'due_in_ms');
check(count($due) === 1, 'one waits');
near($due[0], 48 * 3600 * 1000);

$began = microtime(true);
$seen = [];
$transport->send(new Envelope(new CloseReview(43), [new DelayStamp(2000)]));
$transport->send(new Envelope(new CloseReview(44)));
$handler = function (CloseReview $message) use (&$seen) {
    $seen[] = [$message->order, microtime(true)];
};
$bus = new MessageBus([new HandleMessageMiddleware(new HandlersLocator([CloseReview::class => [$handler]]))]);
$events = new EventDispatcher();
$events->addSubscriber(new StopWorkerOnMessageLimitListener(2));
(new Worker(['beanstalkd' => $transport], $bus, $events))->run(['sleep' => 1000]);
check(array_column($seen, 0) === [44, 43], 'both were handled, in the order of their times');
check($seen[1][1] - $began >= 2, 'never early');
check(listed($http, 'symfony', 'ready') === [] && count(listed($http, 'symfony')) === 1, 'handled ones are gone');
echo "symfony: all held\n";
