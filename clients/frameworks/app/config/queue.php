<?php
// As Laravel has it, but for the port, which differs each time.

return [
    'default' => env('QUEUE_CONNECTION'),
    'connections' => [
        'beanstalkd' => [
            'driver' => 'beanstalkd',
            'host' => env('BEANSTALKD_QUEUE_HOST', 'localhost'),
            'port' => (int) substr(strrchr(getenv('DUEWHEEL_BEANSTALK'), ':'), 1),
            'queue' => env('BEANSTALKD_QUEUE', 'default'),
            'retry_after' => 90,
            'block_for' => 0,
            'after_commit' => false,
        ],
    ],
    'failed' => ['driver' => 'null'],
];
