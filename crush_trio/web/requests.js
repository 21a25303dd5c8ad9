// @ts-check
/** Requests to a server, the errors they throw, and waits that a signal can abort. */

/** @typedef {{ signal?: AbortSignal }} Abortable */
/** @typedef {Abortable & { body?: unknown, query?: Record<string, string>, headers?: Record<string, string>,
 *   keepalive?: boolean }} Request */
/** @typedef {typeof globalThis.fetch} Fetch */

const FIRST_PAUSE = 250; // milliseconds
const LONGEST_PAUSE = 10_000;
const ANSWER_LIMIT = 30_000;

/** The server refused a request. `code` is for programs, the message for people. */
export class ApiError extends Error {
  /** @param {number} status @param {{ message?: string, code?: string, detail?: string }} body */
  constructor(status, body) {
    super([body.message || `the server answered ${status}`, body.detail].filter(Boolean).join(": "));
    this.name = "ApiError";
    this.status = status;
    this.code = body.code ?? "";
    this.detail = body.detail ?? "";
  }
}

/** There was no answer: the server is away, or the connection broke. What was asked may have been done. */
export class NoAnswer extends Error {
  /** @param {string} message @param {unknown} [cause] */
  constructor(message, cause) {
    super(message, { cause });
    this.name = "NoAnswer";
    this.code = "no_answer";
  }
}

/** The workspace was closed with `close()`. */
export class Closed extends Error {
  constructor() {
    super("the workspace has been closed; open it again with client.open()");
    this.name = "Closed";
    this.code = "closed";
  }
}

/** A run did not complete; `run` says how it ended. Thrown by `run.text()`. */
export class RunNotCompleted extends Error {
  /** @param {import("./stream.js").RunView} run */
  constructor(run) {
    super(run.error ? `${run.state}: ${run.error}` : run.state);
    this.name = "RunNotCompleted";
    this.code = run.state;
    this.run = run;
  }
}

/** Requests to one server. */
export class Server {
  /**
   * `url` is the server's, by default that of the page. `token` goes into the `Authorization` header. `clientId`
   * is a UUID, by default a new one; programs with the same one share their claims.
   * @param {{ url?: string, token?: string, clientId?: string, fetch?: Fetch }} [options]
   */
  constructor({ url = globalThis.location?.origin, token, clientId = newId(), fetch = globalThis.fetch } = {}) {
    if (!url || !isHttp(url)) throw new TypeError("new Client() needs the url of the server, such as http://127.0.0.1:8765");
    // What `fetch` says of it has the token in it.
    if (/[^\x20-\x7e]/.test(token?.trim() ?? "")) throw new TypeError("the token has a character that no header may have");
    this.url = url.replace(/\/+$/, "");
    this.id = clientId;
    this.fetch = fetch.bind(globalThis);
    /** @type {Record<string, string>} */
    this.headers = { "x-crush-client-id": clientId, ...(token && { authorization: `Bearer ${token}` }) };
  }

  /**
   * Send a request and return the response; throws `ApiError` for a refusal, `NoAnswer` for none.
   * @param {string} method @param {string} path @param {Request} [request]
   */
  async send(method, path, { body, query, headers, signal, keepalive } = {}) {
    const search = query ? `?${new URLSearchParams(query)}` : "";
    const json = /** @type {Record<string, string>} */ (body === undefined ? {} : { "content-type": "application/json" });
    const response = await this.#answered(signal, () =>
      this.fetch(`${this.url}/v1${path}${search}`, {
        method,
        headers: { ...this.headers, ...json, ...headers },
        body: body === undefined ? undefined : JSON.stringify(body),
        signal,
        keepalive,
        cache: "no-store",
      }),
    );
    if (response.ok) return response;
    const text = await this.#answered(signal, () => response.text());
    const told = parsed(text);
    if (lost(response.status, told)) throw new NoAnswer(`${this.url} lost the answer: status ${response.status}`);
    throw new ApiError(response.status, told ?? { message: text.slice(0, 200) });
  }

  /**
   * Send a request and return its answer; null if it has none, the text of a file. Throws `ApiError` if it is not JSON.
   * @param {string} method @param {string} path @param {Request} [request] @returns {Promise<any>}
   */
  async ask(method, path, request = {}) {
    const response = await this.send(method, path, request);
    const text = await this.#answered(request.signal, () => response.text());
    if (response.headers.get("content-disposition")?.startsWith("attachment")) return text;
    const answer = text === "" ? null : parsed(text);
    if (answer === undefined) throw this.garbled(response.status);
    return answer;
  }

  /** The error of an answer that makes no sense. @param {number} [status] */
  garbled(status = 200) {
    const message = `the answer makes no sense; probably another program listens at ${this.url}`;
    return new ApiError(status, { message, code: "answer_garbled" });
  }

  /** @template T @param {AbortSignal | undefined} signal @param {() => Promise<T>} wait @returns {Promise<T>} */
  async #answered(signal, wait) {
    try {
      return await wait();
    } catch (error) {
      signal?.throwIfAborted();
      throw new NoAnswer(`no answer from ${this.url}: ${reasonOf(error)}`, error);
    }
  }
}

/** Whether *url*, perhaps relative to the page, is one for `fetch`. @param {string} url */
function isHttp(url) {
  try {
    return /^https?:$/.test(new URL(url, globalThis.location?.href).protocol);
  } catch {
    return false;
  }
}

/** Return the value; undefined if *text* is not JSON. @param {string} text @returns {any} */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @param {any} error */
export const reasonOf = (error) => String(error?.cause?.message || error?.message || error);

/** Return a new UUID. `crypto` is missing in Node 18 and in pages without TLS; there it need only be unique. */
export function newId() {
  if (globalThis.crypto?.randomUUID) return globalThis.crypto.randomUUID();
  const digit = (/** @type {string} */ d) => ((d === "x" ? 0 : 8) + Math.random() * (d === "x" ? 16 : 4)) & 15;
  return "xxxxxxxx-xxxx-4xxx-yxxx-xxxxxxxxxxxx".replace(/[xy]/g, (d) => digit(d).toString(16));
}

/** Wait; an abort rejects. @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
export async function sleep(ms, signal) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */ let timer;
  try {
    await until(new Promise((resolve) => (timer = setTimeout(resolve, ms))), signal);
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Return the answer; throws `NoAnswer` if it does not come in time: a network can fail silently.
 * @template T @param {(signal: AbortSignal) => Promise<T>} ask @param {AbortSignal} [signal] @param {number} [ms] @returns {Promise<T>}
 */
export async function bounded(ask, signal, ms = ANSWER_LIMIT) {
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(new NoAnswer(`there was no answer for ${ms / 1000} seconds`)), ms);
  try {
    return await until(ask(stop.signal), signal);
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

/**
 * Return the result of *promise*; an abort rejects at once.
 * @template T @param {Promise<T>} promise @param {AbortSignal | undefined} signal @returns {Promise<T>}
 */
export async function until(promise, signal) {
  if (!signal) return promise;
  promise.catch(() => {}); // after an abort nobody waits for it
  signal.throwIfAborted();
  let stop = () => {};
  const aborted = new Promise((_, reject) => {
    stop = () => reject(signal.reason);
    signal.addEventListener("abort", stop);
  });
  try {
    return await Promise.race([promise, /** @type {Promise<never>} */ (aborted)]);
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

/** Return the pauses between attempts; they begin again after an attempt that *lasted* longer than the last pause. */
export function backoff() {
  let pause = 0;
  return { next: (lasted = 0) => (pause = lasted >= pause ? FIRST_PAUSE : Math.min(2 * pause, LONGEST_PAUSE)) };
}

/**
 * Whether a proxy, or another node of a cluster, says that its own connection broke: the request may have been carried
 * out. Our servers give every error a code. @param {number} status @param {any} told
 */
function lost(status, told) {
  return told?.code === "forward_lost" || (!told?.code && (status === 502 || status === 504));
}

/** Whether to try again: the server is away or busy, and the request was valid. @param {any} error */
export function passes(error) {
  return error instanceof NoAnswer || (error instanceof ApiError && (error.status >= 500 || error.code === "workspace_closing"));
}

/** Return the answer, or null if its subject does not exist. @param {Promise<any>} answer */
export async function unlessGone(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404 && error.code !== "workspace_not_found") return null;
    throw error;
  }
}
