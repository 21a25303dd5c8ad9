// @ts-check
/** Tool calls: what was called, with what, and what came of it. */

import { fill, h, icon } from "../dom.js";
import { firstLine, parsed, shortPath, visible } from "../format.js";
import { rendered } from "../rendered.js";
import { diffView } from "./diff.js";
import { folded, media } from "./plain.js";
import { subAgent } from "./subagent.js";

/** @typedef {import("./message.js").Context} Context */
/** @typedef {import("./message.js").PartView} PartView */

const LONGEST = 20_000; // characters of a result that are shown

/** The argument that says what a call is about. */
const SUBJECTS = /** @type {Record<string, string[]>} */ ({
  bash: ["command"],
  job_output: ["shell_id"],
  job_kill: ["shell_id"],
  view: ["file_path"],
  write: ["file_path"],
  edit: ["file_path"],
  multiedit: ["file_path"],
  ls: ["path"],
  glob: ["pattern", "path"],
  grep: ["pattern", "path"],
  fetch: ["url"],
  agentic_fetch: ["prompt", "url"],
  web_search: ["query"],
  download: ["url", "file_path"],
  agent: ["prompt"],
  question: ["questions"],
});
const VERBS = /** @type {Record<string, string>} */ ({
  bash: "Run",
  view: "Read",
  write: "Write",
  edit: "Edit",
  multiedit: "Edit",
  ls: "List",
  glob: "Find",
  grep: "Search",
  fetch: "Fetch",
  agentic_fetch: "Fetch",
  web_search: "Search the web",
  download: "Download",
  agent: "Delegate",
  todos: "Todos",
  question: "Ask",
});

/** The name and the subject of a call. @param {string} name @param {any} input @param {string} directory */
export function callTitle(name, input, directory) {
  const verb = VERBS[name] ?? visible(name.replaceAll("_", " "));
  if (!input || typeof input !== "object") return { verb, subject: "" };
  if (name === "question") return { verb, subject: firstLine(String(input.questions?.[0]?.question ?? "")) };
  if (name === "todos") return { verb, subject: "" };
  const names = SUBJECTS[name] ?? Object.keys(input).filter((key) => typeof input[key] === "string").slice(0, 1);
  const words = names.map((key) => input[key]).filter((value) => typeof value === "string" && value);
  return { verb, subject: visible(firstLine(words.map((word) => shortPath(word, directory)).join("  in  "), 200)) };
}

/** @param {any} value */
const asText = (value) => visible(typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** The arguments of a call, one below the other. @param {string} name @param {any} input */
export function callArguments(name, input) {
  if (name === "bash" && typeof input?.command === "string") return h("pre.command", { tabindex: 0 }, `$ ${visible(input.command)}`);
  if (!input || typeof input !== "object") return h("pre", { tabindex: 0 }, asText(input ?? ""));
  const rows = Object.entries(input).map(([key, value]) => {
    const text = asText(value);
    const long = text.includes("\n") || text.length > 90;
    return h("div", {}, h("dt", {}, visible(key.replaceAll("_", " "))), h("dd", {}, long ? h("pre", { tabindex: 0 }, text.slice(0, LONGEST)) : h("code", {}, text)));
  });
  return h("dl.arguments", {}, ...rows);
}

const MARKS = /** @type {Record<string, string>} */ ({ completed: "Done", in_progress: "In progress", pending: "To do" });

/** @param {{ content: string, status: string, active_form?: string }[]} todos */
export function checklist(todos) {
  const rows = todos.map(({ content, status, active_form: active }) => {
    const mark = h("span.mark", { role: "img", "aria-label": MARKS[status] ?? status }, status === "completed" ? icon("check") : null);
    return h("li", { class: status }, mark, h("span", {}, status === "in_progress" && active ? active : content));
  });
  return h("ul.todos", {}, ...rows);
}

/** @param {Context} context @param {number} index @returns {PartView} */
export function toolPart(context, index) {
  const verb = h("b");
  const subject = h("code.subject");
  const state = h("span.state");
  const element = h("div.tool");
  /** @type {ReturnType<typeof folded> | undefined} */ let fold;
  let shown = "";
  /** @type {() => void} */ let redraw = () => {};
  return {
    element,
    update(part, message, finished) {
      const found = context.transcript.results.get(part.id);
      const result = found?.part;
      const input = parsed(part.input);
      const title = callTitle(part.name, input, context.store.directory);
      verb.textContent = title.verb;
      subject.textContent = title.subject;
      const metadata = result ? (parsed(result.metadata) ?? {}) : {};
      const refused = metadata.permission_refused;
      const { permissions, questions } = context.store.picture;
      const asked = [...permissions.values(), ...questions.values()].some(({ tool_call_id }) => tool_call_id === part.id);
      const how = result ? (refused ? "refused" : result.is_error ? "failed" : "done") : finished && !context.store.activeRun ? "unfinished" : "busy";
      element.className = `tool ${how}`;
      state.textContent = { refused: "Refused", failed: "Failed", done: "", unfinished: "No result", busy: asked ? "Waits for you" : part.finished ? "Running…" : "Writing…" }[how];
      element.classList.toggle("asked", asked);
      const open = part.name === "todos" || (how === "done" && typeof metadata.new_content === "string") || Boolean(result?.data);
      redraw = () => fold && drawTool(context, fold.body, { part, result, metadata, found, message, input });
      if (!fold) {
        fold = folded(context, `${message.id}/${index}`, open, [verb, subject, state], () => redraw());
        element.append(fold.element);
      } else if (open && !context.open.has(`${message.id}/${index}`)) fold.element.open = true;
      const source = found && context.transcript.messages.get(found.message);
      const html = source && fold.element.open ? context.texts.of(source, found.index) : undefined;
      const key = `${fold.element.open}/${part.input.length}/${how}/${found?.message ?? ""}/${html?.length ?? ""}/${part.name === "agent" && Date.now()}`;
      if (key === shown) return;
      shown = key;
      context.texts.shown(part.id);
      if (fold.element.open) redraw();
    },
  };
}

/** @param {Context} context @param {Element} body @param {Record<string, any>} what */
function drawTool(context, body, { part, result, metadata, found, message, input }) {
  if (part.name === "agent" || part.name === "agentic_fetch") return subAgent(context, body, `${message.id}$$${part.id}`, part, input, result);
  const todos = part.name === "todos" ? (metadata.todos ?? input?.todos) : undefined;
  if (Array.isArray(todos)) return fill(body, checklist(todos));
  const source = found && context.transcript.messages.get(found.message);
  const html = source && context.texts.of(source, found.index);
  const args = html?.includes('class="diff') || (part.name === "question" && result) ? null : callArguments(part.name, input ?? part.input);
  fill(body, args, result && resultOf(result, metadata, html, context));
}

/** @param {any} result @param {any} metadata @param {string | undefined} html @param {Context} context */
function resultOf(result, metadata, html, context) {
  const pictures = result.data ? [{ data: result.data, mime_type: result.mime_type }, ...(result.more_media ?? [])] : [];
  const shown = pictures.map((each) => media(each.mime_type, each.data, result.name));
  if (html?.includes('class="diff')) return diffView(html, context);
  const text = typeof metadata.output === "string" && metadata.output ? metadata.output : String(result.content ?? "");
  const cut = text.length > LONGEST ? `${text.slice(0, LONGEST)}\n… ${text.length - LONGEST} more characters` : text;
  const block = html && !result.is_error ? h("div.rendered", {}, rendered(html)) : text && h("pre.output", { tabindex: 0, class: result.is_error ? "output bad" : "output" }, cut);
  return h("div.result", {}, ...shown, block || null);
}
