// The server is killed at many points of a turn: what was acknowledged stays, the turn is marked, the session goes on,
// and what the model is then told is a right conversation.

import assert from "node:assert/strict";
import { setTimeout as pause } from "node:timers/promises";
import { test } from "node:test";
import { comparable, history, openChat } from "./chat-client.mjs";
import { fixture } from "./chat-fixture.mjs";
import { scripted, within } from "./harness.mjs";

const running = fixture();
/** Points in time after the POST, spread over a turn of about 900 ms, its start more densely. */
const MOMENTS = [0, 2, 5, 10, 20, 40, 80, 150, 250, 350, 450, 550, 650, 750, 850, 950];
const thinking = { transport: { body: { thinkingLevel: "low" } } };

test("a kill at any moment loses nothing that was shown as done, and the session goes on", async () => {
  const id = crypto.randomUUID();
  let known = [];
  for (const moment of MOMENTS) {
    const chat = openChat("ai-7", running.server, { id, messages: known, ...thinking });
    const sending = chat.send(scripted(
      `Killed after ${moment} ms.`,
      [{ thinking: "Two things.", chunks: 2, delayMs: 30 }, { text: "I run both.", chunks: 3, delayMs: 30 }, { tool: "bash", input: { command: "echo a; sleep 0.2; echo b" }, chunkBytes: 16, delayMs: 10 }, { tool: "write", input: { path: "k.txt", content: "hi\n" }, chunkBytes: 16, delayMs: 10 }],
      [{ text: "All is done.", chunks: 4, delayMs: 40 }],
    ));
    await pause(moment);
    const finished = chat.wire.finishes.length > 0;
    await running.server.restart("SIGKILL");
    await within(10_000, "the client's end", sending);
    const after = await history(running.server, id).catch((error) => {
      // The very first turn may not have begun; then the session does not exist either.
      if (known.length === 0 && / 404/.test(error.message)) return [];
      throw error;
    });
    assert.deepEqual(after.slice(0, known.length), known.map(comparable), `after ${moment} ms the earlier turns are as they were`);
    const turn = after.slice(known.length);
    const acknowledged = chat.posts()[0].status === 200;
    assert.ok(turn.length === 2 || (turn.length === 0 && !acknowledged), `after ${moment} ms: ${JSON.stringify(turn.map((message) => message.role))}`);
    if (finished) assert.deepEqual(comparable(chat.lastMessage), turn[1]);
    else if (turn.length === 2 && turn[1].metadata.durationMs === undefined) assert.deepEqual([turn[1].metadata.status, turn[1].metadata.reason], ["aborted", "crash"]);
    const next = openChat("ai-7", running.server, { id, messages: after, ...thinking });
    await next.send(scripted("Go on.", [{ thinking: "Fine." }, { text: `On after ${moment}.` }]));
    assert.equal(next.status, "ready", `after ${moment} ms: ${next.error}`);
    known = await history(running.server, id);
    assert.deepEqual(next.messages.map(comparable), known);
  }
});
