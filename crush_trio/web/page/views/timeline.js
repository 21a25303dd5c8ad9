// @ts-check
/** The timeline of a run, drawn to scale. */

import { h, svg } from "../dom.js";
import { count, dollars, duration } from "../format.js";

const WIDTH = 320;
const ROW = 30;
const LABEL = 15;
const NAMES = /** @type {Record<string, string>} */ ({
  accepted: "Accepted",
  queued: "In the queue",
  model: "Model",
  tool: "Tool",
  ask: "Waits for a person",
  ending: "Ending",
  subagent: "Sub-agent",
});

/** @typedef {{ kind: string, name?: string, begin: number, end: number | null, detail?: string,
 *   tokens_in?: number, tokens_out?: number, cost?: number }} Span */

/** @param {{ run: any, spans: Span[], coarse?: boolean }} timeline */
export function drawTimeline({ run, spans, coarse }) {
  if (!spans.length) return h("p.soft", {}, "Nothing is recorded of this run.");
  const now = Date.now() / 1000;
  const first = Math.min(...spans.map(({ begin }) => begin));
  const last = Math.max(...spans.map(({ begin, end }) => end ?? Math.max(now, begin)), first + 0.001);
  const x = (/** @type {number} */ at) => ((at - first) / (last - first)) * WIDTH;
  const rows = spans.map((span, at) => row(span, at, x, now));
  const height = spans.length * ROW + 18;
  const axis = [0, 0.5, 1].map((part) => svg("text", { class: "axis", x: part * WIDTH, y: height - 4, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, duration((last - first) * part)));
  const grid = [0, 0.25, 0.5, 0.75, 1].map((part) => svg("line", { class: "grid", x1: part * WIDTH, x2: part * WIDTH, y1: 0, y2: height - 18 }));
  const words = `${run?.state ?? ""}, ${duration(last - first)}: ${spans.map((span) => `${title(span)} ${duration((span.end ?? now) - span.begin)}`).join(", ")}`;
  const drawing = svg("svg", { class: "timeline-drawing", viewBox: `-1 0 ${WIDTH + 2} ${height}`, role: "img", "aria-label": words }, ...grid, ...rows, ...axis);
  return h("div", {}, drawing, h("p.soft", {}, used(spans)), coarse && h("p.soft", {}, "Coarse: only what is stored of an older run."));
}

/** What the calls of the model used, in words; empty if no provider told. @param {Span[]} spans */
function used(spans) {
  const sum = (/** @type {"tokens_in" | "tokens_out" | "cost"} */ of) => spans.reduce((total, span) => total + (span[of] ?? 0), 0);
  const [read, written, cost] = [sum("tokens_in"), sum("tokens_out"), sum("cost")];
  return [read && `${count(read)} tokens in`, written && `${count(written)} out`, dollars(cost)].filter(Boolean).join(" · ");
}

/** @param {Span} span */
const title = ({ kind, name }) => [NAMES[kind] ?? kind, kind === "accepted" || kind === "queued" ? "" : name].filter(Boolean).join(" ");

/** @param {Span} span @param {number} at @param {(at: number) => number} x @param {number} now */
function row(span, at, x, now) {
  const end = span.end ?? Math.max(now, span.begin);
  const top = at * ROW;
  const left = x(span.begin);
  const width = Math.max(2, x(end) - left);
  const words = `${title(span)} · ${duration(end - span.begin)}${span.end === null ? "…" : ""}`;
  const right = left > WIDTH * 0.55;
  const text = svg("text", { x: right ? Math.min(WIDTH, left + width) : left, y: top + 11, "text-anchor": right ? "end" : "start" }, words);
  const bar = svg("rect", { class: `span ${span.kind}${span.end === null ? " open" : ""}`, x: Math.min(left, WIDTH - 2), y: top + LABEL, width, height: 9, rx: 2 });
  return svg("g", {}, svg("title", {}, span.detail ? `${words}\n${span.detail}` : words), text, bar);
}
