"""greenstalk against a server of beanstalkd's protocol: greenstalk.py HOST PORT scenario|before|after"""
import sys
import time

sys.path.pop(0)  # this script has the library's name
import greenstalk

host, port, phase = sys.argv[1], int(sys.argv[2]), sys.argv[3]
TUBE, OTHER, CRASH = "greenstalk/a", "greenstalk/b", "greenstalk/crash"


def connect(tube):
    client = greenstalk.Client((host, port), encoding=None, use=tube, watch=[tube])
    assert client.watching() == [tube] and client.using() == tube
    return client


def fails(error, call, *args, **kw):
    try:
        call(*args, **kw)
    except error:
        return
    raise AssertionError(f"{call.__name__}{args} did not fail with {error.__name__}")


def when_its_time_is_over(c):
    """The margin lasts until then: each reserve is answered at once."""
    until = time.monotonic() + 10
    while True:
        try:
            return c.reserve(timeout=5)
        except greenstalk.DeadlineSoonError:
            assert time.monotonic() < until
            time.sleep(0.05)


def ms():
    return int(time.time() * 1000)


def scenario():
    c = connect(TUBE)
    # Lower goes first, then the older one.
    for body, priority in [(b"c", 3), (b"a", 1), (b"b", 2), (b"b2", 2)]:
        c.put(body, priority=priority)
    assert c.peek_ready().body == b"a"
    seen = []
    for _ in range(4):
        job = c.reserve(timeout=0)
        seen.append(job.body)
        c.delete(job)
    assert seen == [b"a", b"b", b"b2", b"c"], seen

    # Delay.
    before = time.monotonic()
    id = c.put(b"later", delay=1)
    assert c.peek_delayed().id == id and c.stats_job(id)["state"] == "delayed"
    fails(greenstalk.TimedOutError, c.reserve, timeout=0)
    job = c.reserve(timeout=5)
    assert job.id == id and time.monotonic() - before >= 1

    # Release with delay and priority.
    before = time.monotonic()
    c.release(job, priority=77, delay=1)
    fails(greenstalk.NotFoundError, c.release, job)
    stats = c.stats_job(id)
    assert (stats["state"], stats["pri"], stats["delay"], stats["releases"]) == ("delayed", 77, 1, 1), stats
    job = c.reserve(timeout=5)
    assert job.id == id and time.monotonic() - before >= 1
    assert c.stats_job(id)["reserves"] == 2

    # Bury, kick, kick-job.
    c.bury(job, priority=5)
    assert c.peek_buried().id == id and c.stats_job(id)["state"] == "buried"
    assert c.kick(10) == 1 and c.kick(10) == 0
    job = c.reserve(timeout=0)
    c.bury(job)
    c.kick_job(job)
    fails(greenstalk.NotFoundError, c.kick_job, job)
    stats = c.stats_job(id)
    assert (stats["state"], stats["buries"], stats["kicks"]) == ("ready", 2, 2), stats
    assert c.peek(id).body == b"later"
    job = c.reserve_job(id)
    assert job.body == b"later"
    fails(greenstalk.NotFoundError, c.reserve_job, id)
    c.delete(job)
    fails(greenstalk.NotFoundError, c.delete, job)
    fails(greenstalk.NotFoundError, c.peek, id)
    for peek in (c.peek_ready, c.peek_delayed, c.peek_buried):
        fails(greenstalk.NotFoundError, peek)

    # Touch, and the margin before the time runs out.
    c.put(b"touch", ttr=3)
    job = c.reserve(timeout=0)
    time.sleep(1.1)
    assert c.stats_job(job)["time-left"] <= 1
    c.touch(job)
    assert c.stats_job(job)["time-left"] >= 2
    c.delete(job)
    c.put(b"short", ttr=1)
    job = c.reserve(timeout=0)
    fails(greenstalk.DeadlineSoonError, c.reserve, timeout=3)
    again = when_its_time_is_over(c)
    assert again.id == job.id and c.stats_job(job)["timeouts"] == 1
    c.delete(again)

    # Several tubes.
    c.use(OTHER)
    c.put(b"from the other")
    fails(greenstalk.TimedOutError, c.reserve, timeout=0)
    assert c.watch(OTHER) == 2 and sorted(c.watching()) == [TUBE, OTHER]
    c.delete(c.reserve(timeout=0))
    assert c.ignore(OTHER) == 1
    fails(greenstalk.NotIgnoredError, c.ignore, TUBE)
    c.use(TUBE)

    # Bodies.
    most = c.stats()["max-job-size"]
    for body in (b"", bytes(range(256)), b"\r\n", b"x" * most):
        c.put(body)
        job = c.reserve(timeout=0)
        assert job.body == body
        c.delete(job)
    fails(greenstalk.JobTooBigError, c.put, b"x" * (most + 1))

    # A pause.
    c.put(b"paused")
    before = time.monotonic()
    c.pause_tube(TUBE, 2)
    assert c.stats_tube(TUBE)["pause"] == 2
    fails(greenstalk.TimedOutError, c.reserve, timeout=0)
    c.delete(c.reserve(timeout=30))
    assert time.monotonic() - before >= 2
    fails(greenstalk.NotFoundError, c.pause_tube, "nowhere", 1)

    # Waiting in vain.
    before = time.monotonic()
    fails(greenstalk.TimedOutError, c.reserve, timeout=1)
    assert time.monotonic() - before >= 1

    stats, tube = c.stats(), c.stats_tube(TUBE)
    assert set(greenstalk.Stats.__annotations__) <= set(stats), set(greenstalk.Stats.__annotations__) - set(stats)
    missing = set(greenstalk.StatsTube.__annotations__) - set(tube)
    assert not missing, missing
    id = c.put(b"x")
    missing = set(greenstalk.StatsJob.__annotations__) - set(c.stats_job(id))
    assert not missing, missing
    assert stats["draining"] == "false" and stats["cmd-put"] >= 10 and tube["name"] == TUBE
    assert c.stats_tube(TUBE)["current-jobs-ready"] == 1
    assert TUBE in c.tubes()
    c.delete(id)
    fails(greenstalk.NotFoundError, c.stats_job, id)
    fails(greenstalk.NotFoundError, c.stats_tube, "nowhere")
    c.close()


def before():
    c = connect(CRASH)
    c.put(b"buried")
    c.bury(c.reserve(timeout=0), priority=8)
    c.put(b"held", priority=5)
    c.reserve(timeout=0)
    c.put(b"last", priority=9)
    c.put(b"first", priority=1)
    for delay in (3, 2):
        c.put(b"%d" % (ms() + delay * 1000), delay=delay, priority=100)
    # Without a goodbye, and with a job reserved.


def after():
    c = connect(CRASH)
    for body in (b"first", b"held", b"last"):
        job = c.reserve(timeout=5)
        assert job.body == body, (job.body, body)
        c.delete(job)
    assert c.peek_buried().body == b"buried" and c.kick(10) == 1
    bodies = []
    while len(bodies) < 3:
        job = c.reserve(timeout=10)
        assert not job.body.isdigit() or ms() >= int(job.body), "early"
        bodies.append(job.body)
        c.delete(job)
    assert b"buried" in bodies and len(set(bodies)) == 3, bodies
    fails(greenstalk.TimedOutError, c.reserve, timeout=0)


{"scenario": scenario, "before": before, "after": after}[phase]()
