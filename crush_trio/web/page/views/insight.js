// @ts-check
/** What happens behind a session: the timeline of a run, the live tasks, usage. */

import { fill, h, iconButton } from "../dom.js";
import { clock, duration } from "../format.js";
import { drawTimeline } from "./timeline.js";
import { UsageChart } from "./usage.js";

const PERIOD = 1_000; // milliseconds, while it is open and something runs

export class InsightPanel extends HTMLElement {
  #run = "";
  #choices = "";

  /** @param {import("../state/store.js").Store} store @param {(run: string) => void} onlink copies a link to a run */
  constructor(store, onlink) {
    super();
    this.store = store;
    this.hidden = true;
    this.setAttribute("role", "complementary");
    this.setAttribute("aria-label", "Insight");
    this.select = h("select", { "aria-label": "Run", onchange: () => this.showRun(this.select.value) });
    const link = iconButton("link", "Copy a link to this run", () => onlink(this.#shown), { class: "icon-button" });
    this.timeline = h("div.timeline");
    this.tasks = h("div.tasks");
    this.usage = new UsageChart(store);
    const head = h("header", {}, h("h2", {}, "Insight"), iconButton("close", "Close", () => this.toggle()));
    fill(this, head, h("section", {}, h("h2", {}, "Run"), h("div.run-choice", {}, this.select, link), this.timeline), h("section", {}, h("h2", {}, "Live tasks"), this.tasks), this.usage);
    this.stop = store.on("runs place", () => this.hidden || void this.#look());
    this.timer = setInterval(() => this.hidden || document.hidden || (this.#live && void this.#look()), PERIOD);
  }

  leave() {
    this.stop();
    clearInterval(this.timer);
  }

  toggle() {
    this.hidden = !this.hidden;
    if (this.hidden) return;
    void this.#look();
    void this.usage.load();
  }

  /** @param {string} run */
  showRun(run) {
    this.#run = run;
    if (this.hidden) this.toggle();
    else void this.#look();
  }

  get #runs() {
    const { picture, place, ended } = this.store;
    const live = [...picture.runs.values()].filter(({ session_id }) => session_id === place.session);
    return [...live.sort((a, b) => b.seq - a.seq), ...ended];
  }

  get #live() {
    return this.store.picture.runs.size > 0;
  }

  /** The run that is drawn. */
  get #shown() {
    const runs = this.#runs;
    return this.#run || (runs.find(({ state }) => state === "active")?.id ?? runs[0]?.id ?? "");
  }

  async #look() {
    const runs = this.#runs;
    const choices = runs.map((run) => [run.id, `${clock(run.accepted_at)} · ${run.state}`]);
    const key = JSON.stringify(choices);
    if (key !== this.#choices) {
      this.#choices = key;
      fill(this.select, h("option", { value: "" }, "The newest"), ...choices.map(([id, text]) => h("option", { value: id }, text)));
      this.select.value = runs.some(({ id }) => id === this.#run) ? this.#run : "";
    }
    await Promise.all([this.#showTimeline(this.#shown), this.#showTasks()]);
  }

  /** @param {string} id */
  async #showTimeline(id) {
    if (!id) return fill(this.timeline, h("p.soft", {}, "No runs yet."));
    try {
      fill(this.timeline, drawTimeline(await this.store.at.timeline(id)));
    } catch (error) {
      fill(this.timeline, h("p.soft", {}, /** @type {Error} */ (error).message));
    }
  }

  async #showTasks() {
    try {
      const { runs } = await this.store.at.tasks();
      fill(this.tasks, runs.length ? h("ul", {}, ...runs.map((/** @type {any} */ task) => this.#task(task))) : h("p.soft", {}, "Nothing is at work in this workspace."));
    } catch (error) {
      fill(this.tasks, h("p.soft", {}, /** @type {Error} */ (error).message));
    }
  }

  /** @param {any} task */
  #task(task) {
    const title = (/** @type {any} */ each) => (each.session_id ? `Run: ${this.store.sessions.get(each.session_id)?.title || "a sub-agent"}` : each.name);
    const line = (/** @type {any} */ each) => [h("b", {}, title(each)), each.state && h("span.soft", {}, ` ${each.state} ${duration(each.seconds ?? 0)}`), each.waits_on && h("code", {}, `${each.waits_on.function}`)];
    const below = (task.below ?? []).map((/** @type {any} */ each) => {
      const item = h("li", {}, ...line(each));
      item.style.marginInlineStart = `${((each.depth ?? 1) - 1) * 12}px`;
      return item;
    });
    return h("li", {}, ...line(task), below.length > 0 && h("ul", {}, ...below));
  }
}

customElements.define("insight-panel", InsightPanel);
