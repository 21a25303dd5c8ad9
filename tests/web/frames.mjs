// Reads recorded streams as JSON lines: {stream (base64), messages, position}. Parses each one cut at every byte.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const { EventReader, Picture, SseParser } = await import(process.argv[2]);

function played(chunks) {
  const [parser, picture, messages] = [new SseParser(), new Picture(), new Map()];
  for (const chunk of chunks) {
    for (const frame of parser.feed(chunk)) {
      for (const event of picture.apply(frame)) {
        if (event.type !== "message") continue;
        if (event.change === "deleted") messages.delete(event.message.id);
        else messages.set(event.message.id, event.message);
      }
    }
  }
  return { messages: Object.fromEntries(messages), position: picture.place };
}

let cuts = 0;
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const { stream, ...expected } = JSON.parse(line);
  const bytes = Buffer.from(stream, "base64");
  assert.deepEqual(played([...bytes].map((_, at) => bytes.subarray(at, at + 1))), expected);
  for (let at = 0; at <= bytes.length; at++) {
    assert.deepEqual(played([bytes.subarray(0, at), bytes.subarray(at)]), expected);
    cuts++;
  }
}

// Line ends, comments, fields without a value, data in several lines, a byte order mark: as the standard has it.
const strange = Buffer.from("\ufeff: hi\r\nretry: 10\revent:a\r\ndata: 1\rdata:  2\ndata\nid: x\n\nevent: none\n\nid: b\0d\ndata:ü\n\n");
for (let at = 0; at <= strange.length; at++) {
  const parser = new SseParser();
  const frames = [strange.subarray(0, at), strange.subarray(at)].flatMap((chunk) => parser.feed(chunk));
  assert.deepEqual(frames, [
    { name: "a", id: "x", data: "1\n 2\n" },
    { name: "", id: undefined, data: "ü" },
  ]);
}

// What does not fit is refused.
const head = { id: "m", role: "assistant", session_id: "s" };
const text = { type: "text", data: { text: "ü" } };
const refused = [
  { changes: [{ index: 0, offset: 1, append: "x" }] },
  { changes: [{ index: 1, offset: 0, append: "x" }] },
  { changes: [{ index: 2, part: text }] },
  { id: "unknown", changes: [] },
];
for (const delta of refused) {
  const picture = new Picture();
  picture.apply({ name: "message", data: JSON.stringify({ type: "created", payload: { ...head, parts: [text] } }) });
  assert.throws(() => picture.apply({ name: "message_delta", data: JSON.stringify({ id: "m", ...delta }) }), { code: "stream_broken" });
}
assert.throws(() => new Picture().apply({ name: "", data: "{}" }), /not the native form/);
assert.throws(() => new Picture().apply({ name: "run", data: "{" }), { code: "stream_broken" });

// A reader that does not read for long gets the current state, and the endings that it missed.
const reader = new EventReader(() => ({ type: "resync" }), () => undefined, () => {});
const ending = (id) => ({ type: "run", run: { id, state: "completed" } });
const update = (id) => ({ type: "message", change: "updated", message: { id, parts: [] } });
for (let at = 0; at < 100_000; at++) reader.push(update("m")); // one message: only its newest state waits
reader.push({ ...update("t"), change: "created" });
reader.push(update("m"));
reader.push(ending("r1"));
const next = async () => (await reader.next()).value;
assert.deepEqual([await next(), (await next()).change, await next()], [update("m"), "created", update("m")]);
for (let at = 0; at < 10_000; at++) reader.push({ type: "entity", name: "session", change: "updated", payload: {} });
reader.push(ending("r2"));
const waiting = [await next(), await next()];
assert.deepEqual(waiting, [{ type: "resync" }, ending("r1")]);
let last = await next();
while (last.type !== "run") last = await next();
assert.deepEqual(last, ending("r2"));
console.log(cuts);
