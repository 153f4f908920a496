// The AI SDK's own chat class and transport on the running server, with everything that crossed the wire recorded.

import { TOKEN, within } from "./harness.mjs";

/** The clients that must work unchanged: oldest and newest of both majors, and the first that resume without duplicates. */
export const VERSIONS = ["ai-6-first", "ai-6-resume", "ai-6", "ai-7-first", "ai-7-resume", "ai-7"];
/** Those that can resume. */
export const RESUMING = ["ai-6-resume", "ai-6", "ai-7-resume", "ai-7"];
/** The newest of both. */
export const NEWEST = ["ai-6", "ai-7"];

const sdks = new Map(await Promise.all(VERSIONS.map(async (name) => [name, await import(name)])));

/** The exports of a version. */
export function sdk(name) {
  return sdks.get(name);
}

/** The smallest state that the chat class accepts. */
class State {
  status = "ready";
  error = undefined;
  constructor(messages) {
    this.messages = messages;
  }
  pushMessage = (message) => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (index, message) => { this.messages = this.messages.with(index, structuredClone(message)); };
  snapshot = (value) => structuredClone(value);
}

/**
 * A chat of one SDK version on one session. `exchanges` holds each request with its status and, once the body has
 * ended, its bytes. `cutAfter` breaks the next answer after so many frames, as a lost network does.
 */
export function openChat(version, server, { id = crypto.randomUUID(), messages = [], transport = {}, ...options } = {}) {
  const { AbstractChat, DefaultChatTransport } = sdk(version);
  const wire = { exchanges: [], cutAfter: undefined, finishes: [], data: [], errors: [] };
  const recordingFetch = async (url, init) => {
    const exchange = { method: init.method, url: String(url), body: init.body && JSON.parse(init.body), bytes: "" };
    wire.exchanges.push(exchange);
    const response = await fetch(url, init);
    exchange.status = response.status;
    exchange.headers = response.headers;
    if (!response.ok || response.body === null) return response;
    const cutAfter = wire.cutAfter;
    wire.cutAfter = undefined;
    return new Response(record(response.body, exchange, cutAfter), response);
  };
  class Chat extends AbstractChat {
    constructor() {
      super({
        id,
        transport: new DefaultChatTransport({
          api: `${server.url}/api/v1/agent/chat`,
          headers: { authorization: `Bearer ${TOKEN}` },
          fetch: recordingFetch,
          ...transport,
        }),
        state: new State(messages),
        onError: (error) => wire.errors.push(error),
        onFinish: (finish) => wire.finishes.push(finish),
        onData: (part) => wire.data.push(part),
        ...options,
      });
    }
  }
  const chat = new Chat();
  return Object.assign(chat, {
    wire,
    send: (text, more) => within(60_000, "the end of the turn", chat.sendMessage({ text }, more)),
    posts: () => wire.exchanges.filter((exchange) => exchange.method === "POST"),
  });
}

/** Passes a body on and keeps its text; with `cutAfter`, fails after that many frames. */
function record(body, exchange, cutAfter) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let pending = "";
  let frames = 0;
  return new ReadableStream({
    async pull(controller) {
      for (;;) {
        if (cutAfter !== undefined && frames >= cutAfter) {
          await reader.cancel();
          return controller.error(new TypeError("network error"));
        }
        const end = pending.indexOf("\n\n");
        if (end >= 0) {
          const frame = pending.slice(0, end + 2);
          pending = pending.slice(end + 2);
          exchange.bytes += frame;
          frames += /^data: /m.test(frame) ? 1 : 0;
          return controller.enqueue(new TextEncoder().encode(frame));
        }
        const { done, value } = await reader.read();
        if (done) {
          exchange.ended = true;
          exchange.rest = pending;
          return controller.close();
        }
        pending += decoder.decode(value, { stream: true });
      }
    },
    cancel: (reason) => reader.cancel(reason),
  });
}

/** The frames of a stream as `{id, data}`, comments left out. Fails on anything that the contract does not allow. */
export function frames(bytes) {
  const found = [];
  for (const block of bytes.split("\n\n").filter((block) => block !== "")) {
    const frame = {};
    for (const line of block.split("\n")) {
      if (line.startsWith(":")) continue;
      const [, field, value] = /^(id|data): (.*)$/.exec(line) ?? [];
      if (!field || field in frame) throw new Error(`a line that is not allowed: ${JSON.stringify(line)}`);
      frame[field] = value;
    }
    if ("data" in frame) found.push(frame);
    else if ("id" in frame) throw new Error(`an id without data: ${block}`);
  }
  return found;
}

/** The chunks of a stream that ended well, checked for framing: ids rise, `[DONE]` is last. */
export function chunks(bytes) {
  const all = frames(bytes);
  if (all.at(-1)?.data !== "[DONE]") throw new Error(`the stream does not end with [DONE]: ${bytes.slice(-300)}`);
  const ids = all.slice(0, -1).map(({ id }) => /^([A-Za-z0-9_-]+):(\d+)$/.exec(id ?? ""));
  ids.forEach((id, index) => {
    if (!id) throw new Error(`a frame without an id: ${JSON.stringify(all[index])}`);
    if (index > 0 && (id[1] !== ids[0][1] || Number(id[2]) <= Number(ids[index - 1][2]))) {
      throw new Error(`ids do not rise: ${ids[index - 1][0]} then ${id[0]}`);
    }
  });
  return all.slice(0, -1).map(({ data }) => JSON.parse(data));
}

/** Why the SDKs' own schemas refuse chunks; an empty list when none does. */
export async function schemaFaults(allChunks) {
  const faults = [];
  for (const version of ["ai-6-first", "ai-6", "ai-7-first", "ai-7"]) {
    const { asSchema, uiMessageChunkSchema } = sdk(version);
    const schema = asSchema(uiMessageChunkSchema);
    for (const chunk of allChunks) {
      const result = await schema.validate(chunk);
      if (!result.success) faults.push({ version, chunk, error: String(result.error?.message ?? result.error).slice(0, 300) });
    }
  }
  return faults;
}

/** Broken rules of order within a turn; an empty list when the stream is well formed. */
export function orderFaults(allChunks) {
  const faults = [];
  const open = new Set();
  const tools = new Map();
  let inStep = false;
  allChunks.forEach((chunk, index) => {
    const { type } = chunk;
    const last = index === allChunks.length - 1;
    const note = (fault) => faults.push(`${index} ${type}: ${fault}`);
    if ((index === 0) !== (type === "start")) note("`start` is chunk 1 and only there");
    if (["finish", "abort", "error"].includes(type) !== last) note("the last chunk and only it is terminal");
    if (type === "start-step") {
      if (inStep) note("a step in a step");
      inStep = true;
    } else if (type === "finish-step") {
      if (open.size > 0) note(`open parts: ${[...open]}`);
      for (const [id, state] of tools) if (state !== "done") note(`open call ${id}`);
      if (!inStep) note("no step is open");
      inStep = false;
    } else if (/^(text|reasoning|tool)-/.test(type) && !inStep) note("outside a step");
    const part = /^(text|reasoning)-(start|delta|end)$/.exec(type);
    if (part) {
      const key = `${part[1]} ${chunk.id}`;
      if ((part[2] === "start") === open.has(key)) note(`part ${key}`);
      if (part[2] === "start") open.add(key);
      if (part[2] === "end") open.delete(key);
    }
    if (type.startsWith("tool-")) {
      const state = tools.get(chunk.toolCallId);
      const expected = { "tool-input-start": [undefined], "tool-input-delta": ["input"], "tool-input-available": ["input"], "tool-output-available": ["ready"], "tool-output-error": ["ready"] }[type];
      if (!expected?.includes(state)) note(`call ${chunk.toolCallId} is ${state}`);
      if (type !== "tool-input-delta" && chunk.providerExecuted !== true) note("providerExecuted is missing");
      const next = { "tool-input-start": "input", "tool-input-available": "ready", "tool-output-error": "done" }[type];
      if (next) tools.set(chunk.toolCallId, next);
      if (type === "tool-output-available" && !chunk.preliminary) tools.set(chunk.toolCallId, "done");
    }
    if (last && inStep) note("a step is open at the end");
  });
  return faults;
}

/** A message as it is compared: sorted keys, without reasoning ids and file URLs, without absent values. */
export function comparable(message) {
  const sort = (value) => {
    if (Array.isArray(value)) return value.map(sort);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.keys(value).sort().filter((key) => value[key] !== undefined).map((key) => [key, sort(value[key])]));
  };
  const parts = message.parts.map((part) => {
    if (part.type === "reasoning") return { ...part, id: undefined };
    if (part.type === "file") return { ...part, url: undefined };
    return part;
  });
  return sort({ ...message, parts });
}

/** What the server's history says. */
export async function history(server, sessionId) {
  const { status, body } = await server.json(`/agent/chat/${sessionId}/messages`);
  if (status !== 200) throw new Error(`GET messages answered ${status}: ${JSON.stringify(body)}`);
  return (Array.isArray(body) ? body : body.messages).map(comparable);
}
