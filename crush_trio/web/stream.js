// @ts-check
/**
 * What a client knows of a workspace, kept from the bytes of a native event stream. No requests, no timers.
 *
 * `SseParser` splits bytes into frames, `GrowingMessage` applies deltas, `Picture` keeps the state and turns
 * frames into events, and an `EventReader` queues them for one reader. `client.js` reads the stream.
 */

/** @typedef {{ type: string, data: Record<string, any> }} Part */
/**
 * @typedef {{ id: string, role: string, session_id: string, parts: Part[], created_at: number,
 *   updated_at: number, model: string, provider: string }} Message
 */
/**
 * @typedef {{ id: string, session_id: string,
 *   state: "accepted" | "queued" | "active" | "ending" | "completed" | "cancelled" | "errored" | "folded" | "interrupted",
 *   run_id?: string, kind: string, seq: number, accepted_at: number, started_at?: number, ended_at?: number,
 *   message_id?: string, text?: string, error?: string, folded_into?: string, outcome?: string,
 *   notices?: string[] }} RunView
 */
/**
 * @typedef {{ id: string, session_id: string, tool_call_id: string, tool_name: string, description: string,
 *   action: string, params: unknown, path: string, covers?: string[] }} PermissionRequest
 */
/**
 * @typedef {{ id: string, session_id: string, tool_call_id: string, questions: { id: string, type: string,
 *   question: string, choices?: { id: string, label: string }[] }[] }} QuestionRequest
 */
/** @typedef {{ name: string, id?: string, data: string }} Frame */
/**
 * @typedef {{ index?: number, length?: number, offset?: number, append?: string, part?: Part }} PartChange
 */
/** @typedef {{ id: string, session_id: string, updated_at: number, changes: PartChange[] }} Delta */
/**
 * @typedef {{ type: "message", change: "created" | "updated" | "deleted", message: Message }
 *   | { type: "run", run: RunView }
 *   | { type: "resync", runs: RunView[], messages: Message[], permissions: PermissionRequest[], questions: QuestionRequest[] }
 *   | { type: "disconnected", reason: string }
 *   | { type: "reconnected" }
 *   | { type: "entity", name: string, change: string, payload: any }} WorkspaceEvent
 * An entity is anything else that the server tells: `session`, `permission_request`, `agent_event`, …
 */

const HEARTBEATS_MISSED = 3;
const NOWHERE = "0-0"; // a place that is in no log: the stream begins with a resync
const ENDED_MOST = 4096;
const QUEUED_MOST = 4096; // events that wait for one reader
const FRAME_MOST = 64 * 1024 * 1024;
const TERMINAL = new Set(["completed", "cancelled", "errored", "folded", "interrupted"]);
const encoder = new TextEncoder();

/** A frame does not fit what is known. A client then asks for the current state: it begins at no place again. */
export class StreamBroken extends Error {
  name = "StreamBroken";
  code = "stream_broken";
}

/** Whether a run in this state has ended. @param {string} state */
export const isTerminal = (state) => TERMINAL.has(state);

/** Splits a stream of server-sent events into frames. The bytes may be cut anywhere. */
export class SseParser {
  #decoder = new TextDecoder();
  #line = "";
  #afterCr = false;
  #name = "";
  /** @type {string | undefined} */ #id;
  /** @type {string[]} */ #data = [];
  #size = 0;

  /** Return the frames that *bytes* complete. @param {Uint8Array} bytes @returns {Frame[]} */
  feed(bytes) {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (text === "") return [];
    const last = text.endsWith("\r");
    if (this.#afterCr && text.startsWith("\n")) text = text.slice(1);
    this.#afterCr = last;
    const lines = text.split(/\r\n|\r|\n/);
    lines[0] = this.#line + lines[0];
    this.#line = /** @type {string} */ (lines.pop());
    /** @type {Frame[]} */
    const frames = [];
    for (const line of lines) this.#take(line, frames);
    if (this.#size + this.#line.length > FRAME_MOST) throw new StreamBroken("an event is too long");
    return frames;
  }

  /** @param {string} line @param {Frame[]} frames */
  #take(line, frames) {
    if (line === "") {
      if (this.#data.length) frames.push({ name: this.#name, id: this.#id, data: this.#data.join("\n") });
      this.#data = [];
      [this.#name, this.#id, this.#size] = ["", undefined, 0];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "data") {
      this.#data.push(value);
      this.#size += value.length;
    } else if (field === "event") this.#name = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
  }
}

/** A message that grows by deltas. `message` is never changed: each delta makes a new one that shares parts. */
export class GrowingMessage {
  /** @type {WeakMap<Part, number>} */ #sizes = new WeakMap(); // of texts, in UTF-8 bytes

  /** @param {Message} message */
  constructor(message) {
    this.message = message;
  }

  /** Whether the message is complete. */
  get finished() {
    return this.message.parts.some((part) => part.type === "finish");
  }

  /** Return the message after *delta*; throws `StreamBroken` if it does not fit. @param {Delta} delta */
  apply(delta) {
    const parts = [...this.message.parts];
    for (const change of delta.changes) this.#change(parts, change);
    this.message = { ...this.message, updated_at: delta.updated_at, parts };
    return this.message;
  }

  /** @param {Part[]} parts @param {PartChange} change */
  #change(parts, change) {
    const place = change.length ?? change.index ?? 0;
    if (place > parts.length || (change.append !== undefined && place === parts.length)) {
      throw new StreamBroken(`a change at part ${place} of a message that has ${parts.length}`);
    }
    if (change.length !== undefined) parts.length = change.length;
    else if (change.append !== undefined) parts[place] = this.#appended(parts[place], change);
    else if (change.part) parts[place] = change.part;
  }

  /** @param {Part} part @param {PartChange} change @returns {Part} */
  #appended(part, { offset, append = "", part: around }) {
    const key = part.type === "text" ? "text" : "thinking";
    const size = this.#sizes.get(part) ?? utf8Length(part.data[key]);
    if (size !== offset) throw new StreamBroken(`a delta at ${offset}, but the text has ${size} bytes`);
    const data = { ...(around ?? part).data, [key]: part.data[key] + append };
    const grown = { type: part.type, data };
    this.#sizes.set(grown, size + utf8Length(append));
    return grown;
  }
}

/** @param {string} text */
const utf8Length = (text) => encoder.encode(text).length;

// ── The state of a workspace ──────────────────────────────────────────────────────────────────

/** The state of one workspace, as far as a client knows it. */
export class Picture {
  /** The runs that have not ended, by the server's id. @type {Map<string, RunView>} */ runs = new Map();
  /** @type {Map<string, PermissionRequest>} */ permissions = new Map();
  /** @type {Map<string, QuestionRequest>} */ questions = new Map();
  /** Where the stream is to be resumed. */ place = NOWHERE;
  /** Whether the state of the workspace is known. */ synced = false;
  /** Milliseconds without a sound after which the connection is dead. */ silence = Infinity;
  /** Why the server ended the stream; empty if it did not say. */ farewell = "";
  /** Runs that a resync did not mention; only the server knows how they ended. @type {Set<string>} */ doubtfulRuns = new Set();
  /** Messages that a resync did not mention. @type {Map<string, Message>} */ doubtfulMessages = new Map();
  /** @type {Map<string, GrowingMessage>} */ #messages = new Map();
  /** @type {Set<string>} */ #ended = new Set();

  /** The current state, for readers that missed something. @returns {WorkspaceEvent} */
  snapshot() {
    const messages = [...this.#messages.values()].map((growing) => growing.message);
    const asks = { permissions: [...this.permissions.values()], questions: [...this.questions.values()] };
    return { type: "resync", runs: [...this.runs.values()], messages, ...asks };
  }

  /** Forget the place: the next stream begins with the current state. */
  mislay() {
    this.place = NOWHERE;
  }

  /**
   * Apply a frame; return the events for readers. Throws `StreamBroken`.
   * @param {Frame} frame @returns {WorkspaceEvent[]}
   */
  apply(frame) {
    if (frame.name === "") throw new StreamBroken("an event without a name: this is not the native form");
    const placed = frame.name === "ready" || frame.name === "resync"; // these name a place, which may be the current one
    if (frame.id !== undefined && !placed && isOld(frame.id, this.place)) return [];
    let events;
    try {
      events = this.#take(frame.name, JSON.parse(frame.data));
    } catch (error) {
      if (error instanceof StreamBroken) throw error;
      throw new StreamBroken(`${frame.name}: ${error}`, { cause: error });
    }
    if (frame.id !== undefined) this.place = frame.id;
    return events;
  }

  /** @param {string} name @param {any} data @returns {WorkspaceEvent[]} */
  #take(name, data) {
    switch (name) {
      case "heartbeat":
        return [];
      case "ready":
        this.silence = data.heartbeat === null ? Infinity : HEARTBEATS_MISSED * 1000 * data.heartbeat;
        return [];
      case "end":
        this.farewell = data.reason;
        return [];
      case "asks":
        this.permissions = byId(data.permissions);
        this.questions = byId(data.questions);
        return [];
      case "run":
        return this.settleRun(data);
      case "message":
        return this.#replace(data.type, data.payload);
      case "message_delta":
        return this.#grow(data);
      case "resync":
        return this.#resync(data);
      default:
        this.#follow(name, data);
        return [{ type: "entity", name, change: data.type, payload: data.payload }];
    }
  }

  /** Follow a run. Its ending is told once, and nothing after it. @param {RunView} run @returns {WorkspaceEvent[]} */
  settleRun(run) {
    this.doubtfulRuns.delete(run.id);
    if (this.#ended.has(run.id)) return [];
    if (isTerminal(run.state)) {
      this.runs.delete(run.id);
      this.#ended.add(run.id);
      if (this.#ended.size > ENDED_MOST) this.#ended.delete(/** @type {string} */ (this.#ended.values().next().value));
    } else {
      this.runs.set(run.id, run);
    }
    return [{ type: "run", run }];
  }

  /** @param {"created" | "updated" | "deleted"} change @param {Message} message @returns {WorkspaceEvent[]} */
  #replace(change, message) {
    const growing = new GrowingMessage(message);
    this.doubtfulMessages.delete(message.id);
    if (change === "deleted" || growing.finished) this.#messages.delete(message.id);
    else this.#messages.set(message.id, growing);
    return [{ type: "message", change, message }];
  }

  /** @param {Delta} delta @returns {WorkspaceEvent[]} */
  #grow(delta) {
    const growing = this.#messages.get(delta.id);
    if (!growing) throw new StreamBroken(`a delta of an unknown message: ${delta.id}`);
    const message = growing.apply(delta);
    if (growing.finished) this.#messages.delete(delta.id);
    return [{ type: "message", change: "updated", message }];
  }

  /**
   * Settle the doubts about a session: all of its messages as they are.
   * @param {string} session @param {Message[]} messages @returns {WorkspaceEvent[]}
   */
  settleMessages(session, messages) {
    const found = byId(messages);
    const doubtful = [...this.doubtfulMessages.values()].filter((message) => message.session_id === session);
    return doubtful.map((message) => {
      this.doubtfulMessages.delete(message.id);
      const newest = found.get(message.id);
      return { type: "message", change: newest ? "updated" : "deleted", message: newest ?? message };
    });
  }

  /** Keep the pending asks, and forget the messages of a deleted session. @param {string} name @param {any} data */
  #follow(name, { type, payload }) {
    if (name === "permission_request") this.permissions.set(payload.id, payload);
    if (name === "question_batch_request") this.questions.set(payload.id, payload);
    if (name === "question_batch_notification") this.questions.delete(payload.batch_id);
    if (name === "permission_notification" && (payload.granted || payload.denied)) {
      for (const { id, tool_call_id } of this.permissions.values()) {
        if (tool_call_id === payload.tool_call_id) this.permissions.delete(id);
      }
    }
    if (name === "session" && type === "deleted") {
      for (const { message } of this.#messages.values()) {
        if (message.session_id === payload.id) this.#messages.delete(message.id);
      }
    }
  }

  /** @param {{ ended: RunView[], runs: RunView[], messages: Message[] }} state @returns {WorkspaceEvent[]} */
  #resync({ ended, runs, messages }) {
    for (const id of this.runs.keys()) this.doubtfulRuns.add(id);
    for (const { message } of this.#messages.values()) this.doubtfulMessages.set(message.id, message);
    this.runs = byId(runs.filter((run) => !this.#ended.has(run.id)));
    this.#messages = new Map(messages.map((message) => [message.id, new GrowingMessage(message)]));
    for (const { id } of runs) this.doubtfulRuns.delete(id);
    for (const { id } of messages) this.doubtfulMessages.delete(id);
    this.synced = true;
    return [this.snapshot(), ...ended.flatMap((run) => this.settleRun(run))];
  }
}

/** @template {{ id: string }} T @param {T[]} items @returns {Map<string, T>} */
const byId = (items) => new Map(items.map((item) => [item.id, item]));

/** Whether an event of *place* has been applied before. @param {string} place @param {string} last */
function isOld(place, last) {
  const [at, before] = [place.lastIndexOf("-"), last.lastIndexOf("-")];
  return place.slice(0, at) === last.slice(0, before) && Number(place.slice(at + 1)) <= Number(last.slice(before + 1));
}

// ── Readers ───────────────────────────────────────────────────────────────────────────────────

/**
 * The events for one reader: `for await (const event of reader)`. Of a message that changes while the reader is
 * slow, it gets the newest state; if too much waits, the current state and the endings that it missed.
 */
export class EventReader {
  /** @type {{ event?: WorkspaceEvent }[]} */ #queue = [];
  /** The waiting update of each message. @type {Map<string, { event?: WorkspaceEvent }>} */ #updates = new Map();
  #wake = () => {};
  #stopped = false;
  #left = false;
  /** @type {unknown} */ #reason;

  /** @param {() => WorkspaceEvent} snapshot @param {() => Error | undefined} over @param {() => void} leave */
  constructor(snapshot, over, leave) {
    this.snapshot = snapshot;
    this.over = over;
    this.leave = leave;
  }

  /** @param {WorkspaceEvent} event */
  push(event) {
    const slot = { event };
    if (event.type === "message") {
      const waiting = this.#updates.get(event.message.id);
      if (waiting) delete waiting.event;
      this.#updates.delete(event.message.id);
      if (event.change === "updated") this.#updates.set(event.message.id, slot);
      else if (event.change === "created") this.#updates.clear(); // a call is read before its result
    }
    this.#queue.push(slot);
    if (this.#queue.length > 2 * QUEUED_MOST) this.#trim();
    this.#wake();
  }

  #trim() {
    this.#queue = this.#queue.filter((slot) => slot.event);
    if (this.#queue.length <= QUEUED_MOST) return;
    const endings = this.#queue.filter(({ event }) => event?.type === "run" && isTerminal(event.run.state));
    this.#queue = [{ event: this.snapshot() }, ...endings.slice(-QUEUED_MOST / 2)];
    this.#updates.clear();
  }

  /** Wake the reader: there will be no more events. */
  wake() {
    this.#wake();
  }

  /** End the reader with an error. @param {unknown} reason */
  stop(reason) {
    [this.#stopped, this.#reason] = [true, reason];
    this.#wake();
  }

  /** @returns {Promise<IteratorResult<WorkspaceEvent, undefined>>} */
  async next() {
    for (;;) {
      if (this.#left) return { done: true, value: undefined };
      if (this.#stopped) {
        this.leave();
        throw this.#reason;
      }
      const slot = this.#queue.shift();
      if (slot?.event) {
        if (slot.event.type === "message" && this.#updates.get(slot.event.message.id) === slot) {
          this.#updates.delete(slot.event.message.id);
        }
        return { done: false, value: slot.event };
      }
      if (slot) continue;
      const over = this.over();
      if (over) {
        this.leave();
        if (over.name === "Closed") return { done: true, value: undefined };
        throw over;
      }
      await new Promise((resolve) => {
        const others = this.#wake; // of calls of `next` that wait already
        this.#wake = () => {
          this.#wake = () => {};
          others();
          resolve(undefined);
        };
      });
    }
  }

  /** @returns {Promise<IteratorResult<WorkspaceEvent, undefined>>} */
  async return() {
    this.#left = true;
    this.leave();
    this.#wake();
    return { done: true, value: undefined };
  }

  [Symbol.asyncIterator]() {
    return this;
  }
}
