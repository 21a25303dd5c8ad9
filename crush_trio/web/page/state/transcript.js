// @ts-check
/** The messages of one session: those that were read, and those that the stream tells, in one order. */

/** @typedef {import("/web/stream.js").Message} Message */

const PAGE = 200;

export class Transcript {
  /** Oldest first; results of tools are not among them. @type {string[]} */ order = [];
  /** @type {Map<string, Message>} */ messages = new Map();
  /** The result of each tool call, by the id of the call. @type {Map<string, { message: string, part: any, index: number }>} */ results = new Map();
  /** Whether there may be older messages on the server. */ more = true;
  /** Whether the newest messages have been read. */ loaded = false;
  /** Why they could not be read. */ problem = "";
  #oldest = "";
  #told = new Set(); // what the stream has told is newer than what a request reads
  #reading = false;

  /** @param {string} session @param {() => import("./api.js").WorkspaceApi} api @param {() => void} changed */
  constructor(session, api, changed) {
    this.session = session;
    this.api = api;
    this.changed = changed;
  }

  /** Read the newest messages, also after events were missed. @param {Message[]} growing what the stream has told of now */
  async load(growing = []) {
    this.#told = new Set();
    for (const message of growing) this.tell("updated", message);
    try {
      const most = Math.max(PAGE, Math.min(1000, this.messages.size));
      const newest = await this.api().messages(this.session, most);
      if (!this.loaded) this.more = newest.length >= most;
      this.loaded = true;
      this.problem = "";
      const found = new Set(newest.map((/** @type {Message} */ { id }) => id));
      const from = newest[0]?.created_at ?? 0;
      for (const message of [...this.messages.values()]) {
        const gone = !found.has(message.id) && !this.#told.has(message.id) && (message.created_at > from || newest.length < most);
        if (gone) this.#remove(message.id);
      }
      this.#take(newest, true);
    } catch (error) {
      this.problem = /** @type {Error} */ (error).message;
    }
    this.changed();
  }

  /** Read older messages. @returns {Promise<boolean>} whether there were any */
  async loadOlder() {
    if (!this.more || this.#reading || !this.loaded || !this.#oldest) return false;
    this.#reading = true;
    try {
      const older = await this.api().messages(this.session, PAGE, this.#oldest);
      this.more = older.length >= PAGE;
      this.#take(older, false);
      return older.length > 0;
    } catch {
      return false;
    } finally {
      this.#reading = false;
      this.changed();
    }
  }

  /** Read until a message is there. @param {string} id */
  async find(id) {
    while (!this.messages.has(id) && (await this.loadOlder()));
    return this.messages.has(id);
  }

  /** @param {Message[]} messages oldest first @param {boolean} newest */
  #take(messages, newest) {
    if (messages.length && (!newest || !this.#oldest)) this.#oldest = messages[0].id;
    const fresh = messages.filter(({ id }) => !this.messages.has(id));
    for (const message of messages) {
      if (!this.#told.has(message.id)) this.#keep(message);
    }
    const rows = fresh.filter(({ role }) => role !== "tool").map(({ id }) => id);
    if (!rows.length) return;
    if (!newest) this.order = [...rows, ...this.order];
    else {
      // What the stream told before this was read may already stand at its place.
      const all = messages.filter(({ role }) => role !== "tool").map(({ id }) => id);
      const known = new Set(all);
      const first = this.order.findIndex((id) => known.has(id));
      const older = this.order.filter((id, at) => !known.has(id) && (first < 0 ? !this.#told.has(id) : at < first));
      const later = this.order.filter((id, at) => !known.has(id) && (first < 0 ? this.#told.has(id) : at >= first));
      this.order = [...older, ...all, ...later];
    }
  }

  /** @param {Message} message */
  #keep(message) {
    this.messages.set(message.id, message);
    if (message.role !== "tool") return;
    message.parts.forEach((part, index) => {
      if (part.type === "tool_result") this.results.set(part.data.tool_call_id, { message: message.id, part: part.data, index });
    });
  }

  /** @param {string} id */
  #remove(id) {
    if (this.messages.delete(id)) this.order = this.order.filter((each) => each !== id);
  }

  /** Take a message of the stream. @param {"created" | "updated" | "deleted"} change @param {Message} message */
  tell(change, message) {
    this.#told.add(message.id);
    if (change === "deleted") this.#remove(message.id);
    else {
      if (!this.messages.has(message.id) && message.role !== "tool") this.order.push(message.id);
      this.#keep(message);
    }
    this.changed();
  }
}

/** Whether a message is complete. @param {Message} message */
export const isFinished = (message) => message.parts.some((part) => part.type === "finish");
