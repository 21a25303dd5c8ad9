// @ts-check
/** Shapes of what the store keeps. */

/**
 * @typedef {{ id: string, workspace_id: string, title: string, group: "working" | "needs_you" | "idle", needs: string[],
 *   cost: number, tokens: number, model: { provider: string, model: string } | null, queue: number,
 *   run: { id: string, state: string, started_at: number } | null, updated_at: number, message_count: number }} RosterSession
 */
/** @typedef {{ id: string, path: string, name: string }} RosterWorkspace */
/** @typedef {{ workspace: string, session: string }} Place */
/** @typedef {"connecting" | "connected" | "reconnecting" | "paused" | "resynchronised" | "closed"} ConnectionState */

export {};
