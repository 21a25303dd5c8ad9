// @ts-check
/**
 * All that the page knows, kept from its one event stream. Views read it and are told when a part of it changed:
 * `roster`, `place`, `connection`, `messages`, `runs`, `asks`, `session`, `queue`.
 */

import { Picture, isTerminal } from "/web/stream.js";
import { Api } from "./api.js";
import { Connection } from "./connection.js";
import { directoryOf, remember } from "./directories.js";
import { Told } from "./told.js";
import { Transcript } from "./transcript.js";

/** @typedef {import("/web/stream.js").RunView} RunView */
/** @typedef {import("./types.js").RosterSession} RosterSession */
/** @typedef {import("./types.js").Place} Place */

const RESYNCHRONISED = 4_000; // milliseconds for which that is shown

export class Store extends Told {
  api = new Api();
  page = { login: false, right: /** @type {string | null} */ (null), version: "", directory: "" };
  roster = { directory: "", known: false, recent: /** @type {{ path: string, used_at: number }[]} */ ([]) };
  /** @type {Map<string, import("./types.js").RosterWorkspace>} */ workspaces = new Map();
  /** @type {Map<string, RosterSession>} */ sessions = new Map();
  /** @type {Place} */ place = { workspace: "", session: "" };
  picture = new Picture();
  /** The open session as the server describes it. @type {any} */ session = null;
  /** @type {Transcript | null} */ transcript = null;
  /** Transcripts of opened sub-agents. @type {Map<string, Transcript>} */ below = new Map();
  /** @type {any[]} */ queue = [];
  /** The last ended runs of the session, newest first. @type {RunView[]} */ ended = [];
  /** @type {import("./types.js").ConnectionState} */ connection = "connecting";
  reason = "";
  /** Called when the server wants a login. */ onlogin = () => {};
  /** Sessions that are about to be deleted. @type {Set<string>} */ leaving = new Set();
  /** @type {Connection | undefined} */ #stream;
  #resync = 0;

  // ── Rights ──────────────────────────────────────────────────────────────────────────────────

  /** Whether this person may prompt, stop and answer; the others watch. */
  get mayAct() {
    return this.page.right === "admin" || this.page.right === "answer";
  }

  /** Whether this person may also open directories, rename and delete. */
  get mayManage() {
    return this.page.right === "admin";
  }

  /** The routes of the open workspace. */
  get at() {
    return this.api.at(this.place.workspace);
  }

  get directory() {
    return this.workspaces.get(this.place.workspace)?.path ?? this.pathOf(this.place.workspace);
  }

  /** The directory of a workspace, also of one that is not hosted now. @param {string} workspace */
  pathOf(workspace) {
    return this.workspaces.get(workspace)?.path ?? directoryOf(workspace);
  }

  // ── The place ───────────────────────────────────────────────────────────────────────────────

  /** Host a directory; returns the id of its workspace. @param {string} path */
  async open(path) {
    const workspace = await this.api.claim(path, this.mayAct);
    remember(workspace, path);
    if (!this.workspaces.has(workspace)) this.workspaces.set(workspace, { id: workspace, path, name: path.split("/").at(-1) ?? path });
    return workspace;
  }

  /** Show a place; an empty workspace is the roster alone. @param {Place} place */
  async go(place) {
    this.#stream?.stop();
    const former = this.place.workspace;
    if (place.workspace !== former || place.session !== this.place.session) {
      this.session = null;
      this.queue = [];
      this.ended = [];
      this.below = new Map();
    }
    this.place = place;
    this.picture = new Picture();
    const telling = () => this.changed("messages");
    this.transcript = place.session ? new Transcript(place.session, () => this.at, telling) : null;
    this.changed("place");
    if (former && former !== place.workspace) this.api.release(former);
    if (place.workspace) {
      const path = this.pathOf(place.workspace) || (await this.api.pathOf(place.workspace).catch(this.#refused));
      if (this.place !== place) return;
      if (path) {
        const id = await this.open(path).catch(this.#refused);
        if (this.place !== place) return;
        if (id) this.place.workspace = id;
      }
    }
    this.#connect();
  }

  /** Begin the stream of the place. */
  #connect() {
    const { workspace, session } = this.place;
    const right = this.mayAct ? { interactive: "1" } : {};
    const query = workspace ? { workspace, ...(session && { session }), client_id: this.api.id, ...right } : {};
    const picture = this.picture;
    this.#stream = new Connection(this.api, /** @type {Record<string, string>} */ (query), {
      place: () => picture.place,
      silence: () => picture.silence,
      lost: () => picture.mislay(),
      state: (state, reason) => this.#show(state, reason),
      frame: (frame) => this.#take(frame),
      gone: (error) => this.#gone(error),
    });
    void this.#stream.run();
  }

  /** Connect again now. */
  hurry() {
    this.#stream?.hurry();
  }

  /** @param {any} error @returns {undefined} */
  #refused = (error) => void (error?.status === 401 && this.onlogin());

  /** The stream was refused: claim the workspace again, or ask for a login. @param {any} error */
  async #gone(error) {
    if (error?.status === 401) {
      this.onlogin();
      return false;
    }
    const path = this.pathOf(this.place.workspace);
    if (!path && error?.code === "workspace_not_found") {
      this.place.workspace = ""; // an old address: the sessions that there are can still be shown
      this.session = { missing: true, id: this.place.session };
      this.changed("session");
      this.#connect();
      return false;
    }
    if (path && ["workspace_not_found", "workspace_not_claimed", "client_not_attached"].includes(error?.code)) {
      const place = this.place;
      const id = await this.open(path).catch(() => "");
      if (id && this.place === place) {
        const moved = id !== place.workspace;
        place.workspace = id;
        if (moved) {
          this.#connect(); // with the new id; this stream ends
          this.changed("place");
          return false;
        }
      }
      return true;
    }
    this.#show("closed", error?.message ?? String(error));
    return false;
  }

  /** @param {import("./types.js").ConnectionState} state @param {string} [reason] */
  #show(state, reason = "") {
    if (state === "connected" && this.#resync > Date.now()) state = "resynchronised";
    this.connection = state;
    this.reason = reason;
    this.changed("connection");
  }

  // ── The stream ──────────────────────────────────────────────────────────────────────────────

  /** @param {import("/web/stream.js").Frame} frame */
  #take(frame) {
    if (frame.name === "roster") this.#takeRoster(JSON.parse(frame.data));
    else if (frame.name === "roster_session") this.#replace(this.sessions, JSON.parse(frame.data));
    else if (frame.name === "roster_workspace") this.#replace(this.workspaces, JSON.parse(frame.data));
    else this.#takeEvents(frame);
  }

  /** @param {any} roster */
  #takeRoster(roster) {
    const byId = (/** @type {any[]} */ items) => new Map(items.map((item) => [item.id, item]));
    this.workspaces = byId(roster.workspaces);
    this.sessions = byId(roster.sessions);
    this.roster = { directory: roster.directory, recent: roster.recent ?? [], known: true };
    for (const { id, path } of roster.workspaces) if (id === this.place.workspace) remember(id, path);
    this.changed("roster");
  }

  /** @param {Map<string, any>} items @param {{ type: string, payload: any }} change */
  #replace(items, { type, payload }) {
    if (type === "deleted") items.delete(payload.id);
    else items.set(payload.id, payload);
    this.changed("roster");
  }

  /** @param {import("/web/stream.js").Frame} frame */
  #takeEvents(frame) {
    const known = this.picture.synced;
    const events = this.picture.apply(frame);
    if (frame.name === "asks") this.changed("asks");
    for (const event of events) {
      if (event.type === "message") this.#tell(event.change, event.message);
      else if (event.type === "run") this.#takeRun(event.run);
      else if (event.type === "resync") this.#takeResync(event, known);
      else if (event.type === "entity") this.#takeEntity(event);
    }
  }

  /** @param {any} event @param {boolean} known whether there was something to lose */
  #takeResync(event, known) {
    const { session } = this.place;
    if (known) {
      this.#resync = Date.now() + RESYNCHRONISED;
      this.#show("resynchronised");
      setTimeout(() => this.connection === "resynchronised" && this.#show("connected"), RESYNCHRONISED);
    }
    const of = (/** @type {string} */ id) => event.messages.filter((/** @type {any} */ message) => message.session_id === id);
    void this.transcript?.load(of(session));
    for (const [id, transcript] of this.below) void transcript.load(of(id));
    if (session) void this.#readSession();
    for (const part of ["runs", "asks", "messages"]) this.changed(part);
  }

  async #readSession() {
    const place = this.place;
    try {
      const [session, runs] = await Promise.all([this.at.session(place.session), this.at.runs(place.session, 50)]);
      if (this.place !== place) return;
      this.session = session;
      this.ended = runs.filter((/** @type {RunView} */ run) => isTerminal(run.state));
      await this.readQueue();
    } catch (error) {
      if (this.place === place && /** @type {any} */ (error).status === 404) this.session = { missing: true, id: place.session };
    }
    this.changed("session");
    this.changed("runs");
  }

  async readQueue() {
    const { session } = this.place;
    if (!session) return;
    const queue = await this.at.queue(session).catch(() => []);
    if (session !== this.place.session) return;
    this.queue = queue ?? [];
    this.changed("queue");
  }

  /** @param {"created" | "updated" | "deleted"} change @param {any} message */
  #tell(change, message) {
    if (message.session_id === this.place.session) this.transcript?.tell(change, message);
    else this.below.get(message.session_id)?.tell(change, message);
  }

  /** @param {RunView} run */
  #takeRun(run) {
    if (run.session_id === this.place.session) {
      if (isTerminal(run.state)) this.ended = [run, ...this.ended.filter(({ id }) => id !== run.id)].slice(0, 50);
      void this.readQueue();
    }
    this.changed("runs");
  }

  /** @param {any} event */
  #takeEntity({ name, change, payload }) {
    if (name.startsWith("permission") || name.startsWith("question")) this.changed("asks");
    if (name !== "session" || payload.id !== this.place.session) return;
    this.session = change === "deleted" ? { missing: true, id: payload.id } : payload;
    this.changed("session");
  }

  // ── What views ask ──────────────────────────────────────────────────────────────────────────

  /** The transcript of a sub-agent, read when it is first opened. @param {string} session */
  under(session) {
    let transcript = this.below.get(session);
    if (!transcript) {
      transcript = new Transcript(session, () => this.at, () => this.changed("messages"));
      this.below.set(session, transcript);
      void transcript.load();
    }
    return transcript;
  }

  /** The run of the session that works now; else one that waits to begin. */
  get activeRun() {
    const runs = [...this.picture.runs.values()].filter((run) => run.session_id === this.place.session);
    return runs.find(({ state }) => state === "active" || state === "ending") ?? runs.find(({ state }) => state === "accepted");
  }

  /** Whether an ask belongs to the open session or to one of its sub-agents. @param {{ session_id: string }} ask */
  isHere({ session_id: session }) {
    if (session === this.place.session) return true;
    const [message] = session.split("$$");
    return session.includes("$$") && (this.transcript?.messages.has(message) || [...this.below.values()].some((t) => t.messages.has(message)));
  }
}
