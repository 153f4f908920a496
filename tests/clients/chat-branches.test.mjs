// What a POST means: new turn, repetition, regenerate, edit, retry after a refusal, automatic re-send.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { VERSIONS, history, openChat } from "./chat-client.mjs";
import { assertSameHistory, fixture } from "./chat-fixture.mjs";
import { scripted, startServer, until, within } from "./harness.mjs";

const running = fixture();
const texts = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text);
const post = (body) => running.server.json("/agent/chat", { method: "POST", body: JSON.stringify(body) });
const modelCalls = async () => (await running.double.requests()).counters.requests;
const userMessage = (text, id = crypto.randomUUID()) => ({ id, role: "user", parts: [{ type: "text", text }] });

for (const version of VERSIONS) {
  describe(version, { concurrency: false }, () => {
    const open = (options) => openChat(version, running.server, options);

    test("regenerate answers the last message again", async () => {
      const chat = open();
      await chat.send(scripted("One.", [{ text: "first" }]));
      const firstId = chat.lastMessage.id;
      await within(10_000, "the turn", chat.regenerate());
      assert.equal(chat.messages.length, 2);
      assert.notEqual(chat.lastMessage.id, firstId);
      await assertSameHistory(running.server, chat);
    });

    test("regenerate of an earlier answer drops what came after it", async () => {
      const chat = open();
      await chat.send(scripted("One.", [{ text: "first" }]));
      const earlier = chat.lastMessage.id;
      await chat.send(scripted("Two.", [{ text: "second" }]));
      await within(10_000, "the turn", chat.regenerate({ messageId: earlier }));
      assert.deepEqual(chat.messages.map((message) => message.role), ["user", "assistant"]);
      await assertSameHistory(running.server, chat);
      await chat.send(scripted("Three.", [{ text: "third" }]));
      await assertSameHistory(running.server, chat);
    });

    test("regenerate by a user message's id", async () => {
      const chat = open();
      await chat.send(scripted("One.", [{ text: "first" }]));
      await within(10_000, "the turn", chat.regenerate({ messageId: chat.messages[0].id }));
      assert.equal(chat.messages.length, 2);
      await assertSameHistory(running.server, chat);
    });

    test("an edit replaces the message and all after it", async () => {
      const chat = open();
      await chat.send(scripted("One.", [{ text: "first" }]));
      await chat.send(scripted("Two.", [{ text: "second" }]));
      await within(10_000, "the turn", chat.sendMessage({ text: scripted("One, edited.", [{ text: "edited" }]), messageId: chat.messages[0].id }));
      assert.equal(chat.status, "ready", String(chat.error));
      assert.deepEqual([chat.messages.length, texts(chat.lastMessage)], [2, ["edited"]]);
      await assertSameHistory(running.server, chat);
      await chat.send(scripted("On.", [{ text: "on" }]));
      await assertSameHistory(running.server, chat);
    });

    test("a busy session refuses a second message with its turn, and a retry by regenerate sends it", async () => {
      const first = open();
      const sending = first.send(scripted("Long.", [{ text: "a b c d e f g h i j", chunks: 10, delayMs: 100 }]));
      await until("the turn runs", () => first.lastMessage?.role === "assistant");
      const second = open({ id: first.id, messages: first.messages.slice(0, 1) });
      await second.send(scripted("Me too.", [{ text: "Your turn." }]));
      assert.equal(second.status, "error");
      const { error } = JSON.parse(second.error.message);
      assert.deepEqual([error.code, error.turnId], ["turn_in_progress", first.lastMessage.metadata.turnId]);
      assert.equal(second.posts()[0].status, 409);
      await sending;
      await within(10_000, "the retry", second.regenerate());
      assert.deepEqual([second.status, texts(second.lastMessage)], ["ready", ["Your turn."]]);
      assert.deepEqual((await history(running.server, first.id)).map((message) => message.role), ["user", "assistant", "user", "assistant"]);
    });
  });
}

describe("any client", { concurrency: false }, () => {
  test("a repeated POST is refused with the turn that it began, and the model is not asked again", async () => {
    const id = crypto.randomUUID();
    const message = userMessage(scripted("Once.", [{ text: "only once" }]));
    const first = await running.server.request("/agent/chat", { method: "POST", body: JSON.stringify({ id, messages: [message], trigger: "submit-message" }) });
    await first.text();
    const calls = await modelCalls();
    const second = await post({ id, messages: [message], trigger: "submit-message" });
    assert.deepEqual([second.status, second.body.error.code, second.body.error.turnId], [409, "already_exists", first.headers.get("x-turn-id")]);
    assert.equal(await modelCalls(), calls);
    assert.equal((await history(running.server, id)).length, 2);
  });

  test("an assistant message last is refused without effect", async () => {
    const id = crypto.randomUUID();
    const messages = [userMessage("a"), { id: "m2", role: "assistant", parts: [{ type: "text", text: "b" }] }];
    const answer = await post({ id, messages, trigger: "submit-message" });
    assert.deepEqual([answer.status, answer.body.error.code], [400, "validation_error"]);
    assert.equal((await running.server.json(`/agent/chat/${id}/messages`)).status, 404);
  });

  test("illegal ids and empty bodies are refused in the one error shape", async () => {
    const good = { id: "abc", messages: [userMessage("hi")] };
    for (const body of [{ ...good, id: "a/b" }, { ...good, id: "" }, { ...good, id: "x".repeat(129) }, { id: "abc" }, { id: "abc", messages: [] }, { id: "abc", messages: "x" }]) {
      const answer = await post(body);
      assert.deepEqual([answer.status, answer.body.error.code], [400, "validation_error"], JSON.stringify(body).slice(0, 80));
    }
    const noJson = await running.server.json("/agent/chat", { method: "POST", body: "{" });
    assert.deepEqual([noJson.status, noJson.body.error.code], [400, "validation_error"]);
  });

  test("a message may be a plain string with sessionId", async () => {
    const id = crypto.randomUUID();
    const response = await running.server.request("/agent/chat", { method: "POST", body: JSON.stringify({ sessionId: id, message: scripted("Hi.", [{ text: "plain" }]), anything: { else: 1 } }) });
    assert.equal(response.status, 200);
    assert.match(await response.text(), /"plain"/);
    assert.deepEqual((await history(running.server, id)).map((message) => message.role), ["user", "assistant"]);
  });

  test("without a token nothing is told", async () => {
    for (const authorization of ["", "Bearer wrong"]) {
      const response = await fetch(`${running.server.url}/api/v1/agent/chat`, { method: "POST", headers: { authorization, "content-type": "application/json" }, body: JSON.stringify({ id: "abc", messages: [userMessage("hi")] }) });
      assert.ok([401, 403].includes(response.status), String(response.status));
      assert.match((await response.json()).error.code, /^auth_/);
    }
  });
});

describe("a key that the provider rejects", { concurrency: false }, () => {
  test("is an error of the turn at first and a refusal without effect from then on", async () => {
    const server = await startServer(running.double.url);
    try {
      const { writeFile } = await import("node:fs/promises");
      const { join } = await import("node:path");
      await writeFile(join(server.folder, "key"), "invalid-key\n");
      await server.restart();
      const chat = openChat("ai-7", server);
      await chat.send("Hello");
      assert.equal(chat.status, "error");
      await until("readiness tells it", async () => {
        const ready = await (await fetch(`${server.url}/ready`)).json();
        return ready.status === "degraded" && ready.reasons.includes("ModelKeyRejected");
      });
      const id = crypto.randomUUID();
      const refused = await server.json("/agent/chat", { method: "POST", body: JSON.stringify({ id, messages: [userMessage("hi")] }) });
      assert.deepEqual([refused.status, refused.body.error.code], [503, "model_unavailable"]);
      assert.equal((await server.json(`/agent/chat/${id}/messages`)).status, 404);
      assert.ok(!server.log().includes("invalid-key"));
    } finally {
      await server.remove();
    }
  });
});
