// A background process outlives its turn, keeps the workspace busy, and ends when it is told to or with the server.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { openChat } from "./chat-client.mjs";
import { assertSameHistory, fixture } from "./chat-fixture.mjs";
import { scripted, until } from "./harness.mjs";

const running = fixture();
const activity = async () => (await running.server.json("/activity")).body;
const output = (chat, tool) => chat.lastMessage.parts.find((part) => part.type === `tool-${tool}`).output;
const isAlive = (pid) => { try { process.kill(pid, 0); return true; } catch { return false; } };

describe("a background process", { concurrency: false }, () => {
  const chat = () => openChat("ai-7", running.server);
  const start = (command) => scripted("Start it.", [{ tool: "bash", input: { command, background: true } }], [{ text: "It runs." }]);

  test("runs on after its turn and is ended by the model", async () => {
    const one = chat();
    await one.send(start("echo up; exec sleep 600"));
    const { details } = output(one, "bash");
    assert.deepEqual([details.processId, details.background, details.end], ["p1", true, null]);
    await assertSameHistory(running.server, one);
    const busy = await activity();
    assert.deepEqual([busy.turns, busy.processes, busy.reasons.includes("process")], [0, 1, true]);
    await one.send(scripted("End it.", [{ tool: "processes", input: { end: "p1" } }], [{ text: "Ended." }]));
    assert.match(output(one, "processes").content[0].text, /^p1: ended on request; /);
    await until("it is gone", async () => (await activity()).processes === 0, 30_000);
  });

  test("ends with the server", async () => {
    const one = chat();
    await one.send(start("echo $$; exec sleep 600"));
    const pid = Number(/^(\d+)$/m.exec(output(one, "bash").content[0].text)?.[1]);
    assert.ok(isAlive(pid), `${pid}`);
    await running.server.restart("SIGTERM");
    await until("it is gone", () => !isAlive(pid), 30_000);
    assert.equal((await activity()).processes, 0);
  });
});
