// A model key that is missing, rejected or exchanged, over both wires: chats say so before any effect, readiness shows it.

import assert from "node:assert/strict";
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, test } from "node:test";
import { openChat } from "./chat-client.mjs";
import { CHAT_COMPLETIONS, scripted, startDouble, startServer, until } from "./harness.mjs";

async function withServer(options, doubleArgs, body) {
  const double = await startDouble(...doubleArgs);
  try {
    const server = await startServer(double.url, options);
    try {
      await body(server, double);
    } finally {
      await server.remove();
    }
  } finally {
    await double.stop();
  }
}

/** What `/ready` says of the key; how commands are kept apart depends on the machine. */
const ready = async (server) => {
  const { isolation, ...state } = await (await fetch(`${server.url}/ready`)).json();
  assert.equal(typeof isolation.kind, "string");
  return state;
};
const answers = async (server) => {
  const chat = openChat("ai-7", server);
  await chat.send(scripted("Go.", [{ text: "Here." }]));
  return chat;
};
const refused = async (server) => {
  const chat = await answers(server);
  assert.deepEqual([chat.status, chat.posts()[0].status], ["error", 503]);
  assert.match(String(chat.error), /model_unavailable/);
  assert.equal((await server.json(`/agent/chat/${chat.id}/messages`)).status, 404, "nothing was done");
};

for (const [wire, env] of [["the Messages API", {}], ["chat completions", CHAT_COMPLETIONS]]) {
  describe(wire, { concurrency: false }, () => {
    test("a rejected key shows, a new one in its file is taken, a removed one is missing", async () => {
      await withServer({ env }, [], async (server, double) => {
        assert.deepEqual(await ready(server), { status: "ok" });
        await writeFile(join(server.folder, "key"), "invalid-key\n");
        await server.restart();
        const chat = await answers(server);
        assert.deepEqual([chat.status, chat.lastMessage.metadata.error.code], ["error", "model_unavailable"]);
        assert.deepEqual(await ready(server), { status: "degraded", reasons: ["ModelKeyRejected"] });
        await refused(server);
        await writeFile(join(server.folder, "key"), "a-good-key\n");
        await until("readiness", async () => (await ready(server)).status === "ok", 30_000);
        assert.equal((await answers(server)).status, "ready");
        await rm(join(server.folder, "key"));
        await server.restart();
        assert.deepEqual(await ready(server), { status: "degraded", reasons: ["ModelKeyMissing"] });
        await refused(server);
        const { body } = await server.json("/agent/models");
        assert.ok(body.models.every((model) => model.available === false));
        assert.deepEqual(await double.takeFailures(), []);
      });
    });
  });
}

test("a server of one's own needs no key, and one that does after all is a missing key", async () => {
  const env = { ...CHAT_COMPLETIONS, OPENAI_API_KEY_FILE: "" };
  await withServer({ env }, ["--keyless"], async (server) => {
    assert.deepEqual(await ready(server), { status: "ok" });
    assert.equal((await answers(server)).status, "ready");
  });
  await withServer({ env }, [], async (server, double) => {
    assert.equal((await answers(server)).lastMessage.metadata.error.code, "model_unavailable");
    assert.deepEqual(await ready(server), { status: "degraded", reasons: ["ModelKeyMissing"] });
    await refused(server);
    assert.deepEqual((await double.takeFailures()).map((failure) => failure.invariant), ["authorization"]);
  });
});
