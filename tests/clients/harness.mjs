// Starts the programs under test on free ports and stops them again. Knows nothing of what they answer.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";

const repository = resolve(import.meta.dirname, "../..");
const target = process.env.CARGO_TARGET_DIR ?? join(repository, "target");
/** The fixed token of servers in tests. */
export const TOKEN = "clients-token-0123456789abcdef0123456789";

function binary(variable, name) {
  return process.env[variable] ?? join(target, "debug", name);
}

/** What still runs ends with the tests, also when they are interrupted. */
const children = new Set();
process.on("exit", () => children.forEach((child) => child.kill("SIGKILL")));
for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => process.exit(1));

/** Runs a program whose first line of output is `listening on URL`. */
async function start(program, args, env = {}) {
  const child = spawn(program, args, { env: { PATH: process.env.PATH, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  children.add(child);
  child.once("exit", () => children.delete(child));
  const errors = [];
  child.stderr.on("data", (data) => errors.push(data));
  const log = () => Buffer.concat(errors).toString();
  const lines = createInterface({ input: child.stdout });
  const ended = once(child, "exit").then(([code, signal]) => ({ code, signal }));
  // A program that cannot be started at all also rejects here.
  const first = await within(10_000, `the first line of ${program}`, Promise.race([
    once(lines, "line").then(([line]) => line),
    once(child, "error").then(([error]) => { throw error; }),
    ended.then(({ code }) => { throw new Error(`${program} exited with ${code}: ${log()}`); }),
  ]));
  lines.resume();
  const url = /^listening on (http:\/\/\S+)/.exec(first)?.[1];
  if (!url) throw new Error(`unexpected first line: ${first}`);
  return {
    url,
    log,
    pid: child.pid,
    ended,
    kill: async (signal = "SIGKILL") => {
      child.kill(signal);
      return within(15_000, `the end of ${program}`, ended);
    },
    stop: async () => {
      if (child.exitCode === null && child.signalCode === null) child.kill("SIGTERM");
      return within(15_000, `the end of ${program}\n${log()}`, ended);
    },
  };
}

/** The server listens before it is ready and refuses until then. */
async function startReady(program, args, env) {
  const started = await start(program, args, env);
  await until("the server is ready", async () => (await fetch(`${started.url}/ready`)).ok, 20_000);
  return started;
}

/** The scripted model. */
export async function startDouble(...args) {
  const double = await start(binary("MODEL_DOUBLE_BIN", "model-double"), ["--port", "0", ...args]);
  const json = async (path, init) => (await fetch(double.url + path, init)).json();
  return {
    ...double,
    requests: () => json("/double/requests"),
    failures: async () => (await json("/double/failures")).failures,
    takeFailures: async () => (await json("/double/failures", { method: "DELETE" })).failures,
    body: (number) => json(`/double/requests/${number}`),
  };
}

/** The sandbox service. */
export async function startSandboxDouble(...args) {
  const double = await start(binary("VERCEL_DOUBLE_BIN", "vercel-double"), ["--port", "0", ...args]);
  const ask = async (path, body) => {
    const init = body && { method: "POST", body: JSON.stringify(body) };
    const response = await fetch(`${double.url}/double/${path}`, init);
    if (!response.ok) throw new Error(`${path}: ${await response.text()}`);
    return response.json();
  };
  return {
    ...double,
    calls: async () => (await ask("calls")).calls,
    failures: async () => (await ask("failures")).failures,
    running: async () => (await ask("running")).running,
    advance: (milliseconds) => ask("clock", { advance: milliseconds }),
    script: (fault) => ask("faults", fault),
  };
}

/** The environment of a server that speaks chat completions to the double. */
export const CHAT_COMPLETIONS = { BORING_AGENT_MODEL_PROVIDER: "openai", BORING_AGENT_MODEL: "scripted-model" };

/** A prompt that scripts the model: one list of actions for each model call. */
export function scripted(text, ...steps) {
  return `${text}\n\`\`\`model-script\n${JSON.stringify(steps)}\n\`\`\``;
}

/** The agent server with a workspace and state folder of its own; `restart` keeps both. */
export async function startServer(modelUrl, { env = {}, args = [] } = {}) {
  const folder = await mkdtemp(join(tmpdir(), "agent-clients-"));
  const workspace = join(folder, "workspace");
  const state = join(folder, "state");
  await mkdir(workspace);
  await mkdir(state);
  await writeFile(join(folder, "token"), `${TOKEN}\n`, { mode: 0o600 });
  await writeFile(join(folder, "key"), "scripted-key\n", { mode: 0o600 });
  const launch = () => startReady(binary("AGENT_SERVER_BIN", "agent-server"), [workspace, "--port", "0", ...args], {
    HOME: folder,
    BORING_AGENT_MODE: "direct",
    BORING_AGENT_STATE_DIR: state,
    BORING_AGENT_TOKEN_FILE: join(folder, "token"),
    BORING_AGENT_METRICS_PORT: "0",
    BORING_AGENT_MODEL_BASE_URL: modelUrl,
    BORING_AGENT_MODEL: "claude-scripted",
    ANTHROPIC_API_KEY_FILE: join(folder, "key"),
    OPENAI_API_KEY_FILE: join(folder, "key"),
    ...env,
  });
  const server = { folder, workspace, state };
  Object.assign(server, await launch().catch(async (error) => {
    await rm(folder, { recursive: true, force: true });
    throw error;
  }));
  server.restart = async (signal = "SIGTERM") => {
    await server.kill(signal);
    const { restart, remove, request, json } = server;
    Object.assign(server, await launch(), { restart, remove, request, json });
  };
  server.request = (path, init = {}) => fetch(`${server.url}/api/v1${path}`, {
    ...init,
    headers: { authorization: `Bearer ${TOKEN}`, ...(init.body ? { "content-type": "application/json" } : {}), ...init.headers },
  });
  server.json = async (path, init) => {
    const response = await server.request(path, init);
    const text = await response.text();
    return { status: response.status, headers: response.headers, body: text === "" ? undefined : JSON.parse(text) };
  };
  server.remove = async () => {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  };
  return server;
}

/** A promise with a limit that names what was waited for. */
export async function within(milliseconds, what, promise) {
  const limit = new AbortController();
  try {
    return await Promise.race([
      promise,
      pause(milliseconds, undefined, { signal: limit.signal }).then(() => {
        throw new Error(`not within ${milliseconds} ms: ${what}`);
      }),
    ]);
  } finally {
    limit.abort();
  }
}

/** Waits until a condition gives a truthy value. */
export async function until(what, condition, milliseconds = 10_000) {
  const deadline = Date.now() + milliseconds;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`not within ${milliseconds} ms: ${what}`);
    await pause(10);
  }
}
