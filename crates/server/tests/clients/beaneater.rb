# beaneater against a server of beanstalkd's protocol: beaneater.rb HOST PORT scenario|before|after
require 'beaneater'

HOST, PORT, PHASE = ARGV
TUBE, OTHER, CRASH = 'beaneater.a', 'beaneater.b', 'beaneater.crash'

def check(what, said = '')
  raise "not so, line #{caller_locations(1, 1)[0].lineno}: #{said}" unless what
end

def fails(error)
  yield
rescue error
  nil
else
  raise "did not fail with #{error}, line #{caller_locations(1, 1)[0].lineno}"
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def ms
  (Time.now.to_f * 1000).to_i
end

def connect(name)
  b = Beaneater.new("#{HOST}:#{PORT}")
  b.tubes.watch!(name)
  check(b.tubes.watched.map(&:name) == [name])
  [b, b.tubes[name]]
end

def scenario
  b, tube = connect(TUBE)
  [['c', 3], ['a', 1], ['b', 2]].each { |body, pri| tube.put(body, pri: pri) }
  check(tube.peek(:ready).body == 'a')
  seen = Array.new(3) { b.tubes.reserve(0).tap(&:delete).body }
  check(seen == %w[a b c], seen)

  before = now
  id = tube.put('later', delay: 1)[:id]
  check(tube.peek(:delayed).id == id)
  fails(Beaneater::TimedOutError) { b.tubes.reserve(0) }
  job = b.tubes.reserve(5)
  check(job.id == id && now - before >= 1)
  before = now
  job.release(pri: 77, delay: 1)
  stats = b.jobs.find(id).stats
  check([stats.state, stats.pri, stats.delay, stats.releases, stats.tube] == ['delayed', 77, 1, 1, TUBE], stats)
  job = b.tubes.reserve(5)
  check(job.id == id && now - before >= 1)

  job.bury(pri: 5)
  check(tube.peek(:buried).id == id)
  check(tube.kick(10)[:id] == '1')
  job = b.tubes.reserve(0)
  job.bury
  job.kick
  fails(Beaneater::NotFoundError) { job.kick }
  check([job.stats.buries, job.stats.kicks, job.pri] == [2, 2, 5])
  check(b.jobs.find(id).body == 'later')
  b.tubes.reserve(0).delete
  fails(Beaneater::NotFoundError) { job.delete }
  check(b.jobs.find(id).nil? && tube.peek(:ready).nil? && tube.peek(:delayed).nil? && tube.peek(:buried).nil?)

  tube.put('touch', ttr: 3)
  job = b.tubes.reserve(0)
  sleep 1.1
  check(job.stats.time_left <= 1)
  job.touch
  check(job.stats.time_left >= 2)
  job.delete
  tube.put('short', ttr: 1)
  job = b.tubes.reserve(0)
  fails(Beaneater::DeadlineSoonError) { b.tubes.reserve(3) }
  again = nil
  until_then = now + 10
  begin
    again = b.tubes.reserve(5)
  rescue Beaneater::DeadlineSoonError # until its time is over: each reserve is answered at once
    raise if now > until_then
    sleep 0.05
    retry
  end
  check(again.id == job.id && again.stats.timeouts == 1)
  again.delete

  b.tubes[OTHER].put('from the other')
  fails(Beaneater::TimedOutError) { b.tubes.reserve(0) }
  b.tubes.watch(OTHER)
  b.tubes.reserve(0).delete
  b.tubes.ignore(OTHER)
  fails(Beaneater::NotIgnoredError) { b.tubes.ignore(TUBE) }

  most = b.stats.max_job_size
  ['', (0..255).to_a.pack('C*'), "\r\n", 'x' * most].each do |body|
    tube.put(body)
    job = b.tubes.reserve(0)
    check(job.body.b == body.b)
    job.delete
  end
  fails(Beaneater::JobTooBigError) { tube.put('x' * (most + 1)) }

  tube.put('paused')
  before = now
  tube.pause(2)
  check(tube.stats.pause == 2)
  fails(Beaneater::TimedOutError) { b.tubes.reserve(0) }
  b.tubes.reserve(30).delete
  check(now - before >= 2)

  before = now
  fails(Beaneater::TimedOutError) { b.tubes.reserve(1) }
  check(now - before >= 1)
  check(b.stats.cmd_put >= 5 && b.stats.draining == false && b.stats.uptime.is_a?(Integer))
  check([tube.stats.name, tube.stats.current_jobs_ready, tube.stats.current_watching] == [TUBE, 0, 1])
  check(b.tubes.all.map(&:name).include?(TUBE))
  fails(Beaneater::NotFoundError) { b.tubes['nowhere'].stats }
  b.close
end

def before
  b, tube = connect(CRASH)
  tube.put('buried')
  b.tubes.reserve(0).bury(pri: 8)
  tube.put('held', pri: 5)
  b.tubes.reserve(0)
  tube.put('last', pri: 9)
  tube.put('first', pri: 1)
  [3, 2].each { |delay| tube.put((ms + delay * 1000).to_s, delay: delay, pri: 100) }
end

def after
  b, tube = connect(CRASH)
  %w[first held last].each do |body|
    job = b.tubes.reserve(5)
    check(job.body == body, job.body)
    job.delete
  end
  check(tube.peek(:buried).body == 'buried' && tube.kick(10)[:id] == '1')
  bodies = Array.new(3) do
    job = b.tubes.reserve(10)
    check(job.body !~ /\A\d+\z/ || ms >= job.body.to_i, 'early')
    job.delete
    job.body
  end
  check(bodies.uniq.size == 3 && bodies.include?('buried'), bodies)
  fails(Beaneater::TimedOutError) { b.tubes.reserve(0) }
end

{ 'scenario' => method(:scenario), 'before' => method(:before), 'after' => method(:after) }.fetch(PHASE).call
