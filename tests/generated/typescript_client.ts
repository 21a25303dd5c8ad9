// A prompt, a permission and a cancel, with the types that openapi-typescript makes and the client of
// openapi-fetch. Prints what it saw as JSON.

import createClient from "openapi-fetch";
import type { components, paths } from "./generated.js";

declare const process: { argv: string[] };

type Event = components["schemas"]["NativeEvent"];
type RunState = components["schemas"]["RunState"];

const [url, token, directory] = process.argv.slice(2) as [string, string, string];
const headers = { Authorization: `Bearer ${token}` };
const client = createClient<paths>({ baseUrl: url, headers });

function there<T>(value: T | undefined): T {
  if (value === undefined) throw new Error("there was no answer");
  return value;
}

/** Read the events of a native stream. */
async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<Event> {
  const reader = body.pipeThrough(new TextDecoderStream() as any).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const lines = block.split("\n").map((line) => line.split(/: (.*)/s).slice(0, 2));
        const frame = Object.fromEntries(lines) as { event: string; data: string };
        yield { ...frame, data: JSON.parse(frame.data) } as Event;
      }
    }
  } finally {
    await reader.cancel();
  }
}

const health = await client.GET("/v1/health");
const seen: Record<string, unknown> = { health: health.response.status };
const client_id = crypto.randomUUID();
const created = await client.POST("/v1/workspaces", { body: { path: directory, client_id } });
const wid = there(created.data).id;
const session = there(
  (await client.POST("/v1/workspaces/{wid}/sessions", {
    params: { path: { wid } },
    body: { title: "generated" },
  })).data,
);
const stream = await client.GET("/v1/workspaces/{wid}/events", {
  params: { path: { wid }, query: { client_id, form: "native", interactive: true } },
  parseAs: "stream",
});
const happening = events(there(stream.data as ReadableStream<Uint8Array> | undefined));

async function next<Name extends Event["event"]>(
  name: Name,
  fits: (event: Extract<Event, { event: Name }>) => boolean = () => true,
): Promise<Extract<Event, { event: Name }>> {
  for (;;) {
    const { value: event } = await happening.next();
    const found = there<Event>(event) as Extract<Event, { event: Name }>;
    if (found.event === name && fits(found)) return found;
  }
}
const until = (state: RunState) => next("run", (event) => event.data.state === state);

const submit = (body: components["schemas"]["AgentMessage"]) =>
  client.POST("/v1/workspaces/{wid}/agent", { params: { path: { wid } }, body });
const write = { session_id: session.id, prompt: "write", run_id: "one", interactive: true };
const first = await submit(write);
const again = await submit(write);
seen.submit = [first.response.status, first.data || null, there(again.data).repeated];

const asked = await next("permission_request");
const resolved = await client.POST("/v1/workspaces/{wid}/permissions/grant", {
  params: { path: { wid } },
  body: { permission: { id: asked.data.payload.id }, action: "allow" },
});
seen.permission = [asked.data.payload.tool_name, there(resolved.data).resolved];
await until("completed");
const messages = await client.GET("/v1/workspaces/{wid}/sessions/{sid}/messages", {
  params: { path: { wid, sid: session.id } },
});
const texts = there(messages.data)
  .flatMap((message) => message.parts)
  .flatMap((part) => (part.type === "text" ? [part.data.text] : []));
seen.text = texts.at(-1);

await submit({ session_id: session.id, prompt: "wait", run_id: "two" });
await until("active");
const cancelled = await client.POST("/v1/workspaces/{wid}/agent/sessions/{sid}/cancel", {
  params: { path: { wid, sid: session.id }, query: { receipt: true } },
});
const receipt = there(cancelled.data);
seen.cancel = [receipt.complete, receipt.hits.map((hit) => hit.ended)];
await until("cancelled");
await happening.return(undefined);

const run = (rid: string) =>
  client.GET("/v1/workspaces/{wid}/runs/{rid}", { params: { path: { wid, rid } } });
seen.runs = [there((await run("two")).data).state, (await run("none")).error?.code];
console.log(JSON.stringify(seen));
