// @ts-check
/** Addresses: `/`, `/?dir=…`, `/w/<workspace>/s/<session>`, with `/m/<message>` or `/r/<run>` behind it. */

const part = encodeURIComponent;

/** @typedef {{ workspace: string, session: string, message: string, run: string, directory: string }} Target */

export class Router {
  #follow = () => {};

  /** Call *follow* whenever the address changes, and take over links inside the page. @param {() => void} follow */
  listen(follow) {
    this.#follow = follow;
    addEventListener("popstate", follow);
    document.addEventListener("click", (event) => {
      const link = /** @type {Element} */ (event.target).closest?.("a[href^='/']");
      const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
      if (!link || !plain || link.getAttribute("target") || link.hasAttribute("download")) return;
      event.preventDefault();
      this.go(/** @type {string} */ (link.getAttribute("href")));
    });
  }

  /** @param {string} address */
  go(address) {
    if (address !== location.pathname + location.search) history.pushState(null, "", address);
    this.#follow();
  }

  /** Replace the workspace in the address. @param {string} workspace */
  correct(workspace) {
    const address = location.pathname.replace(/^\/w\/[^/]+/, () => `/w/${part(workspace)}`);
    if (address !== location.pathname) history.replaceState(null, "", address);
  }

  /** @returns {Target} */
  get target() {
    const names = location.pathname.split("/").map(decodeURIComponent);
    const after = (/** @type {string} */ letter, /** @type {number} */ at) => (names[at] === letter ? (names[at + 1] ?? "") : "");
    return {
      workspace: after("w", 1),
      session: after("s", 3),
      message: after("m", 5),
      run: after("r", 5),
      directory: new URLSearchParams(location.search).get("dir") ?? "",
    };
  }
}

/** The address of a session. @param {string} workspace @param {string} session */
export const sessionAddress = (workspace, session) => `/w/${part(workspace)}/s/${part(session)}`;

/**
 * A link that lasts: it also names the directory, because a workspace has another id after a restart.
 * @param {string} workspace @param {string} session @param {string} directory @param {{ message?: string, run?: string }} [what]
 */
export function lastingLink(workspace, session, directory, { message, run } = {}) {
  const what = message ? `/m/${part(message)}` : run ? `/r/${part(run)}` : "";
  return `${location.origin}${sessionAddress(workspace, session)}${what}?dir=${part(directory)}`;
}
