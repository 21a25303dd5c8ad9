// Scenarios of the ES module against a real server: node scenarios.mjs MODULE NAME URL FOLDER [TOKEN]
import assert from "node:assert/strict";
import { createServer, connect } from "node:net";
import { createServer as createHttpServer } from "node:http";

const [, , module, name, url, folder, token] = process.argv;
const { ApiError, Client, Closed, NoAnswer, RunNotCompleted } = await import(module);

const textOf = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.data.text).join("");
const finished = (message) => message.parts.some((part) => part.type === "finish");

async function opened(options = {}, client = {}) {
  const workspace = await new Client({ url, token, ...client }).open(folder, options);
  return { workspace, session: (await workspace.createSession("a title")).id };
}

/** Read events until *done* says so; return all. */
async function gather(events, done) {
  const seen = [];
  for await (const event of events) {
    seen.push(event);
    if (done(event)) break;
  }
  return seen;
}

const ends = (run) => (event) => event.type === "run" && event.run.run_id === run && event.run.state === "completed";

/** A proxy whose connections can be cut. With a valid token the server accepts the proxy's port in `Host`. */
async function proxied() {
  const target = new URL(url);
  const sockets = new Set();
  const server = createServer((socket) => {
    const upstream = connect(Number(target.port), target.hostname);
    for (const [one, other] of [[socket, upstream], [upstream, socket]]) {
      sockets.add(one);
      one.on("error", () => {}).on("close", () => other.destroy());
      one.pipe(other);
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  return {
    url: `http://127.0.0.1:${port}`,
    cut: () => sockets.forEach((socket) => socket.destroy()),
    close: () => server.close() && sockets.forEach((socket) => socket.destroy()),
  };
}

const scenarios = {
  async prompt() {
    const { workspace, session } = await opened();
    const events = workspace.events();
    const run = await workspace.submit("go", { session, runId: "r1" });
    const seen = await gather(events, ends("r1"));
    assert.equal(await run.text(), "Grüß Gott 👍 done");
    const answers = seen.filter((e) => e.type === "message" && e.message.role === "assistant");
    assert.ok(answers.length >= 2, "it streams");
    for (const [at, { message }] of answers.entries()) {
      const next = answers[at + 1]?.message ?? message;
      assert.ok(textOf(next).startsWith(textOf(message)), "every event has the whole message so far");
    }
    assert.deepEqual(answers.at(-1).message, (await workspace.messages(session)).at(-1));
    assert.deepEqual(seen.filter((e) => e.type === "run").map((e) => e.run.state), ["accepted", "active", "completed"]);
    assert.deepEqual((await workspace.sessions()).map((s) => s.title), ["a title"]);
    // Sending the same run again is safe; another prompt under its id is not.
    await workspace.submit("go", { session, runId: "r1" });
    await assert.rejects(workspace.submit("other", { session, runId: "r1" }), (error) => {
      assert.ok(error instanceof ApiError && error.status === 409 && error.code && error.message);
      return true;
    });
    const joined = await new Client({ url, token }).attach(workspace.id);
    assert.equal(joined.id, workspace.id);
    await joined.close();
    await workspace.close();
    await assert.rejects(workspace.sessions(), Closed);
    for await (const _ of workspace.events()) assert.fail("a closed workspace has no events");
  },

  async asks() {
    const { workspace, session } = await opened({ interactive: true });
    const events = workspace.events();
    const run = await workspace.submit("write hello to greeting.txt", { session });
    await gather(events, (e) => e.name === "permission_request");
    const [permission] = workspace.permissions.values();
    assert.equal(permission.tool_name, "write");
    assert.equal(await workspace.grant(permission, "allow"), true);
    assert.equal(await workspace.grant(permission, "deny"), false, "the first answer counts");
    assert.equal((await run.wait()).state, "completed");
    assert.equal(workspace.permissions.size, 0);
    const questioned = workspace.events();
    const second = await workspace.submit("ask me which way", { session });
    await gather(questioned, (e) => e.name === "question_batch_request");
    const [batch] = workspace.questions.values();
    const responses = batch.questions.map(({ id }) => ({ request_id: id, fill_in_text: "left", yes: true }));
    await workspace.answer(batch, responses);
    assert.equal((await second.wait()).state, "completed");
    assert.equal(workspace.questions.size, 0);
    const third = await workspace.submit("ask me again", { session });
    await gather(workspace.events(), () => workspace.questions.size === 1);
    await workspace.decline([...workspace.questions.values()][0]);
    assert.ok(["completed", "cancelled"].includes((await third.wait()).state));
    await workspace.close();
  },

  async cancel() {
    const { workspace, session } = await opened();
    const run = await workspace.submit("wait", { session, runId: "r1" });
    const queued = await workspace.submit("go", { session, runId: "r2" });
    const stop = new AbortController();
    const waiting = run.wait({ signal: stop.signal });
    stop.abort(new Error("enough"));
    await assert.rejects(waiting, /enough/);
    const receipt = await queued.cancel();
    assert.deepEqual([receipt.complete, receipt.hits.length], [true, 1]);
    const all = await workspace.cancel(session);
    assert.deepEqual([all.complete, all.hits.length], [true, 1]);
    assert.equal((await run.wait()).state, "cancelled");
    await assert.rejects(run.text(), (error) => error instanceof RunNotCompleted && error.run.state === "cancelled");
    await assert.rejects(workspace.run("none").view(), { name: "ApiError", status: 404, code: "run_not_found" });
    const left = new AbortController();
    const reading = (async () => { for await (const _ of workspace.events({ signal: left.signal })); })();
    left.abort(new Error("read enough"));
    await assert.rejects(reading, /read enough/);
    await workspace.close();
  },

  async reconnect() {
    const proxy = await proxied();
    const { workspace, session } = await opened({}, proxy);
    const events = workspace.events();
    const run = await workspace.submit("in two parts", { session, runId: "r1" });
    const before = await gather(workspace.events(), (e) => e.type === "message" && textOf(e.message) === "Grüß");
    assert.ok(before.length);
    proxy.cut();
    const direct = new Client({ url, token });
    await direct.ask("POST", `/workspaces/${workspace.id}/agent`, { body: { session_id: session, run_id: "r2", prompt: "go" } });
    const other = await direct.open(folder);
    await other.submit("open the gate", { session: (await other.createSession("b")).id });
    const seen = await gather(events, ends("r2"));
    const kinds = seen.map((e) => e.type);
    assert.ok(kinds.includes("disconnected") && kinds.includes("reconnected"));
    assert.ok(!kinds.includes("resync"), "it resumed where it was");
    assert.equal(await run.text(), "Grüß Gott");
    const endings = seen.filter((e) => e.type === "run" && e.run.state === "completed").map((e) => e.run.run_id);
    assert.equal(endings.filter((id) => id === "r1").length, 1);
    await other.close();
    await workspace.close();
    proxy.close();
  },

  async resync() {
    let lost = false;
    const forgetful = (input, init) => {
      if (lost && init.headers["last-event-id"]) init.headers["last-event-id"] = "zz-7";
      return fetch(input, init);
    };
    const proxy = await proxied();
    const { workspace, session } = await opened({}, { ...proxy, fetch: forgetful });
    const events = workspace.events();
    const run = await workspace.submit("in two parts", { session, runId: "r1" });
    await gather(workspace.events(), (e) => e.type === "message" && textOf(e.message) === "Grüß");
    const direct = await new Client({ url, token }).open(folder);
    lost = true;
    proxy.cut();
    await direct.submit("open the gate", { session: (await direct.createSession("b")).id });
    assert.equal((await direct.run("r1").wait()).state, "completed");
    assert.equal((await run.wait()).text, "Grüß Gott");
    const seen = await gather(events, (e) => e.type === "message" && e.message.role === "assistant" && finished(e.message) && textOf(e.message) === "Grüß Gott");
    assert.ok(seen.some((e) => e.type === "resync"));
    assert.equal(seen.filter((e) => e.type === "run" && e.run.run_id === "r1" && e.run.state === "completed").length, 1);
    await direct.close();
    await workspace.close();
    proxy.close();
  },

  async slow_reader() {
    const { workspace, session } = await opened();
    const [slow, quick] = [workspace.events(), workspace.events()];
    const run = await workspace.submit("long 300", { session, runId: "r1" });
    const seen = await gather(quick, ends("r1"));
    const late = await gather(slow, ends("r1"));
    const texts = (events) => events.filter((e) => e.type === "message" && e.message.role === "assistant").map((e) => textOf(e.message));
    assert.ok(texts(seen).length > 5);
    assert.ok(texts(late).length < texts(seen).length, "it gets the newest state only");
    assert.equal(texts(late).at(-1), await run.text());
    assert.equal((await run.text()).split(" ").length, 300);
    await workspace.close();
  },

  async split() {
    const crumbs = async (input, init) => {
      const response = await fetch(input, init);
      if (!String(input).includes("/events")) return response;
      const bytes = new TransformStream({ transform: (chunk, out) => chunk.forEach((_, at) => out.enqueue(chunk.slice(at, at + 1))) });
      return new Response(response.body.pipeThrough(bytes), response);
    };
    const { workspace, session } = await opened({}, { fetch: crumbs });
    const events = workspace.events();
    await workspace.submit("go", { session, runId: "r1" });
    const seen = await gather(events, ends("r1"));
    const last = seen.filter((e) => e.type === "message").at(-1).message;
    assert.equal(textOf(last), "Grüß Gott 👍 done");
    assert.ok(!seen.some((e) => e.type === "disconnected"));
    await workspace.close();
  },

  async three_clients() {
    const all = await Promise.all([1, 2, 3].map(() => opened()));
    const readers = all.map(({ workspace }) => workspace.events());
    const ids = ["a", "b", "c"];
    const runs = await Promise.all(all.map(({ workspace, session }, at) => workspace.submit("go", { session, runId: ids[at] })));
    assert.deepEqual(await Promise.all(runs.map((run) => run.text())), Array(3).fill("Grüß Gott 👍 done"));
    for (const events of readers) {
      const left = new Set(ids);
      const seen = await gather(events, (e) => e.type === "run" && e.run.state === "completed" && left.delete(e.run.run_id) && !left.size);
      const texts = new Map(seen.filter((e) => e.type === "message" && e.message.role === "assistant").map((e) => [e.message.id, textOf(e.message)]));
      assert.deepEqual([...texts.values()], Array(3).fill("Grüß Gott 👍 done"));
    }
    await Promise.all(all.map(({ workspace }) => workspace.close()));
  },

  async token() {
    await assert.rejects(new Client({ url }).open(folder), { name: "ApiError", status: 401, code: "unauthorized" });
    const { workspace, session } = await opened();
    assert.equal(await (await workspace.submit("go", { session })).text(), "Grüß Gott 👍 done");
    await workspace.close();
  },

  // A server of our own, which is silent, goes away or answers nonsense.
  async bad_server() {
    let streams = 0;
    let posts = 0;
    const server = createHttpServer((request, response) => {
      if (request.url.endsWith("/capsule")) {
        response.writeHead(200, { "content-disposition": "attachment" }).end("{}\n{}\n");
      } else if (request.url.includes("/events")) {
        streams++;
        if (streams === 2) return response.writeHead(200).end("data: {}\n\n");
        const heartbeat = streams > 2 ? null : 0.02;
        response.writeHead(200).write(`event: ready\ndata: {"position":null,"heartbeat":${heartbeat}}\n\n`);
        response.write('id: x-1\nevent: resync\ndata: {"ended":[],"runs":[],"messages":[]}\n\n');
      } else if (request.url.endsWith("/agent") && ++posts < 3) {
        if (posts === 1) request.socket.destroy(); // the answer is lost
        else response.writeHead(502).end('{"message":"a node has lost it","code":"forward_lost"}');
      } else {
        if (request.url.endsWith("/mcp")) return response.writeHead(504).end("<html>"); // by a proxy
        const foreign = /tasks$|skills$/.test(request.url);
        response.writeHead(request.url.endsWith("/tasks") ? 500 : 200).end(foreign ? "<html>" : '{"id":"w"}');
      }
    });
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const client = new Client({ url: `http://127.0.0.1:${server.address().port}/` });
    const workspace = await client.open("/x", { patience: 400 });
    const waits = workspace.run("r").wait();
    waits.catch(() => {});
    const events = workspace.events();
    await workspace.submit("go", { session: "s" });
    assert.equal(posts, 3, "a lost answer is asked for again");
    await assert.rejects(workspace.ask("GET", "/mcp"), NoAnswer);
    await assert.rejects(workspace.ask("GET", "/tasks"), { name: "ApiError", status: 500, message: "<html>" });
    await assert.rejects(workspace.ask("GET", "/skills"), { name: "ApiError", status: 200, code: "answer_garbled" });
    assert.equal(await workspace.ask("GET", "/runs/r/capsule"), "{}\n{}\n");
    await assert.rejects(client.attach("elsewhere"), { code: "answer_garbled" }); // JSON, but without a path
    await gather(events, () => streams === 3); // silence, and a stream that is not native: it reconnects
    server.closeAllConnections();
    server.close();
    await assert.rejects(gather(workspace.events(), () => false), (error) => error instanceof NoAnswer && /gave up/.test(error.message));
    await assert.rejects(waits, /gave up/);
    await assert.rejects(client.open("/x"), NoAnswer);
    await assert.rejects(client.open("/x", { signal: AbortSignal.abort(new Error("never mind")) }), /never mind/);
    for (const url of [undefined, "127.0.0.1:80", "unix:///x"]) assert.throws(() => new Client({ url }), /needs the url/);
    assert.throws(() => new Client({ url: "http://x", token: "a\nsecret" }), (error) => !/secret/.test(error.message));
  },
};

await scenarios[name]();
console.log("done");
