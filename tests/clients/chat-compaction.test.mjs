// A conversation that outgrows the model's context: the client sees a whole history, the model a summary, pi both.

import assert from "node:assert/strict";
import { copyFile, mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { SessionManager } from "@mariozechner/pi-coding-agent";
import { NEWEST, openChat } from "./chat-client.mjs";
import { assertSameHistory, checkedChunks, fixture } from "./chat-fixture.mjs";
import { scripted } from "./harness.mjs";

const running = fixture({ doubleArgs: ["--context-tokens", "6000"] });
const words = (count) => "word ".repeat(count);
let folder;
before(async () => { folder = await mkdtemp(join(tmpdir(), "agent-pi-")); });
after(() => rm(folder, { recursive: true, force: true }));

/** A copy of the session file; pi may write into what it opens. */
async function copyOf(sessionId) {
  const sessions = join(running.server.state, "sessions");
  const name = (await readdir(sessions)).find((candidate) => candidate.endsWith(`_${sessionId}.jsonl`));
  await copyFile(join(sessions, name), join(folder, name));
  return join(folder, name);
}

for (const version of NEWEST) {
  describe(version, { concurrency: false }, () => {
    test("goes on when the provider finds it too long, and nothing shown is lost", async () => {
      const chat = openChat(version, running.server);
      await chat.send(scripted(words(3_000), [{ text: "first" }]));
      await chat.send(scripted(words(2_500), [{ text: "second" }]));
      assert.equal(chat.status, "ready", String(chat.error));
      assert.equal(chat.messages.length, 4);
      await checkedChunks(chat.posts()[1]);
      await assertSameHistory(running.server, chat);
      await chat.send(scripted("On.", [{ text: "third" }]));
      assert.equal(chat.status, "ready", String(chat.error));
      await assertSameHistory(running.server, chat);

      const path = await copyOf(chat.id);
      const lines = (await readFile(path, "utf8")).trimEnd().split("\n").map((line) => JSON.parse(line));
      assert.equal(lines.filter((line) => line.type === "compaction").length, 1);
      const { messages } = SessionManager.open(path).buildSessionContext();
      assert.deepEqual(messages.map((message) => message.role), ["compactionSummary", "user", "assistant", "user", "assistant"]);
      assert.equal(messages[0].summary, lines.find((line) => line.type === "compaction").summary);
    });
  });
}
