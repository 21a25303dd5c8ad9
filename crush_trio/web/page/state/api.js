// @ts-check
/** Requests of the page. One identity per page, and the header that no foreign page can send. */

import { ApiError, NoAnswer, Server, bounded, newId } from "/web/requests.js";

export { ApiError, NoAnswer, newId };

/** @param {string} text */
const part = (text) => encodeURIComponent(text);

export class Api extends Server {
  constructor() {
    super();
    this.headers["x-crush-trio"] = "page";
  }

  /** What this browser may do here. @returns {Promise<{ login: boolean, right: string | null, version: string, directory: string }>} */
  page() {
    return bounded((signal) => this.ask("GET", "/page", { signal }));
  }

  /** @param {{ token?: string, code?: string }} body */
  login(body) {
    return this.ask("POST", "/login", { body });
  }

  logout() {
    return this.ask("POST", "/logout");
  }

  /**
   * Host a directory and claim its workspace, or join it; returns its id.
   * @param {string} path @param {boolean} acts whether the person may do more than watch @returns {Promise<string>}
   */
  async claim(path, acts) {
    const body = { path, client_id: this.id };
    const { id } = await this.ask("POST", "/workspaces", { body });
    if (acts) await this.ask("POST", `/workspaces/${part(id)}/agent/init`, { body: { interactive: true } });
    return id;
  }

  /** The directory of a workspace that this browser has never seen. @param {string} workspace @returns {Promise<string>} */
  async pathOf(workspace) {
    return (await this.ask("GET", `/workspaces/${part(workspace)}`)).path;
  }

  /** Give up the claim on a workspace. @param {string} workspace */
  release(workspace) {
    const query = { client_id: this.id };
    this.ask("DELETE", `/workspaces/${part(workspace)}`, { query }).catch(() => {}); // it expires
  }

  /** @param {string} workspace */
  at(workspace) {
    return new WorkspaceApi(this, `/workspaces/${part(workspace)}`);
  }

  /** @param {string} q @param {AbortSignal} signal */
  search(q, signal) {
    return this.ask("GET", "/search", { query: { q, limit: "50" }, signal });
  }

  /** @param {number} days */
  usage(days) {
    return this.ask("GET", "/usage", { query: { days: String(days) } });
  }

  /** @param {{ path: string, old: string, new: string }} body @returns {Promise<{ html: string }>} */
  renderDiff(body) {
    return this.ask("POST", "/render/diff", { body });
  }
}

/** The routes of one workspace. */
export class WorkspaceApi {
  /** @param {Api} api @param {string} route */
  constructor(api, route) {
    this.api = api;
    this.route = route;
  }

  /** @param {string} method @param {string} path @param {import("/web/requests.js").Request} [request] @returns {Promise<any>} */
  ask(method, path, request) {
    return this.api.ask(method, this.route + path, request);
  }

  /**
   * The newest messages of a session, oldest first; those before *before*.
   * @param {string} session @param {number} limit @param {string} [before]
   */
  messages(session, limit, before) {
    const query = { limit: String(limit), ...(before && { before }) };
    return this.ask("GET", `/sessions/${part(session)}/messages`, { query });
  }

  /** @param {string} session @param {string} message */
  rendered(session, message) {
    return this.ask("GET", `/sessions/${part(session)}/messages/${part(message)}/rendered`);
  }

  /** @param {string} title */
  createSession(title) {
    return this.ask("POST", "/sessions", { body: { title } });
  }

  /** @param {string} session */
  session(session) {
    return this.ask("GET", `/sessions/${part(session)}`);
  }

  /** @param {string} session @param {string} title */
  async rename(session, title) {
    const whole = await this.session(session);
    await this.ask("PUT", `/sessions/${part(session)}`, { body: { ...whole, title } });
  }

  /** @param {string} session */
  deleteSession(session) {
    return this.ask("DELETE", `/sessions/${part(session)}`, { keepalive: true }); // also if the page is closed now
  }

  /**
   * Submit a prompt. Its run goes on when the page is closed; a lost answer is sent again under the same id.
   * @param {string} session @param {string} prompt @param {{ attachments?: object[], when_busy?: string, model?: object }} more
   */
  async submit(session, prompt, more) {
    const body = { session_id: session, run_id: newId(), prompt, when_unclaimed: "continue", interactive: true, ...more };
    for (let attempt = 1; ; attempt += 1) {
      try {
        await bounded((signal) => this.ask("POST", "/agent", { body, signal }));
        return body.run_id;
      } catch (error) {
        if (!(error instanceof NoAnswer) || attempt === 5) throw error;
        await new Promise((resolve) => setTimeout(resolve, 400 * attempt));
      }
    }
  }

  /** @param {string} session @param {boolean} keepQueue */
  cancel(session, keepQueue) {
    const query = { receipt: "1", ...(keepQueue && { queue: "keep" }) };
    return this.ask("POST", `/agent/sessions/${part(session)}/cancel`, { query });
  }

  /** @param {string} session */
  summarize(session) {
    return this.ask("POST", `/agent/sessions/${part(session)}/summarize`, { body: {} });
  }

  /** @param {string} session */
  queue(session) {
    return this.ask("GET", `/agent/sessions/${part(session)}/queue`);
  }

  /** @param {string} session @param {string} run @param {object} change */
  changeQueued(session, run, change) {
    return this.ask("PATCH", `/agent/sessions/${part(session)}/queue/${part(run)}`, { body: change });
  }

  /** Make a queued run the next one, and stop the active one. @param {string} session @param {string} run */
  sendNow(session, run) {
    return this.changeQueued(session, run, { interrupt: true });
  }

  /** @param {string} session @param {string} run */
  removeQueued(session, run) {
    return this.ask("DELETE", `/agent/sessions/${part(session)}/queue/${part(run)}`);
  }

  /** @param {{ id: string }} permission @param {object} answer */
  grant(permission, answer) {
    return this.ask("POST", "/permissions/grant", { body: { permission, ...answer } });
  }

  /** @param {string} batch @param {object[]} responses */
  answer(batch, responses) {
    return this.ask("POST", "/questions/answer", { body: { batch_request_id: batch, responses } });
  }

  /** @param {string} batch */
  decline(batch) {
    return this.ask("POST", "/questions/cancel", { body: { batch_request_id: batch } });
  }

  /** @param {string} session @param {number} limit */
  runs(session, limit) {
    return this.ask("GET", "/runs", { query: { session_id: session, limit: String(limit) } });
  }

  /** @param {string} run */
  timeline(run) {
    return this.ask("GET", `/runs/${part(run)}/timeline`);
  }

  tasks() {
    return this.ask("GET", "/tasks");
  }

  config() {
    return this.ask("GET", "/config");
  }

  agent() {
    return this.ask("GET", "/agent");
  }

  /** @param {object} model */
  selectModel(model) {
    return this.ask("POST", "/config/model", { body: { scope: 1, model_type: "large", model } });
  }
}
