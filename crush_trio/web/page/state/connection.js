// @ts-check
/** The one event stream of the page: connects, resumes, and says how it stands. */

import { ApiError, NoAnswer, backoff, passes, reasonOf, sleep } from "/web/requests.js";
import { SseParser, StreamBroken } from "/web/stream.js";
import { openPages } from "./pages.js";

const PAUSED = "Many pages of this server are open in this browser. This one goes on when you use it.";
const CONNECT_LIMIT = 10_000; // milliseconds
const ROSTER_SILENCE = 60_000; // a stream without a workspace says in `ready` when it is dead; until then, this

/** @typedef {import("/web/stream.js").Frame} Frame */
/**
 * @typedef {{ place: () => string, silence: () => number, frame: (frame: Frame) => void, lost: () => void,
 *   state: (state: "connecting" | "connected" | "reconnecting" | "paused", reason?: string) => void,
 *   gone: (error: ApiError) => Promise<boolean> }} Listener
 * What a connection asks of its owner: the id of the last event, how long silence may last, what to do with a frame,
 * to forget the place, to show the state, and whether to go on after a refusal.
 */

/** One stream, until it is stopped. */
export class Connection {
  #stop = new AbortController();

  /** @param {import("./api.js").Api} api @param {Record<string, string>} query @param {Listener} listener */
  constructor(api, query, listener) {
    this.api = api;
    this.query = query;
    this.listener = listener;
  }

  stop() {
    this.#stop.abort();
  }

  /** Connect at once instead of after the pause: the machine woke up, or the network is back. */
  hurry() {
    this.nudge?.abort();
  }

  async run() {
    const pauses = backoff();
    const stopped = this.#stop.signal;
    this.listener.state("connecting");
    while (!stopped.aborted) {
      if (openPages.crowded) {
        this.listener.state("paused", PAUSED);
        await openPages.room(stopped);
        if (!stopped.aborted) this.listener.state("connecting");
        continue;
      }
      const began = Date.now();
      /** @type {any} */ let why;
      try {
        await this.#read();
        why = new NoAnswer("the server ended the stream");
      } catch (error) {
        why = error;
      }
      if (stopped.aborted) return;
      if (openPages.crowded) continue;
      if (why instanceof StreamBroken) this.listener.lost();
      else if (!passes(why) && !(await this.listener.gone(why))) return;
      if (stopped.aborted) return;
      this.listener.state("reconnecting", why.message);
      this.nudge = new AbortController();
      stopped.addEventListener("abort", () => this.nudge?.abort(), { once: true });
      await sleep(pauses.next(Date.now() - began), this.nudge.signal).catch(() => {});
    }
  }

  /** Read one stream until it ends. */
  async #read() {
    const stop = new AbortController();
    const end = () => stop.abort();
    this.#stop.signal.addEventListener("abort", end, { once: true });
    const silent = () => stop.abort(new NoAnswer("nothing was heard from the server for too long"));
    let timer = setTimeout(silent, CONNECT_LIMIT);
    const leave = openPages.on(() => openPages.crowded && stop.abort(new NoAnswer(PAUSED)));
    try {
      const headers = { ...(this.query.workspace && { "last-event-id": this.listener.place() }) };
      const response = await this.api.send("GET", "/events", { query: this.query, headers, signal: stop.signal });
      const parser = new SseParser();
      const body = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
      for (let first = true; ; first = false) {
        const { done, value } = await body.read();
        if (done) return;
        if (first) this.listener.state("connected");
        clearTimeout(timer);
        for (const frame of parser.feed(value)) this.listener.frame(frame);
        timer = setTimeout(silent, Math.min(this.listener.silence(), ROSTER_SILENCE));
      }
    } catch (error) {
      if (error instanceof ApiError || error instanceof StreamBroken || error instanceof NoAnswer) throw error;
      throw new NoAnswer(`the connection broke: ${reasonOf(error)}`, error);
    } finally {
      leave();
      clearTimeout(timer);
      this.#stop.signal.removeEventListener("abort", end);
      stop.abort();
    }
  }
}
