// What the tests of all clients share. They are run by node_test.go, once for each
// cluster, which compares what the clients were told.
import { after, test } from 'node:test'
import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'

// The URLs of a cluster's nodes whose engines are ours, of one whose engine is scripted
// (scripted_test.go says how), and of a node that asks for a key.
export const { builtin, scripted, keyed, key, report } = JSON.parse(process.env.SETUP)

const told = {}
after(() => writeFileSync(report, JSON.stringify(told, null, 1)))

// same has f ask every node in turn: all must give the same result, which is noted.
export function same(name, urls, f) {
  test(name, async () => {
    let first
    for (const [i, url] of urls.entries()) {
      const result = await f(url, i)
      first ??= result
      assert.deepEqual(result, first, `${url} differs from ${urls[0]}`)
    }
    told[name] = first
  })
}

export const model = 'hearsay-tiny'
export const story =
  'In the beginning God created the heaven and the earth. And the earth was without form, and void; ' +
  'and darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters.'

// eventually waits for what comes in its own time.
export async function eventually(what, condition) {
  for (let tries = 0; tries < 500; tries++) {
    if (await condition()) return
    await new Promise((wake) => setTimeout(wake, 20))
  }
  assert.fail(what)
}

// idle says whether no node of a cluster has a request at its engine.
export async function idle(urls) {
  const queues = await Promise.all(urls.map(async (url) => (await (await fetch(url + '/hearsay/v1/status')).json()).queue))
  return queues.every((queue) => queue === 0)
}

// cancelled counts the requests of which the nodes say that their client left.
export async function cancelled(urls) {
  let total = 0
  for (const url of urls) {
    const metrics = await (await fetch(url + '/metrics')).text()
    for (const m of metrics.matchAll(/^hearsay_requests_total\{hop="(?:local|forwarded)",outcome="cancelled"\} (\d+)/gm)) total += Number(m[1])
  }
  return total
}
