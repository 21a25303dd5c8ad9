// @ts-check
/** Numbers, times and paths as people read them. */

/** A duration. @param {number} seconds */
export function duration(seconds) {
  if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** How long something has run, in whole seconds. @param {number} since Unix seconds */
export function elapsed(since) {
  const seconds = Math.max(0, Math.floor(Date.now() / 1000 - since));
  return seconds < 10 ? `${seconds} s` : duration(seconds);
}

/** A moment in the past. @param {number} at Unix seconds */
export function ago(at) {
  const seconds = Date.now() / 1000 - at;
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  if (seconds < 7 * 86400) return `${Math.floor(seconds / 86400)} d`;
  return new Date(at * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

/** The time of day; for other days the date. @param {number} at Unix seconds */
export function clock(at) {
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.toLocaleDateString(undefined, { day: "numeric", month: "short" })}, ${time}`;
}

/** Dollars; empty for nothing. @param {number} amount */
export function dollars(amount) {
  if (!amount) return "";
  if (amount < 0.01) return "< $0.01";
  return `$${amount.toFixed(2)}`;
}

/** A count, short. @param {number} number */
export function count(number) {
  if (number < 1000) return String(number);
  if (number < 1e6) return `${(number / 1000).toFixed(number < 1e4 ? 1 : 0)}k`;
  return `${(number / 1e6).toFixed(1)}M`;
}

/** "1 file", "2 files". @param {number} number @param {string} noun */
export const plural = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

/** The last name of a path. @param {string} path */
export const baseName = (path) => path.split(/[\\/]/).filter(Boolean).at(-1) ?? path;

/** A path, relative to *directory* if it is inside. @param {string} path @param {string} directory */
export function shortPath(path, directory) {
  return directory && path.startsWith(`${directory}/`) ? path.slice(directory.length + 1) : path;
}

/** The first line of a text, at most *most* characters. @param {string} text @param {number} [most] */
export function firstLine(text, most = 120) {
  const line = text.trim().split("\n", 1)[0] ?? "";
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

const OBEYED = "\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e0fff}";

/** Scripts and emoji need them, but not after an ASCII character, where they would make two commands look the same. */
const JOINING = "\\u00ad\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200c\\u200d\\u3164\\ufe00-\\ufe0f\\uffa0";

const UNSEEN = new RegExp(`[${OBEYED}]|(?<![^\\0-\\x7f])[${JOINING}]`, "gu");

/**
 * A text with the control characters replaced, and those that are not seen or make a line read in another order
 * than it is: what a person allows must look like what is done. @param {string} text
 */
export const visible = (text) => text.replaceAll("\r\n", "\n").replace(UNSEEN, (letter) => `<U+${(letter.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}>`);

/** The value of a JSON text; undefined if it is none. @param {string} text @returns {any} */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
