// jackd against a server of beanstalkd's protocol: jackd.mjs HOST PORT scenario|before|after
import { createRequire } from 'node:module'
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'

// NODE_PATH counts for `require` only.
const JackdClient = createRequire(import.meta.url)('jackd')
const [host, port, phase] = process.argv.slice(2)
const TUBE = 'jackd-a', OTHER = 'jackd-b', CRASH = 'jackd-crash'
const text = job => job.payload.toString()
const number = (yaml, name) => Number(yaml.match(new RegExp(`^${name}: "?([0-9]+)`, 'm'))[1])
const fails = (promise, message) => assert.rejects(promise, new RegExp(message))

async function connect(tube) {
  const client = new JackdClient()
  await client.connect({ host, port: Number(port) })
  assert.equal(await client.use(tube), tube)
  assert.equal(await client.watch(tube), 2)
  assert.equal(await client.ignore('default'), 1)
  return client
}

async function scenario() {
  const c = await connect(TUBE)
  assert.equal(await c.listTubeUsed(), TUBE)
  for (const [body, priority] of [['c', 3], ['a', 1], ['b', 2]]) await c.put(body, { priority })
  assert.equal(text(await c.peekReady()), 'a')
  const seen = []
  for (let n = 0; n < 3; n++) {
    const job = await c.reserveWithTimeout(0)
    seen.push(text(job))
    await c.delete(job.id)
  }
  assert.deepEqual(seen, ['a', 'b', 'c'])

  let before = performance.now()
  const id = await c.put('later', { delay: 1 })
  assert.equal((await c.peekDelayed()).id, id)
  await fails(c.reserveWithTimeout(0), 'TIMED_OUT')
  assert.equal((await c.reserve()).id, id)
  assert(performance.now() - before >= 999)
  before = performance.now()
  await c.release(id, { priority: 77, delay: 1 })
  await fails(c.release(id), 'NOT_FOUND')
  let stats = await c.statsJob(id)
  assert.deepEqual([number(stats, 'pri'), number(stats, 'delay'), number(stats, 'releases')], [77, 1, 1])
  assert.match(stats, /^state: delayed$/m)
  assert.equal((await c.reserveWithTimeout(5)).id, id)
  assert(performance.now() - before >= 999)

  await c.bury(id, 5)
  assert.equal((await c.peekBuried()).id, id)
  assert.equal(await c.kick(10), 1)
  assert.equal((await c.reserveJob(id)).id, id)
  await c.bury(id, 5)
  await c.kickJob(id)
  await fails(c.kickJob(id), 'NOT_FOUND')
  assert.equal(number(await c.statsJob(id), 'kicks'), 2)
  assert.equal(text(await c.peek(id)), 'later')
  await c.delete(id)
  await fails(c.delete(id), 'NOT_FOUND')
  await fails(c.peek(id), 'NOT_FOUND')

  const touched = await c.put('touch', { ttr: 3 })
  await c.reserveWithTimeout(0)
  await sleep(1100)
  assert(number(await c.statsJob(touched), 'time-left') <= 1)
  await c.touch(touched)
  assert(number(await c.statsJob(touched), 'time-left') >= 2)
  await c.delete(touched)
  const short = await c.put('short', { ttr: 1 })
  await c.reserveWithTimeout(0)
  await fails(c.reserveWithTimeout(3), 'DEADLINE_SOON')
  // The margin lasts until its time is over: each reserve is answered at once.
  let again
  for (const until = performance.now() + 10_000; !again && performance.now() < until; await sleep(50)) {
    again = await c.reserveWithTimeout(5).catch(error => assert.equal(error.message, 'DEADLINE_SOON'))
  }
  assert.equal(again.id, short)
  await c.delete(short)

  await c.use(OTHER)
  await c.put('from the other')
  await fails(c.reserveWithTimeout(0), 'TIMED_OUT')
  assert.equal(await c.watch(OTHER), 2)
  await c.delete((await c.reserveWithTimeout(0)).id)
  assert.equal(await c.ignore(OTHER), 1)
  await fails(c.ignore(TUBE), 'NOT_IGNORED')
  await c.use(TUBE)

  // This library writes text and JSON alone; other bytes than ASCII as UTF-8.
  const most = number(await c.stats(), 'max-job-size')
  for (const body of ['\r\n\u0000ümläut', 'x'.repeat(most)]) {
    const sent = await c.put(body)
    const job = await c.reserveWithTimeout(0)
    assert(job.id === sent && text(job) === body)
    await c.delete(job.id)
  }
  await fails(c.put('x'.repeat(most + 1)), 'JOB_TOO_BIG')

  await c.put('paused')
  before = performance.now()
  // The library forgets the end of the line.
  await c.pauseTube(TUBE, { delay: '2\r\n' })
  await fails(c.reserveWithTimeout(0), 'TIMED_OUT')
  await c.delete((await c.reserveWithTimeout(30)).id)
  assert(performance.now() - before >= 1999)

  before = performance.now()
  await fails(c.reserveWithTimeout(1), 'TIMED_OUT')
  assert(performance.now() - before >= 999)
  stats = await c.statsTube(TUBE)
  assert.equal(number(stats, 'current-jobs-ready'), 0)
  assert.equal(number(stats, 'current-watching'), 1)
  assert((await c.listTubes()).includes(`- ${TUBE}\n`))
  assert.equal(await c.listTubesWatched(), `---\n- ${TUBE}\n`)
  await c.quit()
}

async function before() {
  const c = await connect(CRASH)
  await c.put('buried')
  await c.bury((await c.reserveWithTimeout(0)).id, 8)
  await c.put('held', { priority: 5 })
  await c.reserveWithTimeout(0)
  await c.put('last', { priority: 9 })
  await c.put('first', { priority: 1 })
  for (const delay of [3, 2]) await c.put(String(Date.now() + delay * 1000), { delay, priority: 100 })
  process.exit(0)
}

async function after() {
  const c = await connect(CRASH)
  for (const body of ['first', 'held', 'last']) {
    const job = await c.reserveWithTimeout(5)
    assert.equal(text(job), body)
    await c.delete(job.id)
  }
  assert.equal(text(await c.peekBuried()), 'buried')
  assert.equal(await c.kick(10), 1)
  const bodies = new Set()
  for (let n = 0; n < 3; n++) {
    const job = await c.reserveWithTimeout(10)
    assert(!/^\d+$/.test(text(job)) || Date.now() >= Number(text(job)), 'early')
    bodies.add(text(job))
    await c.delete(job.id)
  }
  assert(bodies.size === 3 && bodies.has('buried'), [...bodies].join())
  await fails(c.reserveWithTimeout(0), 'TIMED_OUT')
  await c.quit()
}

await { scenario, before, after }[phase]()
