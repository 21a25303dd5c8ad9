// @ts-check
/** Tokens and cost of the last days as a small chart. */

import { fill, h, svg } from "../dom.js";
import { count, dollars, plural } from "../format.js";

const DAYS = 30;
const [WIDTH, HEIGHT] = [320, 72];

export class UsageChart extends HTMLElement {
  /** @param {import("../state/store.js").Store} store */
  constructor(store) {
    super();
    this.store = store;
    this.hidden = true;
  }

  async load() {
    try {
      const answer = await this.store.api.usage(DAYS);
      this.#show(Array.isArray(answer) ? answer : (answer.days ?? []));
    } catch {
      this.hidden = true;
    }
  }

  /** @param {{ day: string, runs: number, tokens_in: number, tokens_out: number, cost: number }[]} found */
  #show(found) {
    const byDay = new Map(found.map((each) => [each.day, each]));
    const days = Array.from({ length: DAYS }, (_, at) => new Date(Date.now() - (DAYS - 1 - at) * 86_400_000).toISOString().slice(0, 10));
    const all = days.map((day) => byDay.get(day) ?? { day, runs: 0, tokens_in: 0, tokens_out: 0, cost: 0 });
    const sum = (/** @type {(each: any) => number} */ of) => all.reduce((total, each) => total + of(each), 0);
    const tokens = (/** @type {any} */ each) => each.tokens_in + each.tokens_out;
    this.hidden = sum(({ runs }) => runs) === 0;
    const measure = sum(tokens) ? tokens : (/** @type {any} */ each) => each.runs;
    const most = Math.max(1, ...all.map(measure));
    const step = WIDTH / DAYS;
    const bars = all.map((each, at) => {
      const height = measure(each) ? Math.max(2, (measure(each) / most) * HEIGHT) : 0;
      const words = `${each.day}: ${plural(each.runs, "run")}, ${count(tokens(each))} tokens${each.cost ? `, ${dollars(each.cost)}` : ""}`;
      return svg("rect", { class: "bar-of-day", x: at * step + 1, y: HEIGHT - height, width: step - 2, height, rx: 1.5 }, svg("title", {}, words));
    });
    const words = [plural(sum(({ runs }) => runs), "run"), sum(tokens) && `${count(sum(tokens))} tokens`, dollars(sum(({ cost }) => cost))].filter(Boolean).join(" · ");
    const base = svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT + 0.5, y2: HEIGHT + 0.5 });
    const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 1}`, role: "img", "aria-label": `${sum(tokens) ? "Tokens" : "Runs"} per day in the last ${DAYS} days: ${words}` }, base, ...bars);
    fill(this, h("section.usage", {}, h("h2", {}, `Last ${DAYS} days`), h("p.soft", {}, words), drawing));
  }
}

customElements.define("usage-chart", UsageChart);
