// @ts-check
/**
 * A client of a crush_trio server, for Node (from version 18) and browsers. No dependencies, no build step.
 *
 *     const client = new Client({ url: "http://127.0.0.1:8765", token });
 *     const workspace = await client.open("/srv/project", { interactive: true });
 *     const session = await workspace.createSession("a title");
 *     const run = await workspace.submit("hello", { session: session.id });
 *     console.log((await run.wait()).text);
 *     await workspace.close();
 *
 * A workspace keeps one event stream open. It reconnects with growing pauses, resumes where it stopped and
 * keeps whole messages, runs and pending asks. The values are those of the server's JSON, unchanged.
 */

import { ApiError, Closed, NoAnswer, RunNotCompleted, Server, newId, passes, reasonOf } from "./requests.js";
import { backoff, bounded, sleep, unlessGone, until } from "./requests.js";
import { EventReader, Picture, SseParser, StreamBroken, isTerminal } from "./stream.js";

export { ApiError, Closed, NoAnswer, RunNotCompleted };

/** @typedef {import("./stream.js").Message} Message */
/** @typedef {import("./stream.js").RunView} RunView */
/** @typedef {import("./stream.js").PermissionRequest} PermissionRequest */
/** @typedef {import("./stream.js").QuestionRequest} QuestionRequest */
/** @typedef {import("./stream.js").WorkspaceEvent} WorkspaceEvent */
/**
 * @typedef {{ id: string, title: string, parent_session_id: string, message_count: number, is_busy: boolean,
 *   attached_clients: number, created_at: number, updated_at: number, cost: number }} Session
 */
/**
 * @typedef {{ request_id: string, selected_ids?: string[], fill_in_text?: string, yes?: boolean,
 *   notes?: Record<string, string> }} QuestionResponse
 */
/**
 * @typedef {{ id: string, session_id: string, run_id?: string, state: string, ended?: string, error?: string,
 *   seconds?: number, processes?: number[], left?: number[] }} Hit
 */
/** @typedef {{ complete: boolean, hits: Hit[] }} Receipt */
/** @typedef {{ id: string, path: string }} WorkspaceView */
/** @typedef {import("./requests.js").Abortable} Abortable */
/** @typedef {import("./requests.js").Request} Request */
/** @typedef {Abortable & { interactive?: boolean, create?: boolean, patience?: number }} OpenOptions */
/**
 * @typedef {Abortable & { session: string, runId?: string, attachments?: object[],
 *   whenBusy?: "enqueue" | "interrupt" | "reject" | "steer", whenUnclaimed?: "cancel" | "continue",
 *   permissions?: { mode?: string, allow_list?: string[] }, interactive?: boolean, model?: object }} SubmitOptions
 */

const CONNECT_LIMIT = 10_000; // milliseconds
const RELEASE_LIMIT = 2_000;
const PATIENCE = 60_000;

/** A server, and the identity with which this program uses it. */
export class Client extends Server {
  /** Return the workspaces of the server. @param {Abortable} [options] @returns {Promise<WorkspaceView[]>} */
  workspaces(options) {
    return this.ask("GET", "/workspaces", options);
  }

  /**
   * Open the workspace of a directory on the server's machine, or join it, and wait until its state is known.
   * `interactive` says that a person answers its asks, `create` makes a missing directory. `patience` is for how
   * many milliseconds the server may be away; `signal` aborts the opening, and later closes the workspace.
   * @param {string} path @param {OpenOptions} [options]
   */
  async open(path, options = {}) {
    const workspace = new Workspace(this, path, options);
    await workspace.start();
    return workspace;
  }

  /** Join a workspace that the server has, by its id. @param {string} id @param {OpenOptions} [options] */
  async attach(id, options = {}) {
    const view = await this.ask("GET", `/workspaces/${encodeURIComponent(id)}`, { signal: options.signal });
    if (typeof view?.path !== "string") throw this.garbled();
    return this.open(view.path, options);
  }
}

// ── Workspaces ────────────────────────────────────────────────────────────────────────────────

/** A claim on a workspace, and its event stream. Made by `client.open`; end it with `close()`. */
export class Workspace {
  #picture = new Picture();
  #known = () => {};
  #away = false;
  #settling = false;
  /** @type {Set<EventReader>} */ #readers = new Set();
  /** @type {Set<{ id: string, wake: () => void }>} */ #waiting = new Set();
  #closing = new AbortController();
  /** @type {Error | undefined} */ #over;
  /** The server's id; it changes if the workspace is created again. */ id = "";

  /** Use `client.open`. @param {Client} client @param {string} path @param {OpenOptions} options */
  constructor(client, path, options) {
    this.client = client;
    this.path = path;
    this.options = { interactive: false, create: false, patience: PATIENCE, ...options };
  }

  /** Make the claim, and wait until the state is known. `client.open` does this. */
  async start() {
    const { signal } = this.options;
    signal?.throwIfAborted();
    signal?.addEventListener("abort", () => void this.close(), { signal: this.#closing.signal });
    const known = new Promise((resolve) => (this.#known = () => resolve(undefined)));
    try {
      await this.#create();
      void this.#listen();
      await known;
      if (this.#over) throw this.#over;
    } catch (error) {
      signal?.throwIfAborted();
      throw error;
    }
  }

  /** The runs that have not ended, by the server's id. */
  get runs() {
    return this.#picture.runs;
  }

  /** What waits for a yes or a no, by id. */
  get permissions() {
    return this.#picture.permissions;
  }

  /** The questions that wait for an answer, by id. */
  get questions() {
    return this.#picture.questions;
  }

  /** Why the workspace is closed; undefined while it is open. */
  get over() {
    return this.#over;
  }

  /** End the stream and release the claim. Runs go on as their `whenUnclaimed` says. */
  async close() {
    if (this.#over) return;
    this.#end(new Closed());
    if (this.id === "") return; // it was never opened
    const query = { client_id: this.client.id };
    const released = bounded((signal) => this.client.ask("DELETE", this.#route(""), { query, signal }), undefined, RELEASE_LIMIT);
    await released.catch(() => {}); // the claim expires
  }

  /** @param {Error} reason */
  #end(reason) {
    this.#over = reason;
    this.#closing.abort();
    for (const each of [...this.#waiting, ...this.#readers]) each.wake();
    this.#known();
  }

  /** @param {string} rest */
  #route(rest) {
    return `/workspaces/${encodeURIComponent(this.id)}${rest}`;
  }

  async #create() {
    const { interactive, create } = this.options;
    const signal = this.#closing.signal;
    const body = { path: this.path, client_id: this.client.id, create };
    const id = (await this.client.ask("POST", "/workspaces", { body, signal }))?.id;
    if (typeof id !== "string") throw this.client.garbled();
    try {
      await this.client.ask("POST", `/workspaces/${encodeURIComponent(id)}/agent/init`, { body: { interactive }, signal });
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "right_missing")) throw error; // a token that may only watch
    }
    this.id = id;
  }

  /**
   * Send; if the workspace is gone, create it again and send again: nothing was done.
   * @template T @param {() => Promise<T>} send
   */
  async #sent(send) {
    if (this.#over) throw this.#over;
    const asked = this.id;
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "workspace_not_found")) throw error;
      if (this.id === asked) await this.#create();
      return send();
    }
  }

  /**
   * Send a request to a route of the workspace, such as `/tasks`, and return its answer.
   * @param {string} method @param {string} path @param {Request} [request] @returns {Promise<any>}
   */
  ask(method, path, request) {
    return this.#sent(() => this.client.ask(method, this.#route(path), request));
  }

  /** @param {Abortable} [options] @returns {Promise<Session[]>} */
  sessions(options) {
    return this.ask("GET", "/sessions", options);
  }

  /** @param {string} title @param {Abortable} [options] @returns {Promise<Session>} */
  createSession(title, options) {
    return this.ask("POST", "/sessions", { ...options, body: { title } });
  }

  /** @param {string} session @param {Abortable} [options] @returns {Promise<Message[]>} */
  messages(session, options) {
    return this.ask("GET", `/sessions/${encodeURIComponent(session)}/messages`, options);
  }

  /**
   * Submit a prompt. When this returns, the run is stored and will end. If the answer is lost, the same run is sent
   * again: `runId` makes that safe.
   * @param {string} prompt @param {SubmitOptions} options
   */
  async submit(prompt, { session, runId = newId(), signal, whenBusy, whenUnclaimed, interactive, ...more }) {
    const policies = { when_busy: whenBusy, when_unclaimed: whenUnclaimed, interactive: interactive ?? this.options.interactive };
    const body = { session_id: session, run_id: runId, prompt, ...policies, ...more };
    const began = Date.now();
    for (const pauses = backoff(); ; ) {
      try {
        await bounded((stop) => this.ask("POST", "/agent", { body, signal: stop }), signal);
        return new Run(this, runId);
      } catch (error) {
        if (!(error instanceof NoAnswer) || this.over || Date.now() - began > this.options.patience) throw error;
      }
      await sleep(pauses.next(), signal);
    }
  }

  /** Return a handle of any run, by the server's id or the submitter's. @param {string} id */
  run(id) {
    return new Run(this, id);
  }

  /**
   * Cancel every run of a session; `keepQueue` leaves the queued ones.
   * @param {string} session @param {Abortable & { keepQueue?: boolean }} [options] @returns {Promise<Receipt>}
   */
  cancel(session, { keepQueue = false, signal } = {}) {
    const query = { receipt: "1", ...(keepQueue && { queue: "keep" }) };
    return this.ask("POST", `/agent/sessions/${encodeURIComponent(session)}/cancel`, { query, signal });
  }

  /**
   * Answer a permission request; returns whether this answer settled it.
   * @param {PermissionRequest} permission @param {"allow" | "allow_session" | "deny"} action
   * The model is told the `reason` of a "deny".
   * @param {Abortable & { scope?: string, reason?: string }} [options]
   */
  async grant(permission, action, { scope, reason, signal } = {}) {
    const body = { permission, action, scope, reason };
    const answer = await this.ask("POST", "/permissions/grant", { body, signal });
    return answer.resolved === true;
  }

  /**
   * Answer a batch of questions.
   * @param {QuestionRequest} batch @param {QuestionResponse[]} responses @param {Abortable} [options]
   */
  async answer(batch, responses, options) {
    await this.ask("POST", "/questions/answer", { ...options, body: { batch_request_id: batch.id, responses } });
  }

  /** Refuse to answer a batch of questions. @param {QuestionRequest} batch @param {Abortable} [options] */
  async decline(batch, options) {
    await this.ask("POST", "/questions/cancel", { ...options, body: { batch_request_id: batch.id } });
  }

  /**
   * Watch the workspace from now on: `for await (const event of workspace.events())`. Any number of readers share
   * one stream. A slow one gets the newest state of a message, and a `resync` if it falls too far behind.
   * @param {Abortable} [options]
   */
  events({ signal } = {}) {
    const reader = new EventReader(() => this.#picture.snapshot(), () => this.#over, () => this.#readers.delete(reader));
    this.#readers.add(reader);
    signal?.addEventListener("abort", () => reader.stop(signal.reason), { once: true });
    if (signal?.aborted) reader.stop(signal.reason);
    return reader;
  }

  /**
   * Wait for a reason to look at a run again: its ending, a new connection, the end of the workspace.
   * @param {string} id
   */
  newsOf(id) {
    const waiting = { id, wake: () => {} };
    const news = new Promise((resolve) => (waiting.wake = () => resolve(undefined)));
    this.#waiting.add(waiting);
    return { news, forget: () => this.#waiting.delete(waiting) };
  }

  /** @param {WorkspaceEvent[]} events */
  #tell(events) {
    for (const event of events) {
      for (const reader of this.#readers) reader.push(event);
      if (event.type !== "run" || !isTerminal(event.run.state)) continue;
      for (const { id, wake } of this.#waiting) if (id === event.run.id || id === event.run.run_id) wake();
    }
  }

  /** Read the event stream until the workspace is closed, or the server is away for too long. */
  async #listen() {
    const pauses = backoff();
    for (let lastHeard = Date.now(); !this.#over; ) {
      const began = Date.now();
      /** @type {any} */ let why;
      try {
        await this.#stream(() => (lastHeard = Date.now()));
        why = new NoAnswer(this.#picture.farewell || "the server ended the stream");
      } catch (error) {
        why = error;
      }
      if (this.#over) return;
      if (why instanceof StreamBroken) this.#picture.mislay();
      else if (!passes(why) || !this.#picture.synced) return this.#end(why);
      if (!this.#away) this.#tell([{ type: "disconnected", reason: why.message }]);
      this.#away = true;
      if (Date.now() - lastHeard > this.options.patience) {
        return this.#end(new NoAnswer(`gave up after ${this.options.patience / 1000} seconds: ${why.message}`, why));
      }
      await sleep(pauses.next(Date.now() - began), this.#closing.signal).catch(() => {});
    }
  }

  /** Read one stream until it ends. @param {() => void} heard */
  async #stream(heard) {
    const stop = new AbortController();
    const silent = () => stop.abort(new NoAnswer("nothing was heard from the server for too long"));
    this.#closing.signal.addEventListener("abort", () => stop.abort(), { signal: stop.signal });
    let timer = setTimeout(silent, CONNECT_LIMIT);
    const { interactive } = this.options;
    const query = { form: "native", client_id: this.client.id, ...(interactive && { interactive: "1" }) };
    const headers = { "last-event-id": this.#picture.place };
    try {
      const request = { query, headers, signal: stop.signal };
      const response = await this.#sent(() => this.client.send("GET", this.#route("/events"), request));
      const parser = new SseParser();
      const body = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
      for (;;) {
        const { done, value } = await body.read();
        if (done) return;
        heard();
        clearTimeout(timer);
        for (const frame of parser.feed(value)) this.#apply(frame);
        if (this.#picture.silence < Infinity) timer = setTimeout(silent, this.#picture.silence);
      }
    } catch (error) {
      if (error instanceof ApiError || error instanceof StreamBroken || error instanceof NoAnswer) throw error;
      throw new NoAnswer(`the connection broke: ${reasonOf(error)}`, error);
    } finally {
      clearTimeout(timer);
      stop.abort();
    }
  }

  /** @param {import("./stream.js").Frame} frame */
  #apply(frame) {
    const known = this.#picture.synced;
    const events = this.#picture.apply(frame);
    if (frame.name === "ready") {
      if (this.#away) this.#tell([{ type: "reconnected" }]);
      this.#away = false;
      for (const { wake } of this.#waiting) wake();
    }
    if (known) this.#tell(events);
    else if (this.#picture.synced) this.#known();
    if (this.#picture.doubtfulRuns.size || this.#picture.doubtfulMessages.size) void this.#settle();
  }

  /** Ask the server about what a resync left open. */
  async #settle() {
    if (this.#settling) return;
    this.#settling = true;
    const picture = this.#picture;
    const ask = (/** @type {string} */ path) => bounded((signal) => this.ask("GET", path, { signal }));
    for (const pauses = backoff(); !this.#over; await sleep(pauses.next(), this.#closing.signal).catch(() => {})) {
      try {
        for (const id of picture.doubtfulRuns) {
          const run = await unlessGone(ask(`/runs/${encodeURIComponent(id)}`));
          if (picture.doubtfulRuns.delete(id) && run) this.#tell(picture.settleRun(run));
        }
        for (const { session_id } of picture.doubtfulMessages.values()) {
          const messages = await unlessGone(ask(`/sessions/${encodeURIComponent(session_id)}/messages`));
          this.#tell(picture.settleMessages(session_id, messages ?? []));
        }
        break;
      } catch {} // it is asked again
    }
    this.#settling = false;
  }
}

// ── Runs ──────────────────────────────────────────────────────────────────────────────────────

/** One run. It belongs to the server: it goes on whatever happens to this handle. */
export class Run {
  /** @param {Workspace} workspace @param {string} id */
  constructor(workspace, id) {
    this.workspace = workspace;
    this.id = id;
  }

  /** Return the run as it is now. @param {Abortable} [options] @returns {Promise<RunView>} */
  view(options) {
    return this.workspace.ask("GET", `/runs/${encodeURIComponent(this.id)}`, options);
  }

  /**
   * Cancel the run, wait until it has ended, and return what the cancel hit.
   * @param {Abortable} [options] @returns {Promise<Receipt>}
   */
  cancel(options) {
    return this.workspace.ask("POST", `/runs/${encodeURIComponent(this.id)}/cancel`, { ...options, query: { receipt: "1" } });
  }

  /**
   * Wait for the run to end, and return it. A broken connection or a restarted server only makes this longer.
   * @param {Abortable} [options] @returns {Promise<RunView>}
   */
  async wait({ signal } = {}) {
    for (const pauses = backoff(); ; ) {
      const { news, forget } = this.workspace.newsOf(this.id);
      try {
        const run = await bounded((stop) => this.view({ signal: stop }), signal);
        if (isTerminal(run.state)) return run;
        await until(news, signal);
      } catch (error) {
        if (!passes(error) || this.workspace.over) throw error;
        await Promise.race([news, sleep(pauses.next(), signal)]);
      } finally {
        forget();
      }
    }
  }

  /**
   * Wait for the answer and return its text; throws `RunNotCompleted`.
   * @param {Abortable} [options] @returns {Promise<string>}
   */
  async text(options) {
    const run = await this.wait(options);
    if (run.state === "folded" && run.folded_into) return new Run(this.workspace, run.folded_into).text(options);
    if (run.state !== "completed") throw new RunNotCompleted(run);
    return run.text ?? "";
  }
}
