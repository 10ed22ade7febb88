"""pystalk against a server of beanstalkd's protocol: pystalk.py HOST PORT scenario|before|after"""
import sys
import time

sys.path.pop(0)  # this script has the library's name
from pystalk import BeanstalkClient, BeanstalkError

host, port, phase = sys.argv[1], int(sys.argv[2]), sys.argv[3]
TUBE, OTHER, CRASH = "pystalk_a", "pystalk_b", "pystalk_crash"


def connect(tube):
    c = BeanstalkClient(host, port)
    c.use(tube)
    c.watch(tube)
    assert c.watchlist == {tube}
    return c


def fails(message, call, *args, **kw):
    try:
        call(*args, **kw)
    except BeanstalkError as error:
        assert error.message == message, (error.message, message)
        return
    raise AssertionError(f"{call.__name__}{args} did not fail with {message}")


def ms():
    return int(time.time() * 1000)


def scenario():
    c = connect(TUBE)
    for body, pri in [("c", 3), ("a", 1), ("b", 2)]:
        status, _ = c.put_job(body, pri=pri)
        assert status == b"INSERTED"
    assert c.peek_ready().job_data == b"a"
    seen = []
    for job in c.reserve_iter():
        seen.append(job.job_data)
        c.delete_job(job)
    assert seen == [b"a", b"b", b"c"], seen

    before = time.monotonic()
    _, id = c.put_job("later", delay=1)
    assert c.peek_delayed().job_id == id and c.stats_job(id)["state"] == "delayed"
    fails("TIMED_OUT", c.reserve_job, 0)
    job = c.reserve_job(5)
    assert job.job_id == id and time.monotonic() - before >= 1
    before = time.monotonic()
    c.release_job(job, pri=77, delay=1)
    stats = c.stats_job(id)
    assert (stats["pri"], stats["delay"], stats["releases"], stats["tube"]) == (77, 1, 1, TUBE), stats
    job = c.reserve_job(5)
    assert job.job_id == id and time.monotonic() - before >= 1

    c.bury_job(job, pri=5)
    assert c.peek_buried().job_id == id
    assert c.kick_jobs(10) == (b"KICKED", 1)
    job = c.reserve_job(0)
    c.bury_job(job)
    c.kick_job(job)
    assert c.stats_job(id)["kicks"] == 2
    c.delete_job(c.reserve_job(0))
    fails("NOT_FOUND", c.delete_job, id)
    fails("NOT_FOUND", c.peek_ready)

    c.put_job("short", ttr=1)
    job = c.reserve_job(0)
    fails("DEADLINE_SOON", c.reserve_job, 3)
    until = time.monotonic() + 10
    while True:  # the margin lasts until its time is over: each reserve is answered at once
        try:
            job = c.reserve_job(5)
            break
        except BeanstalkError as error:
            assert error.message == "DEADLINE_SOON" and time.monotonic() < until, error
            time.sleep(0.05)
    assert c.stats_job(job)["timeouts"] == 1
    c.delete_job(job)

    c.put_job_into(OTHER, "from the other")
    fails("TIMED_OUT", c.reserve_job, 0)
    c.watchlist = {TUBE, OTHER}
    c.delete_job(c.reserve_job(0))
    c.watchlist = {TUBE}

    most = c.stats()["max-job-size"]
    for body in (b"", bytes(range(256)), b"x" * most):
        c.put_job(body)
        job = c.reserve_job(0)
        assert job.job_data == body
        c.delete_job(job)
    fails("JOB_TOO_BIG", c.put_job, b"x" * (most + 1))

    c.put_job("paused")
    c.pause_tube(TUBE, 1000)
    fails("TIMED_OUT", c.reserve_job, 0)
    assert c.stats_tube(TUBE)["pause"] == 1000
    c.unpause_tube(TUBE)
    c.delete_job(c.reserve_job(1))

    before = time.monotonic()
    fails("TIMED_OUT", c.reserve_job, 1)
    assert time.monotonic() - before >= 1
    stats, tube = c.stats(), c.stats_tube(TUBE)
    assert stats["cmd-put"] >= 5 and isinstance(stats["uptime"], int), stats
    assert tube["name"] == TUBE and tube["current-watching"] >= 1 and tube["current-jobs-ready"] == 0, tube
    assert TUBE in c.list_tubes()
    fails("NOT_FOUND", c.stats_tube, "nowhere")
    c.close()


def before():
    c = connect(CRASH)
    c.put_job("buried")
    c.bury_job(c.reserve_job(0), pri=8)
    c.put_job("held", pri=5)
    c.reserve_job(0)
    c.put_job("last", pri=9)
    c.put_job("first", pri=1)
    for delay in (3, 2):
        c.put_job(str(ms() + delay * 1000), delay=delay, pri=100)


def after():
    c = connect(CRASH)
    for body in (b"first", b"held", b"last"):
        job = c.reserve_job(5)
        assert job.job_data == body, (job.job_data, body)
        c.delete_job(job)
    assert c.kick_jobs(10)[1] == 1
    bodies = []
    while len(bodies) < 3:
        job = c.reserve_job(10)
        assert not job.job_data.isdigit() or ms() >= int(job.job_data), "early"
        bodies.append(job.job_data)
        c.delete_job(job)
    assert b"buried" in bodies and len(set(bodies)) == 3, bodies
    fails("TIMED_OUT", c.reserve_job, 0)


{"scenario": scenario, "before": before, "after": after}[phase]()
