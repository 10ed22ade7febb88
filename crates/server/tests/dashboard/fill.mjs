// Fills a server with queues; what is due is spread over a year, most of it soon.

const batch = 5_000;
export async function fill(url, queues, messagesOf) {
  for (let queue = 0; queue < queues; queue += 1) {
    const name = `bulk-${String(queue).padStart(2, "0")}`;
    const messages = messagesOf(name);
    for (let from = 0; from < messages; from += batch) {
      const lines = [];
      for (let n = from; n < Math.min(from + batch, messages); n += 1) {
        // The same each time: a share of the way through, to the sixth power, of a year.
        const share = ((n * 7_919 + queue * 104_729) % 100_000) / 100_000;
        lines.push(JSON.stringify({ body: `message ${n}`, delay_ms: 3_600_000 + Math.round(share ** 6 * 31_536_000_000) }));
      }
      const answer = await fetch(`${url}/v1/queues/${name}/messages`, { method: "POST", headers: { "content-type": "application/x-ndjson" }, body: `${lines.join("\n")}\n` });
      const text = await answer.text();
      const bad = text.split("\n").find((line) => line && !line.includes('"status":201'));
      if (!answer.ok || bad) throw new Error(`${answer.status}: ${bad ?? text}`);
    }
  }
}
