// @ts-check
/** One session: its transcript, what waits, and the prompt box. */

import { fill, h, icon, iconButton } from "../dom.js";
import { count, dollars, elapsed, plural } from "../format.js";
import { MessageRow } from "../parts/message.js";
import { Texts } from "../parts/texts.js";
import { checklist } from "../parts/tool.js";
import { lastingLink } from "../router.js";
import { SessionActions } from "./actions.js";
import { AskDock } from "./asks.js";
import { connectionLabel } from "./connection.js";
import { InsightPanel } from "./insight.js";
import { ModelChoice } from "./models.js";
import { PromptBox } from "./prompt.js";
import { QueueDock } from "./queue.js";
import { RowList } from "./rows.js";

const ENDED = /** @type {Record<string, string>} */ ({ errored: "The last run failed", interrupted: "The last run was cut off by a restart of the server" });

export class SessionView extends HTMLElement {
  /** @type {Map<string, boolean>} */ #open = new Map();
  headKey = "";
  todoKey = "";
  statusKey = "";

  /**
   * @param {import("../state/store.js").Store} store @param {import("../router.js").Router} router
   * @param {import("../keys.js").Keys} keys @param {import("../notices.js").Notices} notices
   */
  constructor(store, router, keys, notices) {
    super();
    this.store = store;
    this.router = router;
    this.notices = notices;
    this.texts = new Texts(store, () => this.list.update());
    this.actions = new SessionActions(store, router, notices);
    this.list = new RowList({ label: "Transcript", keys: () => store.transcript?.order ?? [], make: (key) => this.#row(key), top: () => void store.transcript?.loadOlder() });
    this.jump = h("button.jump", { type: "button", hidden: true, onclick: () => this.list.toEnd() }, icon("down"), "Newest");
    this.asks = new AskDock(store, notices);
    this.queue = new QueueDock(store, notices);
    this.models = new ModelChoice(store, notices);
    this.todos = h("details.todo-dock");
    this.status = h("div.status", { role: "status" });
    this.insight = new InsightPanel(store, (run) => this.actions.copyLink({ run }));
    const session = router.target.session;
    this.prompt = new PromptBox(store, notices, { draft: session, send: (text, more) => this.#send(text, more), stop: () => this.actions.stop(), tools: [this.models] });
    this.names = h("div.names");
    this.connection = connectionLabel(store);
    const back = h("a.back", { href: "/", "aria-label": "All sessions" }, icon("back"));
    const chart = iconButton("chart", "Timeline, tasks and usage (t)", () => this.insight.toggle());
    this.head = h("header.session-head", {}, back, this.names, this.connection, chart, this.actions.menu());
    const docks = h("div.docks", {}, this.status, this.asks.told, this.todos, this.asks, store.mayAct && this.queue, store.mayAct && this.prompt);
    const middle = h("div.session-main", {}, this.head, h("div.transcript-frame", {}, this.list, this.jump), docks);
    fill(this, middle, this.insight);
    this.list.addEventListener("moved", () => (this.jump.hidden = this.list.following));
    this.leaving = [
      store.on("messages asks place", () => this.#showMessages()),
      store.on("session roster place", () => this.#showHead()),
      store.on("runs session place", () => this.#showRuns()),
      ...this.#bind(keys),
    ];
    this.timer = setInterval(() => this.#showRuns(), 1000);
    this.#showHead();
    this.#showMessages();
  }

  leave() {
    clearInterval(this.timer);
    for (const each of [...this.leaving]) each();
    for (const each of [this.list, this.asks, this.queue, this.insight, this.prompt, this.models, this.connection]) each.leave();
  }

  /** @param {import("../keys.js").Keys} keys */
  #bind(keys) {
    const watch = [
      keys.bind("t", "Timeline, tasks and usage", () => this.insight.toggle()),
      keys.bind("G", "To the newest message", () => this.list.toEnd()),
      keys.bind("[", "Message before", () => this.#step(-1)),
      keys.bind("]", "Next message", () => this.#step(1)),
    ];
    if (!this.store.mayAct) return watch;
    const manage = this.store.mayManage
      ? [keys.bind("e", "Rename the session", () => this.actions.rename()), keys.bind("#", "Delete the session", () => this.actions.remove())]
      : [];
    return [
      ...watch,
      ...manage,
      ...this.asks.bind(keys),
      keys.bind("i", "Write a prompt", () => this.prompt.focus()),
      keys.bind("s", "Stop the run", () => this.actions.stop()),
      keys.bind("m", "Choose model and effort", () => this.models.open()),
      keys.bind("c", "Summarise the session", () => this.actions.summarize()),
    ];
  }

  /** Show what the address points at. @param {import("../router.js").Target} target */
  async point(target) {
    const id = target.message || target.run; // the prompt of a run has the id of the run
    this.querySelector(".pointed")?.classList.remove("pointed");
    if (!id) return;
    if (target.run) this.insight.showRun(target.run);
    const { transcript } = this.store;
    for (let tries = 0; transcript && !transcript.loaded && tries < 100; tries += 1) await new Promise((resolve) => setTimeout(resolve, 100));
    if (!(await transcript?.find(id))) return this.notices.say("That message is not there any more.");
    this.list.show(id);
    requestAnimationFrame(() => this.querySelector(`#m-${CSS.escape(id)}`)?.classList.add("pointed"));
  }

  /** Put the focus on the message before or after. @param {number} by */
  #step(by) {
    const rows = [.../** @type {NodeListOf<HTMLElement>} */ (this.list.querySelectorAll("article[data-key]"))];
    const top = this.list.getBoundingClientRect().top;
    const focused = rows.findIndex((row) => row === document.activeElement || row.contains(document.activeElement));
    const seen = rows.findIndex((row) => row.getBoundingClientRect().bottom > top + 20);
    const next = rows[Math.max(0, Math.min(rows.length - 1, focused < 0 ? seen : focused + by))];
    if (!next) return;
    next.tabIndex = -1;
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  /** @param {string} key */
  #row(key) {
    const { store, notices, texts } = this;
    const transcript = /** @type {import("../state/transcript.js").Transcript} */ (store.transcript);
    const { workspace, session } = store.place;
    const link = (/** @type {string} */ message) => lastingLink(workspace, session, store.directory, { message });
    return new MessageRow(key, { store, transcript, notices, texts, open: this.#open, link, depth: 0, changed: () => this.list.update() });
  }

  /** @param {string} text @param {{ when_busy?: string, attachments?: object[] }} more */
  async #send(text, more) {
    try {
      await this.store.at.submit(this.store.place.session, text, { ...more, ...this.models.choice });
      this.list.toEnd();
    } catch (error) {
      this.notices.fail(error);
      throw error;
    }
  }

  // ── Showing ─────────────────────────────────────────────────────────────────────────────────

  #showMessages() {
    this.list.update();
    this.jump.hidden = this.list.following;
  }

  #showHead() {
    const { store } = this;
    const { session } = store.place;
    const known = store.sessions.get(session);
    const title = (store.session?.title ?? known?.title) || "Untitled";
    const cost = store.session?.cost ?? known?.cost ?? 0;
    const tokens = (store.session?.prompt_tokens ?? 0) + (store.session?.completion_tokens ?? 0);
    const where = store.workspaces.get(store.place.workspace)?.name ?? store.directory;
    const facts = [where, tokens && `${count(tokens)} tokens`, dollars(cost)].filter(Boolean).join(" · ");
    const key = JSON.stringify([title, facts]);
    if (key !== this.headKey) {
      this.headKey = key;
      fill(this.names, h("h1", { title }, title), h("p.soft", { title: store.directory }, facts));
    }
    const todos = store.session?.todos ?? [];
    const marks = JSON.stringify(todos);
    if (marks === this.todoKey) return;
    this.todoKey = marks;
    const done = todos.filter((/** @type {any} */ { status }) => status === "completed").length;
    const now = todos.find((/** @type {any} */ { status }) => status === "in_progress");
    this.todos.hidden = !todos.length || done === todos.length;
    fill(this.todos, h("summary", {}, h("b", {}, `${done} of ${plural(todos.length, "todo")}`), " ", h("span.soft", {}, now ? now.active_form || now.content : "")), checklist(todos));
  }

  #showRuns() {
    const { store } = this;
    const run = store.activeRun;
    this.prompt.busy = Boolean(run) || store.queue.length > 0;
    this.list.setAttribute("aria-busy", String(Boolean(run)));
    const [last] = store.ended;
    const problem = !run && last && ENDED[last.state] ? `${ENDED[last.state]}${last.error ? `: ${last.error}` : "."}` : "";
    const missing = store.session?.missing ? "This session is not here: it was deleted, or its directory is not open." : (store.transcript?.problem ?? "");
    const waits = this.asks.hidden ? "Working" : "Waiting for you";
    this.prompt.hidden = Boolean(store.session?.missing);
    const says = missing || problem || (run ? (run.state === "ending" ? "Ending…" : `${waits} · ${elapsed(run.started_at ?? run.accepted_at)}`) : "");
    if (says === this.statusKey) return;
    this.statusKey = says;
    this.status.className = `status ${problem || missing ? "bad" : !run ? "" : this.asks.hidden ? "busy" : "waits"}`;
    fill(this.status, run && !missing && h("span.dot"), says && h("span", { "aria-live": run ? "off" : "polite" }, says));
  }
}

customElements.define("session-view", SessionView);
