// @ts-check
/** The directory of each workspace that this browser has seen: the id of a workspace ends with its server. */

const PATHS = "crush_trio.paths";
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

/** @param {string} workspace @param {string} path */
export function remember(workspace, path) {
  if (!workspace || directoryOf(workspace) === path) return;
  const paths = Object.entries({ ...known(), [workspace]: path }).slice(-KEPT);
  localStorage.setItem(PATHS, JSON.stringify(Object.fromEntries(paths)));
}
