// @ts-check
/** The directory of each workspace that this browser has seen: the id of a workspace ends with its server. */

const PATHS = "crush_trio.paths";
const LAST = "crush_trio.last";
const KEPT = 50;

/** @returns {Record<string, string>} */
function known() {
  try {
    return JSON.parse(localStorage.getItem(PATHS) ?? "{}");
  } catch {
    return {};
  }
}

/** @param {string} workspace */
export const directoryOf = (workspace) => known()[workspace] ?? "";

/** The directory that was used last. */
export const lastDirectory = () => localStorage.getItem(LAST) ?? "";

/** @param {string} workspace @param {string} path */
export function remember(workspace, path) {
  localStorage.setItem(LAST, path);
  if (!workspace || directoryOf(workspace) === path) return;
  const paths = Object.entries({ ...known(), [workspace]: path }).slice(-KEPT);
  localStorage.setItem(PATHS, JSON.stringify(Object.fromEntries(paths)));
}
